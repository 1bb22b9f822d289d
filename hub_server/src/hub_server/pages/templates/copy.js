// The copy buttons: shown by this script alone, since they do nothing without it.
for (const box of document.querySelectorAll(".copy")) {
  const [text, button] = [box.querySelector("pre").textContent, box.querySelector("button")];
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select the text instead";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
}

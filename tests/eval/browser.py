"""A real browser for tests: headless Chromium, driven through its DevTools protocol. Real mouse clicks and keys.

``Browser.visitor`` opens a tab with cookies and storage of its own, as another person's browser would have.
"""

import asyncio
import itertools
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_SECONDS = 60
_SWITCHES = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-default-apps", "--disable-extensions", "--disable-sync", "--mute-audio",
    "--disable-dev-shm-usage", "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows", "--disable-background-timer-throttling", "--remote-debugging-port=0",
)  # fmt: skip
_RECORD = """(() => {
  const original = window.fetch;
  window.received = [];
  window.fetch = async (...request) => {
    const answer = await original(...request);
    const reader = answer.clone().body?.pipeThrough(new TextDecoderStream()).getReader();
    const place = window.received.push("") - 1;
    const read = () => reader.read().then(({ done, value }) => { if (!done) { received[place] += value; read(); } });
    if (reader) read();
    return answer;
  };
})()"""
_MIDDLE = """(async () => {
  const element = document.querySelector(%s);
  if (!element) return null;
  element.scrollIntoView({ block: "center" });
  const before = element.getBoundingClientRect();
  await new Promise((done) => setTimeout(done, 100));
  const box = element.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
  return box.x === before.x && box.y === before.y && element.contains(document.elementFromPoint(x, y)) ? [x, y] : null;
})()"""
_KEYS = {"Enter": (13, "\r"), "ArrowLeft": (37, ""), "ArrowRight": (39, "")}


class Browser:
    """One Chromium with a profile of its own in ``directory``; a context manager."""

    def __init__(self, directory: Path):
        assert CHROMIUM is not None
        self._log = (directory / "chromium.log").open("wb")
        command = [CHROMIUM, *_SWITCHES, f"--user-data-dir={directory / 'profile'}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self._loop = asyncio.new_event_loop()
        self._numbers = itertools.count(1)
        self._tabs: dict[str, Tab] = {}
        self._loop.run_until_complete(self._connect(directory / "profile" / "DevToolsActivePort"))

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.command("Browser.close")
        self._loop.run_until_complete(self._session.close())
        self._loop.close()
        self._process.wait(_SECONDS)
        self._log.close()

    def visitor(self) -> "Tab":
        """A tab in a browser context of its own, with an empty storage."""
        context = self.command("Target.createBrowserContext")["browserContextId"]
        target = self.command("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Network", "Runtime"):
            self._tabs[session].command(f"{domain}.enable")
        self._tabs[session].command("Emulation.setFocusEmulationEnabled", enabled=True)  # each its own window
        self._tabs[session].command("Page.addScriptToEvaluateOnNewDocument", source=_RECORD)
        return self._tabs[session]

    def command(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its result; what tabs report meanwhile is kept with them."""
        return self._loop.run_until_complete(self._command(method, session, parameters))

    async def _connect(self, port_file: Path) -> None:
        deadline = time.monotonic() + _SECONDS
        while not port_file.is_file() or len(port_file.read_text().split()) < 2:
            assert self._process.poll() is None and time.monotonic() < deadline, "Chromium does not start"
            await asyncio.sleep(0.05)
        port, path = port_file.read_text().split()
        self._session = aiohttp.ClientSession()
        self._socket = await self._session.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=0)

    async def _command(self, method: str, session: str | None, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        while True:
            answer = await self._socket.receive_json(timeout=_SECONDS)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            if answer.get("sessionId") in self._tabs:
                self._tabs[answer["sessionId"]].events.append(answer)


class Tab:
    """One page. ``events`` holds what the DevTools protocol reported about it."""

    def __init__(self, browser: Browser, session: str):
        self._browser, self._session = browser, session
        self.events: list[dict[str, Any]] = []

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.command(method, self._session, **parameters)

    def open(self, url: str) -> None:
        self.command("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The JSON value of a JavaScript expression; promises are awaited."""
        answer = self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str) -> Any:
        """The value of an expression as soon as it is true."""
        deadline = time.monotonic() + _SECONDS
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"never true: {script}\n{self.run('document.body.innerText')}"
            time.sleep(0.05)
        return value

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of the element, once it is there and no longer moves."""
        x, y = self.wait(_MIDDLE % json.dumps(selector))
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Enter text where the focus is."""
        self.command("Input.insertText", text=text)

    def key(self, key: str) -> None:
        """Press and release a key: a digit, Enter, ArrowLeft, ArrowRight."""
        code, text = _KEYS.get(key) or (ord(key), key)
        for kind in ("keyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, key=key, text=text, windowsVirtualKeyCode=code)

    def text(self) -> str:
        """What a person can read on the page, the contents of text boxes included."""
        script = (
            "[document.body.innerText, ...[...document.querySelectorAll('textarea')].map(e => e.value)].join('\\n')"
        )
        return self.run(script)

    def urls(self) -> list[str]:
        """The address of every request that the page made."""
        self.run("0")  # reads what has been reported until now
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def received(self) -> list[str]:
        """The text of every answer to a fetch since the page was opened, streams included."""
        return self.run("window.received")

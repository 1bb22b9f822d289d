"""Every command that a command prints as the next step works as printed; an encoder's last lines of Python run."""

import shlex
from types import SimpleNamespace

from command_outcomes import Outcome, outcome_of

from eval.audit.annotate import Page
from hub.assets import asset
from sts_dino.adapt import following
from sts_dino.cli import new_app

pytest_plugins = ["local_hub"]
TEXTS = (asset("source-sentences") / "wikipedia.txt").read_text(encoding="utf-8").splitlines()[:12]
COMMAND = SimpleNamespace(app=lambda words: new_app()(words, prog_name="sts-dino"))


def run(line: str) -> Outcome:
    """The outcome of a command line, and of each that it prints as the next step."""
    name, *words = shlex.split(line)
    assert name == "sts-dino"
    done = outcome_of(COMMAND, *words)
    assert done.code == 0, f"{line}: {done.stderr}"
    for step in [one.removeprefix("next: ") for one in done.stderr.splitlines() if one.startswith("next: ")]:
        last = run(step)
        assert "--yes" not in step or last.printed.splitlines()[-1].startswith("http")
    return done


def test_every_next_step_works_as_printed(tmp_path, monkeypatch, hub_api):
    def stopped(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub_api)
    monkeypatch.setattr(Page, "serve_forever", stopped)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "next steps.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    run("sts-dino new 'next steps.txt' --lm builtin --license cc0-1.0 --out 'my corpus.yaml'")
    run("sts-dino write 'my corpus.yaml' --out 'my pairs'")
    settings = ["datasets.0.path=my pairs", "arguments.max_steps=2", "arguments.save_steps=2", "batch_size=4"]
    words = shlex.join(word for setting in settings for word in ("--set", setting))
    for name, more in (("my encoder", "bootstrap_samples=100"), ("unscored", "evaluation=[] --set name=unscored")):
        trained = run(f"sts-dino train 'my corpus.encoder.yaml' {words} --out '{name}' --set {more}")
        found: dict = {}
        exec("\n".join(trained.stderr.splitlines()[-3:]), found)
        assert len(found["embeddings"]) == 2
    for step in following(SimpleNamespace(pairs="my pairs", encoder="my encoder", answers="my answers")):
        run(step.replace("annotate", "annotate --port 0"))

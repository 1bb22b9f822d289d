"""Every command that a command prints as the next step works as printed; an encoder's last lines of
Python run.
"""

import shlex
from pathlib import Path
from types import SimpleNamespace

from command_outcomes import Outcome, outcome_of

from sts_dino.adapt import list_next_commands
from sts_dino.cli import make_app
from sts_dino.eval.audit.annotate import Page
from sts_dino.hub.assets import find_asset

pytest_plugins = ["local_hub"]
TEXTS = (
    (find_asset("source-sentences") / "wikipedia.txt").read_text(encoding="utf-8").splitlines()[:12]
)
COMMAND = SimpleNamespace(app=lambda words: make_app()(words, prog_name="sts-dino"))


def run(line: str) -> Outcome:
    """The outcome of a command line, and of each that it prints as the next step."""
    name, *words = shlex.split(line)
    assert name == "sts-dino"
    done = outcome_of(COMMAND, *words)
    assert done.code == 0, f"{line}: {done.stderr}"
    for step in [
        one.removeprefix("next: ") for one in done.stderr.splitlines() if one.startswith("next: ")
    ]:
        last = run(step)
        assert "--yes" not in step or last.printed.splitlines()[-1].startswith("http")
    return done


def test_every_next_step_works_as_printed(tmp_path, monkeypatch, hub_api):
    def stopped(_):
        raise KeyboardInterrupt

    import sentence_transformers  # noqa: F401 - before the patch, which its imports cannot read

    monkeypatch.setattr("sts_dino.release.publish.HfApi", lambda: hub_api)
    monkeypatch.setattr(Page, "serve_forever", stopped)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "next steps.txt").write_text(
        "".join(f"{text}\n" for text in TEXTS), encoding="utf-8"
    )
    # The recipes are changed before their next steps, so that they cost seconds.
    new = "new 'next steps.txt' --lm builtin --license cc0-1.0 --out 'my corpus.yaml'"
    proposed = outcome_of(COMMAND, *shlex.split(new))
    encoder = Path("my corpus.encoder.yaml")
    text = encoder.read_text(encoding="utf-8").replace("max_steps: '40'", "max_steps: '2'")
    text = text.replace("save_steps: '20'", "save_steps: '2'").replace("size: 32", "size: 4")
    encoder.write_text(text.replace("\nevaluation: ", "\nevaluation: [] # "), encoding="utf-8")
    check = proposed.stderr.splitlines()[-1].removeprefix("next: ")
    assert check == "sts-dino check 'my corpus.yaml'"
    run(f"{check} --set seed=7")  # then generates the pairs, trains on them and publishes both
    run(f"sts-dino check '{encoder}'")

    settings = [
        "name=my-encoder",
        "bootstrap_samples=100",
        "evaluation=[{task: stsb/cosine, split: validation}]",
    ]
    words = shlex.join(word for setting in settings for word in ("--set", setting))
    trained = run(f"sts-dino train '{encoder}' --out 'my encoder' {words}")
    namespace: dict = {}
    exec("\n".join(trained.stderr.splitlines()[-3:]), namespace)
    assert len(namespace["embeddings"]) == 2
    adaptation = SimpleNamespace(
        pairs="artifacts/datasets/next-steps-pairs", encoder="my encoder", answers="my answers"
    )
    for step in list_next_commands(adaptation):
        run(step.replace("annotate", "annotate --port 0"))

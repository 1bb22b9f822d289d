"""Run experiments and what they need (in a clone of the repository): ``sts-dino experiment COMMAND``."""

from experiments import command, refinish, search, source_sentences
from hub.cli import new_app

app = new_app("Run experiments; results go to experiments/results (docs/results.md).")
app.command("run")(command.main)
app.command("source-sentences")(source_sentences.main)
app.command("search")(search.main)
app.command("refinish")(refinish.main)

"""Run experiments and what they need (in a clone of the repository): ``sts-dino experiment COMMAND``."""

from benchmarks.run import lazy_app

COMMANDS = {
    "run": ("experiments.command", "Run experiments of the papers, and write the pages of their results"),
    "source-sentences": ("experiments.source_sentences", "Draw sentences that no evaluation set contains"),
    "search": ("experiments.search", "Measure generated queries on a search collection, beside their baselines"),
    "refinish": ("experiments.refinish", "Filter and score the texts of a run again, under other settings"),
}

app = lazy_app("Run experiments; results go to experiments/results (docs/results.md).", COMMANDS)

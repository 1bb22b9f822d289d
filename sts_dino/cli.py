"""The command ``sts-dino``: each subcommand is a stage's typer app, imported when it is called."""

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Any

import typer
from typer.core import TyperGroup

from sts_dino.hub import cli
from sts_dino.hub.errors import InputError, suggest_choice

# As in sts_dino.hub.contract.run_dir, whose import would slow down the help.
ARTIFACTS = Path("artifacts")
RECIPE = "recipe.yaml"
MANIFEST = "manifest.json"

# Stages that resume a run directory when they are called with it.
RESUMING_MODULES = ("sts_dino.generation.run", "sts_dino.training.run")
# Options of ``score`` that choose the tasks; without any, STSb is scored.
TASK_OPTIONS = {"--tasks", "--pairs", "--queries", "--corpus", "--qrels"}


@dataclass(frozen=True)
class Stage:
    """A subcommand of ``sts-dino``.

    module: the module with the typer app ``app``; it is imported only when the command is called.
    help: the line of ``sts-dino --help``.
    words: options that this subcommand adds to each call.
    ends_on_sigterm: whether SIGTERM ends the command in order, as in ``sts_dino.hub.cli.run_app``.
    clone: whether the command needs a clone of the repository; ``sts-dino --help`` hides such a
        command.
    takes: the kind of the first argument: recipe, run (directory), encoder, or "" for any other;
        ``convert_first_argument`` converts an argument of another kind.
    """

    module: str
    help: str
    words: tuple[str, ...] = ()
    ends_on_sigterm: bool = False
    clone: bool = False
    takes: str = ""


COMMANDS = {
    "new": Stage("sts_dino.new", "Write a recipe for a corpus of your own"),
    "adapt": Stage(
        "sts_dino.adapt", "From a corpus to a compared encoder, with a report", ends_on_sigterm=True
    ),
    "check": Stage(
        "sts_dino.check", "Check a recipe and show its plan; writes nothing", takes="recipe"
    ),
    "estimate": Stage(
        "sts_dino.generation.run",
        "Estimate time and memory of a dataset recipe",
        ("--estimate",),
        True,
        takes="recipe",
    ),
    "probe": Stage(
        "sts_dino.probe",
        "Measure how well a recipe's pairs fit their labels",
        ends_on_sigterm=True,
        takes="recipe",
    ),
    "write": Stage(
        "sts_dino.generation.run",
        "Generate the dataset of a recipe",
        ends_on_sigterm=True,
        takes="recipe",
    ),
    "explain": Stage(
        "sts_dino.generation.explain", "Show how a text was generated, token by token", takes="run"
    ),
    "teach": Stage(
        "sts_dino.teach",
        "Draw pairs with a teacher encoder's similarities",
        ends_on_sigterm=True,
        takes="run",
    ),
    "train": Stage("sts_dino.training.run", "Train the encoder of a model recipe", takes="recipe"),
    "merge": Stage("sts_dino.training.merge", "Merge a trained LoRA adapter into its base model"),
    "export": Stage("sts_dino.release.export", "Export an encoder to ONNX and int8", takes="run"),
    "estimate-training": Stage(
        "sts_dino.training.estimate", "Estimate time, memory and disk of a training", takes="recipe"
    ),
    "score": Stage(
        "sts_dino.eval.run",
        "Score an encoder on your pairs, STS, SentEval and MTEB",
        takes="encoder",
    ),
    "report": Stage("sts_dino.report", "Write a report of runs as one HTML file", takes="run"),
    "compare": Stage(
        "sts_dino.eval.compare.run", "Compare evaluations: which differences are significant"
    ),
    "fidelity": Stage(
        "sts_dino.eval.audit.fidelity", "Measure label agreement of a dataset", takes="run"
    ),
    "quality": Stage(
        "sts_dino.eval.audit.quality", "Measure labels, overlap, repeats and lengths", takes="run"
    ),
    "decontaminate": Stage(
        "sts_dino.eval.audit.decontaminate", "Find evaluation sentences in a dataset", takes="run"
    ),
    "annotate": Stage(
        "sts_dino.eval.audit.annotate", "Label pairs blind and compare with the labels", takes="run"
    ),
    "value": Stage(
        "sts_dino.release.value",
        "Measure the downstream gain of a dataset",
        ends_on_sigterm=True,
        takes="run",
    ),
    "repeat": Stage(
        "sts_dino.release.repeats",
        "Train a recipe with several seeds or example sets",
        takes="recipe",
    ),
    "simcse-baseline": Stage(
        "sts_dino.release.simcse",
        "Train the unsupervised SimCSE baseline of an encoder",
        ends_on_sigterm=True,
        takes="recipe",
    ),
    "card": Stage(
        "sts_dino.model_cards.render", "Write the card of a dataset or an encoder", takes="run"
    ),
    "publish": Stage("sts_dino.release.publish", "Publish a finished run on the Hub", takes="run"),
    "release": Stage(
        "sts_dino.release.run",
        "Run recipes and publish the results",
        ends_on_sigterm=True,
        takes="recipe",
    ),
    "hub": Stage(
        "hub_server.server", "Serve the embedded Hub on this machine", ends_on_sigterm=True
    ),
    "lm": Stage(
        "sts_dino.generation.fetch_lm",
        "List or download language models and encoders",
        ends_on_sigterm=True,
    ),
    "demo": Stage("sts_dino.experiments.demo", "The whole chain, offline", clone=True),
    "real": Stage(
        "sts_dino.experiments.real",
        "Pairs of a language model and a better encoder, offline",
        clone=True,
    ),
    "verify": Stage(
        "sts_dino.experiments.verify",
        "Load published artefacts, empty cache",
        ends_on_sigterm=True,
        clone=True,
    ),
    "reference": Stage(
        "sts_dino.reference", "Write the references of recipes and of the API", clone=True
    ),
    "experiment": Stage(
        "sts_dino.experiments.command",
        "Run a declared experiment",
        ends_on_sigterm=True,
        clone=True,
    ),
    "benchmark": Stage(
        "sts_dino.experiments.speed.throughput", "Measure speed and memory", clone=True
    ),
}


class StageGroup(TyperGroup):
    """A group that lists its subcommands from ``COMMANDS`` and imports the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name of the subcommand, the imported command, and its own arguments."""
        if args[:1] == ["help"]:
            args = [*args[1:2], "--help"]
        name, command, arguments = super().resolve_command(ctx, args)
        if name:
            command = load_command(name, COMMANDS[name])
        return name, command, arguments

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options' help without typer's two options of shell completion."""
        # The group's own parameters are these two; click adds --help apart from them
        options: list[Any] = self.params
        for option in options:
            option.hidden = True
        super().format_options(ctx, formatter)


def load_command(name: str, stage: Stage) -> Any:
    """Import a stage's module and return its click command under ``name``.

    The command's first argument is converted when it is parsed. Raises InputError for a package
    that is not installed, and for a command that needs a clone of the repository.
    """
    try:
        module = import_module(stage.module)
    except ModuleNotFoundError as error:
        # A library that the stage's module imports is another problem.
        if error.name is None or not f"{stage.module}.".startswith(f"{error.name}."):
            raise
        problem = f"{error.name} is not installed"
        hint = "see README.md"
        if stage.clone:
            problem = "needs a clone of the repository"
            hint = "run it there"
        raise InputError(f"sts-dino {name}", problem, hint=hint) from None

    command: Any = typer.main.get_command(module.app)
    command.name = name
    if stage.words:  # the module's own help is that of the command without these options
        command.help = f"{stage.help}."
    parse_original = command.parse_args

    def parse_converted(context: Any, arguments: list[str]) -> Any:
        converted = convert_first_argument(stage, name_folders(arguments))
        return parse_original(context, [*stage.words, *converted])

    command.parse_args = parse_converted
    return command


def name_folders(arguments: list[str]) -> list[str]:
    """Return the arguments of a command; a run directory that is ``.`` or ``..`` gets its name.

    Files beside a run directory are named after it, so ``.`` becomes ``./../NAME``. A value behind
    ``=`` changes, too.
    """
    named: list[str] = []
    for argument in arguments:
        option, equals, value = argument.rpartition("=")
        has_no_name = Path(value).name in ("", "..") and value != ""
        if has_no_name and (Path(value) / MANIFEST).is_file():
            argument = f"{option}{equals}{value.rstrip('/')}/../{Path(value).resolve().name}"
        named.append(argument)
    return named


def convert_first_argument(stage: Stage, arguments: list[str]) -> list[str]:
    """Return the arguments of a stage with the first one converted to the kind that it takes.

    A stage that takes a recipe accepts a run directory and reads its recipe. A stage that takes a
    run directory accepts a recipe and finds its run directory. ``score`` accepts an encoder's
    folder or name. Other arguments are returned unchanged, as are those that begin with an option.

    Raises InputError for a recipe without a run directory, and for a missing file whose name is
    close to another file's.
    """
    if not stage.takes or not arguments or arguments[0].startswith("-"):
        return arguments
    first, *options = arguments
    path = Path(first)
    is_recipe = path.suffix in (".yaml", ".yml")
    if stage.takes == "encoder" and not is_recipe:
        return convert_encoder(first, options)
    if not path.exists() and (is_recipe or path.parent.is_dir()):
        refuse_misspelt_path(first)
    if stage.takes == "recipe" and (path / RECIPE).is_file() and (path / MANIFEST).is_file():
        return convert_run_directory(stage, first, options)
    if stage.takes == "run" and is_recipe and path.is_file():
        return [str(find_run_directory(path)), *options]
    return arguments


def convert_encoder(encoder: str, options: list[str]) -> list[str]:
    """Return the arguments of ``score`` for an encoder's folder or name.

    A run directory is scored on its recipe's tasks. Any other encoder is scored on the tasks that
    ``options`` choose, else on STSb. Raises the errors of ``resolve_encoder``.
    """
    from sts_dino.eval.encoders.load import resolve_encoder

    location = resolve_encoder(encoder)
    recipe = Path(location) / RECIPE
    if recipe.is_file() and (Path(location) / MANIFEST).is_file():
        return [str(recipe), "--model", location, *options]
    arguments = ["--model", location, *options]
    if TASK_OPTIONS.isdisjoint(_get_option_names(options)):
        arguments += ["--tasks", "stsb/cosine"]
    return arguments


def refuse_misspelt_path(path: str) -> None:
    """Raise InputError for a missing path if a file beside it or a recipe has a similar name."""
    candidates = [*Path(path).parent.glob("*"), *Path("recipes").rglob("*.yaml")]
    hint = suggest_choice(path, map(str, candidates))
    if hint:
        raise InputError(path, "no such file or folder", hint=hint)


def convert_run_directory(stage: Stage, directory: str, options: list[str]) -> list[str]:
    """Return the arguments of a stage with a run directory replaced by its recipe.

    A stage of ``RESUMING_MODULES`` also gets ``--out directory``, to resume the run there, unless
    the options have --out, or --estimate, which makes no run.
    """
    arguments = [str(Path(directory) / RECIPE), *options]
    names = _get_option_names([*stage.words, *options])
    if stage.module in RESUMING_MODULES and names.isdisjoint(("--out", "--estimate")):
        arguments += ["--out", directory]
    return arguments


def find_run_directory(recipe: Path) -> Path:
    """Return the default run directory of a recipe, ``artifacts/datasets/NAME`` for a dataset.

    Raises InputError for a file that is no recipe, and when the directory does not exist; the
    second error names the command that makes it.
    """
    from sts_dino.hub.contract.recipe_file import read_yaml
    from sts_dino.release.options import is_model

    trains = is_model(recipe)
    tree = read_yaml(recipe)
    directory = ARTIFACTS / f"{tree['kind']}s" / str(tree.get("name"))
    if not directory.is_dir():
        command = "train" if trains else "write"
        raise InputError(
            recipe,
            f"has no run directory {directory}",
            hint=f"run sts-dino {command} {quote(str(recipe))}, or name its run directory",
        )
    return directory


def _get_option_names(arguments: list[str]) -> set[str]:
    """Return the words of a command line, with ``--out`` for ``--out=DIR``."""
    return {argument.partition("=")[0] for argument in arguments}


def make_app() -> typer.Typer:
    """Make the typer app with a name and a line of help for each subcommand."""
    app = typer.Typer(
        cls=StageGroup,
        help="Labelled sentence pairs generated by language models, "
        "and the sentence encoders trained on them.",
        epilog="Help on a command: sts-dino COMMAND --help. The version: --version. "
        "An error's traceback: --debug.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, stage in COMMANDS.items():
        # The group replaces this function by the stage's command when it is called.
        app.command(name, help=stage.help, hidden=stage.clone)(lambda: None)
    return app


def run_command() -> None:
    """Run the subcommand of ``sys.argv`` with the project's exit codes and error lines.

    The option --debug may stand anywhere; it turns on tracebacks.
    """
    if "--debug" in sys.argv:
        sys.argv = [argument for argument in sys.argv if argument != "--debug"]
        os.environ[cli.DEBUG_VARIABLE] = "1"
    name = sys.argv[1] if sys.argv[1:] else ""
    ends_on_sigterm = name in COMMANDS and COMMANDS[name].ends_on_sigterm
    app = make_app()
    cli.run_app(lambda: app(prog_name="sts-dino"), ends_on_sigterm=ends_on_sigterm)

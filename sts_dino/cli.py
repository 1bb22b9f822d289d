"""The command ``sts-dino``: each subcommand is a stage's typer app, imported when it is called."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from hub import cli
from hub.errors import InputError, did_you_mean
from sts_dino.commands import COMMANDS, StageCommand

ARTIFACTS, RECIPE, MANIFEST = Path("artifacts"), "recipe.yaml", "manifest.json"  # as in hub.contract.run_dir: imports


class StageGroup(TyperGroup):
    """A group that knows its subcommands' names and help by a table, and imports the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The subcommand that the words name, imported, and the words that are its own."""
        if args[:1] == ["help"]:
            args = [*args[1:2], "--help"]
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name, COMMANDS[name]) if name else command, rest


def load(name: str, stage: StageCommand) -> Any:
    """A stage's command under its name here. Raises InputError where it needs a clone."""
    if stage.clone:
        sys.path.append(str(Path(__file__).parents[1]))  # an editable install finds only the published packages
    try:
        module = import_module(stage.module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{stage.module}.".startswith(f"{error.name}."):
            raise
        if not stage.clone:
            raise InputError(f"sts-dino {name}", f"{error.name} is not installed", hint="see README.md") from None
        raise InputError(f"sts-dino {name}", "needs a clone of the repository", hint="run it there") from None
    command: Any = typer.main.get_command(module.app)
    command.name = name
    parse = command.parse_args
    command.parse_args = lambda ctx, args: parse(ctx, [*stage.words, *accepted(stage, args)])
    return command


def accepted(stage: StageCommand, words: list[str]) -> list[str]:
    """The words of a stage, its first place converted to what the stage takes.

    A run directory stands for its recipe, a recipe for its run directory, a folder or a name for the encoder to score.
    Raises InputError for a recipe without a run directory, and for a missing file whose name is close to another one.
    """
    if not stage.takes or not words or words[0].startswith("-"):
        return words
    first, rest = words[0], words[1:]
    place, is_recipe = Path(first), first.endswith((".yaml", ".yml"))
    own_recipe = place / RECIPE if (place / RECIPE).is_file() else None
    if stage.takes == "encoder" and not is_recipe:
        return encoder_words(first, own_recipe, rest)
    if not place.exists() and (is_recipe or place.parent.is_dir()):
        near = [*place.parent.glob("*"), *Path("recipes").rglob("*.yaml")]
        hint = did_you_mean(first, map(str, near))
        if hint:
            raise InputError(first, "no such file or folder", hint=hint)
    if stage.takes == "recipe" and own_recipe and (place / MANIFEST).is_file():
        given = _options([*stage.words, *rest])
        resumes = stage.module in ("generation.run", "training.run") and not {"--out", "--estimate"} & given
        return [str(own_recipe), *rest, *(["--out", first] if resumes else [])]
    if stage.takes == "run" and is_recipe and place.is_file():
        return [str(run_of(place)), *rest]
    return words


def run_of(recipe: Path) -> Path:
    """The run directory of a recipe, at its default place. Raises InputError when it does not exist."""
    from hub.contract.recipe_file import read_yaml

    tree = read_yaml(recipe)
    kind = tree.get("kind")
    directory = ARTIFACTS / f"{kind}s" / str(tree.get("name"))
    if not directory.is_dir():
        hint = f"run sts-dino {'train' if kind == 'model' else 'write'} {recipe}, or name its run directory"
        raise InputError(recipe, f"has no run directory {directory}", hint=hint)
    return directory


def encoder_words(encoder: str, recipe: Path | None, rest: list[str]) -> list[str]:
    """The words that score an encoder: a run directory by its recipe, any other folder or name on the STS Benchmark.

    A bare name is a model in artifacts/models, one of sts-dino lm, or one of sentence-transformers' models.
    """
    from eval.encoders.load import MINILM, minilm
    from eval.tasks.registry import TASKS
    from hub.contract.packaged import ENCODERS

    if recipe is not None and (Path(encoder) / MANIFEST).is_file():
        return [str(recipe), "--model", encoder, *rest]
    if not Path(encoder).exists() and "/" not in encoder and ":" not in encoder:
        own = ARTIFACTS / "models" / encoder
        if own.is_dir():
            return encoder_words(str(own), own / RECIPE if (own / RECIPE).is_file() else None, rest)
        if task := next((name for name in TASKS if encoder in (name, name.partition("/")[0])), None):
            raise InputError(encoder, "is a task, not an encoder", hint=f"sts-dino score ENCODER --tasks {task}")
        known = ENCODERS.get(encoder.lower())
        if encoder != MINILM and known is not None and known.is_here:
            return encoder_words(str(known.folder), None, rest)
        if encoder != MINILM:
            near = did_you_mean(encoder, [path.name for path in own.parent.glob("*")])
            cli.say(f"{own}: no such encoder; reading sentence-transformers/{encoder}{f'; {near}' if near else ''}")
        encoder = str(minilm()) if encoder == MINILM else f"sentence-transformers/{encoder}"
    return ["--model", encoder, *rest, *([] if "--tasks" in _options(rest) else ["--tasks", "stsb/cosine"])]


def _options(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words}


def new_app() -> typer.Typer:
    """The typer app: a name and a line of help for each subcommand."""
    app = typer.Typer(
        cls=StageGroup,
        help="Labelled sentence pairs generated by language models, and the sentence encoders trained on them.",
        epilog="Help on a command: sts-dino COMMAND --help. The version: --version. An error's traceback: --debug.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, stage in COMMANDS.items():
        app.command(name, help=stage.help, hidden=stage.clone)(_stands_for_a_stage)
    return app


def _stands_for_a_stage() -> None:
    """What the group's table holds of a subcommand that is not imported."""


def run_command() -> None:
    """Run the subcommand of ``sys.argv``, with the project's exit codes and error lines; --debug may stand anywhere."""
    if "--debug" in sys.argv:
        sys.argv = [word for word in sys.argv if word != "--debug"]
        os.environ[cli.DEBUG] = "1"
    given = next((COMMANDS[word] for word in sys.argv[1:2] if word in COMMANDS), None)
    app = new_app()
    cli.run(lambda: app(prog_name="sts-dino"), ends_on_sigterm=given is not None and given.ends_on_sigterm)

"""The command ``sts-dino``: subcommands that are the stages' own commands, imported when they are called."""

import sys
from importlib import import_module
from typing import Any

import typer

from hub import cli
from hub.errors import InputError
from sts_dino.commands import COMMANDS, StageCommand


class StageGroup(cli.Group):
    """A group that knows its subcommands' names and help by a table, and imports the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The subcommand that the words name, imported, and the words that are its own."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name, COMMANDS[name]) if name else command, rest


def load(name: str, stage: StageCommand) -> Any:
    """A stage's command under its name here; its help calls all of them as this command line does."""
    try:
        module = import_module(stage.module)
    except ModuleNotFoundError as error:
        if error.name not in ("hub_server", "hub_server.server"):
            raise
        raise InputError(f"sts-dino {name}", "hub_server is not installed", hint="pip install ./hub_server") from None
    command: Any = typer.main.get_command(module.app)
    command.name = name
    for one in (command, *getattr(command, "commands", {}).values()):
        one.help = cli.as_called(one.help or "")
        one.epilog = None  # of --version, which this command line has once
    parse = command.parse_args
    command.parse_args = lambda ctx, args: parse(ctx, [*stage.words, *args])
    return command


def new_app() -> typer.Typer:
    """The typer app: a name and a line of help for each subcommand."""
    app = typer.Typer(
        cls=StageGroup,
        help="Labelled sentence pairs written by language models, and the sentence encoders trained on them.",
        epilog="Help on a command: sts-dino COMMAND --help. The version: sts-dino --version.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for name, stage in COMMANDS.items():
        app.command(name, cls=cli.Command, help=stage.help)(_stands_for_a_stage)
    return app


def _stands_for_a_stage() -> None:
    """What the group's table holds of a subcommand that is not imported."""


def name_commands() -> None:
    """Have everything that is said of a stage's command say it as it is called here."""
    names = {f"python -m {stage.module}": f"sts-dino {name}" for name, stage in COMMANDS.items() if not stage.words}
    names |= {
        "python -m eval.run --compare": "sts-dino compare",
        "hub-server": "sts-dino hub",
        "python -m sts_dino": "sts-dino",
        "python -m sts_dino.report": "sts-dino report",
    }
    cli.spell_commands(names)


def run_command() -> None:
    """Run the subcommand of ``sys.argv``, with the project's exit codes and error lines."""
    name_commands()
    given = next((COMMANDS[word] for word in sys.argv[1:2] if word in COMMANDS), None)
    cli.run(new_app(), ends_on_sigterm=given is not None and given.ends_on_sigterm)

"""Measure speed and memory (in a clone of the repository): ``sts-dino benchmark NAME``."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

BENCHMARKS = {
    "throughput": ("benchmarks.throughput", "Texts per second of the engine beside generate() and llama.cpp"),
    "llamacpp-server": ("benchmarks.llamacpp_server", "Serve a GGUF file by llama.cpp's server"),
}


def lazy_app(help_text: str, commands: Mapping[str, tuple[str, str]]) -> typer.Typer:
    """A typer app whose subcommands (name → module with an ``app``, help) are imported when they are called."""

    class LazyGroup(TyperGroup):
        def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
            """The subcommand that the words name, imported, and its own words."""
            name, command, rest = super().resolve_command(ctx, args)
            if name is not None and name in commands:
                command = typer.main.get_command(import_module(commands[name][0]).app)
                command.name = name
            return name, command, rest

    app = typer.Typer(
        cls=LazyGroup,
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for name, (_, line) in commands.items():
        app.command(name, help=line)(_placeholder)
    return app


def _placeholder() -> None:
    """The function of a subcommand that is not imported yet."""


app = lazy_app("Measure speed and memory; results go to benchmarks/results (benchmarks/README.md).", BENCHMARKS)

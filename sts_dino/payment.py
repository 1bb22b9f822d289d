"""Prices and budget of a model behind a server: ``--price-in``, ``--price-out``, ``--budget``."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from sts_dino.hub.contract.recipe import LanguageModel
from sts_dino.hub.errors import InputError

PRICES_KEY = "price_per_million"
BUDGET_KEY = "budget"


@dataclass(frozen=True)
class Payment:
    """The prices of a server's tokens and the most that a run may cost, in any currency."""

    price_in: Annotated[
        float | None,
        typer.Option(min=0, metavar="MONEY", help="Price of a million prompt tokens of the server"),
    ] = None
    price_out: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="MONEY", help="Price of a million generated tokens of the server"
        ),
    ] = None
    budget: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="MONEY", help="Stop when the server's texts cost this; resumable"
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raise InputError for one price alone, and for a budget without prices."""
        if (self.price_in is None) != (self.price_out is None):
            option = "--price-in" if self.price_in is None else "--price-out"
            raise InputError(option, "is missing", hint="give both prices, 0 for none")
        if self.budget is not None and self.price_in is None:
            raise InputError(
                "--budget",
                "needs the prices of tokens",
                hint="give --price-in and --price-out, per million tokens",
            )

    @property
    def keys(self) -> dict[str, Any]:
        """The options as keys of a recipe's section ``model.server``; empty without options."""
        keys: dict[str, Any] = {}
        if self.price_in is not None:
            keys[PRICES_KEY] = [self.price_in, self.price_out]
        if self.budget is not None:
            keys[BUDGET_KEY] = self.budget
        return keys

    def format_settings(self, model: LanguageModel) -> list[str]:
        """Return the options as ``KEY=VALUE`` for ``--set``; empty without options.

        Raises InputError for options with a model that is not behind a server.
        """
        keys = self.keys
        if keys and model.server is None:
            raise InputError(
                "--price-in, --price-out, --budget",
                "are of a model behind a server",
                hint="--lm NAME@URL names one",
            )
        return [f"model.server.{key}={value}" for key, value in keys.items()]

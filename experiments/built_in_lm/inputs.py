"""Draw the demo's source sentences and premises.

Source sentences come from the STS Benchmark's train part, without scores: image captions and headlines, whose licences
are free, without those in its development and test part. Premises are Wikipedia sentences. A hash orders candidates.
"""

from pathlib import Path
from typing import Annotated

import typer

from experiments.built_in_lm.corpus import read_lines
from generation.inputs.row_seeds import fraction
from hub import cli
from hub.durable import write_text

LICENCES = {
    "images": "CC BY-SA (PASCAL VOC-2008 image descriptions, Rashtchian et al. 2010)",
    "headlines": "European Media Monitor (Best et al. 2005), free re-use with acknowledgement",
}

app = cli.new_app(__doc__)


@app.command()
def main(
    data: Annotated[Path, typer.Option("--data", help="Folder with sts-original/STSBenchmark and text/")],
    out: Annotated[Path, typer.Option("--out", help="Where to write x1.tsv and premises.txt")],
    per_source: Annotated[int, typer.Option(min=1, help="Sentences from each source")] = 600,
    premises: Annotated[int, typer.Option(min=1, help="Premises")] = 300,
) -> None:
    """Choose the demo's source sentences and premises from the original files."""
    lines = ["text\tsource\tlicence"]
    benchmark = data / "sts-original/STSBenchmark"
    scored = {bare(text) for part in ("dev", "test") for text in benchmark_sentences(benchmark / f"sts-{part}.csv")}
    for source, licence in LICENCES.items():
        texts = benchmark_sentences(benchmark / "sts-train.csv", source)
        chosen = choose([text for text in texts if bare(text) not in scored], per_source)
        lines += [f"{text}\t{source}\t{licence}" for text in chosen]
    sentences = read_lines(data / "text/wikipedia-sentences-10k.txt")
    whole = [text for text in sentences if text.endswith(".") and text[0].isupper() and 5 <= len(text.split()) <= 24]
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "x1.tsv", "\n".join(lines) + "\n")
    write_text(out / "premises.txt", "\n".join(choose(whole, premises)) + "\n")
    print(f"{len(lines) - 1} source sentences and {premises} premises in {out}")


def bare(text: str) -> str:
    """Lower case, letters and digits only: how sentences are compared."""
    return "".join(char for char in text.lower() if char.isalnum())


def benchmark_sentences(path: Path, source: str | None = None) -> list[str]:
    """Both sentences of every pair of an STS Benchmark file (tab-separated, never quoted), or of one source of it."""
    cells = [line.split("\t") for line in read_lines(path) if line]
    return [sentence.strip() for row in cells if source in (None, row[1]) for sentence in row[5:7]]


def choose(texts: list[str], count: int) -> list[str]:
    """``count`` distinct texts without tabs or quotation marks, first in the order of a hash."""
    usable = {text for text in texts if text and '"' not in text and "\t" not in text}
    return sorted(usable, key=lambda text: fraction("demo input", text))[:count]

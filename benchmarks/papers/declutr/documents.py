"""Documents of real text, without evaluation sentences: python -m benchmarks.papers.declutr.documents --data DIR

Paragraphs of WikiText-2, runs of five sentences of Wikipedia, and the five captions of a photograph, one document a
line. A document with a sentence that STS12-16, the STS Benchmark or SICK holds, exactly or nearly, is left out.
"""

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from benchmarks.better_pairs.first_texts import Kinds, evaluation_check
from hub import cli
from hub.durable import write_text

WORDS = 48  # two anchors of up to 12 words and their positives need as many (``hub.contract.model_sections.Spans``)
RUN = 5  # sentences of Wikipedia, and captions of a photograph
BATCH = 2000  # sentences that are compared at once
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
JOINED = re.compile(r" @(.)@ ")  # WikiText's form of a hyphen, a decimal point and a comma inside a word
Document = tuple[str, ...]  # its sentences

app = cli.new_app(__doc__)


@app.command(no_args_is_help=False)
def main(
    data: Annotated[Path, typer.Option("--data", envvar="STS_DINO_DATA", metavar="DIR", help="text and senteval")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A .txt file; .json beside it counts")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the order")] = 42,
) -> None:
    """Write the documents in an order drawn by a seed.

    Examples:

      python -m benchmarks.papers.declutr.documents --data DIR --out artifacts/documents.txt
    """
    kinds, places = evaluation_check(data / "senteval", scored_only=False)
    sources = {"captions": captions, "wikitext-2": wikitext, "wikipedia": wikipedia}
    lines, told = list[str](), dict[str, dict[str, int]]()
    for name, read in sources.items():
        found = [document for document in read(data / "text") if len(" ".join(document).split()) >= WORDS]
        matches = matched([sentence for document in found for sentence in document], kinds)
        kept = [document for document in found if not matches.intersection(document)]
        told[name] = {"documents": len(kept), "hold an evaluation sentence": len(found) - len(kept)}
        lines += [" ".join(document) for document in kept]
    lines = list(dict.fromkeys(lines))
    Random(seed).shuffle(lines)
    counts = {"sources": told, "words": sum(len(line.split()) for line in lines), "checked": places}
    write_text(out.with_suffix(".json"), json.dumps(counts, indent=1) + "\n")
    write_text(out, "\n".join(lines) + "\n")
    cli.say(f"written: {out}, {len(lines):,} documents: {told}")


def matched(sentences: Sequence[str], kinds: Kinds) -> set[str]:
    """Those of the sentences that evaluation data hold."""
    distinct, found = list(dict.fromkeys(sentences)), set[str]()
    for start in range(0, len(distinct), BATCH):
        batch = distinct[start : start + BATCH]
        found |= {text for text, kind in zip(batch, kinds(batch), strict=True) if kind}
    return found


def captions(folder: Path) -> Iterator[Document]:
    """The five captions of every photograph: sentences about the same scene."""
    files = [folder / "captions" / f"train.{number}.en.gz" for number in range(1, RUN + 1)]
    lines = [gzip.decompress(file.read_bytes()).decode().splitlines() for file in files]
    for document in zip(*lines, strict=True):
        yield tuple(caption.strip() for caption in document)


def wikitext(folder: Path) -> Iterator[Document]:
    """Every paragraph of WikiText-2's validation and test part, its tokens as words and unknown ones left out."""
    for part in ("valid", "test"):
        for line in (folder / f"wikitext-2-{part}.txt").read_text(encoding="utf-8").splitlines():
            text = JOINED.sub(r"\1", line.strip()).replace("<unk>", " ")
            if text and not text.startswith("= "):
                yield tuple(SENTENCE_END.split(" ".join(text.split())))


def wikipedia(folder: Path) -> Iterator[Document]:
    """Runs of five sentences as they follow one another in articles."""
    lines = (folder / "wikipedia-sentences-10k.txt").read_text(encoding="utf-8").splitlines()
    for start in range(0, len(lines), RUN):
        yield tuple(line.strip() for line in lines[start : start + RUN])


if __name__ == "__main__":
    cli.run(app)

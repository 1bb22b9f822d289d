"""Read, detokenise and filter the sentences that the built-in language model learns from."""

import csv
import gzip
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from experiments.built_in_lm.prompts import clean
from hub.errors import InputError

_NOT_ALNUM = re.compile(r"[^a-z0-9]+")
_SENTENCE_END = re.compile(r"(?<=[.!?]) +(?=[A-Z])")
_FEWSHOT = re.compile(r'that logically (entails|contradicts) "(.+?)" in the form of .*? Answer: "(.+?)"\.?$')
MAX_WORDS = 30
HELD_OUT_WIKIPEDIA = 600  # the last lines of the Wikipedia file


def normalise(text: str) -> str:
    """Lower case, letters and digits only: how sentences are compared with the evaluation sets."""
    return _NOT_ALNUM.sub("", text.lower())


def detokenise(text: str) -> str:
    """Undo Penn Treebank (SNLI) and WikiText tokenisation."""
    text = re.sub(r" @(.)@ ", r"\1", text)
    text = re.sub(r"-lrb- |\( ", "(", text, flags=re.IGNORECASE)
    text = re.sub(r" -rrb-| \)", ")", text, flags=re.IGNORECASE)
    text = re.sub(r" (n't|'s|'re|'ve|'ll|'d|'m)\b", r"\1", text)
    text = re.sub(r" ([.,!?;:%])", r"\1", text)
    text = re.sub(r"([$#]) (?=\d)", r"\1", text)
    return clean(text)


def usable(text: str) -> bool:
    """Whether a line can be a training sentence: 3 to 30 words, mostly letters, nothing unknown in it."""
    words = text.split()
    if not 3 <= len(words) <= MAX_WORDS or "<unk>" in text or len(text) > 220:
        return False
    letters = sum(c.isascii() and (c.isalpha() or c in " ,.'") for c in text)
    return letters >= 0.85 * len(text)


@dataclass
class Corpus:
    """The sentences after filtering, and what the filters removed (``removed`` counts by source)."""

    images: list[list[str]] = field(default_factory=list)  # captions of one image, longest first
    prose: list[str] = field(default_factory=list)  # encyclopaedia and web sentences, in document order
    nli: list[tuple[str, str, str]] = field(default_factory=list)  # (label, premise, hypothesis) of SNLI
    fewshot: list[tuple[str, str, str]] = field(default_factory=list)  # (entails/contradicts, premise, answer)
    blocked: set[str] = field(default_factory=set)  # normalised: evaluation sentences and everything held out
    removed: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)

    def keep(self, source: str, *texts: str) -> bool:
        """Count and tell whether none of the texts is blocked."""
        blocked = sum(normalise(t) in self.blocked for t in texts)
        self.removed[source] += blocked
        self.kept[source] += 0 if blocked else len(texts)
        return not blocked


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, of a packed one, too. Raises InputError when it does not exist."""
    if not path.is_file():
        raise InputError(path, "no such file in the data folder", hint="see the model card for the layout --data needs")
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as handle:
            return handle.read().split("\n")
    return path.read_text(encoding="utf-8").split("\n")


def evaluation_sentences(root: Path) -> Iterator[str]:
    """Every sentence of STS12-16, the STS Benchmark and SICK. Scores are not read."""
    inputs = sorted(root.glob("STS1?/STS*input*.txt"))
    if not inputs:
        raise InputError(
            root, "holds no STS input files", hint="--data must hold sts-original, or nothing can be removed"
        )
    for path in inputs:
        for line in read_lines(path):
            yield from line.split("\t")[:2]
    for path in sorted(root.glob("STSBenchmark/sts-*.csv")):
        for row in csv.reader(read_lines(path), delimiter="\t", quoting=csv.QUOTE_NONE):
            yield from row[5:7]
    for path in sorted(root.glob("SICK/SICK_*.txt")):
        for line in read_lines(path)[1:]:
            yield from line.split("\t")[1:3]


def _captions(root: Path, split: str) -> list[list[str]]:
    files = [read_lines(root / "captions" / f"{split}.{i}.en.gz") for i in range(1, 6)]
    return [[clean(t) for t in image] for image in zip(*files, strict=True) if all(image)]


def _prose(root: Path) -> Iterator[tuple[str, str]]:
    """(source, sentence) in document order; the held-out part comes under its own name."""
    wikipedia = read_lines(root / "wikipedia-sentences-10k.txt")
    for number, line in enumerate(wikipedia):
        yield ("held-out" if number >= len(wikipedia) - HELD_OUT_WIKIPEDIA else "wikipedia"), clean(line)
    for name in ("valid", "test"):
        for line in read_lines(root / f"wikitext-2-{name}.txt"):
            if line.strip() and not line.startswith(" ="):
                yield from (("wikitext-2", detokenise(s + ".")) for s in line.replace(" . ", " .\n").split(" .\n"))
    for name in ("train", "valid"):
        for line in read_lines(root / "openwebtext-sample" / f"{name}.txt"):
            yield from (("openwebtext", clean(s)) for s in _SENTENCE_END.split(line))


def _snli(root: Path) -> Iterator[tuple[str, str, str]]:
    for part in ("dev", "test"):
        files = [read_lines(root / f"{name}.{part}") for name in ("labels", "s1", "s2")]
        for label, first, second in zip(*files, strict=True):
            if label:
                yield label.strip(), detokenise(first), detokenise(second)


def _fewshot(root: Path) -> Iterator[tuple[str, str, str]]:
    for path in sorted(root.glob("*-shot/*/*.txt")):
        for line in read_lines(path):
            if found := _FEWSHOT.search(line.strip()):
                yield found[1], clean(found[2]), clean(found[3])


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def read_corpus(data: Path) -> Corpus:
    """Read every source below ``data``, hold out, and remove what the evaluation sets contain."""
    corpus = Corpus()
    corpus.blocked = {normalise(t) for t in evaluation_sentences(data / "sts-original")} - {""}
    held_out_images = _captions(data / "text", "val")
    prose = [(source, t) for source, t in _prose(data / "text") if usable(t) and t.endswith((".", "!", "?"))]
    held_out = _unique(t for source, t in prose if source == "held-out" and len(t.split()) >= 6)

    images = [
        [t for t in image if corpus.keep("captions", t) and usable(t)] for image in _captions(data / "text", "train")
    ]
    for source, text in prose:
        if source != "held-out" and corpus.keep(source, text):
            corpus.prose.append(text)
    corpus.prose = _unique(corpus.prose)
    corpus.nli = [row for row in _snli(data / "senteval/downstream/SNLI") if corpus.keep("snli", *row[1:])]
    fewshot = dict.fromkeys(_fewshot(data / "auto_nli_fewshot"))
    corpus.fewshot = [row for row in fewshot if corpus.keep("fewshot", *row[1:])]
    # From here on the held-out sentences are blocked as well, in whatever source they turn up.
    held = {normalise(t) for image in held_out_images for t in image} | {normalise(t) for t in held_out}
    corpus.blocked |= held
    free = [[t for t in image if normalise(t) not in held] for image in images]
    corpus.images = [image for image in free if len(image) > 1]
    corpus.prose = [t for t in corpus.prose if normalise(t) not in held]
    corpus.nli = [row for row in corpus.nli if normalise(row[1]) not in held and normalise(row[2]) not in held]
    return corpus

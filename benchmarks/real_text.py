"""Real text to train on: captions, inference pairs and Wikipedia, without the sentences that an evaluation reads.

STSb's captions are partly Flickr30k's, and SNLI's premises are Flickr30k's captions, so whatever equals an evaluation
sentence, or nearly does, is taken out first, with everything that belongs to it: all captions of the image, the whole
inference pair, the sentence of an article.
"""

import gzip
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import CountVectorizer

NEAR = 0.75  # share of the distinct words of two sentences that both have (Jaccard); from here on they are too alike
ROWS = 4_000  # sentences compared at once


@dataclass(frozen=True)
class Text:
    """What is left to train on, and what was taken out.

    captions: five of each image; inference: (premise, hypothesis, label); documents: Wikipedia's, a section or a run of
    sentences each.
    """

    captions: list[tuple[str, ...]]
    inference: list[tuple[str, str, str]]
    documents: list[str]
    removed: dict[str, dict[str, int]]


def words(sentence: str) -> str:
    """Lower case, letters and digits only, single spaces: what sentences are compared by."""
    return " ".join(re.findall(r"[a-z0-9]+", sentence.lower()))


def plain(sentence: str) -> str:
    """Tokenised text as it is written: no space before punctuation, none left of a clitic."""
    joined = re.sub(r" ([.,;:!?)%]|n't\b|'\w*)", r"\1", " ".join(sentence.split()))
    return re.sub(r"([(]) | @([-,.])@ ", r"\1\2", joined)


class Held:
    """The sentences that must not be trained on."""

    def __init__(self, sentences: Iterable[str]):
        known = sorted({words(sentence) for sentence in sentences} - {""})
        self._exact = set(known)
        counter = CountVectorizer(binary=True, dtype=np.float32, tokenizer=str.split, token_pattern=None)
        self._counter = counter.fit(known)
        self._held = self._counter.transform(known).T.tocsc()
        self._sizes = np.array([len(set(text.split())) for text in known], dtype=np.float32)

    def alike(self, sentences: Sequence[str]) -> NDArray[np.int8]:
        """(n,): 2 where a sentence equals a held one in its words, 1 where it nearly does (``NEAR``), 0 elsewhere."""
        texts = [words(sentence) for sentence in sentences]
        parts = [self._near(texts[start : start + ROWS]) for start in range(0, len(texts), ROWS)]
        near = np.concatenate(parts) if parts else np.zeros(0, dtype=bool)
        exact = np.array([text in self._exact for text in texts], dtype=bool)
        return np.where(exact, 2, near).astype(np.int8)

    def _near(self, texts: list[str]) -> NDArray[np.bool_]:
        shared = (self._counter.transform(texts) @ self._held).tocoo()
        sizes = np.array([len(set(text.split())) for text in texts], dtype=np.float32)
        union = sizes[shared.row] + self._sizes[shared.col] - shared.data
        near = np.zeros(len(texts), dtype=bool)
        near[shared.row[shared.data >= NEAR * union]] = True
        return near


def read_text(data: Path, held: Held) -> Text:
    """Everything under ``data/text`` and SNLI's development and test part, without what ``held`` holds."""
    captions, from_captions = _unlike(read_captions(data), held)
    labels = {(premise, hypothesis): label for premise, hypothesis, label in read_inference(data)}
    inference, from_inference = _unlike(list(labels), held)
    kept = set(inference)
    documents, from_documents = _without(read_documents(data), held)
    removed = {"captions": from_captions, "snli": from_inference, "wikipedia": from_documents}
    return Text(captions, [(*pair, label) for pair, label in labels.items() if pair in kept], documents, removed)


def _unlike(groups: Sequence[tuple[str, ...]], held: Held) -> tuple[list[tuple[str, ...]], dict[str, int]]:
    """The groups of which no sentence is held, and how many sentences and groups were taken out."""
    groups = list(dict.fromkeys(groups))
    alike = iter(held.alike([sentence for group in groups for sentence in group]).tolist())
    found = [[next(alike) for _ in group] for group in groups]
    kept = [group for group, marks in zip(groups, found, strict=True) if not any(marks)]
    marks = [mark for row in found for mark in row]
    return kept, {"exact": marks.count(2), "near": marks.count(1), "groups": len(groups) - len(kept), "of": len(groups)}


def _without(documents: list[list[str]], held: Held) -> tuple[list[str], dict[str, int]]:
    """Documents (lists of sentences) as texts without the held sentences, and how many of these there were."""
    marks = held.alike([sentence for document in documents for sentence in document]).tolist()
    unread = iter(marks)
    texts = [" ".join(s for s, mark in zip(d, [next(unread) for _ in d], strict=True) if not mark) for d in documents]
    return [text for text in texts if text], {"exact": marks.count(2), "near": marks.count(1), "of": len(marks)}


def read_captions(data: Path) -> list[tuple[str, ...]]:
    """The five captions of every image of Flickr30k's training part."""
    columns = []
    for number in range(1, 6):
        with gzip.open(data / "text" / "captions" / f"train.{number}.en.gz", "rt", encoding="utf-8") as lines:
            columns.append([line.strip() for line in lines])
    return list(zip(*columns, strict=True))


def read_inference(data: Path) -> list[tuple[str, str, str]]:
    """(premise, hypothesis, label) of SNLI's development and test part."""
    folder = data / "senteval" / "downstream" / "SNLI"
    rows: list[tuple[str, str, str]] = []
    for part in ("dev", "test"):
        first, second, labels = (
            (folder / f"{name}.{part}").read_text(encoding="utf-8").splitlines() for name in ("s1", "s2", "labels")
        )
        rows += zip(map(plain, first), map(plain, second), labels, strict=True)
    return rows


def read_documents(data: Path) -> list[list[str]]:
    """Wikipedia as lists of sentences: the sections of WikiText-2's articles, and ten lines in a row of the sample."""
    documents: list[list[str]] = []
    for part in ("valid", "test"):
        lines = (data / "text" / f"wikitext-2-{part}.txt").read_text(encoding="utf-8").splitlines()
        section: list[str] = []
        for line in map(str.strip, lines):
            if line.startswith("= "):  # a heading
                documents.append(section)
                section = []
            elif line:
                section += [plain(sentence) for sentence in re.split(r"(?<= [.!?]) ", line)]
        documents.append(section)
    sample = (data / "text" / "wikipedia-sentences-10k.txt").read_text(encoding="utf-8").splitlines()
    documents += [[line.strip() for line in sample[start : start + 10]] for start in range(0, len(sample), 10)]
    return [document for document in documents if document]

"""A small planted SentEval directory, with the real one's file names, encodings and quirks. Every
task is learnable.

``write_senteval(DIR)`` and ``write_originals(DIR)`` write tens of rows per file; read them without
the published pins: ``Source(senteval=DIR, originals=DIR2, pins={})``. Sentences of a class share
words that no other class has, and the score of an STS pair is five times the share of words that
its sentences have in common, so ``bag_of_words`` learns everything.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from sts_dino.eval.tasks.registry import SUBSETS, find_task
from sts_dino.eval.tasks.sources import Entry

KFOLD = {
    "MR": ("rt-polarity.pos", "rt-polarity.neg"),
    "CR": ("custrev.pos", "custrev.neg"),
    "SUBJ": ("subj.objective", "subj.subjective"),
    "MPQA": ("mpqa.pos", "mpqa.neg"),
}
PROBING = {
    "sentence_length": ("0", "1", "2", "3", "4", "5"),
    "word_content": ("about", "call", "door"),
    "tree_depth": ("10", "5", "6", "7"),  # sorted as text, as the toolkit does
    "top_constituents": ("ADVP_NP_VP_.", "NP_VP_.", "OTHER"),
    "bigram_shift": ("I", "O"),
    "past_present": ("PAST", "PRES"),
    "subj_number": ("NN", "NNS"),
    "obj_number": ("NN", "NNS"),
    "odd_man_out": ("C", "O"),
    "coordination_inversion": ("I", "O"),
}
COMMON = [f"word{number}" for number in range(60)]
SICK_HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
MRPC_HEADER = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"


def bag_of_words(texts: Sequence[str], dimension: int = 64) -> NDArray[np.float32]:
    """A random vector per word, summed over a text's words: (n, dimension). An encoder that learns
    all that is here.
    """
    words = {word for text in texts for word in text.lower().split()}
    of = {
        word: np.random.default_rng(zlib.crc32(word.encode())).standard_normal(dimension)
        for word in words
    }
    rows = [
        sum((of[word] for word in text.lower().split()), np.full(dimension, 1e-3)) for text in texts
    ]
    return np.asarray(rows, dtype=np.float32)


def one_task(name: str, split: str | None = None) -> Entry:
    """An entry by name, on the task's default split unless another is given."""
    task = find_task(name)
    return Entry(task, split or task.default_split)


def write_senteval(root: Path, rows: int = 40, seed: int = 0) -> Path:
    """Write ``downstream/`` and ``probing/`` under ``root`` with ``rows`` rows a class, subset or
    split; gives root.
    """
    draw, down = Random(seed), root / "downstream"
    for task, files in KFOLD.items():
        for name in files:
            lines = [_sentence(draw, name) + " " for _ in range(rows)]
            if task in ("CR", "MPQA"):
                lines[3] = ""  # a blank line is a row
            _write(down / task / name, lines)
    for split in ("train", "dev", "test"):
        sst = [(label, _sentence(draw, f"binary{label}")) for _ in range(rows) for label in (0, 1)]
        _write(down / f"SST/binary/sentiment-{split}", [f"{text} \t{label}" for label, text in sst])
        sst = [
            (label, _sentence(draw, f"fine{label}")) for _ in range(rows // 2) for label in range(5)
        ]
        _write(down / f"SST/fine/sentiment-{split}", [f"{label} {text}" for label, text in sst])
        _write_snli(down / "SNLI", split, rows, draw)
    for name in ("train_5500", "TREC_10"):
        _write(down / f"TREC/{name}.label", _questions(rows // 2, draw), encoding="latin-1")
    for split in ("train", "test"):
        _write(
            down / f"MRPC/msr_paraphrase_{split}.txt", [MRPC_HEADER, *_paraphrases(2 * rows, draw)]
        )
    for split in ("train", "trial", "test_annotated"):
        end = "\r\n" if split == "test_annotated" else "\n"
        _write(down / f"SICK/SICK_{split}.txt", [SICK_HEADER, *_sick(2 * rows, draw)], end=end)
    _write_years(down / "STS", "STS{}-en-test", "STS", rows, draw)
    _write_benchmark(down / "STS/STSBenchmark", rows, draw)
    for name, labels in PROBING.items():
        _write_probing(root / f"probing/{name}.txt", labels, rows, draw)
    return root


def write_originals(root: Path, rows: int = 40, seed: int = 1) -> Path:
    """Write the organisers' layout (STS12 … STS16, STSBenchmark, SICK) under ``root`` and give it
    back.
    """
    draw = Random(seed)
    _write_years(root, "STS{}", "STS2016", rows, draw)
    _write_benchmark(root / "STSBenchmark", rows, draw)
    for split in ("train", "trial", "test_annotated"):
        _write(root / f"SICK/SICK_{split}.txt", [SICK_HEADER, *_sick(2 * rows, draw)])
    return root


def _write(path: Path, lines: Sequence[str], encoding: str = "utf-8", end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode(encoding))


def _sentence(draw: Random, kind: str) -> str:
    """Two of the class's own five words among three to nine common ones."""
    own = [f"{kind.replace('.', '').replace('_', '')}{number}" for number in range(5)]
    words = draw.sample(own, 2) + draw.sample(COMMON, draw.randint(3, 9))
    draw.shuffle(words)
    return " ".join(words)


def _scored(draw: Random) -> tuple[str, str, float]:
    """Two sentences of ten words and five times the share of words in common, from 0 to 5."""
    shared = draw.randint(0, 10)
    words = draw.sample(COMMON, 20 - shared)
    second = [*words[:shared], *words[10:]]
    draw.shuffle(second)
    return " ".join(words[:10]), " ".join(second), shared / 2


def _write_snli(folder: Path, split: str, rows: int, draw: Random) -> None:
    """Pairs whose second sentence carries a word that says how it relates to the first."""
    kinds = [kind for _ in range(rows) for kind in ("neutral", "entailment", "contradiction")]
    pairs = [(_sentence(draw, "premise"), f"{kind}{draw.randrange(3)}") for kind in kinds]
    _write(folder / f"labels.{split}", kinds)
    _write(folder / f"s1.{split}", [f"{first} " for first, _ in pairs])
    _write(folder / f"s2.{split}", [f"{first} {word} " for first, word in pairs])


def _questions(rows: int, draw: Random) -> list[str]:
    labels = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
    lines = [f"{label}:fine {_sentence(draw, label)} ?" for _ in range(rows) for label in labels]
    return [*lines[:-1], lines[-1] + " caf\xe9"]  # one byte that is not UTF-8


def _paraphrases(rows: int, draw: Random) -> list[str]:
    lines = []
    for number in range(rows):
        first, same = _sentence(draw, "news"), number % 3 > 0
        second = (
            " ".join(draw.sample(first.split(), len(first.split())))
            if same
            else _sentence(draw, "other")
        )
        lines.append(f"{int(same)}\t{number}\t{number + rows}\t{first}\t{second}")
    return lines


def _sick(rows: int, draw: Random) -> list[str]:
    lines = []
    for number in range(rows):
        first, second, score = _scored(draw)
        kind = "ENTAILMENT" if score > 3.5 else "NEUTRAL" if score > 1.5 else "CONTRADICTION"
        lines.append(f"{number + 1}\t{first}\t{second}\t{1 + 0.8 * score:g}\t{kind}")
    return lines


def _write_years(root: Path, folder: str, prefix_of_2016: str, rows: int, draw: Random) -> None:
    for name, subsets in SUBSETS.items():
        year = name.removeprefix("sts")
        for subset in subsets:
            prefix = prefix_of_2016 if year == "16" else "STS"
            _write_subset(
                root / folder.format(year), prefix, subset, rows, draw, unscored=int(year) >= 15
            )


def _write_subset(
    folder: Path, prefix: str, subset: str, rows: int, draw: Random, unscored: bool
) -> None:
    """One subset; ``unscored`` puts two pairs without a score behind every scored one."""
    pairs, scores = [], []
    more = "\tsource\tauthor" if prefix == "STS2016" else ""
    for _ in range(rows):
        first, second, score = _scored(draw)
        pairs.append(f"{first}\t{second}{more}")
        scores.append(f"{score:g}")
        if unscored:
            pairs += [f"{text}\t{text}{more}" for text in ("not scored", "nor this")]
            scores += ["", ""]
    _write(folder / f"{prefix}.input.{subset}.txt", pairs)
    _write(folder / f"{prefix}.gs.{subset}.txt", scores)


def _write_benchmark(folder: Path, rows: int, draw: Random) -> None:
    for split in ("train", "dev", "test"):
        lines = []
        for number in range(2 * rows):
            first, second, score = _scored(draw)
            # no quoting
            lines.append(
                f'main-news\tMSRpar\t2012test\t{number:04d}\t{score:.3f}\t{first}\t"{second}'
            )
        _write(folder / f"sts-{split}.csv", lines)


def _write_probing(path: Path, labels: Sequence[str], rows: int, draw: Random) -> None:
    lines = []
    for mark in ("tr", "va", "te"):
        kinds = [label for _ in range(rows) for label in labels]
        draw.shuffle(kinds)
        lines += [f"{mark}\t{label}\t{_sentence(draw, path.stem + label)}" for label in kinds]
    _write(path, lines)

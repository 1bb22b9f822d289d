"""The benchmark's text as the training stage takes it: finished dataset run directories, and a file of documents.

Labels as DINO's (Schick & Schütze 2021, section 4, with its smoothing): 0.9 the same meaning (captions of one image,
SNLI's entailments), 0.5 somewhat similar (SNLI's neutral pairs, the most alike captions of two images), 0.1 unrelated
(captions of two images). Triplets as Auto-NLI's and SimCSE's: premise, entailed and contradicting sentence; for
captions another one of the image and, as the negative, the most similar one of 255 other images.
"""

import json
import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks.real_text import Text
from hub.run_dir import Manifest, describe, write_manifest
from hub.schema import STS, TRIPLET, Form
from hub.shards import shard_path, write_shard, write_text

PAIRS, TRIPLETS, VALIDATION = 36_000, 24_000, 600  # a family takes the first so many
POOL = 256  # images among which a caption's hard negative is looked for
PAIRS_DIRECTORY, TRIPLETS_DIRECTORY, DOCUMENTS = "pairs", "triplets", "documents.jsonl"

Row = dict[str, Any]


def write_material(work: Path, text: Text, seed: int) -> dict[str, Any]:
    """Write pairs, triplets and documents under ``work``; how many rows of each."""
    chosen = random.Random(seed)
    captions = [tuple(chosen.sample(image, 5)) for image in text.captions]  # theirs are in order of length
    chosen.shuffle(captions)
    inference = text.inference
    pairs = scored_pairs(captions, inference, chosen)
    triplets = [*inference_triplets(inference), *caption_triplets(captions)]
    chosen.shuffle(triplets)
    documents = [" ".join(image) for image in captions] + text.documents
    chosen.shuffle(documents)
    lines = [json.dumps({"text": document}, ensure_ascii=False) + "\n" for document in documents]
    write_text(work / DOCUMENTS, "".join(lines))
    write_run(work / PAIRS_DIRECTORY, "postprocessed", STS, pairs[: PAIRS + VALIDATION])
    write_run(work / TRIPLETS_DIRECTORY, "triplet", TRIPLET, triplets[: TRIPLETS + VALIDATION])
    return {"pairs": PAIRS, "triplets": TRIPLETS, "validation of each": VALIDATION, "documents": len(documents)}


def scored_pairs(
    captions: list[tuple[str, ...]], inference: list[tuple[str, str, str]], chosen: random.Random
) -> list[Row]:
    """A third of each label, shuffled; half of the two upper ones from each source."""
    third = (PAIRS + VALIDATION) // 3
    half = third // 2
    by_label: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for premise, hypothesis, label in inference:
        by_label[label].append((premise, hypothesis))
    similar = [(row["anchor"], row["negative"]) for row in caption_triplets(captions[half : 3 * half])]
    levels: dict[float, list[tuple[str, ...]]] = {
        0.9: [*(image[:2] for image in captions[:half]), *by_label["entailment"][: third - half]],
        0.5: [*similar[:half], *by_label["neutral"][: third - half]],
        0.1: [(one[2], two[3]) for one, two in pairwise(captions[: third + 1])],  # in random order
    }
    rows = [{"sentence1": a, "sentence2": b, "score": score} for score, pairs in levels.items() for a, b in pairs]
    chosen.shuffle(rows)
    return rows


def inference_triplets(inference: list[tuple[str, str, str]]) -> list[Row]:
    """(premise, entailed, contradicting) of every premise that has both."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for premise, hypothesis, label in inference:
        found[premise].setdefault(label, hypothesis)
    return [
        {"anchor": premise, "positive": given["entailment"], "negative": given["contradiction"]}
        for premise, given in found.items()
        if {"entailment", "contradiction"} <= given.keys()
    ]


def caption_triplets(captions: list[tuple[str, ...]]) -> list[Row]:
    """(caption, another of its image, the most similar one of the other images in its pool), by TF-IDF cosine."""
    vectors = TfidfVectorizer().fit_transform([image[0] for image in captions])
    rows = []
    for start in range(0, len(captions) - POOL + 1, POOL):
        pool = vectors[start : start + POOL]
        similar = (pool @ pool.T).toarray()
        np.fill_diagonal(similar, -1)
        for place, other in enumerate(similar.argmax(axis=1).tolist()):
            one, two = captions[start + place], captions[start + other]
            rows.append({"anchor": one[0], "positive": one[1], "negative": two[0]})
    return rows


def write_run(directory: Path, config: str, form: Form, rows: list[Row]) -> None:
    """A finished dataset run directory, its last ``VALIDATION`` rows the validation split."""
    parts = {"train": rows[:-VALIDATION], "validation": rows[-VALIDATION:]}
    files = []
    for split, part in parts.items():
        path = shard_path(config, split, 0, 1)
        write_shard(directory / path, part, datasets.Features(form.columns))
        files.append(describe(directory, path, config=config, split=split, rows=len(part)))
    manifest = Manifest(kind="dataset", name=directory.name, version="0.1.0", fingerprint="benchmark", complete=True)
    write_manifest(directory, manifest.with_files(files))

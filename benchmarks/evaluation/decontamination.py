"""Decontamination: python -m benchmarks.evaluation.decontamination --senteval-data DIR --sts-data DIR --unrelated FILE

How fast all STS, SICK and SentEval sentences are indexed and other sentences are checked against them, on one core;
how many planted test sentences and light edits of test sentences are found; how much unrelated text is taken for one;
which share of all near pairs is found, and at what cost, with the banding of several thresholds (every pair is counted,
by a sparse product); and the band index beside datasketch's ``MinHashLSH`` on the same signatures.
"""

import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer

from benchmarks.trials import write_results
from eval.audit.evaluation_sentences import (
    SCHEME,
    Banding,
    EvaluationTexts,
    NearIndex,
    Sentences,
    grams,
    read_evaluation_sets,
    signatures,
)
from eval.audit.ledger import DROPPED
from eval.audit.text_forms import normal_form
from hub.cli import new_app, run
from hub.contract.decontamination import KINDS

app = new_app(__doc__)
EDITS = ("change", "add", "remove", "case", "punctuation")
COMPARED = 20_000  # sentences in both band indexes: the library's takes 10 KB of each
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
ASKED = 1_000  # texts of a draw that are looked up at every threshold
DRAWS = 3
ABOVE = 0.05  # pairs with a similarity of so much more than the threshold at the most are just above it


@app.command()
def main(
    senteval_data: Annotated[Path, typer.Option(help="SentEval's directory")],
    sts_data: Annotated[Path, typer.Option(help="The STS organisers' directory")],
    unrelated: Annotated[Path, typer.Option(help="Text that holds no evaluation sentence, one sentence a line")],
    rounds: Annotated[int, typer.Option(min=1, help="Draws of 200 planted and 200 edited sentences")] = 10,
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/decontamination.json"),
) -> None:
    """Index, check, plant; write a JSON file."""
    load = os.getloadavg()[0]
    evaluation = read_evaluation_sets(senteval_data, sts_data)
    sentences, index = clocked(lambda: Sentences(evaluation.sets))
    texts = unrelated.read_text(encoding="utf-8").splitlines()
    matches, check = clocked(lambda: sentences.matches(texts))
    result = {
        "evaluation": {"splits": len({one.place for one in evaluation.sets}), "not_checked": evaluation.absent},
        "index": {"sentences": len(sentences), **index},
        "check": {
            "sentences": len(texts),
            "sentences_per_cpu_second": round(len(texts) / check["cpu_seconds"]),
            **check,
        },
        "unrelated_taken_for_evaluation": {
            kind: sum(any(match.kind == kind for match in one) for one in matches) for kind in KINDS
        },
        "near_pairs": [near_found(evaluation, threshold) for threshold in THRESHOLDS],
        "found_of_200": [planted(sentences, evaluation, seed) for seed in range(rounds)],
        "band_index": band_indexes(evaluation),
        "load_average_before": round(load, 2),
    }
    print(json.dumps(result, indent=2))
    write_results(out, result, ("datasketch", "numpy"))


def clocked(work: Any) -> tuple[Any, dict[str, float]]:
    """What ``work`` gives, its CPU seconds and the memory it leaves in use."""
    process = psutil.Process()
    before, start = process.memory_info().rss, time.process_time()
    done = work()
    seconds = time.process_time() - start
    megabytes = (process.memory_info().rss - before) / 1e6
    return done, {"cpu_seconds": round(seconds, 2), "megabytes": round(megabytes, 1)}


def planted(sentences: Sentences, evaluation: EvaluationTexts, seed: int) -> dict[str, int]:
    """How many of 200 STS and SICK test sentences, and of 200 lightly edited others, of any length, are found."""
    tests = [one for one in evaluation.sets if one.split == "test" and one.name.startswith(("sts", "sick"))]
    texts = list(dict.fromkeys(text for one in tests for side in one.sides for text in side))
    draw = random.Random(seed)
    chosen = draw.sample(texts, 400)
    words = [word for text in draw.sample(texts, 2000) for word in text.split()]
    edits = [edited(text, words, draw) for text in chosen[200:]]
    return {
        "planted": sum(bool(found) for found in sentences.matches(chosen[:200])),
        "edited": sum(any(match.kind in DROPPED for match in found) for found in sentences.matches(edits)),
    }


def edited(text: str, words: Sequence[str], draw: random.Random) -> str:
    """One word changed, added or removed, or other case or punctuation."""
    tokens, kind = text.split(), draw.choice(EDITS)
    place = draw.randrange(len(tokens))
    if kind == "change":
        tokens[place] = draw.choice([word for word in words if word != tokens[place]])
    elif kind == "add":
        tokens.insert(place, draw.choice(words))
    elif kind == "remove":
        del tokens[place]
    elif kind == "case":
        tokens = [token.swapcase() for token in tokens]
    else:
        tokens[place] += draw.choice(",;!")
    return " ".join(tokens)


def near_found(evaluation: EvaluationTexts, threshold: float) -> dict[str, Any]:
    """Which share of the near pairs of drawn sentences and edited ones is found at a threshold, and what that costs."""
    banding, counts, cost = Banding.at(threshold), np.zeros(4, dtype=int), {"index": 0.0, "ask": 0.0}
    shares = []
    for seed in range(DRAWS):
        forms, asked = drawn_forms(evaluation, seed)
        index, building = clocked(lambda forms=forms: NearIndex(forms, banding))
        near, asking = clocked(lambda index=index, asked=asked: index.near(asked, threshold))
        pairs = {(query, place) for query, one in enumerate(near) for place, _ in one}
        every = near_pairs(forms, asked, threshold)
        edge = {pair for pair, similarity in every.items() if similarity < threshold + ABOVE}
        counts += [len(every), len(pairs & every.keys()), len(edge), len(pairs & edge)]
        shares.append(len(pairs & edge) / max(1, len(edge)))
        cost = {"index": cost["index"] + building["cpu_seconds"], "ask": cost["ask"] + asking["cpu_seconds"]}
    return {
        "threshold": threshold,
        "bands": banding.bands,
        "rows": banding.rows,
        "expected_at_threshold": round(banding.recall(threshold), 4),
        "pairs": int(counts[0]),
        "found": round(float(counts[1] / counts[0]), 4),
        "pairs_just_above": int(counts[2]),
        "found_just_above": round(float(counts[3] / counts[2]), 4),
        "least_found_just_above_in_a_draw": round(min(shares), 4),
        "cpu_seconds_to_index_20000": round(cost["index"] / DRAWS, 2),
        "cpu_milliseconds_a_text": round(1000 * cost["ask"] / DRAWS / ASKED, 3),
    }


def drawn_forms(evaluation: EvaluationTexts, seed: int) -> tuple[list[str], list[str]]:
    """Normal forms of sentences to index, and of sentences with one to five light edits to look up."""
    draw = random.Random(seed)
    texts = list(dict.fromkeys(text for one in evaluation.sets for side in one.sides for text in side if text.split()))
    forms = [form for form in dict.fromkeys(map(normal_form, draw.sample(texts, 2 * COMPARED))) if len(form) >= 16]
    words = [word for text in draw.sample(texts, 2000) for word in text.split()]
    asked = list[str]()
    while len(asked) < ASKED:
        text = draw.choice(texts)
        for _ in range(draw.randint(1, 5)):
            text = edited(text, words, draw) if text.split() else text
        if len(normal_form(text)) >= 12:
            asked.append(normal_form(text))
    return forms[:COMPARED], asked


def near_pairs(forms: Sequence[str], others: Sequence[str], threshold: float) -> dict[tuple[int, int], float]:
    """(number of the other text, number of the form) → similarity, of every pair from ``threshold`` on."""
    from scipy import sparse

    gathered = [grams(text, 3) for text in (*others, *forms)]
    column = {gram: number for number, gram in enumerate(sorted(set().union(*gathered)))}
    cells = np.array([column[gram] for one in gathered for gram in sorted(one)])
    starts = np.cumsum([0, *map(len, gathered)])
    counted = sparse.csr_matrix((np.ones(len(cells), dtype=np.int32), cells, starts), (len(gathered), len(column)))
    first, second = counted[: len(others)], counted[len(others) :]
    both = (first @ second.T).tocoo()
    sizes = [np.diff(one.indptr) for one in (first, second)]
    similarity = both.data / (sizes[0][both.row] + sizes[1][both.col] - both.data)
    kept = similarity >= threshold
    return dict(zip(zip(both.row[kept].tolist(), both.col[kept].tolist(), strict=True), similarity[kept], strict=True))


def band_indexes(evaluation: EvaluationTexts) -> dict[str, Any]:
    """Time and memory of our band index and of the library's, each with its signatures, on the same sentences."""
    from datasketch import MinHash, MinHashLSH

    texts = (text for one in evaluation.sets for side in one.sides for text in side)
    forms = [form for form in dict.fromkeys(map(normal_form, texts)) if len(form) >= 16][:COMPARED]
    banding = Banding.at(0.5)

    def library() -> MinHashLSH:
        index = MinHashLSH(num_perm=banding.permutations, params=(banding.bands, banding.rows))
        for number, values in enumerate(signatures(forms, banding)):
            index.insert(number, MinHash(hashvalues=values, scheme=SCHEME), check_duplication=False)
        return index

    kept = [clocked(lambda: NearIndex(forms, banding)), clocked(library)]
    ours, theirs = (measured for _, measured in kept)
    return {"sentences": len(forms), "ours": ours, "datasketch.MinHashLSH": theirs}


if __name__ == "__main__":
    run(app)

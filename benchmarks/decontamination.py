"""Decontamination: python -m benchmarks.decontamination --senteval-data DIR --sts-data DIR --unrelated FILE

How fast all STS, SICK and SentEval sentences are indexed and other sentences are checked against them, on one core;
how many planted test sentences and light edits of test sentences are found; how much unrelated text is taken for one;
and the band index beside datasketch's ``MinHashLSH`` on the same signatures.
"""

import json
import os
import random
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from datasketch import MinHash, MinHashLSH

from benchmarks.throughput.worker import hardware
from eval.decontamination import KINDS, Sentences
from eval.decontamination_ledger import DROPPED
from eval.decontamination_near import SCHEME, Banding, NearIndex, signatures
from eval.decontamination_sentences import Evaluation, read_evaluation_sets
from eval.text_forms import normal_form
from hub.cli import new_app, run, say

app = new_app(__doc__)
EDITS = ("change", "add", "remove", "case", "punctuation")
COMPARED = 20_000  # sentences in both band indexes: the library's takes 10 KB of each


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
        "found_of_200": [planted(sentences, evaluation, seed) for seed in range(rounds)],
        "band_index": band_indexes(evaluation),
        "hardware": hardware("cpu"),
        "load_average_before": round(load, 2),
        "versions": {name: version(name) for name in ("datasketch", "numpy")},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    say(f"wrote {out}")


def clocked(work: Any) -> tuple[Any, dict[str, float]]:
    """What ``work`` gives, its CPU seconds and the memory it leaves in use."""
    process = psutil.Process()
    before, start = process.memory_info().rss, time.process_time()
    done = work()
    seconds = time.process_time() - start
    megabytes = (process.memory_info().rss - before) / 1e6
    return done, {"cpu_seconds": round(seconds, 2), "megabytes": round(megabytes, 1)}


def planted(sentences: Sentences, evaluation: Evaluation, seed: int) -> dict[str, int]:
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


def band_indexes(evaluation: Evaluation) -> dict[str, Any]:
    """Time and memory of our band index and of the library's, each with its signatures, on the same sentences."""
    texts = (text for one in evaluation.sets for side in one.sides for text in side)
    forms = [form for form in dict.fromkeys(map(normal_form, texts)) if len(form) >= 16][:COMPARED]
    banding = Banding()

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

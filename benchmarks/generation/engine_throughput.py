"""How fast texts are written: the engine against ``generate()``: python -m benchmarks.generation.engine_throughput

What the ways are, how time and the roofline are taken: benchmarks/README.md. ``--preset trial`` lets random models stop
after 8 to 11 tokens in place of 22 in the mean; ``--preset h200`` is GPT2-XL's shape in bf16 on a GPU, all of STS-x2.
"""

import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.generation.throughput import report, worker
from benchmarks.trials import FreshProcesses, has_gpu, write_results
from hub.cli import new_app, run, say
from hub.errors import InputError

app = new_app(__doc__)


@dataclass(frozen=True)
class Case:
    """One task on one model: first texts per round of each variant (a slow one gets few), rows of batched calls."""

    work: str
    shape: str | None  # of ``models.SHAPES``; None: the demo's model
    rows: int
    counts: dict[str, int]
    lengths: tuple[int, ...] = ()  # tokens after which random models close, equally often; empty: as the demo's model

    @property
    def name(self) -> str:
        """What the report calls it."""
        return f"{self.work}, {self.shape or 'demo-lm'}"


@dataclass(frozen=True)
class Preset:
    """What is measured on a kind of machine."""

    device: str
    rounds: int
    lengths_of: int  # first texts whose lengths under the demo's model are taken over
    cases: tuple[Case, ...]
    roofline: tuple[tuple[int, ...], tuple[int, ...]]  # widths, rows


def _counts(original: int, batched: int, engine: int, dtypes: tuple[str, ...], base: str) -> dict[str, int]:
    slow = {f"original {base}": original, f"batched {base}": batched}
    return {name: count for name, count in slow.items() if count} | {f"engine {dtype}": engine for dtype in dtypes}


BOTH = ("float32", "bfloat16")
SHORT = (8, 9, 10, 11)
PRESETS = {
    "cpu": Preset(
        "cpu",
        3,
        64,
        (
            Case("sts-x2", None, 96, _counts(12, 32, 160, BOTH, "float32")),
            Case("sts-x2", "gpt2-124m", 96, _counts(2, 16, 32, BOTH, "float32")),
            Case("auto-nli-20shot", "llama-27m", 32, _counts(0, 16, 96, BOTH, "float32")),
        ),
        ((256, 768), (64, 256, 1024)),
    ),
    "trial": Preset(
        "cpu",
        3,
        0,
        (
            Case("sts-x2", "llama-5m", 96, _counts(12, 32, 256, BOTH, "float32"), SHORT),
            Case("sts-x2", "gpt2-124m", 96, _counts(2, 16, 48, BOTH, "float32"), SHORT),
        ),
        ((256, 768), (64, 256, 1024)),
    ),
    "quick": Preset(
        "cpu",
        1,
        4,
        (
            Case("sts-x2", "gpt2-tiny", 96, _counts(2, 4, 8, BOTH, "float32")),
            Case("auto-nli-20shot", "llama-tiny", 32, _counts(0, 2, 4, ("float32",), "float32")),
        ),
        ((256,), (64,)),
    ),
    "h200": Preset(
        "cuda",
        1,
        64,
        (Case("sts-x2", "gpt2-xl", 96, _counts(4, 64, 12_000, ("bfloat16",), "bfloat16")),),
        ((1600, 8192), (512, 4096, 16_384)),
    ),
}


_MODELING = ("gpt2", "llama")  # transformers imports what a model needs, seconds of work, when one is made
PRELOADED = [
    *(f"benchmarks.generation.throughput.{name}" for name in ("worker", "baselines", "models", "roofline")),
    "generation.decoding.engine",
    *(f"transformers.models.{kind}.modeling_{kind}" for kind in _MODELING),
]


@app.command(no_args_is_help=False)
def main(
    preset: Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="The preset quick: tiny models, no meaning")] = False,
    only: Annotated[list[str], typer.Option(help="Cases whose name contains this; repeatable")] = [],  # noqa: B006
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds [default: the preset's]")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file [default: benchmarks/results/...]")] = None,
) -> None:
    """Measure, print a table, write a JSON file with every round."""
    name = "quick" if quick else preset
    if name not in PRESETS:
        raise InputError(f"--preset {name}", "unknown", allowed=", ".join(PRESETS))
    chosen = PRESETS[name]
    cases = [case for case in chosen.cases if not only or any(part in case.name for part in only)]
    if not cases:
        raise InputError("--only", f"no case of {name} matches {only}", allowed=[case.name for case in chosen.cases])
    alone = FreshProcesses(PRELOADED)
    if chosen.device != "cpu" and not alone(has_gpu):
        raise InputError(f"--preset {name}", "torch finds no CUDA GPU here", hint="use --preset cpu")
    say(f"roofline of {chosen.device} ...")
    roofline = alone(worker.measure_roofline, chosen.device, *chosen.roofline)
    with tempfile.TemporaryDirectory() as folder:
        measured = {case.name: _measure(alone, case, chosen, rounds or chosen.rounds, Path(folder)) for case in cases}
    result = {
        "preset": name,
        "unit": "accepted pairs per " + ("CPU-second" if chosen.device == "cpu" else "second"),
        "roofline": roofline,
        "cases": {
            name: report.summary(case, roofline["best"], chosen.device == "cpu") for name, case in measured.items()
        },
    }
    print(report.table(result))
    default = "engine_throughput.json" if name == "cpu" else f"engine_throughput_{name}.json"
    path = out or Path("benchmarks/results") / default
    write_results(path, result, ("torch", "transformers", "tokenizers", "numpy"), chosen.device)


def _measure(alone: FreshProcesses, case: Case, preset: Preset, rounds: int, folder: Path) -> dict[str, Any]:
    """Every round of every variant of a case, the variants in turn."""
    model, lengths = worker.DEMO_LM, list[int]()
    if case.shape:
        lengths = list(case.lengths) or alone(worker.trained_lengths, case.work, preset.lengths_of)
        model = folder / case.shape
        alone(worker.make_model, case.shape, model, lengths)
    runs: dict[str, list[dict[str, Any]]] = {variant: [] for variant in case.counts}
    for number in range(rounds):
        for variant, count in case.counts.items():
            way, dtype = variant.split()
            trial = worker.Trial(
                work=case.work,
                model=str(model),
                random_words=case.shape is not None,
                variant=way,
                dtype=dtype,
                device=preset.device,
                rows=case.rows,
                count=count,
                start=number * max(case.counts.values()),
            )
            result = alone(worker.measure, trial)
            runs[variant].append(asdict(result))
            say(f"{case.name}, round {number + 1}, {variant}: {result.accepted} pairs in {result.cpu_s:.1f} CPU s")
    return {
        "model": alone(worker.describe_model, model),
        "tokens_per_text_wanted": round(statistics.mean(lengths), 2) if lengths else None,
        "rows_of_a_batched_call": case.rows,
        "first_texts_per_round": case.counts,
        "runs": runs,
    }


if __name__ == "__main__":
    run(app)

"""How fast texts are written: the engine against ``generate()``: python -m benchmarks.generation.engine_throughput

What the ways are, how time and the roofline are taken: benchmarks/README.md. ``--preset lm`` measures a real language
model; ``--preset trial`` lets random models stop after 8 to 11 tokens in place of 22 in the mean; ``--preset h200`` is
GPT2-XL's shape in bf16 on a GPU, all of STS-x2.
"""

import statistics
import tempfile
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.generation.throughput import report, worker
from benchmarks.generation.throughput.cases import (
    DEMO_LM,
    LM,
    MAKE_LM,
    PRESETS,
    Case,
    Preset,
    for_equality,
    scaled,
)
from benchmarks.generation.throughput.ways import Trial
from benchmarks.trials import FreshProcesses, has_gpu, turned, write_results
from hub.cli import new_app, run, say
from hub.errors import InputError

app = new_app(__doc__)
_MODELING = ("gpt2", "llama", "gemma3")  # transformers imports what a model needs, seconds of work, when one is made
PRELOADED = [
    *(f"benchmarks.generation.throughput.{name}" for name in ("worker", "baselines", "models", "roofline")),
    "generation.backends.engine",
    *(f"transformers.models.{kind}.modeling_{kind}" for kind in _MODELING),
]


@dataclass(frozen=True)
class Places:
    """Where models lie: a real one as transformers and as llama.cpp read it, and a folder for random ones."""

    lm: Path
    gguf: Path
    made: Path


@app.command(no_args_is_help=False)
def main(
    preset: Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="The preset quick: tiny models, no meaning")] = False,
    only: Annotated[list[str], typer.Option(help="Cases whose name contains this; repeatable")] = [],  # noqa: B006
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds [default: the preset's]")] = None,
    scale: Annotated[float, typer.Option(min=0.001, help="So many times the preset's first texts")] = 1.0,
    texts: Annotated[
        int | None, typer.Option(min=1, help="Compare so many texts with generate()'s in float32, one round")
    ] = None,
    lm: Annotated[Path, typer.Option(help="Folder of the real language model")] = LM,
    gguf: Annotated[
        Path | None, typer.Option(help="The same model for llama.cpp [default: the GGUF file in that folder]")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file [default: benchmarks/results/...]")] = None,
) -> None:
    """Measure, print a table, write a JSON file with every round (after each case, so that none is lost)."""
    name = "quick" if quick else preset
    if name not in PRESETS:
        raise InputError(f"--preset {name}", "unknown", allowed=", ".join(PRESETS))
    chosen = PRESETS[name]
    cases = [case for case in chosen.cases if not only or any(part in case.name for part in only)]
    if not cases:
        raise InputError("--only", f"no case of {name} matches {only}", allowed=[case.name for case in chosen.cases])
    cases = [for_equality(case, texts) if texts else scaled(case, scale) for case in cases]
    gguf = gguf or next(iter(sorted(lm.glob("*.gguf"))), lm / "model.gguf")
    cases, skipped = at_hand(cases, lm, gguf)
    if not cases:
        raise InputError(f"--preset {name}", "; ".join(skipped.values()))
    alone = FreshProcesses(PRELOADED)
    if chosen.device != "cpu" and not alone(has_gpu):
        raise InputError(f"--preset {name}", "torch finds no CUDA GPU here", hint="use --preset cpu")
    say(f"roofline of {chosen.device} ...")
    roofline = alone(worker.measure_roofline, chosen.device, chosen.widths, chosen.roofline_rows)
    result: dict[str, Any] = {
        "preset": name,
        "unit": "texts per " + ("CPU-second" if chosen.device == "cpu" else "second"),
        "roofline": roofline,
        "skipped": skipped,
        "cases": {},
    }
    default = "engine_throughput.json" if name == "cpu" else f"engine_throughput_{name}.json"
    path = out or Path("benchmarks/results") / (default if not texts else f"engine_equality_{name}.json")
    with tempfile.TemporaryDirectory() as folder:
        places = Places(lm, gguf, Path(folder))
        for case in cases:
            measured = _measure(alone, case, chosen, rounds or chosen.rounds, places)
            found = report.summary(measured, roofline["best"], chosen.device == "cpu")
            result["cases"][case.name] = found
            write_results(path, result, ("torch", "transformers", "tokenizers", "numpy"), chosen.device)
    print(report.table(result))


def at_hand(cases: list[Case], lm: Path, gguf: Path) -> tuple[list[Case], dict[str, str]]:
    """The cases whose models are there, without variants whose parts are missing; what is left out, and why."""
    kept, skipped = list[Case](), dict[str, str]()
    server = None if gguf.is_file() else f"{gguf} is not there: {MAKE_LM}, or name it with --gguf"
    if find_spec("xllamacpp") is None:
        server = "the package xllamacpp with llama.cpp's server is missing"
    for case in cases:
        if case.model == "lm" and not (lm / "config.json").is_file():
            skipped[case.name] = f"{lm} is not there: {MAKE_LM}, or name the folder with --lm"
            continue
        there = tuple(variant for variant in case.variants if variant.way != "llama.cpp" or not server)
        if server and len(there) < len(case.variants):
            skipped[f"{case.name}, llama.cpp"] = server
        if there:
            kept.append(replace(case, variants=there))
    for name, reason in skipped.items():
        say(f"left out: {name}: {reason}")
    return kept, skipped


def _measure(alone: FreshProcesses, case: Case, preset: Preset, rounds: int, places: Places) -> dict[str, Any]:
    """Every round of every variant of a case, the variants in turn and each round begun by another one."""
    lengths, shipped = list[int](), {"demo-lm": DEMO_LM, "lm": places.lm}
    model, random = shipped.get(case.model, places.made / case.model), case.model not in shipped
    if random:
        lengths = list(case.lengths) or alone(worker.trained_lengths, case.work, preset.lengths_of)
        alone(worker.make_model, case.model, model, lengths)
    variants = {variant.name: variant for variant in case.variants}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    apart = max(variant.count for variant in case.variants)  # rounds share no first text
    for number in range(rounds):
        for name in turned(variants, number):
            variant = variants[name]
            if number >= (variant.rounds or rounds):
                continue
            trial = Trial(
                work=case.work,
                model=str(model),
                random_words=random,
                way=variant.way,
                dtype=variant.dtype,
                device=preset.device,
                rows=variant.rows,
                count=variant.count,
                start=number * apart,
                keys=variant.keys,
                gguf=str(places.gguf),
            )
            result = alone(worker.measure, trial)
            runs[name].append(asdict(result))
            told = f"{result.accepted} of {result.asked} texts accepted in {result.cpu_s:.1f} CPU s"
            say(f"{case.name}, round {number + 1} of {rounds}, {name}: {told}, peak {result.peak_rss_mb:.0f} MiB")
    return {
        "model": alone(worker.describe_model, model),
        "counted": case.counted,
        "tokens_per_text_wanted": round(statistics.mean(lengths), 2) if lengths else None,
        "first_texts_per_round": {name: variant.count for name, variant in variants.items()},
        "runs": runs,
    }


if __name__ == "__main__":
    run(app)

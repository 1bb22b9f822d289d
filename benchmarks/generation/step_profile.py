"""Where the time of a decode step goes: python -m benchmarks.generation.step_profile MODEL --rows 192 --dtype float32

The engine writes texts with two counter-prompts each, as many as fill the rows; the steps after all prompts were read
are timed, first without and then with ``torch.profiler``. The profiler says what share each part has (by the wall
clock), the CPU time without it says of how much. Its own cost falls on parts of many small operations.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, Any

import typer

from benchmarks.generation.throughput.cases import check_dtypes
from benchmarks.generation.throughput.workloads import workload
from benchmarks.trials import single_thread, table
from hub.cli import new_app, run
from hub.errors import InputError, RunError

app = new_app(__doc__)
ALIGN = 32  # the engine fills a pass up to a multiple of it
BODY, ATTENTION = "benchmark: layers", "benchmark: attention"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::mkldnn", "mkldnn::", "onednn::")
PARTS = (
    "layers' matmuls",
    "attention, KV reads and writes",
    "elementwise and Python of the layers",
    "output layer's matmul",
    "choice of the token",
    "bookkeeping",
)


@dataclass
class Steps:
    """Calls ``begin`` before the first pass without prompts (``limit`` tokens at most), ``end`` after ``count``."""

    count: int
    limit: int
    begin: Callable[[], Any]
    end: Callable[[], Any]
    rows: list[int] = field(default_factory=list)  # of each timed pass
    ended: bool = False

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pre-hook of the layers."""
        tokens = int((kwargs["input_ids"] if "input_ids" in kwargs else args[0]).numel())
        if self.ended or (not self.rows and tokens > self.limit):
            return
        if len(self.rows) == self.count:
            self.ended = True
            self.end()
            return
        if not self.rows:
            self.begin()
        self.rows.append(tokens)


@app.command()
def main(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The language model's folder")],
    rows: Annotated[int, typer.Option(min=3, help="Model rows, three for each text")] = 192,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16")] = "float32",
    kind: Annotated[str, typer.Option(help="sts-x2 or sts-x2-8shot")] = "sts-x2",
    steps: Annotated[int, typer.Option(min=1, help="How many steps are timed")] = 5,
) -> None:
    """Print the CPU milliseconds of one step by part."""
    if not (model / "config.json").is_file():
        raise InputError(model, "is no folder of a language model", hint="name one that holds config.json")
    check_dtypes([dtype])
    workload(kind)
    print(told(profiled(model, rows, dtype, kind, steps), f"{model.name}, {dtype}"))


def profiled(model: Path, rows: int, dtype: str, kind: str, steps: int) -> dict[str, Any]:
    """CPU ms of a step without the profiler, the mean of its rows, and each part's share.

    Raises RunError when texts end before so many steps.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    from generation.backends.engine import Engine
    from generation.backends.protocol import complete
    from hub.contract.recipe import LanguageModel

    single_thread()
    engine = Engine.of(LanguageModel.model_validate({"path": str(model), "dtype": dtype, "license": "none"}))
    layers = engine.model.base_model
    work = workload(kind)(rows // 3, 0)
    widest = max(len(request.counter_prompts) for request in work.requests)
    requests = [request for request in work.requests if len(request.counter_prompts) == widest][: rows // (1 + widest)]

    def write(count: int, begin: Callable[[], Any], end: Callable[[], Any]) -> Steps:
        hook = Steps(count, -(-rows // ALIGN) * ALIGN, begin, end)
        handle = layers.register_forward_pre_hook(hook, with_kwargs=True)
        complete(engine, requests, work.settings, rows, work.prefixes)
        handle.remove()
        if not hook.ended:
            raise RunError(f"{model}", f"its texts end after {len(hook.rows)} of {count} steps", hint="lower --steps")
        return hook

    if work.prefixes:
        complete(engine, requests[:1], work.settings, rows, work.prefixes)  # shared beginnings are passes, too
    clock = list[float]()
    timed = write(steps, lambda: clock.append(process_time()), lambda: clock.append(process_time()))

    prof, wall = profile(activities=[ProfilerActivity.CPU]), list[float]()
    with torch.inference_mode(), _marked(layers):
        write(steps, lambda: _start(prof, wall), lambda: _stop(prof, wall))
    spent = parts(prof.events() or [])
    spent[PARTS[-1]] += max(0.0, 1e6 * (wall[1] - wall[0]) - sum(spent.values()))
    whole = sum(spent.values())
    return {
        "cpu_ms": 1e3 * (clock[1] - clock[0]) / steps,
        "rows": sum(timed.rows) / steps,
        "shares": {name: spent[name] / whole for name in PARTS},
    }


@contextmanager
def _marked(layers: Any) -> Iterator[None]:
    """Let the profiler see where the layers and their shared attention begin and end."""
    from torch.profiler import record_function
    from transformers import AttentionInterface

    from generation.backends.shared_attention import NAME, attend

    def inside(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with record_function(name):
                return function(*args, **kwargs)

        return call

    forward = layers.forward
    AttentionInterface.register(NAME, inside(ATTENTION, attend))
    layers.forward = inside(BODY, forward)
    try:
        yield
    finally:
        AttentionInterface.register(NAME, attend)
        layers.forward = forward


def _start(prof: Any, wall: list[float]) -> None:
    prof.start()
    wall.append(perf_counter())


def _stop(prof: Any, wall: list[float]) -> None:
    wall.append(perf_counter())
    prof.stop()


def parts(events: Iterable[Any]) -> dict[str, float]:
    """Microseconds of each part: every event's own time goes to the part that its name and its callers say."""
    spent = dict.fromkeys(PARTS, 0.0)
    for event in events:
        names, caller = [event.name], event.cpu_parent
        while caller is not None:
            names.append(caller.name)
            caller = caller.cpu_parent
        spent[part_of(names)] += event.self_cpu_time_total
    return spent


def part_of(names: list[str]) -> str:
    """The part of an event by its name and those of its callers, the innermost first."""
    product = any(name.startswith(PRODUCTS) for name in names)
    if ATTENTION in names or any("scaled_dot_product" in name for name in names):
        return PARTS[1]
    if BODY in names:
        return PARTS[0] if product else PARTS[2]
    return PARTS[3] if product else PARTS[4]


def told(found: dict[str, Any], name: str) -> str:
    """A Markdown table of the parts."""
    rows = [[part, f"{share * found['cpu_ms']:.1f}", f"{share:.0%}"] for part, share in found["shares"].items()]
    rows.append(["**a step**", f"{found['cpu_ms']:.1f}", ""])
    return table([f"{name}, {found['rows']:.0f} rows", "CPU ms", "share"], rows)


if __name__ == "__main__":
    run(app)

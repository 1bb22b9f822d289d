"""How fast this machine multiplies matrices with torch: the roofline that the variants are held against."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import mkldnn

SECONDS = 0.15  # per trial
TRIALS = 5


def measure(device: str, widths: tuple[int, ...], rows: tuple[int, ...]) -> dict[str, Any]:
    """GFLOP/s of linear layers (width -> 4 x width) by kind of weights and rows, and the best of each dtype.

    On a processor fp32 is measured with torch's plain layer and with oneDNN's packed one, per second of CPU time of
    the threads in use; on a GPU per second of wall time.
    """
    table: dict[str, dict[str, float]] = {}
    with torch.inference_mode():
        for width in widths:
            for name, (layer, feed) in _layers(device, width).items():
                for count in rows:
                    inputs = feed(torch.randn(count, width))
                    rate = 2 * count * width * 4 * width / _seconds(layer, inputs, device) / 1e9
                    table.setdefault(name, {})[f"{count} x {width} x {4 * width}"] = round(rate, 1)
    best = {dtype: max(max(v.values()) for k, v in table.items() if k.startswith(dtype)) for dtype in _DTYPES}
    return {"gflops": table, "best": best}


_DTYPES = ("float32", "bfloat16")


def _layers(device: str, width: int) -> dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    """Kinds of linear layers: what computes them and what their input must be turned into."""
    layer = nn.Linear(width, 4 * width).eval().to(device)
    half = nn.Linear(width, 4 * width).eval().to(device, torch.bfloat16)
    kinds: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        "float32": (layer, lambda x: x.to(device)),
        "bfloat16": (half, lambda x: x.to(device, torch.bfloat16)),
    }
    if device == "cpu":
        kinds["float32, packed"] = (mkldnn.to_mkldnn(layer), lambda x: x.to_mkldnn())
    return kinds


def _seconds(layer: Callable[[Any], Any], inputs: Any, device: str) -> float:
    """Seconds of one product: the best of several trials."""
    clock, best = (time.process_time if device == "cpu" else time.perf_counter), float("inf")
    layer(inputs)
    for _ in range(TRIALS):
        started, count = clock(), 0
        while clock() - started < SECONDS:
            for _ in range(1 if device == "cpu" else 20):
                layer(inputs)
                count += 1
            if device != "cpu":
                torch.cuda.synchronize()
        best = min(best, (clock() - started) / count)
    return best

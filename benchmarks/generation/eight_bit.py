"""Do 8-bit weights win? python -m benchmarks.generation.eight_bit

Linear layers of Gemma 3 270M's shapes over the rows of a decoding step: float32 and bfloat16, plain and packed as the
engine packs them, and torch's own dynamic quantization (weights in int8, activations quantized as they come) with each
engine that this CPU has. CPU milliseconds of one product, best and worst of the trials, and the mean error over the
spread of the float32 result.
"""

import json
import time
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer

from hub import cli

app = cli.new_app(__doc__)
LAYERS = {"layer": (640, 2048), "output layer": (640, 262_144)}


@app.command()
def main(
    rows: Annotated[int, typer.Option(min=1, help="Rows of a step")] = 192,
    trials: Annotated[int, typer.Option(min=1, help="Products of each kind and shape, in turns")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Small shapes: for the test, no meaning")] = False,
) -> None:
    """Measure and print as JSON."""
    shapes = {name: (inner, min(outer, 4096) if quick else outer) for name, (inner, outer) in LAYERS.items()}
    found = {name: measure(rows, *shape, trials) for name, shape in shapes.items()}
    print(json.dumps({"rows": rows, "shapes": shapes, "milliseconds": found}, indent=2))


def measure(rows: int, inner: int, outer: int, trials: int) -> dict[str, Any]:
    """By kind of weights: ``best`` and ``worst`` CPU milliseconds, ``error`` over the float32 result's spread."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(rows, inner)
    with torch.inference_mode():
        kinds = _kinds(inner, outer)
        wanted = kinds["float32"](inputs)
        error = {name: float((run(inputs) - wanted).abs().mean() / wanted.std()) for name, run in kinds.items()}
        taken: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(trials):
            for name, run in kinds.items():
                started = time.process_time()
                run(inputs)
                taken[name].append(1000 * (time.process_time() - started))
    return {
        name: {"best": round(min(times), 2), "worst": round(max(times), 2), "error": round(error[name], 5)}
        for name, times in taken.items()
    }


def _kinds(inner: int, outer: int) -> dict[str, Callable[[Any], Any]]:
    import torch
    from torch import nn

    from generation.backends.output_layer import PackedLinear

    linear = nn.Linear(inner, outer, bias=False)
    layer = nn.Sequential(linear).eval()
    half = nn.Sequential(nn.Linear(inner, outer, bias=False)).eval()
    half.load_state_dict(layer.state_dict())
    half.to(torch.bfloat16)
    kinds: dict[str, Callable[[Any], Any]] = {"float32": layer, "bfloat16": lambda x: half(x.to(torch.bfloat16))}
    packed = {dtype: PackedLinear(linear.weight.to(dtype), None) for dtype in (torch.float32, torch.bfloat16)}
    kinds["float32, packed"] = packed[torch.float32]
    kinds["bfloat16, packed"] = lambda x: packed[torch.bfloat16](x.to(torch.bfloat16))
    for engine in ("x86", "onednn"):
        if engine in torch.backends.quantized.supported_engines:
            torch.backends.quantized.engine = engine
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, that this is on its way to another package
                kinds[f"int8, {engine}"] = torch.ao.quantization.quantize_dynamic(layer, {nn.Linear}, dtype=torch.qint8)
    return kinds


if __name__ == "__main__":
    cli.run(app)

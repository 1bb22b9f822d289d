"""Linear layers with weights in the order that oneDNN's kernels read them, on a CPU.

On AMD processors a packed float32 layer is about twice as fast as the one torch calls by itself, on Intel it is equal;
and its result for a row does not depend on how many rows there are, from one row on. The operators are private to
torch: ``pack`` checks each layer against the plain one and leaves the model as it is where they are missing or differ.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

TYPES = (torch.float32, torch.bfloat16)


class PackedLinear(nn.Module):
    """x·Wᵀ + b over a packed W; takes (..., in) and gives (..., out)."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 256)
        self.bias = bias

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in) → (..., out)."""
        flat = inputs.reshape(-1, self.in_features)
        out = torch.ops.mkldnn._linear_pointwise(flat, self.packed, self.bias, "none", [], "")
        return out.view(*inputs.shape[:-1], self.out_features)


@torch.inference_mode()
def pack(model: Any) -> int:
    """Replace a model's linear layers, but the last one, by packed ones; how many were. Training is over after that."""
    output, count = model.get_output_embeddings(), 0
    for parent, name in _places(model):
        layer = getattr(parent, name)
        if layer is not output and (replacement := packed(layer)) is not layer:
            setattr(parent, name, replacement)
            count += 1
    return count


def pack_output_layer(model: Any) -> None:
    """Replace a model's last layer, too."""
    output = model.get_output_embeddings()
    for parent, name in _places(model):
        if getattr(parent, name) is output:
            setattr(parent, name, packed(output))


def _places(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Every layer by its parent and its name there: what is replaced is not held, or weights would be there twice."""
    return [(parent, name) for parent in model.modules() for name, _ in parent.named_children()]


def linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """x·Wᵀ + b for a weight (out, in) and a bias (out,), packed where that can be done."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return packed(layer)


@torch.inference_mode()
def packed(layer: nn.Module) -> nn.Module:
    """A linear layer in packed form; the layer itself where that cannot be done or gives something else."""
    if type(layer) is not nn.Linear and type(layer) is not Conv1D:
        return layer
    weight = layer.weight.t() if isinstance(layer, Conv1D) else layer.weight
    if not _fits(weight):
        return layer
    found = PackedLinear(weight.detach(), None if layer.bias is None else layer.bias.detach())
    return found if _equal(layer, found) else layer


def _fits(weight: Tensor) -> bool:
    can = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return can and weight.device.type == "cpu" and weight.dtype in TYPES


def _equal(layer: nn.Linear | Conv1D, packed: PackedLinear) -> bool:
    weight = layer.weight
    probe = torch.linspace(-1, 1, 4 * packed.in_features, dtype=weight.dtype).view(4, -1)
    plain = layer(probe).float()
    tolerance = (1e-4 if weight.dtype == torch.float32 else 2e-2) * max(1.0, float(plain.abs().max()))
    return bool((packed(probe).float() - plain).abs().max() <= tolerance)

"""The output layer in pieces: logits of (rows, V) are never in memory at once, only statistics of them.

Hidden states leave the model's forward pass. Of the logits of each piece of the vocabulary are kept: the running
maximum and sum of exponentials (so the log-normaliser), and the maxima of tiles of tokens, among which the largest
logits are found. The few logits that are read are then computed once more, one product each (docs/engine.md).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from generation.backends.batch import KVCaches, LiveBatch
from generation.backends.protocol import Request
from generation.backends.self_debiasing import NextTokenLogits, largest
from generation.backends.shared_attention import CURRENT, ROW_ALIGN, run_pass

PIECE = 4096  # tokens whose logits are computed together: they stay in the processor's cache
SMALLEST = 16_384  # tokens of a vocabulary; logits of a smaller one are read faster as a whole
TILE = 8  # tokens whose maximum stands for them; in a piece they lie its length / TILE apart
TRIED = 8  # prompts on which the layer taken out is compared with the model's own
REFINED = 4  # tiles of a row in half precision whose logits are computed once more for its normaliser
AT_ONCE = {"cpu": 2**24, "cuda": 2**28}  # numbers of the weight that are read together for single logits: 64 MB, 1 GB
_LOWEST = -1e30  # finite, so that differences of it are


class OutputLayer:
    """A model's last linear layer, from H numbers to V logits, read piece by piece."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        """``weight`` is (V, H), ``bias`` (V,)."""
        self.weight, self.bias, self.vocabulary = weight, bias, len(weight)
        self.starts = range(0, self.vocabulary, PIECE)
        self._pieces = [self._piece(start) for start in self.starts]

    @property
    def bytes_per_row(self) -> int:
        """Bytes that a row takes: the maxima of its tiles, twice while they are put together, and two pieces."""
        return 8 * self.vocabulary // TILE + 8 * PIECE

    def _piece(self, start: int) -> Callable[[Tensor], Tensor]:
        """Hidden states (R, H) to the logits of a piece, whose length is filled up to whole tiles."""
        weight = self.weight[start : start + PIECE]
        bias = None if self.bias is None else self.bias[start : start + PIECE]
        missing = -len(weight) % TILE
        if missing:
            weight = torch.cat([weight, weight.new_zeros(missing, weight.shape[1])])
            bias = None if bias is None else torch.cat([bias, bias.new_zeros(missing)])
        return linear(weight, bias)

    def pieces(self, hidden: Tensor, banned: Sequence[int]) -> Iterator[Tensor]:
        """Logits (R, at most PIECE) in float32, piece by piece; -∞ for ``banned`` tokens and behind the vocabulary."""
        hidden = hidden.to(self.weight.dtype)
        never = dict[int, list[int]]()
        for token in banned:
            never.setdefault(token // PIECE, []).append(token % PIECE)
        for number, (start, piece) in enumerate(zip(self.starts, self._pieces, strict=True)):
            logits = piece(hidden).float()
            logits[:, self.vocabulary - start :] = -torch.inf
            if number in never:
                logits[:, never[number]] = -torch.inf
            yield logits


class LogitsInPieces(NextTokenLogits):
    """The logits of R hidden states as ``generation.backends.self_debiasing.choose`` reads them.

    Kernels of half precision round what they have summed in float32: a bfloat16 logit of 20 is off by up to 0.06, a
    probability by 6 %, which the decay constant of self-debiasing multiplies by 100. So what is read one by one is
    computed in float32, and the largest terms of the normaliser are replaced by theirs.
    """

    def __init__(self, layer: OutputLayer, hidden: Tensor, banned: Sequence[int]):
        """``hidden`` is (R, H), of the layer's dtype or float32; ``banned`` tokens have a logit of -∞."""
        self._layer, self._banned, self._rows = layer, banned, len(hidden)
        self._hidden = nn.functional.pad(hidden, (0, 0, 0, -len(hidden) % ROW_ALIGN))
        peak = hidden.new_full((len(self._hidden),), _LOWEST, dtype=torch.float32)
        total, tops = torch.zeros_like(peak), list[Tensor]()
        for logits in layer.pieces(self._hidden, banned):
            tops.append(logits.view(len(logits), TILE, -1).amax(dim=1))
            higher = torch.maximum(peak, tops[-1].amax(dim=1))
            total = total * (peak - higher).exp() + logits.sub_(higher[:, None]).exp_().sum(dim=1)
            peak = higher
        self._tops = torch.cat(tops, dim=1)
        self.norms = (peak + total.log())[: self._rows]
        self._refined: tuple[Tensor, Tensor] | None = None  # logits of the likeliest tiles, and their tokens
        if layer.weight.dtype != torch.float32:
            self._refine(layer.weight.dtype)

    def _refine(self, rounded: torch.dtype) -> None:
        """Put the exact logits of each row's likeliest tokens in the place of the rounded ones in its normaliser."""
        self._refined = self._tiles(torch.arange(self._rows, device=self.norms.device), REFINED)
        exact = self._refined[0]
        norm = self.norms[:, None]
        change = (exact - norm).exp() - (exact.to(rounded).float() - norm).exp()
        self.norms += change.sum(dim=1).clamp(min=-0.5).log1p()

    def at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Logits (B, W, C) of the rows (B, W) at the tokens (B, C)."""
        if len(rows) == 1:  # one product alone is computed by another kernel, whose last bits differ
            return self.at(rows.repeat(2, 1), ids.repeat(2, 1))[:1]
        most = AT_ONCE.get(ids.device.type, AT_ONCE["cpu"])
        each = max(2, most // (ids.shape[1] * self._hidden.shape[1]))
        if len(rows) > each:
            parts = zip(rows.split(each), ids.split(each), strict=True)
            return torch.cat([self.at(*part) for part in parts])
        taken = nn.functional.embedding(ids, self._layer.weight).float().transpose(1, 2)  # (B, H, C)
        states = self._hidden[rows].float()
        # a row at a time, for sums depend on the shape of a product, and W on the other texts
        logits = torch.cat([torch.bmm(states[:, [row]], taken) for row in range(rows.shape[1])], dim=1)
        if self._layer.bias is not None:
            logits += self._layer.bias.float()[ids][:, None]
        return logits.masked_fill_(torch.isin(ids, ids.new_tensor(self._banned))[:, None], -torch.inf)

    def largest(self, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The ``count`` largest logits (B, count) of the rows (B,) in falling order, and their tokens."""
        logits, ids = self._tiles(rows, count)
        found, order = logits.topk(min(count, self._layer.vocabulary), dim=-1)
        return found, ids.gather(1, order).clamp(max=self._layer.vocabulary - 1)

    def _tiles(self, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Logits (B, count · TILE) of the rows (B,) in the tiles with the largest maxima, their tokens (V: none)."""
        tiles = largest(self._tops[rows], min(count, self._tops.shape[1]))[1]
        each = PIECE // TILE  # tiles of a piece, but the last
        before = (len(self._layer.starts) - 1) * each
        apart = torch.where(tiles < before, each, self._tops.shape[1] - before)
        first = tiles // each * PIECE + tiles % each
        ids = (first[:, :, None] + apart[:, :, None] * torch.arange(TILE, device=tiles.device)).flatten(1)
        ids, last = ids.clamp(max=self._layer.vocabulary), self._layer.vocabulary - 1
        return self.at(rows[:, None], ids.clamp(max=last))[:, 0].masked_fill_(ids > last, -torch.inf), ids

    def whole(self, rows: Tensor) -> Tensor:
        """All logits (n, V) of some rows (n,): for a few at a time."""
        states = self._hidden[nn.functional.pad(rows, (0, -len(rows) % ROW_ALIGN))]
        pieces = list(self._layer.pieces(states, self._banned))
        logits = torch.cat(pieces, dim=1)[: len(rows)]
        if self._refined:
            exact, ids = (part[rows] for part in self._refined)
            logits = nn.functional.pad(logits, (0, 1)).scatter(1, ids, exact)  # one place more: of no token
        return logits[:, : self._layer.vocabulary]


class HiddenStatesOfPasses(nn.Module):
    """Replaces a model's output layer: passes of the engine end with hidden states, other uses as before."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., H) as it is, or (..., V)."""
        logits: Tensor = hidden if CURRENT.get(None) else self.layer(hidden)
        return logits


@torch.inference_mode()
def take_output_layer(model: Any) -> OutputLayer | None:
    """The output layer of a causal language model, whose forward pass then gives hidden states instead of logits.

    Returns None and an untouched model for a small vocabulary, for a layer that is not a plain matrix, and where logits
    of a few tokens differ: what the model does to its logits (a scale) it now does to the hidden states.
    """
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear or len(layer.weight) < SMALLEST:
        return None
    wanted = _outputs(model).float()
    parent, name = next(
        (parent, name) for parent in model.modules() for name, child in parent.named_children() if child is layer
    )
    setattr(parent, name, HiddenStatesOfPasses(layer))
    hidden = _outputs(model)
    found = nn.functional.linear(hidden, layer.weight, layer.bias).float()
    exact = hidden.dtype == torch.float32
    if found.shape == wanted.shape and (found - wanted).abs().max() <= (1e-4 if exact else 5e-2) * wanted.abs().max():
        return OutputLayer(layer.weight.detach(), None if layer.bias is None else layer.bias.detach())
    setattr(parent, name, layer)
    return None


def _outputs(model: Any) -> Tensor:
    """What the forward pass gives for some short prompts."""
    batch = LiveBatch(KVCaches(), [], model.get_input_embeddings().weight.device)
    batch.add(Request("", (), 0), [((first, first + 1), -1) for first in range(TRIED)])
    return run_pass(model, batch.next_pass())


TYPES = (torch.float32, torch.bfloat16)
VNNI = ("avx512_vnni", "avx_vnni")  # sums of 8-bit products, as torch.cpu.get_capabilities names them
ROWS = 128  # of a weight that are rounded together: memory for more would stay with the process
_TINY = 1e-9


def cpu_has(*names: str) -> bool:
    """Whether this CPU has one of these instructions; torch before it listed them says no."""
    able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(able.get(name, False) for name in names)


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


class Int8Linear(nn.Module):
    """x·Wᵀ + b in 8 bits, summed in 32: a scale for each row of W and of x; takes (..., in) and gives (..., out).

    Without VNNI the CPU adds pairs of products in 16 bits, so that x has 7 bits.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.levels, self.bias = 127 if cpu_has(*VNNI) else 63, bias
        self.scale = weight.abs().amax(dim=1).float().clamp_(min=_TINY).div_(127)
        whole = torch.empty(weight.shape, dtype=torch.int8)
        for part, rows, scale in zip(whole.split(ROWS), weight.split(ROWS), self.scale.split(ROWS), strict=True):
            part.copy_(torch.div(rows, scale[:, None]).round_())
        self.packed = torch.ops.onednn.qlinear_prepack(whole, None)
        self.zeros = torch.zeros(self.out_features, dtype=torch.int32)

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in) → (..., out)."""
        flat = inputs.reshape(-1, self.in_features)
        scale = flat.abs().amax(dim=1, keepdim=True).float().clamp_(min=_TINY).div_(self.levels)
        middle = self.levels + 1  # kernels are fast for unsigned x alone
        whole = torch.mul(flat, scale.reciprocal()).add_(middle + 0.5).to(torch.uint8)  # rounds, for to() cuts
        out = torch.ops.onednn.qlinear_pointwise(
            whole, 1.0, middle, self.packed, self.scale, self.zeros, None, 1.0, 0, flat.dtype, "none", [], ""
        )
        out = out.mul_(scale.to(flat.dtype))
        if self.bias is not None:
            out += self.bias
        return out.view(*inputs.shape[:-1], self.out_features)


@torch.inference_mode()
def pack(model: Any, last: bool = False, eight_bits: bool = False) -> int:
    """Replace a model's linear layers by packed ones: all but the last, or the ``last`` alone. Returns how many were.

    Training is over after that. No replaced layer is held, or weights would be in memory twice.
    """
    output, count = model.get_output_embeddings(), 0
    places = [(parent, name) for parent in model.modules() for name, _ in parent.named_children()]
    for parent, name in places:
        layer = getattr(parent, name)
        if (layer is output) == last and (replacement := packed(layer, eight_bits)) is not layer:
            setattr(parent, name, replacement)
            count += 1
    return count


def linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """x·Wᵀ + b for a weight (out, in) and a bias (out,), packed where that can be done."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return packed(layer)


@torch.inference_mode()
def packed(layer: nn.Module, eight_bits: bool = False) -> nn.Module:
    """A linear layer in packed form; the layer itself where that cannot be done or gives something else."""
    if type(layer) is not nn.Linear and type(layer) is not Conv1D:
        return layer
    weight = layer.weight.t() if isinstance(layer, Conv1D) else layer.weight
    can = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    if eight_bits:  # other CPUs have no fast kernel for it
        can = can and cpu_has("avx2") and hasattr(torch.ops.onednn, "qlinear_prepack")
    if not can or weight.device.type != "cpu" or weight.dtype not in TYPES:
        return layer
    kind = Int8Linear if eight_bits else PackedLinear
    found = kind(weight.detach(), None if layer.bias is None else layer.bias.detach())
    probe = torch.randn(4, found.in_features, generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    plain = layer(probe).float()
    tolerance = 1e-1 if eight_bits else 1e-4 if weight.dtype == torch.float32 else 2e-2
    return found if (found(probe).float() - plain).norm() <= tolerance * plain.norm() else layer


def precision(model: Any) -> str:
    """The narrowest numbers that a model multiplies: int8, or the name of its dtype."""
    eight_bits = any(isinstance(layer, Int8Linear) for layer in model.modules())
    return "int8" if eight_bits else str(model.dtype).removeprefix("torch.")

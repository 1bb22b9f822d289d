"""The output layer in pieces: the logits (rows, V) of a pass are never in memory together.

The model's forward pass ends with hidden states. The logits of one piece of the vocabulary after
the other are computed and dropped. Only statistics of them stay: the running maximum and sum of
exponentials, which give the log-normaliser, and the maxima of tiles of tokens, by which the largest
logits are found. The few logits that are read are then computed again, one product each
(docs/engine.md).

The second part of this module packs a model's linear layers for the CPU, in their own dtype or in
8 bits.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from sts_dino.generation.backends.batch import KVCaches, LiveBatch
from sts_dino.generation.backends.protocol import Request
from sts_dino.generation.backends.self_debiasing import NextTokenLogits, find_largest
from sts_dino.generation.backends.shared_attention import CURRENT_PASS, ROW_ALIGN, run_pass

PIECE = 4096  # tokens whose logits are computed together: they stay in the processor's cache
SMALLEST_VOCABULARY = 16_384  # a smaller vocabulary (tokens) is faster as a whole
TILE = 8  # tokens of a tile; in a piece they are (length of the piece / TILE) apart
PIECE_TILES = PIECE // TILE
TRIED_PROMPTS = 8  # prompts on which the output layer in pieces is compared with the model's own
# tiles of a row in half precision whose logits are computed again for the row's normaliser
REFINED = 4
# most numbers of the weight that are read together for single logits: 64 MB, 1 GB
AT_ONCE = {"cpu": 2**24, "cuda": 2**28}
# layers that are not packed, because a model's own code reads their weights: Mamba's time steps
UNPACKED = ("dt_proj",)
_LOWEST = -1e30  # less than any logit; finite, so that differences are finite, too


class OutputLayer:
    """A model's last linear layer, from H numbers to V logits, read piece by piece."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        """``weight`` is (V, H); ``bias`` is (V,) or None."""
        self.weight = weight
        self.bias = bias
        self.vocabulary = len(weight)
        self.starts = range(0, self.vocabulary, PIECE)
        self._pieces = [self._make_piece(start) for start in self.starts]

    @property
    def bytes_per_row(self) -> int:
        """Bytes of a row: the maxima of its tiles, twice while they are joined, and two pieces."""
        return 8 * self.vocabulary // TILE + 8 * PIECE

    def _make_piece(self, start: int) -> Callable[[Tensor], Tensor]:
        """Return a module from (R, H) to the logits of the piece of tokens from ``start`` on.

        The last piece is filled with zero weights up to whole tiles.
        """
        weight = self.weight[start : start + PIECE]
        bias = None if self.bias is None else self.bias[start : start + PIECE]
        padding = -len(weight) % TILE
        if padding:
            weight = nn.functional.pad(weight, (0, 0, 0, padding))
            bias = None if bias is None else nn.functional.pad(bias, (0, padding))
        return make_linear(weight, bias)

    def compute_pieces(self, hidden: Tensor, banned: Sequence[int]) -> Iterator[Tensor]:
        """Yield the logits (R, at most PIECE) of each piece in float32.

        They are -∞ for ``banned`` tokens and beyond the vocabulary. ``hidden``: (R, H).
        """
        hidden = hidden.to(self.weight.dtype)
        banned_columns = defaultdict[int, list[int]](list)  # index of the piece → columns in it
        for token in banned:
            banned_columns[token // PIECE].append(token % PIECE)
        for number, (start, piece) in enumerate(zip(self.starts, self._pieces, strict=True)):
            logits = piece(hidden).float()
            logits[:, self.vocabulary - start :] = -torch.inf
            if number in banned_columns:
                logits[:, banned_columns[number]] = -torch.inf
            yield logits


class LogitsInPieces(NextTokenLogits):
    """The logits of R hidden states, as ``self_debiasing.choose_tokens`` reads them.

    Kernels of half precision round what they have summed in float32: a bfloat16 logit of 20 is off
    by up to 0.06, a probability by 6 %, which the decay constant of self-debiasing multiplies by
    100. So single logits are computed in float32, and the normaliser's largest terms are replaced
    by exact ones.
    """

    def __init__(self, layer: OutputLayer, hidden: Tensor, banned: Sequence[int]):
        """Read the logits of ``hidden`` (R, H), of the layer's dtype or float32.

        ``banned`` tokens have a logit of -∞.
        """
        self._layer = layer
        self._banned = banned
        self._rows = len(hidden)
        self._hidden = nn.functional.pad(hidden, (0, 0, 0, -len(hidden) % ROW_ALIGN))

        # Compute the maxima of tiles, and the normaliser by a running maximum and sum of
        # exponentials
        peak = hidden.new_full((len(self._hidden),), _LOWEST, dtype=torch.float32)
        total = torch.zeros_like(peak)
        maxima: list[Tensor] = []
        for logits in layer.compute_pieces(self._hidden, banned):
            piece_maxima = logits.view(len(logits), TILE, -1).amax(dim=1)
            maxima.append(piece_maxima)
            new_peak = torch.maximum(peak, piece_maxima.amax(dim=1))
            piece_total = logits.sub_(new_peak[:, None]).exp_().sum(dim=1)
            total = total * (peak - new_peak).exp() + piece_total
            peak = new_peak
        self._maxima = torch.cat(maxima, dim=1)
        self.norms = (peak + total.log())[: self._rows]

        # exact logits (R, REFINED · TILE) of the likeliest tiles, and their tokens
        self._refined: tuple[Tensor, Tensor] | None = None
        if layer.weight.dtype != torch.float32:
            self._refine_norms(layer.weight.dtype)

    def _refine_norms(self, dtype: torch.dtype) -> None:
        """Correct ``norms``: use exact logits for the tokens of each row's likeliest tiles."""
        rows = torch.arange(self._rows, device=self.norms.device)
        self._refined = self._compute_tiles(rows, REFINED)
        exact = self._refined[0]
        norm = self.norms[:, None]
        rounded = exact.to(dtype).float()  # as the kernel gives them
        change = (exact - norm).exp() - (rounded - norm).exp()
        # the clamp keeps the logarithm finite
        self.norms += change.sum(dim=1).clamp(min=-0.5).log1p()

    def get(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Return the logits (B, W, C) of the rows (B, W) for the tokens (B, C)."""
        # torch computes a single product with another kernel, whose last bits differ: compute two
        if len(rows) == 1:
            return self.get(rows.repeat(2, 1), ids.repeat(2, 1))[:1]
        most = AT_ONCE.get(ids.device.type, AT_ONCE["cpu"])
        size = max(2, most // (ids.shape[1] * self._hidden.shape[1]))
        if len(rows) > size:
            parts = zip(rows.split(size), ids.split(size), strict=True)
            return torch.cat([self.get(*part) for part in parts])

        weights = nn.functional.embedding(ids, self._layer.weight).float().transpose(1, 2)
        states = self._hidden[rows].float()
        # (B, 1, H) @ (B, H, C), one of W rows at a time: the last bits of sums depend on the shape
        # of a product, and W depends on the other texts of the batch
        products = [torch.bmm(states[:, [row]], weights) for row in range(rows.shape[1])]
        logits = torch.cat(products, dim=1)
        if self._layer.bias is not None:
            logits += self._layer.bias.float()[ids][:, None]
        is_banned = torch.isin(ids, ids.new_tensor(self._banned))
        return logits.masked_fill_(is_banned[:, None], -torch.inf)

    def find_largest(self, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the ``count`` largest logits (B, count) of rows (B,), and their tokens.

        They are in falling order; there are V of them if ``count`` exceeds V.
        """
        vocabulary = self._layer.vocabulary
        logits, ids = self._compute_tiles(rows, count)
        largest, order = logits.topk(min(count, vocabulary), dim=-1)
        return largest, ids.gather(1, order).clamp(max=vocabulary - 1)

    def _compute_tiles(self, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Compute the logits in the ``count`` tiles with the largest maxima of each row (B,).

        Returns the logits (B, count · TILE) and their tokens; where a tile is filled up beyond the
        vocabulary, the logit is -∞ and the token V. With fewer than ``count`` tiles in all, every
        tile is computed.
        """
        _, tiles = find_largest(self._maxima[rows], min(count, self._maxima.shape[1]))

        # List the tokens of these tiles: they are as far apart as their piece has tiles
        tiles_before_last = (len(self._layer.starts) - 1) * PIECE_TILES
        last_piece_tiles = self._maxima.shape[1] - tiles_before_last
        stride = torch.where(tiles < tiles_before_last, PIECE_TILES, last_piece_tiles)
        first = tiles // PIECE_TILES * PIECE + tiles % PIECE_TILES
        offsets = stride[:, :, None] * torch.arange(TILE, device=tiles.device)
        ids = (first[:, :, None] + offsets).flatten(1)
        ids = ids.clamp(max=self._layer.vocabulary)

        last = self._layer.vocabulary - 1
        logits = self.get(rows[:, None], ids.clamp(max=last))[:, 0]
        return logits.masked_fill_(ids > last, -torch.inf), ids

    def get_rows(self, rows: Tensor) -> Tensor:
        """Return all logits (n, V) of the rows (n,), which should be few: they are in memory."""
        states = self._hidden[nn.functional.pad(rows, (0, -len(rows) % ROW_ALIGN))]
        pieces = list(self._layer.compute_pieces(states, self._banned))
        logits = torch.cat(pieces, dim=1)[: len(rows)]
        if self._refined:
            exact, ids = self._refined
            # tokens beyond the vocabulary write to one more column, which is then dropped
            logits = nn.functional.pad(logits, (0, 1)).scatter(1, ids[rows], exact[rows])
        return logits[:, : self._layer.vocabulary]


class HiddenStatesOfPasses(nn.Module):
    """Replaces a model's output layer, so that a pass ends with hidden states.

    A pass is one of ``shared_attention.run_pass``. All other uses of the model end with logits.
    """

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor) -> Tensor:
        """Return ``hidden`` (..., H) itself in a pass, else logits (..., V)."""
        return hidden if CURRENT_PASS.get(None) else self.layer(hidden)


@torch.inference_mode()
def take_output_layer(model: Any) -> OutputLayer | None:
    """Take the output layer out of a causal language model, whose passes then give hidden states.

    Returns None and leaves the model unchanged for a small vocabulary, for an output layer that is
    not a plain linear layer, and if the logits of some short prompts then differ: a model that
    changes its logits (by a scale) would change the hidden states instead.
    """
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear or len(layer.weight) < SMALLEST_VOCABULARY:
        return None
    expected = _run_short_prompts(model).float()

    # Compare with the replacement on the same prompts
    name = next(name for name, module in model.named_modules() if module is layer)
    model.set_submodule(name, HiddenStatesOfPasses(layer))
    hidden = _run_short_prompts(model)
    logits = nn.functional.linear(hidden, layer.weight, layer.bias).float()
    tolerance = 1e-4 if hidden.dtype == torch.float32 else 5e-2
    has_shape = logits.shape == expected.shape
    if has_shape and (logits - expected).abs().max() <= tolerance * expected.abs().max():
        bias = None if layer.bias is None else layer.bias.detach()
        return OutputLayer(layer.weight.detach(), bias)
    model.set_submodule(name, layer)
    return None


def _run_short_prompts(model: Any) -> Tensor:
    """Return the outputs (TRIED_PROMPTS, V or H) of a pass, one for each prompt of two tokens.

    They are logits; once the output layer is replaced, they are hidden states.
    """
    batch = LiveBatch(KVCaches(), [], model.get_input_embeddings().weight.device)
    prompts = [((first, first + 1), -1) for first in range(TRIED_PROMPTS)]
    batch.add(Request("", (), 0), prompts)
    return run_pass(model, batch.make_next_pass())


PACKABLE_DTYPES = (torch.float32, torch.bfloat16)
# torch.cpu.get_capabilities' names of instructions that sum 8-bit products
VNNI = ("avx512_vnni", "avx_vnni")
ROUNDED_ROWS = 128  # of a weight that are rounded together, which bounds the memory for it
_TINY = 1e-9  # least scale: a row of zeros must not divide by 0


def cpu_has(*names: str) -> bool:
    """Return whether this CPU has one of these instructions; False if torch is too old to say.

    ``names``: those of ``torch.cpu.get_capabilities``.
    """
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in names)


class PackedLinear(nn.Module):
    """x·Wᵀ + b with W packed for oneDNN's kernels; takes (..., in) and returns (..., out)."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        # 256: rows of an input for which oneDNN chooses the order; inputs may have any number
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 256)
        self.weight = weight.new_empty(0)  # Mamba reads the dtype of the output layer's weight
        self.bias = bias

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in) → (..., out)."""
        flat = inputs.reshape(-1, self.in_features)
        output = torch.ops.mkldnn._linear_pointwise(flat, self.packed, self.bias, "none", [], "")
        return output.view(*inputs.shape[:-1], self.out_features)


class Int8Linear(nn.Module):
    """x·Wᵀ + b in 8 bits, summed in 32 bits, with a scale for each row of W and of x.

    Takes (..., in) and returns (..., out). Without VNNI the CPU adds pairs of products in 16 bits;
    x then has 7 bits, so that they do not overflow.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        """Round and pack ``weight`` (out, in); ``bias`` is (out,)."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.levels = 127 if cpu_has(*VNNI) else 63  # largest absolute value of a rounded input

        # Round the weight to -127 ... 127, some rows at a time
        largest = weight.abs().amax(dim=1).float()
        self.scale = largest.clamp_(min=_TINY).div_(127)
        rounded = torch.empty(weight.shape, dtype=torch.int8)
        for start in range(0, self.out_features, ROUNDED_ROWS):
            part = slice(start, start + ROUNDED_ROWS)
            rounded[part] = torch.div(weight[part], self.scale[part, None]).round_()

        # Pack it
        self.packed = torch.ops.onednn.qlinear_prepack(rounded, None)
        self.zeros = torch.zeros(self.out_features, dtype=torch.int32)

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in) → (..., out)."""
        # Round the inputs to unsigned numbers, for which alone the kernels are fast
        flat = inputs.reshape(-1, self.in_features)
        largest = flat.abs().amax(dim=1, keepdim=True).float()
        scale = largest.clamp_(min=_TINY).div_(self.levels)
        zero_point = self.levels + 1
        # to() cuts off decimals, so + 0.5 rounds
        rounded = torch.mul(flat, scale.reciprocal()).add_(zero_point + 0.5).to(torch.uint8)

        # Multiply. The inputs' scales differ by row, so they follow; so does the bias
        output = torch.ops.onednn.qlinear_pointwise(
            rounded,
            1.0,  # scale of the inputs
            zero_point,
            self.packed,
            self.scale,
            self.zeros,
            None,  # bias
            1.0,  # scale of the output
            0,  # zero point of the output
            flat.dtype,
            "none",  # no operation on the output, so neither its arguments nor its algorithm
            [],
            "",
        )
        output = output.mul_(scale.to(flat.dtype))
        if self.bias is not None:
            output += self.bias
        return output.view(*inputs.shape[:-1], self.out_features)


@torch.inference_mode()
def pack_layers(model: Any, last: bool = False, eight_bits: bool = False) -> int:
    """Replace a model's linear layers by packed ones, and return how many were replaced.

    The packed model cannot be trained.

    Args:
        model: transformers' model.
        last: pack the output layer alone; False: all layers except it.
        eight_bits: round weights and inputs to 8 bits.

    Layers that ``pack_layer`` cannot pack stay as they are, and so do the layers ``UNPACKED``.
    """
    output_layer = model.get_output_embeddings()
    # a list of names, not of layers: a list of layers would keep replaced weights in memory
    names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    count = 0
    for name in names:
        layer = model.get_submodule(name)
        if (layer is output_layer) != last or name.endswith(UNPACKED):
            continue
        packed = pack_layer(layer, eight_bits)
        if packed is not layer:
            model.set_submodule(name, packed)
            count += 1
    return count


def make_linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Return x·Wᵀ + b for a weight (out, in) and a bias (out,), packed where possible."""
    out_features, in_features = weight.shape
    layer = nn.Linear(in_features, out_features, bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return pack_layer(layer)


@torch.inference_mode()
def pack_layer(layer: nn.Module, eight_bits: bool = False) -> nn.Module:
    """Return a linear layer in packed form; ``eight_bits``: as an ``Int8Linear``.

    Returns the layer itself if it cannot be packed, or if the outputs of the packed layer differ by
    more than the rounding of its precision.
    """
    if type(layer) is not nn.Linear and type(layer) is not Conv1D:
        return layer
    weight = layer.weight.t() if isinstance(layer, Conv1D) else layer.weight
    if not _can_pack(weight, eight_bits):
        return layer
    bias = None if layer.bias is None else layer.bias.detach()
    packed_class = Int8Linear if eight_bits else PackedLinear
    packed = packed_class(weight.detach(), bias)

    # Compare both on random inputs; the relative tolerance is for the rounding of the precision
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(4, packed.in_features, generator=generator).to(weight.dtype)
    expected = layer(probe).float()
    tolerance = 1e-4 if weight.dtype == torch.float32 else 2e-2
    if eight_bits:
        tolerance = 1e-1
    difference = (packed(probe).float() - expected).norm()
    return packed if difference <= tolerance * expected.norm() else layer


def _can_pack(weight: Tensor, eight_bits: bool) -> bool:
    """Return whether torch and this CPU have the kernels for a weight."""
    if weight.device.type != "cpu" or weight.dtype not in PACKABLE_DTYPES:
        return False
    if not torch.backends.mkldnn.is_available():
        return False
    if eight_bits and not (cpu_has("avx2") and hasattr(torch.ops.onednn, "qlinear_prepack")):
        return False  # other CPUs have no fast kernel for it
    if weight.dtype == torch.bfloat16 and not eight_bits and not has_packed_bfloat16():
        return False
    return hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def has_packed_bfloat16() -> bool:
    """Return whether oneDNN has kernels for packed bfloat16 here; AVX2 alone is too little."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def get_precision(model: Any) -> str:
    """Return the precision of a model's products: int8, or the name of its dtype."""
    if any(isinstance(layer, Int8Linear) for layer in model.modules()):
        return "int8"
    return str(model.dtype).removeprefix("torch.")

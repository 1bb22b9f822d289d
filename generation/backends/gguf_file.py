"""A GGUF file: its config, and its weights de-quantised layer by layer into their final dtype.

Equal to what transformers reads, for ``PROVEN`` architectures; transformers takes seconds for a vocabulary alone.
"""

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from math import prod
from pathlib import Path
from threading import Thread
from typing import Any

import gguf
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, __version__
from transformers.integrations.gguf.reader import _read_metadata, _read_tensor_table
from transformers.modeling_gguf_pytorch_utils import GGUF_TO_TRANSFORMERS_MAPPING, TENSOR_PROCESSORS, TensorProcessor

from hub.cli import say
from hub.contract.run_dir import ARTIFACTS
from hub.durable import make_folder, rename_folder, sha256_file
from hub.untrusted import NO_CODE, first_line

PROVEN = {"llama": "llama", "qwen2": "qwen2", "gemma3": "gemma3_text"}  # architecture: model_type
COPIES = ARTIFACTS / "lm" / "prepared"
MOST = 10 * 10**9  # bytes of all copies
SMALLEST = 3 * 10**8  # bytes of a GGUF whose weights are copied; a smaller one takes seconds
LEFT = 3600  # seconds after its last layer: an unfinished copy belongs to a killed process
_SMALL, _PIECE = 2**16, 2**18  # elements; a piece is de-quantised at once and stays in the processor's cache


def read_header(file: str) -> tuple[dict[str, Any], list[tuple[Any, ...]], int]:
    """A file's metadata; the name, shape, format and place of each tensor; and where their data start."""
    blob = np.memmap(file, mode="r", dtype=np.uint8)
    metadata, count, end = _read_metadata(blob, file)
    tensors, end = _read_tensor_table(blob, count, end)
    alignment = metadata.get("general.alignment", 32)
    return metadata, tensors, -(-end // alignment) * alignment


def read_config(file: str | None) -> Any | None:
    """The config as transformers has it; None without a file, and for an architecture that is not proven."""
    if not file:
        return None
    metadata, tensors, _ = read_header(file)
    if metadata["general.architecture"] not in PROVEN or metadata.get("general.name") == "mistral":
        return None
    values: dict[str, Any] = {"vocab_size": metadata.get("tokenizer.ggml.tokens")}
    names: Any = GGUF_TO_TRANSFORMERS_MAPPING["config"]
    for key, value in metadata.items():
        section, _, rest = key.partition(".")
        values[names.get(section, {}).get(rest)] = value
    tied = all(name != "output.weight" for name, *_ in tensors)
    values |= {"model_type": PROVEN[values["model_type"]], "tie_word_embeddings": tied}
    return AutoConfig.for_model(**{name: value for name, value in values.items() if name not in (None, -1)})


class GgufWeights:
    """The weights of a file with a config of ``read_config``, in ``dtype``."""

    def __init__(self, file: Path, config: Any, dtype: torch.dtype):
        """Read the header only. Raises ValueError for a damaged one."""
        self.file, self.config, self.dtype = file, config, dtype
        self.kept_in: Path | None = None  # the copy that was read
        metadata, self.tensors, self._start = read_header(str(file))
        self._kind = metadata["general.architecture"]
        architecture = next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == self._kind)
        known = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, **NO_CODE)
        self.model_class = type(model)
        parts = {name: name.rpartition(".") for name in model.state_dict()}
        self._names = {f"{known.get_name(stem)}.{ending}": name for name, (stem, _, ending) in parts.items()}

    @property
    def bytes(self) -> int:
        """Bytes of all weights in ``dtype``."""
        return sum(prod(shape) for _, shape, _, _ in self.tensors) * self.dtype.itemsize

    @classmethod
    def proven(cls, file: str | None, dtype: torch.dtype) -> "GgufWeights | None":
        """Those of a file with a proven architecture whose model has a parameter for each tensor; else None."""
        config = read_config(file)
        found = cls(Path(file).resolve(), config, dtype) if file and config else None
        return found if found and all(name in found._names for name, *_ in found.tensors) else None

    def layers(self) -> Iterator[dict[str, Tensor]]:
        """Yield the parameters of one layer after another in their final form."""
        for _, members in groupby(self.tensors, lambda tensor: tensor[0].split(".")[:2]):
            yield {self._names[name]: self._tensor(name, *stored) for name, *stored in members}

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> Tensor:
        quantized = gguf.GGMLQuantizationType(kind)
        block, size = gguf.GGML_QUANT_SIZES[quantized]
        raw = np.fromfile(self.file, np.uint8, prod(shape) // block * size, offset=self._start + offset)
        rows = raw.reshape(shape[0] if len(shape) > 1 else 1, -1)
        process = TENSOR_PROCESSORS.get(self._kind, TensorProcessor)(config=self.config.to_dict()).process
        values = torch.empty(len(rows), prod(shape) // len(rows), dtype=self.dtype)
        step = len(rows) if ".attn_" in name else max(1, _PIECE // values.shape[1])  # llama: rows change places
        for start in range(0, len(rows), step):
            part = process(gguf.dequantize(rows[start : start + step], quantized), name).weights
            values[start : start + step] = torch.from_numpy(part)
        return values.view(shape)

    def read(self) -> dict[str, Tensor]:
        """All parameters: memory-mapped from the copy of an earlier load, else de-quantised, and copied for the next.

        A copy that is not whole is written anew; without room on the disk there is a warning and no copy.
        """
        if self.file.stat().st_size < SMALLEST or self.bytes > MOST:
            return {name: tensor for layer in self.layers() for name, tensor in layer.items()}
        version = f"{str(self.dtype).removeprefix('torch.')}-transformers{__version__}"
        copy = COPIES.resolve() / f"{self.file.stem}-{version}-{sha256_file(self.file)[:16]}"
        with suppress(OSError, SafetensorError):
            os.utime(copy)  # the one used last stays longest
            found = {name: tensor for part in copy.glob("*.safetensors") for name, tensor in _mapped(part).items()}
            if found.keys() == {self._names[name] for name, *_ in self.tensors}:
                self.kept_in = copy
                return found
        shutil.rmtree(copy, ignore_errors=True)
        return self._copied(copy)

    def _copied(self, copy: Path) -> dict[str, Tensor]:
        found, problem, size = dict[str, Tensor](), "", f"{self.bytes / 1e9:.1f} GB"
        staging = copy.with_name(f".{copy.name}.{secrets.token_hex(4)}")
        for number, layer in enumerate(self.layers()):
            try:
                if not number:
                    _make_room(staging, self.bytes)
                if not problem:
                    save_file(layer, part := staging / f"{number:04}.safetensors")
                    layer = _mapped(part)
            except (OSError, SafetensorError) as error:  # the layer stays in memory
                problem = first_line(error)
            found |= layer
        if problem:
            shutil.rmtree(staging, ignore_errors=True)
            say(f"warning: no copy of the weights for faster loads ({size}) in {copy.parent}: {problem}")
        else:
            say(f"{copy}: copy of the weights for faster loads, {size}; it can be deleted at any time")
            Thread(target=_keep, args=(staging, copy), name="copy").start()  # the disk is slower than the load
        return found


def _mapped(part: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, memory-mapped; a small one is read, or it would keep its layer's mapping."""
    return {name: one.clone() if one.numel() < _SMALL else one for name, one in load_file(part).items()}


def _make_room(staging: Path, size: int) -> None:
    """Make a folder for ``size`` bytes; what a killed process left and the oldest copies go.

    Raises OSError without room.
    """
    make_folder(staging)
    total = size
    for old in sorted(staging.parent.iterdir(), key=lambda one: -one.stat().st_mtime):
        total += sum(part.stat().st_size for part in old.iterdir())
        left = old.name.startswith(".") and time.time() - old.stat().st_mtime > LEFT
        if total > MOST or left:
            shutil.rmtree(old)
    if (free := shutil.disk_usage(staging).free) < size:
        raise OSError(f"{free / 1e9:.1f} GB are free")


def _keep(staging: Path, copy: Path) -> None:
    with suppress(OSError):  # another process was faster, or the disk failed
        return rename_folder(staging, copy)
    shutil.rmtree(staging, ignore_errors=True)

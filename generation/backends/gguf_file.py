"""A GGUF file: its config, and its weights de-quantised layer by layer into their final dtype.

Equal to what transformers reads, for ``PROVEN`` architectures; transformers takes seconds for a vocabulary alone.
"""

from collections.abc import Iterator
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.gguf import read_gguf_metadata
from transformers.integrations.gguf.reader import _read_metadata, _read_tensor_table
from transformers.modeling_gguf_pytorch_utils import GGUF_TO_TRANSFORMERS_MAPPING, TENSOR_PROCESSORS, TensorProcessor

PROVEN = {"llama": "llama", "qwen2": "qwen2", "gemma3": "gemma3_text"}  # architecture: model_type
_PIECE = 2**18  # elements de-quantised together: they stay in the processor's cache


def read_config(file: str | None) -> Any | None:
    """The config as transformers has it; None without a file, and for an architecture that is not proven."""
    if not file:
        return None
    metadata, tensors = read_gguf_metadata(file)
    if metadata["general.architecture"] not in PROVEN or metadata.get("general.name") == "mistral":
        return None
    values: dict[str, Any] = {"vocab_size": metadata.get("tokenizer.ggml.tokens")}
    for key, value in metadata.items():
        section, _, rest = key.partition(".")
        values[GGUF_TO_TRANSFORMERS_MAPPING["config"].get(section, {}).get(rest)] = value
    values |= {"model_type": PROVEN[values["model_type"]], "tie_word_embeddings": "output.weight" not in tensors}
    return AutoConfig.for_model(**{name: value for name, value in values.items() if name not in (None, -1)})


class GgufWeights:
    """The weights of a file with a config of ``read_config``, in ``dtype``."""

    def __init__(self, file: Path, config: Any, dtype: torch.dtype):
        """Read the header only. Raises ValueError for a damaged one."""
        self.file, self.config, self.dtype = file, config, dtype
        blob = np.memmap(file, mode="r", dtype=np.uint8)
        metadata, count, place = _read_metadata(blob, str(file))
        self.tensors, place = _read_tensor_table(blob, count, place)
        alignment, self._kind = metadata.get("general.alignment", 32), metadata["general.architecture"]
        self._start = -(-place // alignment) * alignment
        architecture = next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == self._kind)
        known = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
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
        """All parameters in their final form."""
        return {name: tensor for layer in self.layers() for name, tensor in layer.items()}

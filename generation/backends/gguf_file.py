"""Read a GGUF file: its config, and its weights de-quantised layer by layer into their final dtype.

The result is equal to what transformers reads, for ``PROVEN`` architectures; transformers takes
seconds for a vocabulary alone.
"""

import hashlib
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from itertools import groupby
from math import prod
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch
import xxhash
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, __version__
from transformers.integrations.gguf.reader import _read_metadata, _read_tensor_table
from transformers.modeling_gguf_pytorch_utils import (
    GGUF_TO_TRANSFORMERS_MAPPING,
    TENSOR_PROCESSORS,
    TensorProcessor,
)

from sts_dino.hub.contract.packaged import get_prepared_folder
from sts_dino.hub.durable import hash_file, make_folder, rename_folder, write_text
from sts_dino.hub.errors import RunError
from sts_dino.hub.untrusted import NO_CODE, convert_model_errors, get_first_line

logger = logging.getLogger(__name__)

PROVEN = {"llama": "llama", "qwen2": "qwen2", "gemma3": "gemma3_text"}  # architecture: model_type
MOST_COPIED_BYTES = 10 * 10**9  # of all copies together
FEWEST_COPIED_BYTES = 3 * 10**8  # a smaller GGUF file gets no copy: its weights take seconds
ABANDONED_SECONDS = 3600  # an unfinished copy without changes for so long is of a killed process
CHECKSUMS = "checksums.json"  # of a copy: file name → XXH3-128, which finds damage, no forgery
REMOVE_COPIES = "sts-dino lm --clean removes all copies"
_SMALL_TENSOR_ELEMENTS = 2**16  # a smaller tensor is read instead of memory-mapped
_PIECE_ELEMENTS = 2**18  # numbers de-quantised together, which stay in the processor's cache


class StoredTensor(NamedTuple):
    """One tensor of a GGUF file."""

    name: str  # in the GGUF file
    shape: tuple[int, ...]  # as in torch: (rows, columns)
    kind: int  # gguf.GGMLQuantizationType
    offset: int  # bytes after the header's end


class Header(NamedTuple):
    """The header of a GGUF file."""

    metadata: dict[str, Any]
    tensors: list[StoredTensor]
    end: int  # where the data of the tensors start, in bytes from the start of the file


def read_header(file: str) -> Header:
    """Return a file's metadata, its tensors, and where their data start.

    The metadata have the length of an array of strings, e.g. of the tokenizer's tokens, in place of
    the array. A damaged file raises any exception, e.g. ValueError or struct.error; callers convert
    it. A missing file raises FileNotFoundError.
    """
    blob = np.memmap(file, mode="r", dtype=np.uint8)
    metadata, count, end = _read_metadata(blob, file)
    table, end = _read_tensor_table(blob, count, end)
    alignment = metadata.get("general.alignment", 32)
    tensors = [StoredTensor(*row) for row in table]
    padding = -end % alignment  # the data start at the next multiple of the alignment
    return Header(metadata, tensors, end + padding)


def read_config(file: str | None) -> Any | None:
    """Return transformers' config for a GGUF file of a ``PROVEN`` architecture, else None.

    A damaged file raises what ``read_header`` raises.
    """
    if not file:
        return None
    metadata, tensors, _ = read_header(file)
    # transformers reads a llama file with exactly this name as Mistral, which is not proven
    if metadata["general.architecture"] not in PROVEN or metadata.get("general.name") == "mistral":
        return None

    # Give the metadata the names of transformers' config. There, None and -1 mark unused metadata
    values: dict[str, Any] = {"vocab_size": metadata.get("tokenizer.ggml.tokens")}
    sections: Any = GGUF_TO_TRANSFORMERS_MAPPING["config"]
    for key, value in metadata.items():
        section, _, field = key.partition(".")
        name = sections.get(section, {}).get(field)
        if name not in (None, -1):
            values[name] = value
    # transformers' table gives the architecture this name; it is not always the model_type
    values["model_type"] = PROVEN[values["model_type"]]
    # a file without an output layer uses the embedding as one
    values["tie_word_embeddings"] = all(tensor.name != "output.weight" for tensor in tensors)
    return AutoConfig.for_model(**values)


def count_weight_bytes(path: str, gguf_file: str | None, dtype: str) -> int:
    """Return the bytes of a local model's weights in memory.

    For safetensors these are the bytes on the disk. For a GGUF file they are two for each weight
    with a 16-bit dtype, else four, since ``auto`` may become float32.

    Args:
        path: folder of the model.
        gguf_file: name of the GGUF file in the folder; None: the safetensors.
        dtype: the recipe's ``model.dtype``.

    Raises InputError for a missing or damaged GGUF file.
    """
    if not gguf_file:
        return sum(file.stat().st_size for file in Path(path).glob("*.safetensors"))
    with convert_model_errors(f"{path}/{gguf_file}", hint="is the file whole?"):
        tensors = read_header(f"{path}/{gguf_file}").tensors
    weights = sum(prod(tensor.shape) for tensor in tensors)
    return weights * (2 if "16" in dtype else 4)


class GgufWeights:
    """The weights of a GGUF file of a ``PROVEN`` architecture, read in ``dtype``."""

    def __init__(self, file: Path, config: Any, dtype: torch.dtype):
        """Read the file's header, and map its tensors' names to transformers'.

        A damaged header raises whatever transformers' reader raises, e.g. struct.error; callers
        convert it (``convert_model_errors``).

        Args:
            file: the GGUF file.
            config: the config that ``read_config`` returns.
            dtype: the dtype in which weights are read.
        """
        self.file = file
        self.config = config
        self.dtype = dtype
        self.copy_folder: Path | None = None  # the copy that ``read`` read; None: it read none
        self._header = read_header(str(file))
        self._architecture = self._header.metadata["general.architecture"]
        with torch.device("meta"):  # no memory for weights: the model gives names of parameters
            model = AutoModelForCausalLM.from_config(config, **NO_CODE)
        self.model_class = type(model)

        # Map names. For a parameter that the format does not know, get_name returns None; the key
        # "None.weight" is the name of no tensor
        architectures = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
        gguf_names = gguf.get_tensor_name_map(
            architectures[self._architecture], config.num_hidden_layers
        )
        self._names: dict[str, str] = {}
        for name in model.state_dict():
            module, _, parameter = name.rpartition(".")
            self._names[f"{gguf_names.get_name(module)}.{parameter}"] = name

    @property
    def byte_count(self) -> int:
        """Bytes of all weights in ``dtype``."""
        return sum(prod(tensor.shape) for tensor in self._header.tensors) * self.dtype.itemsize

    @property
    def has_copy(self) -> bool:
        """Whether loads write a copy of the weights: for files neither too small nor too large."""
        is_slow = self.file.stat().st_size >= FEWEST_COPIED_BYTES
        return is_slow and self.byte_count <= MOST_COPIED_BYTES

    def describe_copy(self) -> str:
        """Name the copy with its size and folder, as a part of a sentence."""
        size = f"{self.byte_count / 1e9:.1f} GB"
        return f"copy of the weights for faster loads, {size} in {get_prepared_folder()}"

    @classmethod
    def open_proven(cls, file: str | None, dtype: torch.dtype) -> "GgufWeights | None":
        """Return the weights of a file, or None if transformers has to read them.

        It is None without a file, for an architecture that is not ``PROVEN``, and for a file with a
        tensor that the model has no parameter for. A damaged file raises what ``read_header``
        raises.
        """
        config = read_config(file)
        if not file or not config:
            return None
        weights = cls(Path(file).resolve(), config, dtype)
        if any(tensor.name not in weights._names for tensor in weights._header.tensors):
            return None
        return weights

    def iter_layers(self) -> Iterator[dict[str, Tensor]]:
        """Yield name in transformers → parameter, de-quantised, for one layer after the other.

        The tensors before and after the layers, such as the embedding, come alone.
        """
        # "blk.0.attn_q.weight" and "blk.0.ffn_up.weight" are of the layer ["blk", "0"]
        by_layer = groupby(self._header.tensors, lambda tensor: tensor.name.split(".")[:2])
        for _, members in by_layer:
            yield {self._names[tensor.name]: self._dequantize(tensor) for tensor in members}

    def _dequantize(self, tensor: StoredTensor) -> Tensor:
        """Read a tensor from the file, and return it in ``dtype`` and transformers' layout.

        A file that ends too early raises ValueError.
        """
        # Read the quantised rows
        name = tensor.name
        kind = gguf.GGMLQuantizationType(tensor.kind)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        elements = prod(tensor.shape)
        start = self._header.end + tensor.offset
        raw = np.fromfile(self.file, np.uint8, elements // block * block_bytes, offset=start)
        rows = raw.reshape(tensor.shape[0] if len(tensor.shape) > 1 else 1, -1)

        # De-quantise them in pieces. Attention weights are read as a whole, since the rows of
        # llama's are reordered
        processor_class = TENSOR_PROCESSORS.get(self._architecture, TensorProcessor)
        processor = processor_class(config=self.config.to_dict())
        values = torch.empty(len(rows), elements // len(rows), dtype=self.dtype)
        step = len(rows) if ".attn_" in name else max(1, _PIECE_ELEMENTS // values.shape[1])
        for row in range(0, len(rows), step):
            piece = gguf.dequantize(rows[row : row + step], kind)
            weights = processor.process(piece, name).weights
            values[row : row + step] = torch.from_numpy(weights)
        return values.view(tensor.shape)

    def read(self) -> dict[str, Tensor]:
        """Return all parameters by their name in transformers.

        They are memory-mapped from the copy of an earlier load, and ``copy_folder`` is set to it.
        Without one they are de-quantised, and a copy is written for the next load, if ``has_copy``.
        A damaged copy is logged and written again. If the disk has no room, a warning is logged and
        there is no copy. A GGUF file that ends too early raises ValueError.
        """
        if not self.has_copy:
            return self._read_layers()

        # Read the copy, whose name has all that decides its content
        version = f"{str(self.dtype).removeprefix('torch.')}-transformers{__version__}"
        name = f"{self.file.stem}-{version}-{hash_file(self.file)[:16]}"
        copy = get_prepared_folder() / name
        if copy.is_dir():
            try:
                parameters = self._read_copy(copy)
            except (OSError, ValueError, SafetensorError, RunError) as error:
                logger.warning(f"{copy}: {get_first_line(error)}; the copy is written anew")
                shutil.rmtree(copy, ignore_errors=True)
            else:
                self.copy_folder = copy
                return parameters
        return self._read_and_copy(copy)

    def _read_copy(self, copy: Path) -> dict[str, Tensor]:
        """Return all parameters, memory-mapped from a copy after its checksums were compared.

        Raises RunError for a file with another checksum or a copy that lacks a parameter; OSError,
        ValueError or SafetensorError for a file that cannot be read.
        """
        os.utime(copy)  # _make_room removes copies by the time of their last use
        parameters: dict[str, Tensor] = {}
        checksums = TypeAdapter(dict[str, str]).validate_json((copy / CHECKSUMS).read_bytes())
        for name, checksum in checksums.items():
            if _compute_checksum(copy / name) != checksum:
                raise RunError(name, "is damaged: its checksum is another")
            parameters.update(_map_tensors(copy / name))
        if parameters.keys() != {self._names[tensor.name] for tensor in self._header.tensors}:
            raise RunError("the copy", "is not whole")
        return parameters

    def _read_and_copy(self, copy: Path) -> dict[str, Tensor]:
        """Return all parameters, de-quantised, and write them to a copy.

        Each layer is replaced by its memory-mapped copy, which frees its memory. A thread completes
        the copy. After a problem with the disk, which is logged, there is no copy, and the
        parameters are read again.
        """
        # Write a file for each layer, in a folder that no load takes for a copy
        parameters: dict[str, Tensor] = {}
        checksums: dict[str, str] = {}
        staging = copy.with_name(f".{copy.name}.{secrets.token_hex(4)}")
        try:
            _make_room(staging, self.byte_count)
            logger.info(f"writing a {self.describe_copy()}; {REMOVE_COPIES}")
            for number, layer in enumerate(self.iter_layers()):
                part = staging / f"{number:04}.safetensors"
                save_file(layer, part)
                checksums[part.name] = _compute_checksum(part)
                parameters.update(_map_tensors(part))
        except (OSError, SafetensorError) as error:
            shutil.rmtree(staging, ignore_errors=True)
            logger.warning(f"no {self.describe_copy()}: {get_first_line(error)}")
            return self._read_layers()

        # Complete the copy in a thread: flushing it to the disk takes longer than the load
        Thread(target=_publish_copy, args=(staging, copy, checksums), name="copy").start()
        return parameters

    def _read_layers(self) -> dict[str, Tensor]:
        """Return all parameters, de-quantised, in memory."""
        parameters: dict[str, Tensor] = {}
        for layer in self.iter_layers():
            parameters.update(layer)
        return parameters


def _compute_checksum(file: Path) -> str:
    """Return the XXH3-128 of a file, as hex: many times faster than SHA-256."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, xxhash.xxh3_128).hexdigest()


def _map_tensors(part: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, memory-mapped.

    Small ones are copied to memory: a single one of them in use would keep the whole mapping.
    """
    tensors = load_file(part)
    for name, tensor in tensors.items():
        if tensor.numel() < _SMALL_TENSOR_ELEMENTS:
            tensors[name] = tensor.clone()
    return tensors


def _make_room(staging: Path, size: int) -> None:
    """Make the folder ``staging`` for ``size`` bytes.

    Copies are removed, those used longest ago first, until all together have at most
    ``MOST_COPIED_BYTES``; so are unfinished ones of killed processes. Files beside the copies stay.
    Raises OSError if the disk has too little space.
    """
    make_folder(staging)
    total = size
    copies = [path for path in staging.parent.iterdir() if path.is_dir()]
    # from the copy used last to the one used longest ago
    for copy in sorted(copies, key=lambda path: -path.stat().st_mtime):
        total += sum(part.stat().st_size for part in copy.iterdir())
        age = time.time() - copy.stat().st_mtime
        if total > MOST_COPIED_BYTES or (copy.name.startswith(".") and age > ABANDONED_SECONDS):
            shutil.rmtree(copy)
    free = shutil.disk_usage(staging).free
    if free < size:
        raise OSError(f"{free / 1e9:.1f} GB are free")


def _publish_copy(staging: Path, copy: Path, checksums: dict[str, str]) -> None:
    """Write a copy's checksums, and rename the complete copy to ``copy``.

    If the disk fails, or another process has written the copy, this one is removed.
    """
    try:
        write_text(staging / CHECKSUMS, json.dumps(checksums))
        rename_folder(staging, copy)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)

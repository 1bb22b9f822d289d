"""A GGUF file to a folder of transformers: config, tokenizer, and bfloat16 weights in safetensors."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from generation.decoding.load_model import read_model
from hub.contract.recipe import LanguageModel
from hub.errors import RunError
from hub.untrusted import NO_CODE, first_line


def convert(file: Path, folder: Path, license: str) -> None:
    """De-quantise ``file`` once and write the model to ``folder``. 268M parameters take a minute of CPU and 3.4 GB.

    Raises InputError for a file that cannot be read, RunError when the disk does not take what is written.
    """
    source = LanguageModel(path=str(file.parent), gguf_file=file.name, dtype="bfloat16", license=license)
    read, tokenizer = read_model(source)
    config = read.config
    for trace in ("quantization_config", "_model_name_or_path"):  # of the GGUF: what is written is neither
        if hasattr(config, trace):
            delattr(config, trace)
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, **NO_CODE)
    plain.load_state_dict(read.state_dict())  # what was read from a GGUF refuses to be saved
    try:
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except SafetensorError as error:
        raise RunError(folder, f"cannot be written: {first_line(error)}", hint="is the disk full?") from error

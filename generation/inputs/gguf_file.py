"""A GGUF file as a whole model: config, tokenizer and weights from that file alone, de-quantised when they are read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from transformers.integrations.gguf import read_gguf_metadata
from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

from hub.contract.recipe import LanguageModel
from hub.errors import InputError
from hub.untrusted import reading_model

OTHER_WAYS = (
    "serve the file with llama.cpp and send prompts there (backend: openai, docs/backends.md), or give the model in "
    "safetensors (path or repo_id without gguf_file)"
)
_ALIASES = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss", "minimax-m2": "minimax_m2"}
_SCALED_BY_CONFIG = ("gpt-oss", "qwen35", "qwen35moe", "lfm2")  # transformers takes their RoPE from the file, whole


def gguf_path(model: LanguageModel) -> Path:
    """Where the model's GGUF file lies, downloaded if it is of the Hub. Raises InputError when it is not there."""
    assert model.gguf_file is not None
    if model.path:
        return Path(model.path).resolve() / model.gguf_file
    try:
        return Path(hf_hub_download(model.repo_id or "", model.gguf_file, revision=model.revision))
    except LocalEntryNotFoundError:  # no Hub answers
        raise
    except EntryNotFoundError:
        problem = f"{model.repo_id} has no such file at revision {model.revision}"
        raise InputError(f"model.gguf_file {model.gguf_file}", problem, hint="look at its list of files") from None


@contextmanager
def gguf_alone(file: Path) -> Iterator[dict[str, str]]:
    """What ``from_pretrained`` takes to read ``file`` and nothing beside it, as arguments.

    It lies in a folder of its own: of a file's neighbours transformers would prefer tokenizer.json, and of the current
    folder a file of the same name. Raises InputError for a file that is no GGUF or that transformers would misread.
    """
    _check(file)
    with TemporaryDirectory(prefix="gguf-") as folder:
        alone = Path(folder, "model.gguf")
        alone.symlink_to(file.resolve())
        yield {"pretrained_model_name_or_path": folder, "gguf_file": str(alone)}


def _check(file: Path) -> None:
    with reading_model(file, "cannot be read as a GGUF file", hint="is the file whole? Download it again"):
        metadata, tensors = read_gguf_metadata(str(file))
    kind = str(metadata["general.architecture"])
    if _ALIASES.get(kind, kind) not in GGUF_SUPPORTED_ARCHITECTURES and kind not in _SCALED_BY_CONFIG:
        problem = f"is a GGUF of the architecture {kind!r}, which transformers does not read"
        raise InputError(file, problem, hint=OTHER_WAYS)
    if metadata.get("split.count", 1) > 1:
        raise InputError(file, f"is one of {metadata['split.count']} parts", hint="join them: llama-gguf-split --merge")
    scaled = [name for name in tensors if name.startswith(("rope_freqs", "rope_factors"))]
    scaled += [key for key in (f"{kind}.rope.scaling.type",) if metadata.get(key, "none") != "none"]
    if scaled and kind not in _SCALED_BY_CONFIG:
        problem = f"scales its positions ({scaled[0]}), which transformers passes over: its texts would be others"
        raise InputError(file, problem, hint=OTHER_WAYS)

"""The backends of a recipe's section ``model``: how each is loaded. Capabilities: ``hub.contract.recipe``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generation.backends.protocol import Writer
from generation.inputs.prompts import TokenCounter
from hub.contract.recipe import DatasetRecipe, LanguageModel, Server
from hub.errors import InputError

OWNERS = ("llamacpp", "vllm")  # what these servers report as the owner of their models; their dialects' names
ASK_SECONDS = 10.0


@dataclass(frozen=True)
class Backend:
    """How one backend is loaded, declared once in ``BACKENDS``.

    ``load`` gives the writer, of so many workers; a server's answers are kept beside the run directory. ``preview``
    gives the token counter for a plan, without weights, and lines about the model. ``dtype`` resolves ``dtype: auto``.
    ``proof`` tries the model, and gives lines about that.
    """

    load: Callable[[LanguageModel, Path | None, int], Writer]
    preview: Callable[[LanguageModel], tuple[TokenCounter, list[str]]]
    dtype: Callable[[LanguageModel], str]
    proof: Callable[[LanguageModel], list[str]] = lambda model: []


def _engine(model: LanguageModel, _: Path | None = None, workers: int = 1) -> Writer:
    import torch

    from generation.backends.engine import Engine

    loaded, tokenizer = _torch().load_model(model)
    engine = Engine(loaded, tokenizer, model.chat_template, workers=workers)
    if not model.threads:
        torch.set_num_threads(max(1, torch.get_num_threads() // engine.workers))
    return engine


def _torch() -> Any:
    from generation.backends import load_model  # imports torch, which takes seconds

    return load_model


def _server(model: LanguageModel, directory: Path | None = None, _: int = 1) -> Any:
    try:
        from generation.backends.openai_server import OpenAIServer
    except ImportError as error:
        hint = 'pip install -c constraints.txt -e ".[openai]"'
        raise InputError("model.backend openai", f"the package openai is missing ({error})", hint=hint) from error
    return OpenAIServer(model, directory)


BACKENDS = {
    "engine": Backend(
        _engine,
        lambda model: _torch().load_preview(model),
        lambda model: _torch().resolve_dtype(model),
        lambda model: [_torch().try_model(model)],
    ),
    "openai": Backend(_server, lambda model: (_server(model), []), lambda model: model.dtype),  # the server's own dtype
}


def load_writer(model: LanguageModel, directory: Path | None = None, workers: int = 1) -> Writer:
    """The writer of a recipe's section ``model``. ``workers``: threads that write at the same time.

    Raises InputError when it cannot be loaded.
    """
    return BACKENDS[model.backend].load(model, directory, workers)


def load_preview(model: LanguageModel) -> tuple[TokenCounter, list[str]]:
    """The token counter of a plan, and lines about the model. Raises InputError for an unusable model."""
    return BACKENDS[model.backend].preview(model)


def with_dtype(recipe: DatasetRecipe) -> DatasetRecipe:
    """The recipe with ``model.dtype: auto`` resolved on this machine. Raises InputError for a missing device."""
    if recipe.model.dtype != "auto":
        return recipe
    model = recipe.model.model_copy(update={"dtype": BACKENDS[recipe.model.backend].dtype(recipe.model)})
    return recipe.model_copy(update={"model": model})


def dialect_of(base_url: str, model: str) -> str:
    """The dialect of a running server, by the owner it reports for its models; openai where that is not known.

    Raises InputError when it refuses the key or the package openai is missing, RunError when it cannot be reached.
    """
    server = Server(base_url=base_url, model=model, timeout=ASK_SECONDS, max_retries=0)
    owners = _server(LanguageModel(backend="openai", server=server, license="unknown")).client.owners()
    return next((dialect for dialect in OWNERS if dialect in owners), "openai")

"""The writer that a recipe's section ``model`` asks for, the engine in this process or a server, or a preview."""

from pathlib import Path

from generation.decoding.protocol import TokenCounter, Writer
from hub.contract.recipe import DatasetRecipe, LanguageModel, Server

OWNERS = ("llamacpp", "vllm")  # what these servers call the owner of their models; their dialects are called the same
ASK_SECONDS = 10.0


def load_writer(model: LanguageModel, directory: Path | None = None) -> Writer:
    """The writer of a recipe's section ``model``. Raises InputError when it cannot be loaded.

    A server's answers are kept beside the run ``directory``, so that a killed run does not pay for them again.
    """
    if model.backend == "openai":
        from generation.servers.openai_server import OpenAIServer

        return OpenAIServer.connect(model, directory)
    from generation.decoding.engine import Engine

    return Engine.of(model)


def dialect_of(base_url: str, model: str) -> str:
    """The dialect of a server that runs, by what it calls the owner of its models; openai where that is not known.

    Raises InputError when it refuses the key or the package openai is missing, RunError when it cannot be reached.
    """
    from generation.servers.openai_server import OpenAIServer

    server = Server(base_url=base_url, model=model, timeout=ASK_SECONDS, max_retries=0)
    owners = OpenAIServer.connect(LanguageModel(backend="openai", server=server, license="unknown")).owners()
    return next((dialect for dialect in OWNERS if dialect in owners), "openai")


def load_preview(model: LanguageModel) -> tuple[TokenCounter, list[str]]:
    """What a plan needs to know of a model, without its weights, and what there is to say of it.

    Raises InputError when its config or tokenizer cannot be used.
    """
    if model.backend == "openai":
        return load_writer(model), []
    from generation.decoding.preview import Preview

    preview = Preview.of(model)
    return preview, list(preview.lines())


def with_dtype(recipe: DatasetRecipe) -> DatasetRecipe:
    """The recipe with ``model.dtype: auto`` resolved on this machine, before anything is named by it.

    A server's dtype is the server's. Raises InputError when the device is not here to be asked.
    """
    if recipe.model.dtype != "auto" or recipe.model.backend == "openai":
        return recipe
    from generation.decoding.load_model import resolve_dtype

    model = recipe.model.model_copy(update={"dtype": resolve_dtype(recipe.model)})
    return recipe.model_copy(update={"model": model})

"""The writer that a recipe's section ``model`` asks for: the engine in this process, or a server."""

from pathlib import Path

from generation.decoding.protocol import Writer
from hub.contract.recipe import LanguageModel


def load_writer(model: LanguageModel, directory: Path | None = None) -> Writer:
    """The writer of a recipe's section ``model``. Raises InputError when it cannot be loaded.

    A server's answers are kept beside the run ``directory``, so that a killed run does not pay for them again.
    """
    if model.backend == "openai":
        from generation.servers.openai_server import OpenAIServer

        return OpenAIServer.connect(model, directory)
    from generation.decoding.engine import Engine

    return Engine.of(model)

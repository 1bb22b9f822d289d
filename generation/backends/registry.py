"""The backends of a recipe's section ``model``, and how each is loaded.

Their capabilities are in ``sts_dino.hub.contract.recipe``.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sts_dino.generation.backends.protocol import Writer
from sts_dino.generation.inputs.prompts import TokenCounter
from sts_dino.hub.contract.recipe import Address, DatasetRecipe, LanguageModel, Server
from sts_dino.hub.errors import InputError

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_PREFIX = "openai/"  # of a model at OpenAI's own address
_NAME_AT_URL = re.compile(r"(.+?)@(https?://.*)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class Backend:
    """How one backend is loaded, declared once in ``BACKENDS``.

    All functions take the section ``model`` of a recipe.

    - ``load``: returns the writer. It also takes the run directory, beside which a server's
      answers are stored (None: in a temporary file), and the number of workers.
    - ``preview``: returns the token counter of a plan, without weights, and lines about the model.
    - ``resolve_dtype``: returns the dtype for ``dtype: auto``.
    - ``prove``: tries the model, and returns lines about the result.
    - ``describe_disk``: returns lines about the files that a load writes.
    """

    load: Callable[[LanguageModel, Path | None, int], Writer]
    preview: Callable[[LanguageModel], tuple[TokenCounter, list[str]]]
    resolve_dtype: Callable[[LanguageModel], str]
    prove: Callable[[LanguageModel], list[str]] = lambda model: []
    describe_disk: Callable[[LanguageModel], list[str]] = lambda model: []


def _load_engine(model: LanguageModel, directory: Path | None, workers: int) -> Writer:
    """Load a local model as an engine; ``directory`` is unused.

    Its workers share torch's threads: unless the recipe sets their number, each worker gets an
    equal part. Raises what ``load_model.load_model`` raises.
    """
    import torch

    from sts_dino.generation.backends.engine import Engine

    language_model, tokenizer = _import_load_model().load_model(model)
    engine = Engine(language_model, tokenizer, model.chat_template, workers=workers)
    if not model.threads:
        torch.set_num_threads(max(1, torch.get_num_threads() // engine.workers))
    return engine


def _import_load_model() -> Any:
    """Return the module ``load_model``; it imports torch, which takes seconds."""
    from sts_dino.generation.backends import load_model

    return load_model


def connect_server(model: LanguageModel, directory: Path | None = None, workers: int = 1) -> Any:
    """Return the writer of a server; no request is sent yet.

    Args:
        model: the section ``model`` of a recipe.
        directory: the run directory, beside which answers are stored; None: until the end of the
            process.
        workers: unused; the recipe sets the number of requests at a time.

    Raises InputError without the package openai, and what ``openai_server.OpenAIServer`` raises.
    """
    return _import_openai_server("model.backend openai").OpenAIServer(model, directory)


def _import_openai_server(setting: str) -> Any:
    """Return the module ``openai_server``.

    Without the package openai, raises InputError that names ``setting``, which needs it.
    """
    try:
        from sts_dino.generation.backends import openai_server
    except ImportError as error:
        raise InputError(
            setting,
            f"the package openai is missing ({error})",
            hint='pip install -c constraints.txt -e ".[openai]"',
        ) from error
    return openai_server


BACKENDS = {
    "engine": Backend(
        _load_engine,
        preview=lambda model: _import_load_model().load_preview(model),
        resolve_dtype=lambda model: _import_load_model().resolve_dtype(model),
        prove=lambda model: [_import_load_model().try_model(model)],
        describe_disk=lambda model: _import_load_model().describe_copy(model),
    ),
    "openai": Backend(
        connect_server,
        preview=lambda model: (connect_server(model), []),
        resolve_dtype=lambda model: model.dtype,  # the server chooses its own
    ),
}


def load_writer(model: LanguageModel, directory: Path | None = None, workers: int = 1) -> Writer:
    """Return the writer of a recipe's section ``model``, with this many parallel workers.

    ``directory``: the run directory, beside which a server's answers are stored; None: they are in
    a temporary file of this process. Raises InputError when the model cannot be loaded, OutOfMemory
    when it does not fit into memory, and RunError when the Hub or the disk fails.
    """
    return BACKENDS[model.backend].load(model, directory, workers)


def load_preview(model: LanguageModel) -> tuple[TokenCounter, list[str]]:
    """Return the token counter of a plan, and lines about the model, without loading its weights.

    Raises InputError for an unusable model, RunError when the Hub or the disk fails.
    """
    return BACKENDS[model.backend].preview(model)


def resolve_model_dtype(recipe: DatasetRecipe) -> DatasetRecipe:
    """Return the recipe with ``model.dtype: auto`` replaced by this machine's fastest dtype.

    A server's recipe, and one with another dtype, is returned unchanged. Raises InputError for a
    missing device.
    """
    model = recipe.model
    if model.dtype != "auto":
        return recipe
    dtype = BACKENDS[model.backend].resolve_dtype(model)
    return recipe.model_copy(update={"model": model.model_copy(update={"dtype": dtype})})


def parse_server(option: str, requested: str) -> Server | None:
    """Return the server that ``NAME@URL`` names; None for another value, e.g. ORG/NAME@REVISION.

    ``openai/NAME`` without a revision names a model at OpenAI's own address, unless a file or
    folder has this path. Raises InputError, which names the ``option``, for a URL without a model's
    name, and for a URL that a recipe's ``base_url`` does not allow. The error does not show the
    URL, which may hold a password.

    Args:
        option: the command's option, for the error.
        requested: the option's value.
    """
    if re.match(r"@?https?://", requested, re.IGNORECASE):
        raise InputError(
            option, "is a URL without the name of a model", allowed="NAME@http://HOST:PORT/v1"
        )

    # A model at OpenAI's own address: the name after the prefix has neither revision nor owner
    openai_model = requested.removeprefix(OPENAI_PREFIX)
    is_of_openai = openai_model not in ("", requested) and not re.search("[@/]", openai_model)
    if is_of_openai and not Path(requested).exists():
        return Server(base_url=OPENAI_URL, model=openai_model)

    # A model at another address
    match = _NAME_AT_URL.fullmatch(requested)
    if match is None:
        return None
    name, url = match.groups()
    try:
        TypeAdapter(Address).validate_python(url)
    except ValidationError:
        raise InputError(
            option,
            "the URL cannot be used",
            allowed="NAME@http://HOST:PORT/v1, without a user or a password",
        ) from None
    return Server(base_url=url, model=name)


def connect_teacher(server: Server) -> Any:
    """Return the client of a server that embeds texts; no request is sent yet.

    Raises InputError without the package openai, and what ``openai_server.Client`` raises.
    """
    module = _import_openai_server("--teacher NAME@URL")
    return module.Client(server, module.TEACHER_ADVICE)

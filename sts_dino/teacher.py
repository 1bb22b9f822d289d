"""Teachers: encoders as ``--teacher`` names them, on this machine, on a Hub, or behind a server."""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from sts_dino.eval.encoders.load import (
    Encoder,
    compute_revision,
    load_encoder,
    resolve_encoder,
    wrap,
    wrap_with_prompt,
)
from sts_dino.generation.backends.registry import connect_teacher, parse_server
from sts_dino.hub.contract import licences
from sts_dino.hub.contract.packaged import find_encoder_with_prompt
from sts_dino.hub.contract.published_paths import find_public_host
from sts_dino.hub.contract.recipe import Server
from sts_dino.hub.errors import InputError

logger = logging.getLogger(__name__)

REQUEST_TEXTS = 32  # texts of a request; some servers refuse more by default
_CHECK_SERVER = "check what it serves"

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Vector(BaseModel, strict=True):
    """The embedding of the text at position ``index`` of the request, from 0."""

    index: int
    embedding: list[Number] = Field(min_length=1)


class _Answer(BaseModel, strict=True):
    """An answer of an embeddings endpoint, in OpenAI's form. Other keys are ignored."""

    model: str
    data: list[_Vector]


def load_teacher(requested: str) -> Encoder:
    """Load the encoder that ``--teacher`` names.

    It is loaded in bfloat16 on a CPU with bfloat16 instructions: this halves the time and changes
    cosines by less than 0.01. A Hub model of ``sts-dino lm`` gets the default prompt that its
    downloaded folder has.

    Args:
        requested: a name of ``sts-dino lm``, a folder, ORG/NAME[@REVISION], or NAME@URL of a server
            with an embeddings endpoint.

    Raises the errors of ``load_encoder`` and ``load_endpoint``.
    """
    from sts_dino.generation.backends.output_layer import cpu_has

    server = parse_server("--teacher", requested)
    if server is not None:
        return load_endpoint(server)
    location = resolve_encoder(requested)
    dtype = "bfloat16" if cpu_has("avx512_bf16") else None
    return _add_default_prompt(load_encoder(location, dtype), location)


def _add_default_prompt(encoder: Encoder, location: str) -> Encoder:
    """Return a Hub model of ``sts-dino lm`` with its prompt for similarity as the default.

    Unchanged: other encoders, folders, models with a default prompt, and revisions without that
    prompt.
    """
    packaged = find_encoder_with_prompt(location.partition("@")[0])
    model = encoder.model
    if packaged is None or model is None or model.default_prompt_name or Path(location).exists():
        return encoder
    # sentence-transformers declares empty prompts for models without any; they must not hide ours.
    declared = {name: prompt for name, prompt in model.prompts.items() if prompt}
    config = packaged.add_default_prompt({"prompts": declared})
    prompt = config["prompts"].get(config["default_prompt_name"])
    if prompt is None:  # a revision whose files lack the prompt
        return encoder
    logger.info(f"{encoder.name}: sentences are encoded with the prompt {prompt!r}")
    settings = encoder.settings | {"prompt": prompt}
    return wrap_with_prompt(encoder, model.encode, prompt, settings)


def has_changed(requested: str, revision: str) -> bool:
    """Return whether the files of a teacher in a folder have another revision than ``revision``.

    The weights are hashed, not loaded. Teachers of a Hub and of a server count as unchanged.
    """
    folder = Path(requested)
    return folder.is_dir() and compute_revision(folder, requested) != revision


def load_endpoint(server: Server) -> Encoder:
    """Return the encoder behind a server, after a request with a short sentence as a test.

    Each request has at most ``REQUEST_TEXTS`` texts. The revision is a hash of the model's name and
    the URL: nobody can see whether a server exchanges its model. OpenAI's terms are logged before
    the first request.

    Raises InputError for a server that refuses the key or the request and for one that answers with
    another model, RunError for one that cannot be reached or gives unusable embeddings.
    """
    host = find_public_host(server.base_url)
    if licences.is_openai(host):
        warn_of_openai_terms(host)
    name = f"{server.model}@{server.base_url}"
    revision = hashlib.sha256(json.dumps([server.model, server.base_url]).encode()).hexdigest()
    # wrap() embeds a short sentence, to learn the dimension.
    encoder = wrap(partial(_embed_texts, connect_teacher(server)), name, revision)
    return replace(encoder, max_call_texts=REQUEST_TEXTS)


@cache
def warn_of_openai_terms(host: str) -> None:
    """Warn once that OpenAI's terms restrict the training on its models' outputs."""
    terms = licences.load_licences()[licences.OPENAI]
    logger.warning(
        f"{host}: {terms.name} forbid the use of outputs to develop models that compete with "
        f"OpenAI's; check that your encoder does not: {terms.link}"
    )


def _embed_texts(client: Any, texts: list[str]) -> NDArray[np.float64]:
    """Return the embeddings that a server gives for texts, (n, dimension), in the texts' order.

    client: the ``Client`` of the server. Raises InputError for a server that refuses the key or the
    request and for one that answers with another model, RunError for one that cannot be reached or
    gives unusable embeddings, such as a zero vector.
    """
    # Send the request, and validate the answer.
    name = client.server.model
    payload = client.post("/embeddings", {"model": name, "input": texts})
    try:
        answer = _Answer.model_validate(payload)
    except ValidationError as error:
        raise client.describe_malformed(error) from None
    if answer.model != name:
        answered = client.quote(answer.model)
        raise InputError(
            f"server {client.server.base_url}",
            f"answers with the model {answered!r}",
            allowed=repr(name),
            hint="--teacher NAME@URL takes the name that the server answers with",
        )

    # A zero vector has no direction, so it has no cosine.
    embeddings = np.array(_order_vectors(client, answer.data, len(texts)))
    for text, embedding in zip(texts, embeddings, strict=True):
        if not embedding.any():
            raise client.make_error(f"answers a zero vector for {text[:60]!r}", _CHECK_SERVER)
    return embeddings


def _order_vectors(client: Any, answered: Sequence[_Vector], count: int) -> list[list[float]]:
    """Return the embeddings of ``count`` texts in the order of their index.

    Raises RunError for another number of vectors, a missing index, and different lengths.
    """
    vectors = {vector.index: vector.embedding for vector in answered}
    missing = set(range(count)) - vectors.keys()
    problem = None
    if len(answered) != count:
        problem = f"answers {len(answered)} vectors for {count} texts"
    elif missing:
        problem = f"answers {count} vectors, none of which has the index {min(missing)}"
    elif len({len(vector) for vector in vectors.values()}) > 1:
        problem = "answers vectors of different lengths"
    if problem is not None:
        raise client.make_error(problem, _CHECK_SERVER)
    return [vectors[index] for index in range(count)]

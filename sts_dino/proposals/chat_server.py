"""A model behind a server as the generator of a proposed recipe: ``--lm NAME@URL``.

The server's own answers decide dialect, chat and JSON. Terms that restrict the use of its texts are
logged before the first request. ``--price-in``, ``--price-out`` and ``--budget`` are what its texts
cost.
"""

import logging
import re
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from sts_dino.generation.backends.server_probe import (
    ChatProbe,
    ServerFacts,
    describe_models,
    find_server_facts,
    try_chat,
)
from sts_dino.hub.contract import licences
from sts_dino.hub.contract.packaged import GENERATORS
from sts_dino.hub.contract.published_paths import find_public_host
from sts_dino.hub.contract.recipe import LanguageModel, Server
from sts_dino.hub.errors import InputError
from sts_dino.hub.untrusted import join_lines

logger = logging.getLogger(__name__)

PRICES_KEY = "price_per_million"
BUDGET_KEY = "budget"
# A pattern of model names → the licence of the family, which restricts the use of texts.
# Gemma 4 is under the Apache License.
FAMILY_LICENCES = {
    r"llama-?2(?!\d)": "llama2",
    r"llama-?3\.1": "llama3.1",
    r"llama-?3\.2": "llama3.2",
    r"llama-?3\.3": "llama3.3",
    r"llama-?3(?![\d.])": "llama3",
    r"gemma(?!-?[4-9])": "gemma",
}
# Whether a server takes chats, and whether it answers with JSON by a schema → words of a comment
PROMPT_FORMS = {
    True: "a chat, with the examples as turns",
    False: "it refuses chats: the prompt is a plain text",
}
ANSWER_FORMS = {True: "JSON by a schema", False: "without JSON"}
VLLM_CONCURRENCY = 32  # vLLM batches requests
LOCAL_SECONDS = 300.0  # time limit of an answer in a private network: the machine may be slow


def choose_server(requested: Server, license_id: str | None) -> tuple[dict[str, Any], str]:
    """Ask a running server how it answers; return the section ``model`` that fits it, and why.

    The terms of the model's licence are logged before a text is requested.

    Args:
        requested: the URL, and the name of the model.
        license_id: the licence of the model; None: it is found by the server's host, its file or
            the model's family.

    Raises InputError for an unknown licence, and for a server that refuses; RunError for one that
    cannot be reached.
    """
    # Find the licence, and log its terms before the first request for a text.
    host = find_public_host(requested.base_url)
    facts = ServerFacts("OpenAI's API")
    if not licences.is_openai(host):
        facts = find_server_facts(requested)
    licence = licences.resolve_server_licence(
        "--lm-license", requested.model, host, license_id, _infer_licence(requested, facts)
    )
    logger.info(_describe_facts(requested, facts, licence.id))
    terms = licences.describe_output_terms(requested.model, licence)
    if terms is not None:
        logger.warning(terms)

    # Test how the server answers a chat, and choose the keys that fit.
    server: dict[str, Any] = {
        "base_url": requested.base_url,
        "model": requested.model,
        "dialect": facts.dialect,
    }
    logger.info("one short request tests how the server answers a chat ...")
    probe = try_chat(Server.model_validate(server))
    section: dict[str, Any] = {"backend": "openai"}
    if probe.has_chat:
        section["chat_template"] = True
        server["example_turns"] = True
    if probe.has_schema:
        server["structured_output"] = True
    if facts.slots:
        server["concurrency"] = facts.slots
    elif facts.dialect == "vllm":
        server["concurrency"] = VLLM_CONCURRENCY
    if not host:  # a private network
        server["timeout"] = LOCAL_SECONDS
    section |= {"server": server, "license": licence.id}
    return section, _describe_choice(facts, probe)


def _infer_licence(requested: Server, facts: ServerFacts) -> str | None:
    """Return the licence of a file of ``sts-dino lm``, or of a family; None for other models."""
    for packaged in GENERATORS.values():
        if packaged.file == facts.model_file:
            return packaged.license
    names = f"{requested.model} {facts.model_file}".lower()
    for pattern, family_licence in FAMILY_LICENCES.items():
        if re.search(pattern, names):
            return family_licence
    return None


def _describe_facts(requested: Server, facts: ServerFacts, licence: str) -> str:
    """Return a line that names a server's software, its model, and the model's licence."""
    line = f"server {requested.base_url}: {facts.software}"
    if facts.models:
        line += f", serving {describe_models(facts.models)}"
    return f"{line}; licence of the model {requested.model}: {licence} (another: --lm-license)"


def _describe_choice(facts: ServerFacts, probe: ChatProbe) -> str:
    """Return the reasons of a section ``model``, in one line for the recipe's comment."""
    form = PROMPT_FORMS[probe.has_chat]
    answer = ANSWER_FORMS[probe.has_schema]
    return join_lines(
        f"as --lm asks; {facts.software}; {form}; one probe, {answer}: {probe.finding}; "
        "counter-labels need the model itself, which no server offers; docs/backends.md"
    )


@dataclass(frozen=True)
class Payment:
    """The prices of a server's tokens and the most that a run may cost, in any currency."""

    price_in: Annotated[
        float | None,
        typer.Option(min=0, metavar="MONEY", help="Price of a million prompt tokens of the server"),
    ] = None
    price_out: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="MONEY", help="Price of a million generated tokens of the server"
        ),
    ] = None
    budget: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="MONEY", help="Stop when the server's texts cost this; resumable"
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raise InputError for one price alone, and for a budget without prices."""
        if (self.price_in is None) != (self.price_out is None):
            option = "--price-in" if self.price_in is None else "--price-out"
            raise InputError(option, "is missing", hint="give both prices, 0 for none")
        if self.budget is not None and self.price_in is None:
            raise InputError(
                "--budget",
                "needs the prices of tokens",
                hint="give --price-in and --price-out, per million tokens",
            )

    @property
    def keys(self) -> dict[str, Any]:
        """The options as keys of a recipe's section ``model.server``; empty without options."""
        keys: dict[str, Any] = {}
        if self.price_in is not None:
            keys[PRICES_KEY] = [self.price_in, self.price_out]
        if self.budget is not None:
            keys[BUDGET_KEY] = self.budget
        return keys

    def format_settings(self, model: LanguageModel) -> list[str]:
        """Return the options as ``KEY=VALUE`` for ``--set``; empty without options.

        Raises InputError for options with a model that is not behind a server.
        """
        keys = self.keys
        if keys and model.server is None:
            raise InputError(
                "--price-in, --price-out, --budget",
                "are of a model behind a server",
                hint="--lm NAME@URL names one",
            )
        return [f"model.server.{key}={value}" for key, value in keys.items()]

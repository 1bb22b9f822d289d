"""A model behind a server as the generator of a proposed recipe: ``--lm NAME@URL``.

The server's own answers decide dialect, chat and JSON. ``find_server_facts`` reads what it reports:
the owner of its models, /props of llama.cpp, /api/version of Ollama. ``try_chat`` sends one short
request, and further ones only after a refusal. Terms that restrict the use of its texts are logged
before the first request. ``Payment`` has the options for the prices of its texts and for a budget.
"""

import logging
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PureWindowsPath
from typing import Annotated, Any, Literal

import typer

from sts_dino.generation.backends.dialects import OPEN_REASONING
from sts_dino.generation.backends.protocol import Request, complete
from sts_dino.generation.backends.registry import connect_server
from sts_dino.hub.contract import licences
from sts_dino.hub.contract.packaged import GENERATORS
from sts_dino.hub.contract.published_paths import find_public_host
from sts_dino.hub.contract.recipe import DecodingParameters, LanguageModel, Server
from sts_dino.hub.contract.schema import NOT_CLOSED
from sts_dino.hub.errors import InputError, RunError, StsDinoError
from sts_dino.hub.untrusted import join_lines

logger = logging.getLogger(__name__)

DialectName = Literal["openai", "vllm", "transformers", "llamacpp"]

FACT_SECONDS = 10.0  # for a server's answer about itself
PROBE_SECONDS = 120.0  # for its text: a local server may have to load the model
PROBE_TOKENS = 64  # of a text
MOST_SLOTS = 256  # requests at a time
SHOWN_CHARACTERS = 100  # of an answer
_PROBE_PROMPT = (
    'Task: Write two sentences that mean the same thing.\nSentence 1: "{}"\nSentence 2: "'
)
_PROBE_EXAMPLES = (
    ("A man is playing a flute.", "Someone plays the flute."),
    ("The shop closes at eight.", "The store is open until eight o'clock."),
)
_PROBE_SENTENCE = "The ferry to the island leaves twice a day."
_NO_REASONING = (
    "serve an instruct model, or switch its reasoning off (llama-server --reasoning-budget 0; "
    "vllm serve --default-chat-template-kwargs '{\"enable_thinking\": false}')"
)
_REFUSED_STATUS = "HTTP 500"  # llama.cpp's for a chat template that raises an error
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


@dataclass(frozen=True)
class ServerFacts:
    """What a server reports about itself.

    software: the name of its software, and Ollama's version.
    dialect: ``model.server.dialect`` of a recipe.
    models: the names of its models.
    slots: the requests that it serves at a time; None: not known.
    model_file: the name of the file that it loaded; empty: not known.
    """

    software: str
    dialect: DialectName = "openai"
    models: tuple[str, ...] = ()
    slots: int | None = None
    model_file: str = ""


@dataclass(frozen=True)
class ChatProbe:
    """How a server answered a request of ``try_chat``.

    has_chat: whether it takes turns of a chat; else it continues plain prompts.
    has_schema: whether it answered with JSON by the schema.
    finding: the answer, and the last refusal before it if any, in a line.
    """

    has_chat: bool
    has_schema: bool
    finding: str


def choose_server(requested: Server, license_id: str | None) -> tuple[dict[str, Any], str]:
    """Ask a running server how it answers; return the section ``model`` that fits it, and why.

    The terms of the model's licence are logged before a text is requested.

    Args:
        requested: the URL, and the name of the model.
        license_id: the licence of the model; None: it is found by the server's host, its file or
            the model's family.

    Raises InputError for an unknown licence, for a server that refuses, and for a model that spends
    its answer on reasoning; RunError for a server that cannot be reached.
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


def find_server_facts(server: Server) -> ServerFacts:
    """Ask a server for its models and for its software.

    Raises InputError for a key that is refused or unusable, a wrong URL, and without the package
    openai; RunError for a server that cannot be reached or fails.
    """
    # Ask for its models, whose owner names most software
    client = connect_server(_make_section(server, FACT_SECONDS, max_retries=0)).client
    models = _read_models(client.get("/models"))
    names = tuple(str(model.get("id")) for model in models)
    owners = {str(model.get("owned_by")) for model in models}
    root = server.base_url.rstrip("/").removesuffix("/v1")
    if "llamacpp" in owners:
        props = _ask_for_object(client, f"{root}/props")
        slots = props.get("total_slots")
        has_slots = isinstance(slots, int) and 0 < slots <= MOST_SLOTS
        path = str(props.get("model_path") or "")
        # the server may run on any system: this class takes both / and the backslash as separators
        file = PureWindowsPath(path).name
        return ServerFacts("llama.cpp", "llamacpp", names, slots if has_slots else None, file)
    if "vllm" in owners:
        return ServerFacts("vLLM", "vllm", names)

    # Ask for Ollama's version: the owner of its models ("library") does not name it
    version = _ask_for_object(client, f"{root}/api/version").get("version")
    if isinstance(version, str):
        return ServerFacts(f"Ollama {join_lines(version, 20)}", models=names)
    return ServerFacts("a server of OpenAI's API", models=names)


def _read_models(payload: object) -> list[dict[str, Any]]:
    """Return the named entries of the answer of /models; none if the JSON has another form."""
    models = payload.get("data") if isinstance(payload, dict) else None
    if not isinstance(models, list):
        return []
    return [model for model in models if isinstance(model, dict) and model.get("id")]


def _ask_for_object(client: Any, url: str) -> dict[str, Any]:
    """Return the JSON object at a URL that not every server has; {} after any failure."""
    with suppress(StsDinoError):
        payload = client.get(url)
        if isinstance(payload, dict):
            return payload
    return {}


def try_chat(server: Server) -> ChatProbe:
    """Send the prompt of a pair as a chat with two examples, and ask for JSON by a schema.

    A server that refuses this, or answers without the JSON, is asked for a chat without the schema.
    One that refuses that, too, is asked to continue a plain prompt.

    Raises the first refusal when the last request is refused, too, RunError at once when the server
    fails otherwise, and InputError for a model that spends the answer on reasoning.
    """
    refusals: list[str] = []
    first_refusal: StsDinoError | None = None
    for has_chat, has_schema in ((True, True), (True, False), (False, False)):
        # Send a request. A refusal, also with HTTP 500, leads to a request of another kind
        section = _make_section(server, PROBE_SECONDS, 2, has_chat, has_schema)
        try:
            text, problem = _request_sentence(section)
        except (InputError, RunError) as error:
            if isinstance(error, RunError) and _REFUSED_STATUS not in str(error):
                raise
            first_refusal = first_refusal or error
            refusals.append(join_lines(str(error), 2 * SHOWN_CHARACTERS))
            continue

        # Judge the answer
        answer_text = repr(join_lines(text, SHOWN_CHARACTERS))
        if has_chat and text.startswith(OPEN_REASONING):
            raise InputError(
                f"server {server.base_url}",
                f"its model reasons before it answers, and does not end within {PROBE_TOKENS} "
                f"tokens: {answer_text}",
                hint=_NO_REASONING,
            )
        if has_schema and problem == NOT_CLOSED:
            refusals.append(f"no JSON: {answer_text}")
            continue
        answer = answer_text if problem is None else f"{answer_text} ({problem})"
        return ChatProbe(has_chat, has_schema, "; ".join([answer, *refusals[-1:]]))
    assert first_refusal is not None, "the last way has no schema: it answers or it refuses"
    raise first_refusal


def _request_sentence(section: LanguageModel) -> tuple[str, str | None]:
    """Request a text for the probe's sentence; return it, and its problem or None."""
    turns = [(_PROBE_PROMPT.format(sentence), text) for sentence, text in _PROBE_EXAMPLES]
    request = Request(_PROBE_PROMPT.format(_PROBE_SENTENCE), (), 0, example_turns=tuple(turns))
    settings = DecodingParameters(max_new_tokens=PROBE_TOKENS, top_k=choose_top_k(section.server))
    (completion,) = complete(connect_server(section), [request], settings)
    return completion.text, completion.problem


def choose_top_k(server: Server | None) -> int:
    """Return ``decoding.top_k`` for a server, or without one for the engine.

    It is 0 for the dialect openai, so that no request has the field; else the recipe's default.
    """
    if server is None or server.dialect != "openai":
        return int(DecodingParameters.model_fields["top_k"].default)
    return 0


def _make_section(
    server: Server,
    timeout: float,
    max_retries: int,
    has_chat: bool = False,
    has_schema: bool = False,
) -> LanguageModel:
    """Return a section ``model`` of a recipe for requests to a server.

    Args:
        server: the server.
        timeout: seconds to wait for an answer.
        max_retries: number of retries of a failed request.
        has_chat: send turns of a chat; else a plain prompt.
        has_schema: request JSON by the schema.
    """
    changes = {
        "timeout": timeout,
        "max_retries": max_retries,
        "structured_output": has_schema,
        "example_turns": has_chat,
    }
    changed = server.model_copy(update=changes)
    return LanguageModel(
        backend="openai", server=changed, chat_template=has_chat, license="unknown"
    )


def describe_models(names: Iterable[str], most: int = 5) -> str:
    """Return at most ``most`` of the names of a server's models in a line, and how many follow."""
    listed = [join_lines(name, SHOWN_CHARACTERS) for name in names]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return f"{', '.join(listed[:most])}{more}"


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

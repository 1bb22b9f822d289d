"""Recipes for a corpus: the language model that generates its pairs, and the encoder to train."""

import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

import yaml
from huggingface_hub import HfApi, hf_hub_download
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sts_dino.eval.encoders.load import MINILM, download_and_check_model, find_minilm
from sts_dino.generation.backends.registry import parse_server
from sts_dino.generation.rows.selection import find_default_selector, get_default_selector
from sts_dino.generation.run import describe_model
from sts_dino.hub.assets import HINT_ANOTHER_LANGUAGE_MODEL, find_asset
from sts_dino.hub.client.connection import convert_read_errors
from sts_dino.hub.contract import licences
from sts_dino.hub.contract.packaged import ENCODERS, GENERATORS, MULTILINGUAL, find_hub_model
from sts_dino.hub.contract.published_paths import find_public_host
from sts_dino.hub.contract.recipe import (
    RECOGNISED_LANGUAGES,
    TAUGHT_PAIRS,
    DatasetRecipe,
    Grades,
    LanguageModel,
    ModelRecipe,
    Server,
)
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import RECIPE
from sts_dino.hub.errors import InputError, StsDinoError, suggest_choice
from sts_dino.hub.untrusted import join_lines, read_json_object, require_no_cross_encoder
from sts_dino.probe import PromptChoice
from sts_dino.proposals.chat_server import Payment, choose_server, choose_top_k
from sts_dino.proposals.corpus import KINDS, Corpus, Profile
from sts_dino.release.preflight import FIXED_REVISION
from sts_dino.teacher import load_endpoint

logger = logging.getLogger(__name__)

# Generators
GEMMA = GENERATORS["gemma-3-270m"]
# The packaged generators, the one with the highest gain a minute first (docs/better_pairs.md)
GENERATORS_BY_GAIN = ("qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct", GEMMA.name)
# English texts of these kinds suit the smallest packaged generator (docs/adapt.md)
KINDS_FOR_SMALL_GENERATOR = KINDS[:2]
BUILT_IN = find_asset("demo-lm")
BUILT_IN_LICENSE = "cc-by-nc-sa-4.0"
DEMONSTRATION = "it demonstrates the commands, and knows English alone"
GGUF_HEADER_BYTES = 1 << 26  # bytes of a GGUF file that hold its keys, the vocabulary among them
# Keys of the section ``few_shot.examples`` for each examples file in assets/
SHIPPED_EXAMPLES = {
    "description": "twenty first sentences with a sentence for each label, "
    "written by hand for sts-dino",
    "license": "cc0-1.0",
}

# Corpora
DEFAULT_LIMIT = 1000  # source sentences, as the measured encoders had (docs/better_pairs.md)
MOST_TOKENS_PER_WORD = 2  # of the tokenizers and languages that were measured
# Languages that tokenizers split finer; a Chinese or Japanese word is a character of three bytes
MOST_TOKENS_PER_WORD_BY_LANGUAGE = {"ar": 4, "hi": 7, "ja": 3, "ko": 5, "pl": 4, "zh": 3}
FEWEST_FOR_SHARE = 10  # texts: the share of a language among fewer texts means nothing
# The share of texts recognised as English: code has 0.5 to 0.65, English sentences 0.9 and more
LEAST_ENGLISH_SHARE = 0.75
LABELS = ("1", "0.5", "0")  # of a proposed recipe: the names are the similarities
CANDIDATES = 4  # texts of a label among which an encoder chooses, of a model behind a server
SPARE_ATTEMPTS = 4  # for texts that are rejected

# Encoders
BATCH_SIZE = 32
# family, a part of the name → the prompt that its cards ask for on both sides of a pair
PROMPTS_OF_FAMILIES = {"e5": "query: [X]"}
# figures: means of STS12-16, STSb and SICK-R, of the public MTEB results
STRONGER_ENCODER = "BAAI/bge-small-en-v1.5"
STRONGER_ENCODERS = (
    " (it has 78.9 on seven STS tasks; published encoders of its size are stronger: --encoder "
    f"{STRONGER_ENCODER} has 82.8, thenlper/gte-small 82.4, intfloat/e5-small-v2 81.6)"
)
LOCATION_KEYS = ("repo_id", "revision", "path")
# A training with a teacher, as the row "teacher, base and pairs" of experiments/domains.yaml
TAUGHT_STEPS = 150  # at least
TAUGHT_BATCH_SIZE = 48  # a correlation needs many pairs
TAUGHT_RATE = "3e-5"  # learning rate of a finished encoder
TAUGHT_MERGE = "1.5"  # times what the training changes in a finished encoder (docs/teacher.md)
# Jiang et al. 2023: the embedding is the hidden state of the last quotation mark
PROMPTEOL_PROMPT = 'This sentence : "[X]" means in one word:"'
PROMPTEOL_RATE = "3e-4"
LORA = {"r": "16", "alpha": "32", "dropout": "0.05", "release": "merged"}
LANGUAGE_MODEL_ENCODERS = ("prompteol", "static")
DEFAULT_MAX_TOKENS = 256  # that an encoder reads, where its files do not say
MOST_MAX_TOKENS = 32_768  # a larger number in an encoder's files stands for "no limit"
ORIGIN_GENERATOR = "the language model itself"


@dataclass(frozen=True)
class Generator:
    """A language model as a recipe's section ``model``, and the reason for the choice."""

    section: dict[str, Any]
    why: str
    # False for the built-in model alone, which was trained without examples
    reads_examples: bool = True
    has_counter_labels: bool = True  # False: a server draws tokens without counter-prompts

    def add_payment(self, payment: Payment) -> "Generator":
        """Return the generator with prices and budget among the keys of its server.

        Raises InputError for options with a generator that is not a server.
        """
        if not payment.format_settings(LanguageModel.model_validate(self.section)):
            return self
        section = {**self.section, "server": {**self.section["server"], **payment.keys}}
        return replace(self, section=section)

    def describe(self) -> str:
        """Return one line: the language model, the size of its weights, and why it was chosen."""
        model = LanguageModel.model_validate(self.section)
        return f"language model: {describe_model(model)}: {self.why}"


@dataclass(frozen=True)
class Base:
    """An encoder before training as a recipe's section ``base``, how to train it, and why.

    Rates and epochs are those of docs/better_pairs.md and docs/training.md. Rates are texts, as
    they stand in the recipe.
    """

    section: dict[str, Any]
    why: str
    epochs: float  # over the source sentences
    learning_rate: str
    token_dropout: float
    lora: bool = False
    min_steps: int = 20
    cuts_vocabulary: bool = False  # to the words of the dataset: a large one is slow to train
    arguments: dict[str, str] = field(default_factory=dict)  # further trainer arguments


def load_languages() -> dict[str, dict[str, Any]]:
    """Load languages.yaml: language code → the language's name, label meanings and instructions.

    The instructions stand under the kind of text. Each kind has an instruction for each label and
    the name of an examples file. All values are strings.
    """
    text = Path(__file__).with_name("languages.yaml").read_text(encoding="utf-8")
    return yaml.load(text, yaml.BaseLoader)  # reads every value as text


def choose_instructions(corpus: Profile, generator: Generator) -> tuple[str | None, dict[str, Any]]:
    """Choose instructions, label meanings and an examples file for a corpus.

    Returns the kind of text that the instructions are for, and the words of languages.yaml. A kind
    without instructions gets the instructions for statements. The built-in model always gets these.
    A language without instructions gets the English ones for statements, and the kind is None.
    """
    languages = load_languages()
    if corpus.language not in languages:
        english = languages["en"]
        return None, {**english, **english[KINDS[0]]}
    words = languages[corpus.language]
    kind = KINDS[0]
    if corpus.kind in words and generator.reads_examples:
        kind = corpus.kind
    return kind, {**words, **words[kind]}


def choose_generator(
    requested: str | None,
    license_id: str | None,
    corpus: Profile | None = None,
    takes_demonstration: bool = True,
) -> Generator:
    """Choose the requested language model, else the best one of ``sts-dino lm`` that is local.

    ``GENERATORS_BY_GAIN`` has the order. For other texts than English statements and questions the
    1.5B model comes first. Without a local model the built-in one is the choice.

    Args:
        requested: a name of ``sts-dino lm``, gemma, builtin, a folder, a .gguf file,
            ORG/NAME@REVISION, a server's NAME@URL, openai/NAME of OpenAI's API, or None.
        license_id: the licence of a model that is not in the lists of ``sts-dino lm``; None: the
            list's, or the one that a server's host, file or model family has.
        corpus: the statistics of the corpus; None counts as English statements.
        takes_demonstration: whether the built-in model may be the choice without a request.

    Raises InputError for an encoder, a missing folder, a folder of several GGUF files, an unknown
    name or licence, a ``license_id`` of a model whose licence is known, a server that refuses, and
    where only the built-in model is local and may not be the choice; RunError for a Hub or a server
    that cannot be reached.
    """
    # A model of sts-dino lm, or the built-in one
    is_easy = corpus is None or (
        corpus.language == "en" and corpus.kind in KINDS_FOR_SMALL_GENERATOR
    )
    if requested is None or requested in (*GENERATORS, "gemma", "builtin"):
        _refuse_licence("--lm-license", license_id, requested or "the default language model")
    if requested is None:
        return _choose_local_generator(is_easy, takes_demonstration)
    if requested == "gemma":
        requested = GEMMA.name
    if requested in GENERATORS:
        return _use_packaged_generator(requested, is_easy)
    if requested == "builtin":
        return _use_built_in_generator(f"as --lm asks; {DEMONSTRATION}")

    # A server, whose licence may follow from its answers
    choices = (
        *GENERATORS,
        "builtin",
        "openai/NAME",
        "FILE.gguf",
        "NAME@URL of an OpenAI-compatible server",
    )
    server = parse_server("--lm", requested)
    if server is not None:
        section, why = choose_server(server, license_id)
        return Generator(section, why, has_counter_labels=False)

    # Any other model needs a licence: the list's of sts-dino lm, or the user's
    _require_generator(requested, choices)
    listed = find_hub_model(requested)
    if listed is not None:
        _refuse_licence("--lm-license", license_id, requested)
        license_id = listed.license
    if license_id is None:
        raise InputError(
            "--lm-license",
            f"the licence of {requested} is not known",
            allowed=licences.suggest_licences(),
            hint=suggest_choice(requested, choices),
        )
    terms = {"license": licences.require_licence("--lm-license", license_id).id}

    # A GGUF file, a folder or a repository
    gguf_file = _find_gguf_file(Path(requested).resolve())
    if gguf_file:
        location = {"path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    else:
        location = resolve_model_location("--lm", requested, choices)
    return Generator({**location, "dtype": "auto", **terms}, "as --lm asks")


def _require_generator(requested: str, choices: Sequence[str]) -> None:
    """Raise InputError for the name of an encoder, and for a missing file or folder.

    A name of the form ORG/NAME[@REVISION] that does not end in .gguf passes: it may be on a Hub.
    """
    repo_id = requested.partition("@")[0]
    is_absolute = Path(requested).is_absolute()  # on Windows also C:/lm
    is_path = is_absolute or requested.startswith(".") or requested.endswith(".gguf")
    may_be_on_hub = repo_id.count("/") == 1 and not is_path
    if requested in ENCODERS:
        problem = f"{requested!r} is an encoder, and generates no text"
        hint = f"give it to adapt as --encoder {requested}"
        raise InputError("--lm", problem, allowed=", ".join(choices), hint=hint)
    if not may_be_on_hub and not (requested and Path(requested).exists()):
        name = Path(repo_id).name or "NAME"
        example = f"a model behind an API is --lm {name}@https://HOST/v1"
        raise InputError(
            "--lm",
            f"no model {requested!r}",
            allowed=f"{', '.join(choices)}, a folder, ORG/NAME@REVISION",
            hint=suggest_choice(requested, choices) or example,
        )


def _choose_local_generator(is_easy: bool, takes_demonstration: bool) -> Generator:
    """Choose the best local model of ``sts-dino lm``, else the built-in one, else Gemma on the Hub.

    An installation may lack the files of the built-in model. Raises InputError where no model of
    ``sts-dino lm`` is local and the built-in one may not be the choice.
    """
    small, large, last = GENERATORS_BY_GAIN
    order = GENERATORS_BY_GAIN if is_easy else (large, small, last)
    for name in order:
        if GENERATORS[name].is_here:
            return _use_packaged_generator(name, is_easy, "the best local one for these texts")
    if not takes_demonstration:
        size = GENERATORS[order[0]].bytes / 1e9
        raise InputError(
            "--lm",
            "no language model of sts-dino lm is on this machine",
            hint=f"run sts-dino lm {order[0]} ({size:.1f} GB), then this command again; or name "
            "another model with --lm; --lm builtin only demonstrates: its pairs train no useful "
            "encoder",
        )
    if BUILT_IN.is_dir():
        return _use_built_in_generator(
            f"no model of sts-dino lm is on this machine; {DEMONSTRATION}; for useful pairs: "
            "sts-dino lm NAME, then sts-dino new again"
        )
    return _use_packaged_generator(GEMMA.name, is_easy)


def _use_built_in_generator(why: str) -> Generator:
    section = {"path": str(BUILT_IN.resolve()), "license": BUILT_IN_LICENSE}
    return Generator(section, why, reads_examples=False)


def _use_packaged_generator(
    name: str, is_easy: bool, why: str = "as --lm asks; downloaded by sts-dino lm"
) -> Generator:
    """Return a model of ``sts-dino lm`` as a generator: its local folder, else its Hub repository.

    is_easy: whether the texts suit the smallest model. why: the reason for a local model.
    """
    small, large, *_ = GENERATORS_BY_GAIN
    section = {**GENERATORS[name].section, "dtype": "auto"}
    if "path" not in section:
        why = f"from the Hub; without a Hub: sts-dino lm {name}"
        if name == GEMMA.name:
            why += "; accept its terms on its page first"
    if name == small and not is_easy:
        why += f"; it generates few good pairs of such texts (docs/adapt.md): sts-dino lm {large}"
    return Generator(section, why)


def _find_gguf_file(path: Path) -> Path | None:
    """Return the GGUF file at ``path``: the file, or the only one of a folder without config.json.

    Returns None for anything else. Raises InputError for several files in such a folder.
    """
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    files = sorted(path.glob("*.gguf"))
    if not files or (path / "config.json").is_file():
        return None
    if len(files) > 1:
        raise InputError(
            "--lm",
            f"{path} holds several GGUF files",
            allowed=", ".join(file.name for file in files),
            hint=f"name one: --lm {quote(str(files[0]))}",
        )
    return files[0]


def require_known_language(
    location: object, generator: Generator, corpus: Profile, language: str | None
) -> None:
    """Raise InputError for the built-in model and a corpus that is not English.

    Args:
        location: the corpus, for the error.
        generator: the language model; any other than the built-in one passes.
        corpus: the statistics of the corpus.
        language: the code that the user gave; it overrides the recognised language.
    """
    is_recognised = corpus.in_language >= LEAST_ENGLISH_SHARE
    is_small = corpus.usable < FEWEST_FOR_SHARE
    is_english = corpus.language == "en" and (language or is_small or is_recognised)
    is_built_in = not generator.reads_examples
    if not is_built_in or is_english:
        return
    name = load_languages().get(corpus.language, {}).get("name", corpus.language)
    share = f"{corpus.in_language:.0%} of its texts"
    if language:
        problem = f"its texts are {name}"
    elif is_recognised:
        problem = f"{share} are recognised as {name}"
    else:
        problem = f"no language is clear (code, mixed?): {share} have the commonest, {name!r}"
    hint = HINT_ANOTHER_LANGUAGE_MODEL
    if not language and (is_small or not is_recognised):
        hint += "; if they are English: --language en"
    problem += "; the built-in model writes English sentences alone"
    raise InputError(location, problem, hint=hint)


def resolve_model_location(option: str, requested: str, choices: Sequence[str]) -> dict[str, str]:
    """Return the keys of a recipe's section that locate a model.

    A folder gives ``path``. ORG/NAME[@REVISION] gives ``repo_id`` and a fixed ``revision``.

    Args:
        option: the command's option, for errors.
        requested: the option's value.
        choices: other values that the option allows, for errors.

    Raises InputError for another value, and the errors of ``pin_revision``.
    """
    if requested and Path(requested).is_dir():
        return {"path": str(Path(requested).resolve())}
    repo_id, _, revision = requested.partition("@")
    if repo_id.count("/") != 1 or repo_id.startswith((".", "/")):
        raise InputError(
            option,
            f"{requested or 'an empty text'} is not a folder here",
            allowed=f"{', '.join(choices)}, a folder, ORG/NAME@REVISION",
            hint=suggest_choice(requested, choices),
        )
    return {"repo_id": repo_id, "revision": pin_revision(repo_id, revision)}


def pin_revision(repo_id: str, revision: str) -> str:
    """Return a commit or a version's tag unchanged; for a branch return its current commit.

    A version's tag is vX.Y.Z. Any other revision is looked up, "" as the main branch, and the log
    names its commit. Raises InputError for a missing repository or revision, RunError when the Hub
    cannot be read.
    """
    if FIXED_REVISION.fullmatch(revision):
        return revision
    with convert_read_errors(repo_id, revision or None):
        commit = HfApi().model_info(repo_id, revision=revision or None).sha
    assert commit is not None
    if commit != revision:
        branch = revision or "its main branch"
        logger.info(f"{repo_id}: {branch} is {commit} now; the recipe pins that")
    return commit


def format_dataset_recipe(
    corpus: Corpus,
    generator: Generator,
    name: str,
    license_id: str,
    examples: dict[str, str],
    limit: int | None = None,
    labels: Sequence[str] = LABELS,
    choice: PromptChoice | None = None,
) -> str:
    """Return the commented YAML of a dataset recipe.

    Where no licence covers all parts, the dataset's licence is a mixed one.

    Args:
        corpus: the corpus, which has usable texts without a quotation mark.
        generator: the language model.
        name: the name of the dataset.
        license_id: the licence of the corpus.
        examples: the section ``few_shot.examples``; empty for a prompt without examples.
        limit: the largest number of source sentences; None: ``DEFAULT_LIMIT``. A corpus that was
            read to its end lowers it to its usable texts without a quotation mark, at least 1.
        labels: the labels to generate, some of ``LABELS``.
        choice: the kind of prompt that a probe proposes; None: the plain prompt, without a probe.

    Raises InputError for an unknown licence, for one that forbids changed source sentences, and for
    a generator whose licence says nothing about its texts.
    """
    # Find a licence for the dataset.
    profile = corpus.profile
    source_terms = licences.require_licence("--license", license_id)
    model_terms = licences.require_licence("model.license", generator.section["license"])
    example_terms = []
    if examples:
        place = "few_shot.examples.license"
        example_terms.append(licences.require_licence(place, examples["license"]))
    allowed = licences.find_dataset_licences(source_terms, model_terms, example_terms, name)
    reason = "follows from the parts' licences"
    if source_terms.unlicensed:
        reason += "; the source sentences have none: ask before you make it public"

    # Fill the sections.
    title = join_lines(corpus.title)
    most_sentences = limit or DEFAULT_LIMIT
    if profile.whole:  # else the corpus has more texts than were counted
        most_sentences = min(most_sentences, profile.usable - profile.quoted)
    source: dict[str, object] = {**corpus.source, "limit": max(1, most_sentences)}
    if profile.columns:
        source["columns"] = list(profile.columns)
    if profile.quoted:
        source["quotation_marks"] = "skip"
    source |= {"description": f"texts of {title}", "license": license_id}
    model = _make_model_section(generator, choice)
    decoding = _make_decoding_section(generator, model, _estimate_longest(profile))
    selection = None
    if "server" in model:
        selection = _set_up_best_of_n(model, decoding, profile.language, labels)
    reject = ["example_copy", "prompt_echo", "control_characters", "too_long"]
    if profile.language in RECOGNISED_LANGUAGES:
        reject.append("wrong_language")
    postprocess = {
        "sampled_negatives": 0,
        "max_per_label": 1,
        "validation_fraction": 0,
        "near_copy": 0.8,
        "reject": reject,
    }

    # Write the comments around them.
    kind, words = choose_instructions(profile, generator)
    unusable = [f"{count:,} {fault}" for fault, count in profile.faults.items() if count]
    return _fill_template(
        "dataset.yaml.jinja",
        corpus=profile,
        title=title,
        passed_over=f" (the others: {', '.join(unusable)})" if unusable else "",
        name=name,
        license=allowed[0],
        license_reason=reason,
        source=source,
        most=DEFAULT_LIMIT,
        generator=generator,
        longest=decoding["max_new_tokens"],
        model=model,
        has_template=has_chat_template(generator.section),
        choice=choice,
        kind=kind,
        words=words,
        labels=_list_label_sections(words, labels, generator.has_counter_labels),
        decoding=decoding,
        selection=selection,
        examples=examples,
        postprocess=postprocess,
    )


def _set_up_best_of_n(
    model: dict[str, Any], decoding: dict[str, Any], language: str, labels: Sequence[str]
) -> dict[str, Any] | None:
    """Set up best of n for a server: an encoder chooses each text among ``CANDIDATES`` texts.

    A server cannot self-debias; best of n has the highest label agreement (docs/backends.md).
    Returns the section ``selection``, and changes the sections ``model`` and ``decoding`` in place.
    Returns None and changes nothing for a single label, and where the encoder is not on this
    machine; the log then names the command that downloads it.
    """
    if len(labels) == 1:
        return None
    if find_default_selector(language) is None:
        name = get_default_selector(language).lower()
        logger.info(
            f"one text is generated for each label; sts-dino lm {name} brings the encoder that "
            f"chooses the best of {CANDIDATES} (docs/backends.md)"
        )
        return None
    # One request asks for all candidates. Without a schema each candidate has its own request,
    # since llama.cpp reports the end of only one text in an answer
    if model["server"].get("structured_output"):
        model["server"] = {**model["server"], "choices": CANDIDATES}
    decoding["max_attempts"] = CANDIDATES + SPARE_ATTEMPTS
    return {"candidates": CANDIDATES}


def _make_model_section(generator: Generator, choice: PromptChoice | None) -> dict[str, Any]:
    """Return the section ``model`` of a recipe: the generator with chat template and threads."""
    model = dict(generator.section)
    if choice is not None and choice.chat:
        model["chat_template"] = True
    if not generator.reads_examples:
        model["threads"] = 1  # the demonstration's texts do not depend on the number of cores
    return model


def _make_decoding_section(
    generator: Generator, model: Mapping[str, Any], longest: int
) -> dict[str, object]:
    """Return the section ``decoding`` of a recipe.

    Args:
        generator: the language model.
        model: its section of the recipe.
        longest: the tokens of the corpus's longest texts.
    """
    decoding: dict[str, object] = {}
    if generator.has_counter_labels:
        # The paper's 100 suits the built-in model; with others it drives label 0.5 too far away
        decoding["decay_constant"] = 30 if generator.reads_examples else 100
    if "server" in model:
        server = Server.model_validate(model["server"])
        if choose_top_k(server) == 0:
            decoding["top_k"] = 0
        if server.example_turns:  # a cut answer is rejected, and is paid for, too
            longest *= 2
    return {**decoding, "max_new_tokens": longest, "samples": 1, "max_attempts": 1 + SPARE_ATTEMPTS}


def parse_labels(option: str | None) -> tuple[str, ...]:
    """Parse ``--labels``: similarities with commas between them, e.g. ``1,0``.

    Returns the names in the order of ``LABELS``, each once; all of them for None. Raises InputError
    for any other value.
    """
    if option is None:
        return LABELS
    name_of = {float(name): name for name in LABELS}
    chosen: set[str] = set()
    for part in option.split(","):
        try:
            chosen.add(name_of[float(part)])
        except (ValueError, KeyError):
            raise InputError(
                "--labels",
                f"has no label {part.strip()!r}",
                allowed=f"some of {', '.join(LABELS)}, with commas: --labels 1,0",
            ) from None
    return tuple(name for name in LABELS if name in chosen)


def _list_label_sections(
    words: Mapping[str, Any], labels: Sequence[str], has_counter_labels: bool
) -> list[dict[str, Any]]:
    """Return the section of each label of a recipe, with its instruction from ``words``.

    ``labels`` are in the order of ``LABELS``, the most similar first. The counter-labels of a label
    are all labels of higher similarity (DINO, section 4). A counter-label outside ``labels`` gets
    ``samples: 0``: its prompt is needed, its texts are not.
    """
    lowest = LABELS.index(labels[-1])
    sections: list[dict[str, Any]] = []
    for place, name in enumerate(LABELS):
        section: dict[str, Any] = {"name": name, "instruction": words[name]}
        if name in labels:
            section |= {"meaning": words[f"{name} means"], "counter_labels": []}
            if has_counter_labels:
                section["counter_labels"] = list(LABELS[:place])
            sections.append(section)
        elif has_counter_labels and place < lowest:
            sections.append({**section, "samples": 0})
    return sections


def has_chat_template(section: dict[str, Any]) -> bool:
    """Return whether the files of a local model hold a chat template; False for a Hub's model."""
    if "path" not in section:
        return False
    folder = Path(section["path"])
    file = folder / section.get("gguf_file", "tokenizer_config.json")
    if "gguf_file" not in section and (folder / "chat_template.jinja").is_file():
        return True
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return b"chat_template" in stream.read(GGUF_HEADER_BYTES)


def _estimate_longest(corpus: Profile) -> int:
    """Estimate the number of tokens that 95 % of a corpus's texts do not exceed; at least 24."""
    tokens = MOST_TOKENS_PER_WORD_BY_LANGUAGE.get(corpus.language, MOST_TOKENS_PER_WORD)
    return max(24, math.ceil(tokens * corpus.words[2]))


def choose_base(
    requested: str | None, license_id: str | None, generator: dict[str, Any], language: str = "en"
) -> Base:
    """Choose the requested encoder, or the default one of a language.

    The default is all-MiniLM-L6-v2 for English, multilingual-e5-small for other languages.

    Args:
        requested: prompteol, static, a name of ``sts-dino lm``, a folder, ORG/NAME@REVISION, or
            None. prompteol and static train the language model where its weights can be trained.
        license_id: the licence of an encoder that ``sts-dino lm`` does not list; None: its card's.
        generator: the section ``model`` of the dataset's recipe.
        language: the code of the corpus's language.

    Raises InputError for a missing folder or encoder, a cross-encoder, an unknown licence, and a
    ``license_id`` of an encoder whose licence is known; RunError when the Hub cannot be read.
    """
    # A published encoder
    known = (*ENCODERS, *LANGUAGE_MODEL_ENCODERS)
    if requested is None or requested.lower() in known:
        _refuse_licence("--encoder-license", license_id, requested or "the default encoder")
    if requested is None:
        return _choose_default_encoder(language)
    name = requested.lower()
    if name in ENCODERS:
        return _train_further(_locate_packaged_encoder(name), "as asked")
    if name not in LANGUAGE_MODEL_ENCODERS:
        return _use_requested_encoder(requested, license_id)

    # An encoder that starts from a language model
    model, origin = _choose_trainable_model(generator)
    is_built_in = Path(str(model.get("path", ""))).resolve() == BUILT_IN.resolve()
    if name == "prompteol":
        why = (
            f"PromptEOL with LoRA on {origin}: the best of those that start from a language model "
            "(docs/better_pairs.md)"
        )
        section, arguments = make_prompteol_base(model)
        return Base(
            section,
            why,
            epochs=1.25,
            learning_rate=PROMPTEOL_RATE,
            token_dropout=0.1,
            lora=True,
            arguments=arguments,
        )
    section = {**model, "modules": "static"}
    if is_built_in:
        why = (
            "the mean of the built-in model's token embeddings: trained in seconds, "
            "and knows English alone"
        )
        if origin != ORIGIN_GENERATOR:
            why += f"; {origin}"
        return Base(section, why, epochs=10, learning_rate="5e-3", token_dropout=0.4)
    why = f"the mean of the token embeddings of {origin}: small and fast, far behind PromptEOL"
    return Base(
        section, why, epochs=10, learning_rate="1e-3", token_dropout=0.3, cuts_vocabulary=True
    )


def _refuse_licence(option: str, license_id: str | None, name: str) -> None:
    """Raise InputError for a licence that the user names for a model of a known licence."""
    if license_id is not None:
        raise InputError(
            option, f"is {license_id}, and the licence of {name} is known", hint="leave it out"
        )


def _use_requested_encoder(requested: str, license_id: str | None) -> Base:
    """Return an encoder of the user's as a base: a folder or ORG/NAME[@REVISION].

    Raises InputError for a missing folder or repository, a cross-encoder, and a licence that is
    unknown or does not cover the one of the encoder's card; RunError when the Hub cannot be read.
    """
    location = resolve_model_location("--encoder", requested, (*LANGUAGE_MODEL_ENCODERS, *ENCODERS))
    if "path" in location:
        require_no_cross_encoder(Path(location["path"]), f"--encoder: {requested}")
    card = _locate_card(location)
    terms = licences.resolve_model_licence("--encoder-license", license_id or "", card)
    section = {**location, "license": terms.id}
    if is_finished_encoder(location):
        prompt = find_family_prompt(location)
        if prompt is not None:
            section["prompt"] = prompt
        return _train_further(section, "as asked")
    why = "as asked: all of its layers, the mean of the tokens"
    return Base(section, why, epochs=1, learning_rate="2e-5", token_dropout=0.1)


def _train_further(section: dict[str, Any], why: str) -> Base:
    """Return a finished encoder as a base, with the rate of recipes/small/minilm-sts-dino.yaml.

    section: the encoder's location and licence, and its length where known. why: the reason for the
    choice.
    """
    length = section.get("max_seq_length") or read_max_seq_length(section)
    section = {**section, "modules": "sentence-transformer", "max_seq_length": length}
    why += ": all of its layers, with its own pooling and dropout"
    return Base(section, why, epochs=3.2, learning_rate="2e-5", token_dropout=0.0, min_steps=40)


def _locate_packaged_encoder(name: str) -> dict[str, Any]:
    """Return an encoder of ``sts-dino lm`` as a section: its local folder, else its Hub repository.

    all-MiniLM-L6-v2 may also come from its Python package. Raises NoEncoderRecipe for an encoder
    that is not downloaded and whose Hub repository declares no default prompt.
    """
    encoder = ENCODERS[name]
    if encoder.prompt_name and not encoder.is_here:
        hint = f"sts-dino lm {name}, or name another encoder"
        raise NoEncoderRecipe(name, "is not on this machine", hint=hint)
    section: dict[str, Any] = {**encoder.section, "max_seq_length": encoder.max_seq_length}
    if "repo_id" not in section:
        return section
    folder = find_minilm() if name == MINILM.lower() else None
    if folder:
        del section["repo_id"], section["revision"]
        section["path"] = str(folder)
    else:
        hint = f"without a Hub download it first: sts-dino lm {name}"
        logger.info(f"{name} is read from the Hub; {hint}")
    return section


def _choose_default_encoder(language: str) -> Base:
    """Choose all-MiniLM-L6-v2 for English, and multilingual-e5-small for every other language.

    Raises NoEncoderRecipe, with the command that downloads it, for an absent multilingual encoder.
    """
    name = MULTILINGUAL
    why = "the encoder that you would have downloaded, trained further"
    if language == "en":
        name = "all-minilm-l6-v2"
        why += STRONGER_ENCODERS
    return _train_further(_locate_packaged_encoder(name), why)


def find_family_prompt(location: Mapping[str, Any]) -> str | None:
    """Return the prompt that an encoder's family needs where the encoder's files declare none.

    location: path, or repo_id and revision. Returns None for other families, and for encoders that
    take an instruction. Raises InputError for a file of the encoder that is not JSON.
    """
    name = str(location.get("path") or location["repo_id"])
    parts = re.split("[-_]", Path(name).name.lower())
    families = [family for family in PROMPTS_OF_FAMILIES if family in parts]
    if not families or "instruct" in parts:
        return None
    file = find_model_file(location, "config_sentence_transformers.json")
    declared = read_json_object(file, name).get("prompts") if file else None
    if declared and any(declared.values()):
        return None
    return PROMPTS_OF_FAMILIES[families[0]]


def is_finished_encoder(location: Mapping[str, Any]) -> bool:
    """Return whether a location (path, or repo_id and revision) holds a finished encoder.

    A finished encoder is one of sentence-transformers, with its own modules. A repository that
    cannot be read counts as one: most encoders are, and training refuses the others.
    """
    if find_model_file(location, "modules.json") is not None:
        return True
    return "repo_id" in location and find_model_file(location, "config.json") is None


def read_max_seq_length(location: Mapping[str, Any]) -> int:
    """Return the number of tokens after which a finished encoder cuts a text.

    location: path, or repo_id and revision. Returns ``DEFAULT_MAX_TOKENS`` where no file has the
    number. Raises InputError for a file that is not JSON.
    """
    for name, key in (
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        file = find_model_file(location, name)
        length = read_json_object(file, location).get(key) if file else None
        if isinstance(length, int) and 0 < length <= MOST_MAX_TOKENS:
            return length
    return DEFAULT_MAX_TOKENS


def was_taught(location: Mapping[str, Any]) -> bool:
    """Return whether a location holds an encoder that learned from a teacher, as its recipe says.

    location: path, or repo_id and revision. A recipe that cannot be read counts as none.
    """
    file = find_model_file(location, RECIPE)
    if file is None:
        return False
    with suppress(InputError):
        return any(data.teacher for data in load_recipe(file, ModelRecipe).datasets)
    return False


def find_model_file(location: Mapping[str, Any], name: str) -> Path | None:
    """Return the path of the file ``name`` of a location; None if it is missing or unreadable.

    location: path, or repo_id and revision; the file of a repository is downloaded.
    """
    if "path" in location:
        file = Path(location["path"]) / name
        return file if file.is_file() else None
    repo_id = location["repo_id"]
    revision = location["revision"]
    with suppress(StsDinoError), convert_read_errors(repo_id, revision):
        return Path(hf_hub_download(repo_id, name, revision=revision))
    return None


def _locate_card(location: Mapping[str, Any]) -> Path | None:
    """Return the path of a location's README.md.

    The README.md of a folder may not exist; None for a repository without one.
    """
    if "path" in location:
        return Path(location["path"]) / "README.md"
    return find_model_file(location, "README.md")


def _choose_trainable_model(generator: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Choose a language model whose weights can be trained.

    The choice is the generator itself, or the whole weights that lie beside its GGUF file. A server
    and a GGUF file without whole weights cannot be trained: Gemma 3 270M is the choice where it is
    local, else the built-in model.

    generator: the section ``model`` of a dataset recipe. Returns the keys ``path`` or ``repo_id``
    and ``revision``, and ``license`` of a section, and words that name the model in a comment.
    """
    keys = ("path", "repo_id", "revision", "license")
    section: dict[str, Any] = {key: generator[key] for key in keys if key in generator}
    if "server" not in generator and "gguf_file" not in generator:
        return section, ORIGIN_GENERATOR
    if "path" in section and (Path(section["path"]) / "config.json").is_file():
        return section, "the language model's whole weights, which lie beside its GGUF file"
    untrained = "a model behind a server" if "server" in generator else "a GGUF file"
    if GEMMA.is_here:
        return GEMMA.section, f"Gemma 3 270M, since {untrained} is not trained"
    why = f"{untrained} is not trained; for a better one: sts-dino lm {GEMMA.name}, or --encoder"
    return {"path": str(BUILT_IN.resolve()), "license": BUILT_IN_LICENSE}, why


def make_prompteol_base(model: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the section ``base`` of a model under PromptEOL's prompt, and trainer arguments.

    Both ask for bfloat16 where this machine has instructions for it.
    model: location and licence of the causal language model.
    """
    section = {**model, "pooling": "lasttoken", "prompt": PROMPTEOL_PROMPT, "max_seq_length": 64}
    precision = choose_precision()
    if precision:
        section["dtype"] = "bfloat16"
    return section, precision


def choose_precision() -> dict[str, str]:
    """Return the trainer argument ``bf16`` where this machine has instructions for bfloat16.

    A training step then takes 0.6 of the time. Without the instructions the result is empty.
    """
    from sts_dino.generation.backends.load_model import get_half_or_float32  # it imports torch

    return {"bf16": "true"} if get_half_or_float32() == "bfloat16" else {}


class NoEncoderRecipe(InputError):
    """An encoder must be downloaded first, or a dataset lacks a label that its training needs."""


@dataclass(frozen=True)
class LabelRoles:
    """The labels of a dataset by their role in a training on graded triplets.

    Each source sentence is an anchor with one positive and one hard negative.

    positives: the labels of the positives; empty where each sentence is its own positive.
    negatives: the labels of the hard negatives, the highest similarity first. A sentence's negative
        has the first of these labels for which a text of the sentence was kept.
    unused: labels whose texts are in no triplet.
    is_own_positive: whether each source sentence is its own positive under dropout.
    has_teacher: whether a teacher's scores train the encoder, too, with the texts of all labels.
    """

    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    unused: tuple[str, ...]
    is_own_positive: bool
    has_teacher: bool

    @property
    def needed(self) -> tuple[str, ...]:
        """The labels that are not ``spare``."""
        labels = (*self.positives, *self.unused, *self.negatives)
        return tuple(label for label in labels if label not in self.spare)

    @property
    def spare(self) -> tuple[str, ...]:
        """The labels that ``--labels`` can leave out: substitutes, and unused ones.

        With a teacher, unused ones are needed: texts for 1 make its gain (docs/teacher.md), and
        they are in no triplet where each sentence is its own positive.
        """
        substitutes = self.negatives[1:]
        return substitutes if self.has_teacher else (*self.unused, *substitutes)

    def require_trainable(self) -> None:
        """Raise NoEncoderRecipe if positives or hard negatives have no label in the dataset."""
        if not self.negatives:
            lacking = "0.5 or 0, whose texts are its hard negatives"
        elif not self.positives and not self.is_own_positive:
            lacking = "1, whose texts are its positives"
        else:
            return
        raise NoEncoderRecipe(
            "labels",
            f"the encoder trains on label {lacking}",
            allowed=f"labels {', '.join(LABELS)}",
            hint="name it in --labels, or leave out --labels",
        )

    def describe(self) -> str:
        """Return clauses that say how the texts of each label are used.

        Call it after ``require_trainable``: it needs a label of hard negatives. A proposed recipe
        has at most two of them, 0.5 and 0.
        """
        positive = "each source sentence is its own positive under dropout"
        if self.positives:
            positive = f"texts of label {' and '.join(self.positives)} are positives"
        text = f"{positive}; texts of label {self.negatives[0]} are hard negatives"
        if len(self.negatives) > 1:
            text += (
                f"; a text of label {self.negatives[1]} trains only for a sentence without a text "
                f"of label {self.negatives[0]}"
            )
        if self.has_teacher:
            text += ". Pairs of the texts of all labels train, too, with the teacher's scores"
        elif self.unused:
            text += f"; texts of label {' and '.join(self.unused)} do not train"
        return text


def assign_label_roles(dataset: DatasetRecipe, grades: Grades, has_teacher: bool) -> LabelRoles:
    """Assign each generated label of a dataset its role in a training on graded triplets.

    dataset: of a schema with scores, so that every label has one.
    grades: the score bands of positives and negatives; a label's score decides its role. Where
        each sentence is its own positive, the labels of the band of positives are unused.
    has_teacher: whether a teacher's scores train the encoder, too.

    The labels of a role stand by score, the highest first.
    """
    scored = sorted(dataset.written_labels, key=lambda label: -(label.score or 0.0))
    positives: list[str] = []
    negatives: list[str] = []
    unused: list[str] = []
    is_own_positive = grades.positives == "itself"
    for label in scored:
        score = label.score or 0.0
        if score >= grades.positive_from and not is_own_positive:
            positives.append(label.name)
        elif grades.negative_from <= score <= grades.negative_to:
            negatives.append(label.name)
        else:
            unused.append(label.name)
    return LabelRoles(
        tuple(positives), tuple(negatives), tuple(unused), is_own_positive, has_teacher
    )


def find_taught_folder(pairs: Path) -> Path:
    """Return the folder of a teacher's pairs beside the run directory of a dataset."""
    return pairs.with_name(f"{pairs.name.removesuffix('-pairs')}-taught")


def choose_teacher(requested: str, license_id: str | None) -> dict[str, Any]:
    """Return the section ``teacher`` of an encoder: its location and licence.

    Args:
        requested: a name of ``sts-dino lm``, a folder, ORG/NAME[@REVISION], or a server's NAME@URL.
        license_id: the licence of an encoder that ``sts-dino lm`` does not list; None: its card's.

    A Hub model outside ``sts-dino lm`` is downloaded, and a server gets a short sentence. Raises
    InputError for a model that is missing or no finished encoder, for a server that refuses the
    sentence, for a licence that is unknown, and for a ``license_id`` of an encoder whose licence is
    known; RunError for a Hub or a server that cannot be reached.
    """
    server = parse_server("--teacher", requested)
    if server is not None:
        return _make_endpoint_section(server, license_id)
    if requested.lower() in ENCODERS:
        _refuse_licence("--teacher-license", license_id, requested)
        section = _locate_packaged_encoder(requested.lower())
        return {key: section[key] for key in (*LOCATION_KEYS, "license") if key in section}
    location = resolve_model_location(
        "--teacher", requested, [*ENCODERS, "NAME@URL of an embeddings server"]
    )
    download_and_check_model(
        location.get("path") or f"{location['repo_id']}@{location['revision']}"
    )
    card = _locate_card(location)
    terms = licences.resolve_model_licence("--teacher-license", license_id or "", card)
    return {**location, "license": terms.id}


def _make_endpoint_section(server: Server, license_id: str | None) -> dict[str, Any]:
    """Return the section ``teacher`` of an encoder behind a server, after a test request.

    ``license_id`` is the encoder's licence; None: OpenAI's terms, at OpenAI's API. Every other
    server needs a licence. Raises InputError for a missing or unknown licence, for another licence
    at OpenAI's API, and for a server that refuses the request or answers with another model.
    Raises RunError for a server that cannot be reached, and for unusable embeddings.
    """
    host = find_public_host(server.base_url)
    terms = licences.resolve_server_licence("--teacher-license", server.model, host, license_id)
    load_endpoint(server)
    return {"model": server.model, "endpoint": server.base_url, "license": terms.id}


@dataclass(frozen=True)
class Schedule:
    """How an encoder is trained. ``learning_rate`` and ``merge`` are texts, as in a recipe.

    ``least_steps``: the fewest optimiser steps. ``precision``: trainer arguments that choose the
    number format, such as ``bf16``; empty: float32. ``merge``: multiplies what the training
    changes; None: the trained weights as they are.
    """

    batch_size: int
    learning_rate: str
    least_steps: int
    precision: dict[str, str] = field(default_factory=dict)
    merge: str | None = None


def choose_schedule(base: Base, language: str, has_teacher: bool) -> Schedule:
    """Return how to train a base on texts of a language, with or without a teacher.

    docs/teacher.md has the figures.
    """
    if not has_teacher:
        return Schedule(BATCH_SIZE, base.learning_rate, base.min_steps)
    if base.section.get("modules") != "sentence-transformer":
        return Schedule(TAUGHT_BATCH_SIZE, base.learning_rate, TAUGHT_STEPS)
    # English domains gain beyond the trained weights. Spanish does not, nor does an encoder that a
    # teacher trained before.
    merge = None
    if language == "en" and not was_taught(base.section):
        merge = TAUGHT_MERGE
    return Schedule(TAUGHT_BATCH_SIZE, TAUGHT_RATE, TAUGHT_STEPS, choose_precision(), merge)


def format_model_recipe(
    dataset: DatasetRecipe,
    dataset_path: str,
    base: Base,
    name: str,
    teacher: Mapping[str, Any] | None = None,
) -> str:
    """Return the commented YAML of a model recipe.

    Args:
        dataset: the recipe of the dataset that the model trains on.
        dataset_path: the dataset's run directory, relative to the recipe's folder.
        base: the base encoder.
        name: the name of the model.
        teacher: the section ``teacher`` of an encoder whose cosines train the model, too; None:
            no teacher.

    Raises InputError where no licence covers a model of this base and these data, for a dataset
    without scores, and where the dataset lacks a label that the training needs.
    """
    if dataset.schema_name != "sts":
        raise InputError(
            f"{dataset.name}: schema",
            f"is {dataset.schema_name}, and the proposed encoder trains on scored pairs",
            allowed="sts",
            hint="write the encoder's recipe yourself: docs/training.md",
        )

    # Find a licence for the model.
    base_terms = licences.require_licence("--encoder-license", base.section["license"])
    dataset_terms = licences.require_licence("license", dataset.license)
    teacher_terms = []
    if teacher is not None:
        teacher_terms = [licences.require_licence("--teacher-license", teacher["license"])]
        if all(teacher.get(key) == base.section.get(key) for key in LOCATION_KEYS):
            logger.warning(
                "the teacher is the base encoder itself, from which it learns nothing new: try "
                "another --teacher, or none"
            )
    licence = licences.choose_model_licence(
        base_terms, [dataset_terms, *teacher_terms], name, teacher_terms
    )
    reason = "the base's" if licence == base_terms.id else "follows from the parts' licences"
    if dataset_terms.unlicensed:
        reason += "; the source sentences have no licence: ask before you make it public"

    # Fill the sections.
    config = next(config for config in dataset.configs if config.startswith("postprocessed"))
    rows: dict[str, object] = {
        "path": dataset_path,
        "config": config,
        "example_type": "graded-triplet",
    }
    grades = Grades()
    if base.section.get("modules") == "sentence-transformer":
        rows["grades"] = {"positives": "itself"}
        grades = Grades(positives="itself")
    roles = assign_label_roles(dataset, grades, has_teacher=teacher is not None)
    roles.require_trainable()
    rows["loss"] = "MultipleNegativesRankingLoss"
    section = dict(base.section)
    if base.cuts_vocabulary:
        columns = ["sentence1", "sentence2"]
        section["vocabulary"] = {
            "path": dataset_path,
            "config": config,
            "columns": columns,
            "sif": "1e-3",
        }

    # A training saves a checkpoint halfway and logs about twenty times.
    schedule = choose_schedule(base, dataset.language, has_teacher=teacher is not None)
    batches = (dataset.source.limit or DEFAULT_LIMIT) / schedule.batch_size
    steps = max(schedule.least_steps, math.ceil(base.epochs * batches))
    arguments = {
        "learning_rate": schedule.learning_rate,
        "max_steps": str(steps),
        "warmup_steps": "0.1",
        "save_strategy": "steps",
        "save_steps": str(max(10, steps // 2)),
        "logging_steps": str(max(1, steps // 20)),
        "batch_sampler": "no_duplicates",
        "report_to": "none",
        **schedule.precision,
        **base.arguments,
    }
    taught: dict[str, object] = {}
    if teacher is not None:
        taught = {
            "path": (find_taught_folder(Path(dataset_path)) / TAUGHT_PAIRS).as_posix(),
            "config": "default",
            "example_type": "sts",
            "loss": "CorrelationLoss",
            "teacher": dict(teacher),
            "license": dataset.license,
        }
    return _fill_template(
        "encoder.yaml.jinja",
        dataset=dataset,
        name=name,
        pretty_name=dataset.pretty_name.replace("Sentence pairs", "Sentence encoder for texts", 1),
        license=licence,
        license_reason=reason,
        base=base,
        section=section,
        lora=LORA,
        rows=rows,
        taught=taught,
        roles=roles,
        batch_size=schedule.batch_size,
        merge=schedule.merge,
        arguments=arguments,
    )


def _fill_template(template: str, **facts: object) -> str:
    """Return a template of this folder, filled with ``facts`` and the path of the recipe schema."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - the output is YAML: texts pass through flow and quoted
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["flow"] = _format_flow
    environment.filters["quoted"] = lambda value: json.dumps(value, ensure_ascii=False)
    schema = find_asset("recipe.schema.json")
    return environment.get_template(template).render(schema=schema, **facts)


def _format_flow(value: object) -> str:
    """Return a value as YAML in flow style, on one line unless a text has a line break.

    PyYAML ends a plain scalar with the document end marker ("..."), which is left out.
    """
    line = yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=10**6
    )
    return line.removesuffix("\n").removesuffix("\n...")

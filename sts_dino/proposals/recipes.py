"""Recipes for a corpus: which language model generates its pairs, from which examples, and which encoder to train."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from generation.backends.registry import dialect_of
from hub.assets import BRING, asset
from hub.cli import say
from hub.contract import licences
from hub.contract.packaged import ENCODERS, GENERATORS, MULTILINGUAL
from hub.contract.recipe import RECOGNISED, Address, DatasetRecipe
from hub.errors import InputError, StsDinoError, did_you_mean
from hub.untrusted import no_cross_encoder, one_line, read_object
from sts_dino.proposals.corpus import KINDS, Corpus, Profile

GEMMA = GENERATORS["gemma-3-270m"]
BEST_FIRST = ("qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct", GEMMA.name)  # by gain a minute
EASY = KINDS[:2]  # English texts of which the smaller model generates good pairs (docs/adapt.md)
BUILT_IN, BUILT_IN_LICENSE = asset("demo-lm"), "cc-by-nc-sa-4.0"
SHIPPED = (
    "twenty first sentences with a sentence for each label, written by hand for sts-dino",
    "cc0-1.0",
)  # in assets/
MOST = 1000  # source sentences, as the measured encoders had (docs/better_pairs.md)
TOKENS_A_WORD = 2  # at most, for the tokenizers and languages seen
TOKENS_A_CHARACTER = 3  # at most, of Chinese and Japanese: its bytes

BATCH = 32
PROMPTEOL = 'This sentence : "[X]" means in one word:"'  # Jiang et al. 2023; its last quotation mark's state embeds
PROMPTEOL_RATE = "3e-4"
LORA = {"r": "16", "alpha": "32", "dropout": "0.05", "release": "merged"}
GGUF_KEYS = 1 << 26  # bytes of a GGUF file that hold its keys, the vocabulary among them
FEW = 10  # texts: too few for a share
ENGLISH = 0.75  # of a corpus's texts, recognised as English: code has 0.5 to 0.65, sentences 0.9 and more
WAYS = ("prompteol", "static")
FINISHED_LENGTH, LONGEST = 256, 32_768  # tokens, where an encoder's own is not known; at most, to be believed
ITSELF = "the language model itself"


@dataclass(frozen=True)
class Generator:
    """A language model as a recipe's section ``model``, and why it was chosen."""

    section: dict[str, Any]
    why: str
    reads_examples: bool = True  # the built-in model was trained on prompts without examples
    couples: bool = True  # counter-labels need the model itself, not a server


@dataclass(frozen=True)
class Base:
    """An encoder before training as a recipe's section ``base``, how to train it, and why it was chosen.

    epochs: over the source sentences. Rates and epochs are those of docs/better_pairs.md and docs/training.md.
    """

    section: dict[str, Any]
    why: str
    epochs: float
    learning_rate: str
    token_dropout: float
    lora: bool = False
    least: int = 20  # steps
    vocabulary: bool = False  # cut to the words of the dataset: a large one is slow to train
    arguments: dict[str, str] = field(default_factory=dict)


def languages() -> dict[str, dict[str, Any]]:
    """Code → name and meanings of every language that has instructions, and of each kind those and an examples file."""
    text = Path(__file__).with_name("languages.yaml").read_text(encoding="utf-8")
    return yaml.load(text, yaml.BaseLoader)  # makes texts only


def instructions(corpus: Profile, generator: Generator) -> tuple[str | None, dict[str, Any]]:
    """The kind, and instructions, meanings and examples file for a corpus: its kind's, else those for statements.

    The kind is None, and the language English, for a language without. The built-in model knows statements alone.
    """
    known = languages().get(corpus.language)
    kind = corpus.kind if known and corpus.kind in known and generator.reads_examples else KINDS[0]
    return (kind, {**known, **known[kind]}) if known else (None, (other := languages()["en"]) | other[kind])


def choose_generator(asked: str | None, license_id: str | None, corpus: Profile | None = None) -> Generator:
    """The language model ``asked``, else the first of ``BEST_FIRST`` that is available locally.

    For other texts than English statements and questions the larger Qwen model comes first.

    asked: a name of ``sts-dino lm``, gemma, builtin, a folder, a .gguf file, ORG/NAME@REVISION, or a server's NAME@URL.

    Raises InputError for a missing folder, an unknown name or licence, RunError for a server that cannot be reached.
    """
    small, large, *others = BEST_FIRST
    easy = not corpus or (corpus.language == "en" and corpus.kind in EASY)
    order = BEST_FIRST if easy else (large, small, *others)
    here = next((name for name in order if GENERATORS[name].is_here), None)
    if asked is None and here is None and BUILT_IN.is_dir():
        why = "the built-in model is a demonstration; for useful pairs: sts-dino lm NAME, then sts-dino new again"
        return Generator({"path": str(BUILT_IN.resolve()), "license": BUILT_IN_LICENSE}, why, False)
    name = GEMMA.name if asked == "gemma" else asked or here or GEMMA.name
    if name in GENERATORS:
        section = {**GENERATORS[name].section, "dtype": "auto"}
        why = "downloaded by sts-dino lm" if "path" in section else f"from the Hub; without a Hub: sts-dino lm {name}"
        gated = "; accept its terms on its page first" if "path" not in section and name == GEMMA.name else ""
        weak = f"; it generates few good pairs of such texts (docs/adapt.md): sts-dino lm {large}"
        return Generator(section, why + gated + (weak if name == small and not easy else ""))
    if asked == "builtin":
        why = "the built-in model is a demonstration of 4.5 million parameters, and knows English alone"
        return Generator({"path": str(BUILT_IN.resolve()), "license": BUILT_IN_LICENSE}, why, False)
    words = (*GENERATORS, "builtin", "FILE.gguf", "NAME@URL of an OpenAI-compatible server")
    if license_id is None:
        near = did_you_mean(str(asked), words)
        raise InputError("--lm-license", f"the licence of {asked} is not known", allowed=licences.likely(), hint=near)
    terms = {"license": licences.known("--lm-license", license_id).id}
    name, at, url = str(asked).partition("@http")
    if at:
        require_address("--lm", f"http{url}")
        server = {"base_url": f"http{url}", "model": name, "dialect": dialect_of(f"http{url}", name)}
        why = "behind a server: without counter-labels, which need the model itself; dialects: docs/backends.md"
        return Generator({"backend": "openai", "server": server, **terms}, why, couples=False)
    given = Path(str(asked)).resolve()
    files = [given] if given.is_file() else [] if (given / "config.json").is_file() else [*given.glob("*.gguf")]
    if len(files) == 1 and (file := files[0]).suffix == ".gguf":
        return Generator({"path": str(file.parent), "gguf_file": file.name, "dtype": "auto", **terms}, "as asked")
    return Generator({**place_of("--lm", str(asked), words), "dtype": "auto", **terms}, "as asked")


def require_known_language(place: object, generator: Generator, corpus: Profile, given: str | None) -> None:
    """Raise InputError for the built-in model and a corpus that is not English; ``given``: as the user names it."""
    recognised = corpus.in_language >= ENGLISH
    if generator.reads_examples or (corpus.language == "en" and (given or corpus.usable < FEW or recognised)):
        return
    name = languages().get(corpus.language, {}).get("name", corpus.language)
    found = f"its texts are {name}" if given else f"{corpus.in_language:.0%} of its texts are recognised as {name}"
    if not (given or recognised):
        found = (
            f"no language is clear (code, mixed?): {corpus.in_language:.0%} of its texts have the commonest, {name!r}"
        )
    doubt = "" if given or (recognised and corpus.usable >= FEW) else "; if they are English: --language en"
    raise InputError(place, f"{found}; the built-in model writes English sentences alone", hint=BRING + doubt)


def require_address(option: str, url: str) -> None:
    """Raise InputError for a URL that a recipe's ``base_url`` may not hold; a password in it is not shown."""
    try:
        TypeAdapter(Address).validate_python(url)
    except ValidationError:
        allowed = "http://HOST:PORT/v1, without a user or a password"
        raise InputError(option, "the URL cannot be used", allowed=allowed) from None


def place_of(option: str, asked: str, words: Sequence[str]) -> dict[str, str]:
    """A model's place as keys of a recipe's section: a folder, or a Hub repository pinned at its commit.

    Raises InputError that names ``option`` and its other ``words``, and what ``pinned`` raises.
    """
    if Path(asked).is_dir():
        return {"path": str(Path(asked).resolve())}
    name, _, revision = asked.partition("@")
    if name.count("/") != 1 or name.startswith((".", "/")):
        allowed = f"{', '.join(words)}, a folder, ORG/NAME@REVISION"
        raise InputError(option, f"{asked} is not a folder here", allowed=allowed, hint=did_you_mean(asked, words))
    return {"repo_id": name, "revision": pinned(name, revision)}


def pinned(repo_id: str, revision: str) -> str:
    """The revision of a Hub model where it cannot move, else its commit now; "" is the main branch.

    Raises InputError for a missing repository or revision, RunError when the Hub cannot be read.
    """
    from hub.client.connection import reading
    from release.preflight import PIN

    if PIN.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi

    with reading(repo_id, revision or None):
        commit = HfApi().model_info(repo_id, revision=revision or None).sha
    assert commit is not None
    if commit != revision:
        say(f"{repo_id}: {revision or 'its main branch'} is {commit} now; the recipe pins that")
    return commit


def dataset_recipe(
    corpus: Corpus, generator: Generator, name: str, license_id: str, examples: dict[str, str], limit: int | None = None
) -> str:
    """Return the commented YAML of a dataset recipe.

    license_id: of the corpus. examples: the section ``few_shot.examples``, or nothing. limit: of source sentences.
    """
    seen, (kind, words) = corpus.profile, instructions(corpus.profile, generator)
    own = licences.known("--license", license_id), licences.known("model.license", generator.section["license"])
    shown = [licences.known("few_shot.examples.license", examples["license"])] if examples else []
    counts = {reason: getattr(seen, reason) for reason in ("empty", "repeated", "overlong", "broken")}
    unusable = ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count)
    source: dict[str, object] = {**corpus.source, "limit": max(1, min(seen.usable - seen.quoted, limit or MOST))}
    source |= {"columns": [seen.column]} if seen.column else {}
    source |= {"quotation_marks": "skip"} if seen.quoted else {}
    source |= {"description": f"texts of {one_line(corpus.title)}", "license": license_id}
    strength = {"decay_constant": 30 if generator.reads_examples else 100} if generator.couples else {}
    reject = ["example_copy", "prompt_echo", "control_characters", "too_long"]
    reject += ["wrong_language"] if seen.language in RECOGNISED else []
    return _rendered(
        "dataset.yaml.jinja",
        corpus=seen,
        title=one_line(corpus.title),
        passed_over=f" (the others: {unusable})" if unusable else "",
        name=name,
        license=licences.dataset_licences(*own, shown, name)[0],
        source=source,
        most=MOST,
        generator=generator,
        longest=_longest(seen),
        model={**generator.section, **({} if generator.reads_examples else {"threads": 1})},
        has_template=_has_template(generator.section),
        kind=kind,
        words=words,
        decoding={**strength, "max_new_tokens": _longest(seen), "samples": 1, "max_attempts": 5},
        examples=examples,
        postprocess={
            "sampled_negatives": 0, "max_per_label": 1, "validation_fraction": 0, "near_copy": 0.8, "reject": reject,
        },
    )  # fmt: skip


def _has_template(section: dict[str, Any]) -> bool:
    """Whether the files of a local model hold a chat template."""
    folder, gguf = Path(section.get("path", ".")), section.get("gguf_file")
    if "path" in section and not gguf and (folder / "chat_template.jinja").is_file():
        return True
    file = folder / (gguf or "tokenizer_config.json")
    if "path" in section and file.is_file():
        with file.open("rb") as opened:
            return b"chat_template" in opened.read(GGUF_KEYS)
    return False


def _longest(corpus: Profile) -> int:
    """Tokens that nearly every text of the corpus stays below."""
    most = TOKENS_A_CHARACTER if corpus.language in ("zh", "ja") else TOKENS_A_WORD
    return max(24, math.ceil(most * corpus.words[2]))


def choose_base(asked: str | None, license_id: str | None, generator: dict[str, Any], language: str = "en") -> Base:
    """The encoder ``asked`` (prompteol, static, a name of ``sts-dino lm``, a folder, ORG/NAME@REVISION).

    By default all-MiniLM-L6-v2 for English, a multilingual encoder of the Hub for other languages; without a Hub
    the language model. generator: the section ``model`` of the dataset's recipe; prompteol and static train that
    language model where its weights can be trained. Raises InputError for a missing folder and an unknown licence.
    """
    if asked is None and (base := _download(language)):
        return base
    if asked is not None and asked.lower() in ENCODERS:
        return _finished(_packaged(asked.lower()), "as asked")
    if asked is not None and asked not in WAYS:
        place = place_of("--encoder", asked, (*WAYS, *ENCODERS))
        if "path" in place:
            no_cross_encoder(Path(place["path"]), f"--encoder: {asked}")
        card = file_of(place, "README.md")
        named = {**place, "license": licences.of_model("--encoder-license", license_id or "", card).id}
        if is_finished(place):
            return _finished(named, "as asked")
        return Base(named, "as asked: all of its layers, the mean of the tokens", 1, "2e-5", 0.1)
    model, whose = _language_model(generator)
    built_in = Path(str(model.get("path", ""))).resolve() == BUILT_IN.resolve()
    if asked == "prompteol" or (asked is None and not built_in):
        why = (
            f"PromptEOL with LoRA on {whose}: the best of those that start from a language model (docs/better_pairs.md)"
        )
        section, arguments = prompteol(model)
        return Base(section, why, 1.25, PROMPTEOL_RATE, 0.1, lora=True, arguments=arguments)
    if built_in:
        why = "the mean of the built-in model's token embeddings: trained in seconds, and knows English alone"
        why += "" if whose == ITSELF else f"; {whose}"
        return Base({**model, "modules": "static"}, why, 10, "5e-3", 0.4)
    why = f"the mean of the token embeddings of {whose}: small and fast, far behind PromptEOL"
    return Base({**model, "modules": "static"}, why, 10, "1e-3", 0.3, vocabulary=True)


def _finished(section: dict[str, Any], why: str) -> Base:
    """A finished encoder, trained further: steps and rate are those of recipes/small/minilm-sts-dino.yaml."""
    length = section.get("max_seq_length") or own_length(section)
    section = {**section, "modules": "sentence-transformer", "max_seq_length": length}
    return Base(section, f"{why}: all of its layers, with its own pooling and dropout", 3.2, "2e-5", 0.0, least=40)


def _packaged(name: str) -> dict[str, Any]:
    """An encoder of ``sts-dino lm`` as a recipe's section; all-MiniLM-L6-v2 also from its installed package."""
    from eval.encoders.load import MINILM, minilm_here

    known = ENCODERS[name]
    section: dict[str, Any] = {**known.section, "max_seq_length": known.max_seq_length}
    if "repo_id" in section and name == MINILM.lower() and (folder := minilm_here()):
        del section["repo_id"], section["revision"]
        section["path"] = str(folder)
    if "repo_id" in section:
        say(f"{name} is read from the Hub; without a Hub download it first: sts-dino lm {name}")
    return section


def _download(language: str) -> Base | None:
    """The encoder that people download for a language; None: it is neither here nor on a Hub that can be reached."""
    why = "the encoder that you would have downloaded, trained further"
    if language == "en":
        return _finished(_packaged("all-minilm-l6-v2"), why)
    try:
        return _finished({"repo_id": MULTILINGUAL, "revision": pinned(MULTILINGUAL, ""), "license": "apache-2.0"}, why)
    except StsDinoError as error:
        say(f"{MULTILINGUAL}, the default for other languages than English, cannot be read: {error}")
        return None


def is_finished(place: Mapping[str, Any]) -> bool:
    """Whether a place (path, or repo_id and revision) holds a finished encoder of sentence-transformers.

    A repository that cannot be read counts as one: most encoders are, and training refuses the others.
    """
    return file_of(place, "modules.json") is not None or ("repo_id" in place and file_of(place, "config.json") is None)


def own_length(place: Mapping[str, Any]) -> int:
    """The most tokens that a finished encoder reads; ``FINISHED_LENGTH`` where it does not say."""
    for name, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        file = file_of(place, name)
        found = read_object(file, place).get(key) if file else None
        if isinstance(found, int) and 0 < found <= LONGEST:
            return found
    return FINISHED_LENGTH


def file_of(place: Mapping[str, Any], name: str) -> Path | None:
    """A file of a place (path, or repo_id and revision); None where it is not there or cannot be read."""
    if "path" in place:
        file = Path(place["path"]) / name
        return file if file.is_file() else None
    from huggingface_hub import hf_hub_download

    from hub.client.connection import reading

    with suppress(StsDinoError), reading(place["repo_id"], place["revision"]):
        return Path(hf_hub_download(place["repo_id"], name, revision=place["revision"]))
    return None


def _language_model(generator: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A language model whose weights can be trained, as place and licence, and its description.

    It is the generator; for a GGUF file the whole weights beside it; for other files and for servers Gemma where it is
    available locally, else the built-in model.
    """
    keys = ("path", "repo_id", "revision", "license")
    named: dict[str, Any] = {key: generator[key] for key in keys if key in generator}
    if "server" not in generator and "gguf_file" not in generator:
        return named, ITSELF
    if "path" in named and (Path(named["path"]) / "config.json").is_file():
        return named, "the language model's whole weights, which lie beside its GGUF file"
    untrained = "a model behind a server" if "server" in generator else "a GGUF file"
    if GEMMA.is_here:
        return GEMMA.section, f"Gemma 3 270M, since {untrained} is not trained"
    why = f"{untrained} is not trained; for a better one: sts-dino lm {GEMMA.name}, or --encoder"
    return {"path": str(BUILT_IN.resolve()), "license": BUILT_IN_LICENSE}, why


def prompteol(model: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The recipe section ``base`` of a causal language model under PromptEOL's prompt, and the trainer's arguments.

    In bfloat16 where this machine computes in it at full speed; a step then takes 0.6 of the time.
    """
    from generation.backends.load_model import resolve_dtype
    from hub.contract.recipe import LanguageModel

    section = {**model, "pooling": "lasttoken", "prompt": PROMPTEOL, "max_seq_length": 64}
    half = resolve_dtype(LanguageModel(path="-", dtype="auto", license="-")) == "bfloat16"
    return (section | {"dtype": "bfloat16"}, {"bf16": "true"}) if half else (section, {})


def model_recipe(dataset: DatasetRecipe, place: str, base: Base, name: str) -> str:
    """Return the commented YAML of a model recipe.

    place: the dataset's run directory, seen from the recipe's folder. Raises InputError when no licence covers a model
    of this base and these data.
    """
    terms = licences.known("--encoder-license", base.section["license"])
    steps = max(base.least, math.ceil(base.epochs * (dataset.source.limit or MOST) / BATCH))
    config = next(config for config in dataset.configs if config.startswith("postprocessed"))
    vocabulary = {"path": place, "config": config, "columns": ["sentence1", "sentence2"], "sif": "1e-3"}
    arguments = {
        "learning_rate": base.learning_rate,
        "max_steps": str(steps),
        "warmup_steps": "0.1",
        "save_strategy": "steps",
        "save_steps": str(max(10, steps // 2)),
        "logging_steps": str(max(1, steps // 20)),
        "batch_sampler": "no_duplicates",
        "report_to": "none",
        **base.arguments,
    }
    return _rendered(
        "encoder.yaml.jinja",
        dataset=dataset,
        name=name,
        pretty_name=dataset.pretty_name.replace("Sentence pairs", "Sentence encoder for texts", 1),
        license=licences.model_licences(terms, [licences.known("license", dataset.license)], name)[0],
        base=base,
        section={**base.section, **({"vocabulary": vocabulary} if base.vocabulary else {})},
        lora=LORA,
        rows={
            "path": place,
            "config": config,
            "example_type": "graded-triplet",
            **({"grades": {"positives": "itself"}} if base.section.get("modules") == "sentence-transformer" else {}),
            "loss": "MultipleNegativesRankingLoss",
        },
        batch_size=BATCH,
        arguments=arguments,
    )


def _rendered(template: str, **facts: object) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - the output is YAML: texts pass through flow and quoted
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"flow": _flow, "quoted": lambda value: json.dumps(value, ensure_ascii=False)}
    return environment.get_template(template).render(schema=asset("recipe.schema.json"), **facts)


def _flow(value: object) -> str:
    """A value as one line of YAML."""
    line = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=10**6)
    return line.removesuffix("\n").removesuffix("\n...")

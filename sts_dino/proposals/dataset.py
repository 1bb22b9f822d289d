"""A recipe for a corpus: what to write, by which model, from which examples, and why."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from generation.backends.registry import dialect_of
from hub.assets import asset
from hub.contract import licences
from hub.contract.run_dir import ARTIFACTS
from hub.contract.sections.languages import RECOGNISED
from hub.errors import InputError
from sts_dino.proposals.corpus import Profile
from sts_dino.proposals.hub_model import pinned

GEMMA = ARTIFACTS / "lm" / "gemma-3-270m"  # where sts-dino lm puts it
BUILT_IN, BUILT_IN_LICENSE = asset("demo-lm"), "cc-by-nc-sa-4.0"
CC0 = "cc0-1.0"  # of the examples that come with the project
HUB_LM = "google/gemma-3-270m"
MOST = 1000  # first texts: what better encoders were measured with (docs/better_pairs.md)
TOKENS_A_WORD = 2  # at most, of the tokenizers met, in most languages


@dataclass(frozen=True)
class Generator:
    """A language model as a recipe's section names it, and why it was chosen."""

    section: dict[str, Any]
    why: str
    reads_examples: bool = True  # the built-in model was taught the prompts alone
    couples: bool = True  # its texts for a label can be kept from fitting the others: not behind a server


def languages() -> dict[str, dict[str, str]]:
    """The languages that there are instructions and examples for, by code."""
    text = (files("sts_dino.proposals") / "languages.yaml").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = yaml.load(text, yaml.BaseLoader)  # noqa: S506 - it makes texts alone
    return found


def choose_generator(asked: str | None, license_id: str | None) -> Generator:
    """The language model asked for (gemma, builtin, a folder or .gguf file, ORG/NAME@REVISION, NAME@URL of a server).

    None: the best that is here.

    Raises InputError for a folder that is not there, and where the licence of a model is not known; RunError for a
    server that cannot be reached.
    """
    if asked in (None, "gemma"):
        if GEMMA.is_dir():
            return Generator({"path": str(GEMMA.resolve()), "dtype": "auto", "license": "gemma"}, "a real base LM")
        if asked is None and BUILT_IN.is_dir():
            why = "the built-in model is a demonstration; for pairs of worth: sts-dino lm, then sts-dino new again"
            return Generator({"path": str(BUILT_IN.resolve()), "license": BUILT_IN_LICENSE}, why, False)
        why = "from the Hub: accept its terms on its page first; without a Hub: sts-dino lm"
        return Generator({"repo_id": HUB_LM, "revision": "main", "dtype": "auto", "license": "gemma"}, why)
    if asked == "builtin":
        why = "the built-in model is a demonstration of 4.5 million parameters, and knows English alone"
        return Generator({"path": str(BUILT_IN.resolve()), "license": BUILT_IN_LICENSE}, why, False)
    if license_id is None:
        raise InputError("--lm-license", f"the licence of {asked} is not known", allowed=", ".join(licences.table()))
    terms = {"license": licences.known("--lm-license", license_id).id}
    name, at, url = str(asked).partition("@http")
    if at:
        server = {"base_url": f"http{url}", "model": name, "dialect": dialect_of(f"http{url}", name)}
        why = "a server's: without counter-labels, which need the model itself; dialects: docs/backends.md"
        return Generator({"backend": "openai", "server": server, **terms}, why, couples=False)
    if Path(str(asked)).is_file() and str(asked).endswith(".gguf"):
        file = Path(str(asked)).resolve()
        return Generator({"path": str(file.parent), "gguf_file": file.name, "dtype": "auto", **terms}, "as asked")
    words = ("gemma", "builtin", "FILE.gguf", "NAME@URL of an OpenAI-compatible server")
    return Generator({**place_of("--lm", str(asked), words), "dtype": "auto", **terms}, "as asked")


def place_of(option: str, asked: str, words: Sequence[str]) -> dict[str, str]:
    """A model's place as keys of a recipe's section, pinned.

    Raises InputError naming ``option`` and its other ``words``, and what ``pinned`` raises.
    """
    if Path(asked).is_dir():
        return {"path": str(Path(asked).resolve())}
    name, _, revision = asked.partition("@")
    if name.count("/") != 1 or name.startswith((".", "/")):
        allowed = f"{', '.join(words)}, a folder, ORG/NAME@REVISION"
        raise InputError(option, f"{asked} is no folder here", allowed=allowed)
    return {"repo_id": name, "revision": pinned(name, revision)}


def dataset_recipe(
    corpus: Profile,
    title: str,
    source: Mapping[str, object],
    generator: Generator,
    name: str,
    corpus_license: str,
    examples: str | None,
    limit: int | None = None,
) -> str:
    """The commented YAML of a dataset recipe.

    title: what the corpus is called. source: the keys that say where it is. examples: the file of examples, if there is
    one, seen from the recipe's folder. limit: first texts, at most.
    """
    own = licences.known("--license", corpus_license), licences.known("model.license", generator.section["license"])
    shown = [licences.known("few_shot.examples.license", CC0)] if examples else []
    least, middle, most = corpus.words
    of = "" if corpus.whole else "first "
    lines = [
        f"# yaml-language-server: $schema={asset('recipe.schema.json')}",
        f"# {title}: {corpus.usable:,} usable texts in its {of}{corpus.rows:,} rows{_passed_over(corpus)};",
        f"# they have {least} to {most} words (5th and 95th percentile), half of them up to {middle}.",
        "# What every key means: docs/recipe_reference.md. Check: sts-dino check RECIPE; write: sts-dino write RECIPE",
        "kind: dataset",
        f"name: {name}",
        "version: 0.1.0",
        "form: sts # labels are degrees of similarity",
        f"pretty_name: {flow(f'Sentence pairs from {title}')}",
        f"language: {corpus.language} # {corpus.in_language:.0%} of the texts look like it",
        f"license: {licences.dataset_licences(*own, shown, name)[0]} # follows from the parts' licences",
        *_source(corpus, title, source, corpus_license, limit or MOST),
        *_asked(corpus, generator),
        *_examples(examples),
        *_postprocess(corpus),
        "seed: 42",
    ]
    return "\n".join(lines) + "\n"


def _source(corpus: Profile, title: str, where: Mapping[str, object], license_id: str, most: int) -> list[str]:
    limit = max(1, min(corpus.usable - corpus.quoted, most))
    section: dict[str, object] = {**where, "limit": limit}
    section |= {"columns": [corpus.column]} if corpus.column else {}
    section |= {"quotation_marks": "skip"} if corpus.quoted else {}
    section |= {"description": f"texts of {title}", "license": license_id}
    why = []
    if limit == MOST:
        why.append(f"# the first {limit:,} texts: 600 trained as good an encoder as 1,000 (docs/better_pairs.md)")
    if corpus.quoted:
        why.append(f"# texts with a quotation mark are passed over ({corpus.quoted:,}): it ends a text in a prompt")
    return [*why, f"source: {flow(section)}"]


def _asked(corpus: Profile, generator: Generator) -> list[str]:
    """The model, and the prompts in the corpus's language."""
    known = languages()
    words, in_words = known.get(corpus.language, known["en"]), known.get(corpus.language)
    absent = f"in English: there are none in {corpus.language!r} yet, translate them"
    told = f"in {in_words['name']}" if in_words else absent
    bound = f"premise_tokens: [3, {_longest(corpus)}] # of the model's tokenizer: neither fragments nor run-on lines"
    if not generator.couples:
        bound = "# premise_tokens: [least, most] needs the model's tokenizer, which a server does not lend: model.path"
    lines = [
        bound,
        f"# {generator.why}",
        f"model: {flow({**generator.section, **({'threads': 1} if generator.couples else {})})}",
        f"labels: # instructions {told}; meaning: what annotators are told, and readers of the card",
    ]
    counters = list[str]()
    for label in ("1", "0.5", "0"):
        against = f", counter_labels: {json.dumps(counters)}" if counters and generator.couples else ""
        lines.append(f'  - {{name: "{label}", score: {label}, meaning: {quoted(words[f"{label} means"])}{against},')
        lines.append(f"     instruction: {quoted(words[label])}}}")
        counters.append(label)
    longest = {"max_new_tokens": _longest(corpus), "samples": 1, "max_attempts": 5}
    if not generator.couples:
        return [*lines, "# one text a label: more first texts are worth more", f"decoding: {flow(longest)}"]
    strength, why = (
        (30, "the paper's 100 drives 0.5 too far away") if generator.reads_examples else (100, "the paper's")
    )
    return [
        *lines,
        f"# decay_constant: self-debiasing's λ, {why}; one text a label: more first texts are worth more",
        f"decoding: {flow({'decay_constant': strength, **longest})}",
    ]


def _examples(path: str | None) -> list[str]:
    if path is None:
        return []
    described = "twenty first sentences with a sentence for each label, written by hand for sts-dino"
    shown = {"kind": "hand", "path": path, "description": described, "license": CC0}
    return [
        "# examples in the prompt matter most (docs/better_pairs.md): put some of your domain into that file",
        f"few_shot: {{shots: [5], sets: 4, rotate: true, examples: {flow(shown)}}}",
    ]


def _postprocess(corpus: Profile) -> list[str]:
    """From texts to rows: every filter that there is, where the language is one that is recognised."""
    chosen = ["example_copy", "prompt_echo", "control_characters", "too_long"]
    chosen += ["wrong_language"] if corpus.language in RECOGNISED else []
    section = {"sampled_negatives": 0, "max_per_label": 1, "validation_fraction": 0, "near_copy": 0.8, "reject": chosen}
    return [
        "# near_copy: share of words in common with the first text from which a text is no other; reject: what else",
        "# is no data, counted by reason and kept in the config rejected (docs/recipes.md), [] for none",
        f"postprocess: {flow(section)}",
    ]


def _longest(corpus: Profile) -> int:
    """Tokens that nearly every text of the corpus stays below."""
    return max(24, math.ceil(TOKENS_A_WORD * corpus.words[2]))


def _passed_over(corpus: Profile) -> str:
    counts = {name: getattr(corpus, name) for name in ("empty", "repeated", "overlong", "broken")}
    found = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f" (the others: {found})" if found else ""


def flow(value: object) -> str:
    """A value as one line of YAML."""
    line = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=10**6)
    return line.removesuffix("\n").removesuffix("\n...")


def quoted(text: str) -> str:
    """A text as a double-quoted scalar of YAML on one line."""
    return json.dumps(text, ensure_ascii=False)

"""Propose a recipe for a corpus, a file or a dataset of a Hub: sts-dino new CORPUS"""

import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from hub import cli
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import checked, load_recipe
from hub.contract.run_dir import ARTIFACTS
from hub.durable import write_bytes, write_text
from hub.errors import InputError

if TYPE_CHECKING:
    from sts_dino.proposals.corpus import Corpus

HUB_ID = re.compile(r"(?!\.)[\w.-]+/[\w.-]+(@[^@]+)?")
UNLICENSED = "unlicensed"
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ı": "i", "æ": "ae", "œ": "oe"})  # that have no accent to lose

app = cli.new_app(__doc__)


@dataclass(frozen=True)
class CorpusChoices:
    """Choices for a dataset recipe; None: as the corpus and the machine suggest."""

    column: Annotated[str | None, typer.Option(help="Column of the texts [default: guessed]")] = None
    language: Annotated[
        str | None, typer.Option(metavar="CODE", help="Language of the corpus [default: recognised]")
    ] = None
    kind: Annotated[
        str | None, typer.Option(help="statements, questions, titles or tickets [default: recognised; tickets never]")
    ] = None
    lm: Annotated[
        str | None,
        typer.Option(
            help="Language model: NAME of sts-dino lm, builtin, folder, FILE.gguf, ORG/NAME@REVISION, NAME@URL [local]"
        ),
    ] = None
    lm_license: Annotated[str | None, typer.Option(help="Licence of another language model")] = None
    corpus_license: Annotated[
        str | None,
        typer.Option("--license", help="Licence of the corpus [default: its card's on a Hub, else unlicensed]"),
    ] = None
    limit: Annotated[int | None, typer.Option(min=1, help="Maximal number of source sentences")] = None
    config: Annotated[str | None, typer.Option(help="Config of a Hub dataset that has several")] = None
    split: Annotated[str | None, typer.Option(help="Split of a Hub dataset [default: train, or its only]")] = None


@app.command()
@cli.option_groups
def main(
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS",
            help="A file of texts (.txt, .csv, .tsv, .jsonl, .json, .parquet, .xlsx), or ORG/NAME@REVISION of a Hub",
        ),
    ],
    choices: CorpusChoices,
    out: Annotated[
        Path | None, typer.Option(metavar="RECIPE", help="The recipe to write [default: CORPUS's name.yaml]")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the dataset [default: CORPUS-pairs]")] = None,
    as_json: cli.JsonOption = False,
) -> None:
    """Write a commented recipe for pairs from a corpus; beside it prompt examples and an encoder's recipe.

    Existing files stay. No language model runs. The first rows of a Hub dataset are streamed, and the recipe pins its
    commit.

    Examples:

      sts-dino new questions.csv --column question

      sts-dino new ORG/NAME@main --config default --split train --column question

      sts-dino new notes.txt --lm qwen2.5-coder-1.5b-instruct --license cc-by-4.0
    """
    stem = stem_of(corpus)
    recipe = out or Path(f"{stem}.yaml")
    if recipe.suffix not in (".yaml", ".yml"):
        raise InputError(recipe, "is not a recipe's name", allowed="NAME.yaml")
    if recipe.exists():
        raise InputError(recipe, "exists already", hint="edit it, remove it, or give another --out")
    chosen = name or f"{stem}-pairs"
    facts = propose(corpus, recipe, chosen, choices)
    found, encoder = facts.pop("profile"), recipe.with_name(f"{recipe.stem}.encoder.yaml")
    dataset, rejected = load_recipe(recipe, DatasetRecipe), dict[str, int]()
    if dataset.model.path:
        rejected = _rejected(dataset, recipe, found.texts)
    if not encoder.exists():
        propose_encoder(dataset, encoder, (ARTIFACTS / "datasets" / chosen).as_posix(), None, None)
    text = recipe.read_text(encoding="utf-8")
    beside = f"; examples in {facts['examples']}" if facts["examples"] else ""
    beside += f"; an encoder to train on the pairs in {encoder}"
    for line in found.read(facts.pop("title"), rejected):
        cli.say(line)
    cli.say(facts["instructions"])
    if (limit := dataset.source.limit or found.usable) < found.usable - found.quoted:
        cli.say(f"the recipe takes the first {limit:,} of them: source.limit")
    shown = f"{text}\n{recipe}: {len(text.splitlines())} lines{beside}"
    cli.answer(shown, {**facts, "encoder": encoder}, as_json, [f"sts-dino check {quote(str(recipe))}"])


def _rejected(dataset: DatasetRecipe, recipe: Path, texts: Sequence[str]) -> dict[str, int]:
    """How many texts a run would pass over, by reason. Raises InputError, the ``recipe`` removed, when all are."""
    from generation.plan import rejected_texts

    try:
        found = rejected_texts(dataset, texts)
        if sum(found.values()) == len(texts):
            raise InputError(dataset.source.path or recipe, f"has no usable text: {found}", allowed="at least one")
    except InputError:
        recipe.unlink()
        raise
    return found


def propose(
    corpus: str | Path, recipe: Path, name: str, choices: CorpusChoices = CorpusChoices(), least: int = 1
) -> dict[str, Any]:
    """Write the proposed recipe and its examples; return the statistics of the corpus and the choices.

    An equal recipe may exist already. Raises InputError for another one, and for fewer than ``least`` usable texts.
    """
    from hub.assets import asset
    from sts_dino.proposals.recipes import (
        SHIPPED,
        choose_generator,
        dataset_recipe,
        instructions,
        require_known_language,
    )

    seen = _looked_at(corpus, recipe, choices)
    found = seen.profile
    generator = choose_generator(choices.lm, choices.lm_license, found)
    require_known_language(corpus, generator, found, choices.language)
    if found.usable - found.quoted < least:
        without = f" without a quotation mark, {found.quoted} with one" if found.quoted else ""
        problem = f"has {found.usable - found.quoted} usable texts{without}"
        pairs = f"for pairs without an encoder: sts-dino new {quote(str(corpus))}" if least > 1 else None
        raise InputError(corpus, problem, allowed=f"{least} or more", hint=pairs)
    (kind, words), licence = instructions(found, generator), choices.corpus_license or seen.license or UNLICENSED
    beside = recipe.with_name(f"{recipe.stem}.examples.tsv")
    shipped = [file.read_bytes() for file in asset("examples").glob("*.tsv")]
    own = beside.exists() and beside.read_bytes() not in shipped
    examples = beside if generator.reads_examples and (kind or own) else None
    described, terms = ("examples of the corpus's owner", licence) if own else SHIPPED
    section = {"kind": "hand", "path": beside.name, "description": described, "license": terms} if examples else {}
    text = dataset_recipe(seen, generator, name, licence, section, choices.limit)
    tree = yaml.load(text, yaml.BaseLoader)  # makes texts only
    checked(recipe, DatasetRecipe, tree)
    if not recipe.exists():
        write_text(recipe, text)
    elif yaml.load(recipe.read_text(encoding="utf-8"), yaml.BaseLoader) != tree:
        raise InputError(recipe, "is another recipe than these arguments give", hint="give another name, or remove it")
    if examples and not own:
        write_bytes(examples, asset(f"examples/{words['examples']}").read_bytes())
    language = words["name"] if kind else found.language
    line = f"{found.usable:,} texts, {language}, {found.kind} ({found.sign}; another kind: --kind): "
    line += "instructions and examples" if examples and not own else "instructions"
    line += f" are those for {language} {kind}" if kind else " are the English ones, to translate"
    line += "" if kind == found.kind else f" (none for {found.kind if kind else language})"
    line += f"; your examples in {examples} stay" if examples and own else ""
    facts = {"source": {**seen.source, "license": licence}, "examples": examples, "lm": generator.section}
    counted = {name: value for name, value in vars(found).items() if name != "texts"} | {"first": found.texts[:3]}
    return {**counted, "recipe": recipe, "instructions": line, **facts, "title": seen.title, "profile": found}


def _looked_at(corpus: str | Path, recipe: Path, choices: CorpusChoices) -> "Corpus":
    """The corpus, with its place seen from the recipe's folder."""
    column, language, kind = choices.column, choices.language, choices.kind
    if is_on_hub(str(corpus)):
        from sts_dino.proposals.corpus import hub_corpus

        return hub_corpus(str(corpus), choices.config, choices.split, column, language, kind)
    for option, value in (("--config", choices.config), ("--split", choices.split)):
        if value is not None:
            allowed = "only with a corpus ORG/NAME@REVISION"
            raise InputError(option, f"{value!r} has no meaning for a file", allowed=allowed)
    from sts_dino.proposals.corpus import Corpus, profile

    path = Path(corpus)
    place = Path(os.path.relpath(path, recipe.parent)).as_posix()
    return Corpus(path.name, {"kind": "file", "path": place}, profile(path, column, language, kind))


def is_on_hub(place: str) -> bool:
    """Whether a corpus is a dataset of a Hub: no local file has that name, and it does not look like a file."""
    return not Path(place).exists() and bool(HUB_ID.fullmatch(place)) and ("@" in place or not Path(place).suffix)


def propose_encoder(
    dataset: DatasetRecipe, recipe: Path, place: str, encoder: str | None, license_id: str | None
) -> None:
    """Write the proposed model recipe for a dataset with the run directory ``place``. Raises InputError."""
    from sts_dino.proposals.recipes import choose_base, model_recipe

    generator = dataset.model.model_dump(mode="json", exclude_none=True)
    base = choose_base(encoder, license_id, generator, dataset.language)
    name = f"{dataset.name.removesuffix('-pairs')}-encoder"
    text = model_recipe(dataset, place, base, name)
    checked(recipe, ModelRecipe, yaml.load(text, yaml.BaseLoader))
    write_text(recipe, text)


def stem_of(corpus: str) -> str:
    """The name of a corpus's files and artefacts, from its file or repository."""
    return slug(Path(corpus.partition("@")[0] if is_on_hub(corpus) else corpus).stem)


def slug(name: str) -> str:
    """``name`` as a valid name of a dataset: ``marz`` for März."""
    parts = unicodedata.normalize("NFKD", name.casefold()).translate(_LETTERS)
    plain = "".join(char for char in parts if not unicodedata.combining(char))
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "corpus"

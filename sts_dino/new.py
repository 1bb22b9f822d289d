"""A recipe from a corpus: sts-dino new CORPUS"""

import os
import re
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
import yaml

from hub import cli
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import checked
from hub.contract.shards import write_bytes, write_text
from hub.errors import InputError

app = cli.new_app(__doc__)


@app.command()
def main(
    corpus: Annotated[
        Path, typer.Argument(metavar="CORPUS", help="A file of texts: .txt, .tsv, .csv, .jsonl, .parquet")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="RECIPE", help="The recipe to write [default: CORPUS's name.yaml]")
    ] = None,
    column: Annotated[str | None, typer.Option("--column", help="The texts' column [default: guessed]")] = None,
    language: Annotated[str | None, typer.Option("--language", metavar="CODE", help="[default: recognised]")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The dataset's [default: CORPUS-pairs]")] = None,
    lm: Annotated[
        str | None,
        typer.Option("--lm", help="gemma, builtin, a folder or ORG/NAME@REVISION [default: the best that is here]"),
    ] = None,
    lm_license: Annotated[str | None, typer.Option("--lm-license", help="Of another language model")] = None,
    corpus_license: Annotated[str, typer.Option("--license", help="Of the corpus's texts")] = "unlicensed",
    as_json: cli.JsonOption = False,
) -> None:
    """Look at a corpus and write a commented recipe for pairs of its texts, with a file of examples beside it.

    What lies there is not replaced. Nothing is written by a language model yet.

    Examples:

      sts-dino new questions.csv --column question

      sts-dino new notes.txt --lm artifacts/lm/gemma-3-270m --lm-license gemma --license cc-by-4.0
    """
    recipe = out or Path(f"{slug(corpus.stem)}.yaml")
    if recipe.suffix not in (".yaml", ".yml"):
        raise InputError(recipe, "is no recipe's name", allowed="NAME.yaml")
    if recipe.exists():
        raise InputError(recipe, "is there already", hint="edit it, remove it, or give another: --out")
    chosen = name or f"{slug(corpus.stem)}-pairs"
    facts = propose(corpus, recipe, column, language, chosen, lm, lm_license, corpus_license)
    text = recipe.read_text(encoding="utf-8")
    beside = f"; examples in {facts['examples']}" if facts["examples"] else ""
    shown = f"{text}\n{recipe}: {len(text.splitlines())} lines{beside}"
    cli.answer(shown, facts, as_json, [f"python -m sts_dino.check {quote(str(recipe))}"])


def propose(
    corpus: Path,
    recipe: Path,
    column: str | None,
    language: str | None,
    name: str,
    lm: str | None,
    lm_license: str | None,
    corpus_license: str,
    most: int | None = None,
    least: int = 1,
) -> dict[str, Any]:
    """Write the proposed recipe and its examples; what was found of the corpus and what was chosen.

    most: first texts, at most; None: as many as ``sts_dino.proposal.MOST``. least: a corpus with fewer is refused.

    A recipe that is there already stays when it is the proposed one. Raises InputError when it is another.
    """
    from hub.assets import asset
    from sts_dino.corpus import profile
    from sts_dino.proposal import choose_generator, dataset_recipe, languages

    found = profile(corpus, column, language)
    if found.usable - found.quoted < least:
        without = f" without a quotation mark, {found.quoted} with one" if found.quoted else ""
        raise InputError(corpus, f"has {found.usable - found.quoted} usable texts{without}", allowed=f"{least} or more")
    generator = choose_generator(lm, lm_license)
    known = languages().get(found.language)
    examples = recipe.with_name(f"{recipe.stem}.examples.tsv") if known and generator.reads_examples else None
    seen_from_it = Path(os.path.relpath(corpus, recipe.parent))
    text = dataset_recipe(
        found, seen_from_it, generator, name, corpus_license, examples.name if examples else None, most
    )
    checked(recipe, DatasetRecipe, yaml.load(text, yaml.BaseLoader))  # noqa: S506 - it makes texts alone
    if recipe.exists() and recipe.read_text(encoding="utf-8") != text:
        raise InputError(
            recipe, "is another recipe than these arguments propose", hint="give another name, or remove it"
        )
    write_text(recipe, text)
    if known and examples and not examples.exists():
        write_bytes(examples, asset(f"examples/{known['examples']}").read_bytes())
    return {**vars(found), "recipe": recipe, "examples": examples, "lm": generator.section}


def propose_encoder(
    dataset: DatasetRecipe, recipe: Path, place: str, encoder: str | None, license_id: str | None
) -> None:
    """Write the proposed model recipe for a dataset whose run directory will be at ``place``. Raises InputError."""
    from sts_dino.encoder_proposal import choose_base, model_recipe

    base = choose_base(encoder, license_id, dataset.model.model_dump(mode="json", exclude_none=True))
    name = f"{dataset.name.removesuffix('-pairs')}-encoder"
    text = model_recipe(dataset, place, base, name)
    checked(recipe, ModelRecipe, yaml.load(text, yaml.BaseLoader))  # noqa: S506 - it makes texts alone
    write_text(recipe, text)


def slug(name: str) -> str:
    """A name that a dataset may have."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "corpus"


if __name__ == "__main__":
    cli.run(app)

"""Measure the pairs of a model of ``sts-dino lm`` in the languages that have instructions.

The figures go to ``assets/pair_quality.yaml``: ``sts-dino new``, ``adapt`` and ``write`` show them
without a probe. Figures that are there already are kept, so a stopped command resumes.
"""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
import yaml

from sts_dino.generation.inputs.sources import read_file_rows
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.packaged import GENERATORS
from sts_dino.hub.contract.pair_quality import SHIPPED, PairQuality, hash_prompts, read_qualities
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError
from sts_dino.new import CorpusChoices, propose
from sts_dino.probe import copy_with_template, load_engine, measure_kinds
from sts_dino.proposals.recipes import load_languages

logger = logging.getLogger(__name__)

KIND = "statements"
CORPUS_TEXTS = 400  # lines of a corpus file, of which the probe draws its sentences
SECONDS = 3600.0  # all sentences, also on a busy machine
HEAD = """\
# How many pairs of a model of sts-dino lm fit their labels (hub/contract/pair_quality.py), on 24
# source sentences of each language. An outcome of each sentence: 1 the pair fits, 0 the judge gives
# it another label, - no text passed the filters. The command:
# sts-dino experiment pair-quality MODEL [--chat] [--sentences DIR]
# corpus wikipedia.txt: assets/source-sentences. sts.CODE.txt: the first and the last column of
# assets/examples/sts.CODE.tsv without the sentences that the same prompt shows. Other names: files
# of DIR with sentences of public data, without scores: stsb-multi-mt (machine-translated), KorSTS,
# JSTS, SICK-NL.
"""


def main(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Generator of sts-dino lm, downloaded")
    ],
    languages: Annotated[
        list[str] | None,
        typer.Option("--language", help="Language code; repeatable [default: all]"),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Through the chat template [default: plain prompts]")
    ] = False,
    sentences: Annotated[
        Path | None,
        typer.Option("--sentences", metavar="DIR", help="Folder of sentences, NAME.CODE.txt"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="[default: the shipped file]")
    ] = None,
) -> None:
    """Measure label agreement of a model's pairs in each language, for the shipped figures."""
    # Check the options
    if model not in GENERATORS:
        raise InputError("MODEL", f"no generator {model!r}", allowed=", ".join(GENERATORS))
    known_languages = list(load_languages())
    for language in languages or []:
        if language not in known_languages:
            problem = f"no instructions in {language!r}"
            raise InputError("--language", problem, allowed=", ".join(known_languages))
    if sentences is not None and not sentences.is_dir():
        raise InputError(f"--sentences {sentences}", "no such folder")

    # Measure the languages that have no figures; the first of them loads the model
    path = out or find_asset(SHIPPED)
    engine = None
    for language in languages or known_languages:
        with TemporaryDirectory() as folder:
            recipe = propose_recipe(model, language, Path(folder), sentences)
            recipe = copy_with_template(recipe, chat)
            if has_quality(path, model, recipe):
                continue
            engine = engine or load_engine(recipe)
            (quality,) = measure_kinds([recipe], engine, seconds=SECONDS)
        logger.info(quality.describe())
        add_quality(path, quality)


def propose_recipe(
    model: str, language: str, folder: Path, sentences: Path | None
) -> DatasetRecipe:
    """Return the recipe that ``sts-dino new`` proposes for a corpus of a language.

    Args:
        model: the generator.
        language: the language code, a key of ``load_languages``.
        folder: an empty folder, where corpus and recipe are written.
        sentences: a folder of corpora NAME.CODE.txt, of which the first by name is read. None, or
            no file for the language: Wikipedia's sentences for English, else the sentences of the
            shipped examples.

    Raises InputError for a corpus that ``sts-dino new`` refuses.
    """
    # Read the corpus
    words = load_languages()[language]
    files = sorted(sentences.glob(f"*.{language}.txt")) if sentences else []
    corpus = folder / Path(words[KIND]["examples"]).name
    if files:
        corpus = folder / files[0].name
        texts = files[0].read_text(encoding="utf-8").splitlines()
    elif language == "en":
        corpus = folder / "wikipedia.txt"
        source = find_asset("source-sentences/wikipedia.txt")
        texts = source.read_text(encoding="utf-8").splitlines()
    else:
        path = find_asset(f"examples/{corpus.name}")
        rows = list(read_file_rows(path, ("text1", "0"), corpus.name))
        texts = [row[0] for row in rows] + [row[1] for row in rows]
        corpus = corpus.with_suffix(".txt")

    # Write the corpus, and propose the recipe
    write_text(corpus, "".join(f"{text}\n" for text in texts[:CORPUS_TEXTS]))
    choices = CorpusChoices(language=language, kind=KIND, lm=model)
    recipe = folder / "recipe.yaml"
    propose(corpus, recipe, "probe-pairs", choices)
    return load_recipe(recipe, DatasetRecipe)


def has_quality(path: Path, model: str, recipe: DatasetRecipe) -> bool:
    """Return whether the file ``path`` has figures of a model with a recipe's prompts."""
    key = (model, recipe.language, recipe.model.chat_template, hash_prompts(recipe))
    return any(
        (quality.model, quality.language, quality.chat, quality.prompts) == key
        for quality in read_qualities(path)
    )


def add_quality(path: Path, quality: PairQuality) -> None:
    """Add figures to the file ``path``, sorted by model, kind of prompt and language.

    They replace figures of the same model, language and kind of prompt (chat or plain).
    """
    key = (quality.model, quality.language, quality.chat)
    entries = [
        entry for entry in read_qualities(path) if (entry.model, entry.language, entry.chat) != key
    ]
    entries.append(quality)
    entries.sort(key=lambda entry: (entry.model, entry.chat, entry.language))

    # Write each entry as one line, however long
    lines = []
    for entry in entries:
        flow = yaml.safe_dump(
            entry.model_dump(), default_flow_style=True, sort_keys=False, width=10**6
        )
        lines.append(f"- {flow}")
    write_text(path, HEAD + "".join(lines))

"""Propose a recipe for a corpus, a file or a dataset of a Hub: sts-dino new CORPUS"""

import logging
import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
import yaml

from sts_dino.generation.plan import count_rejected_texts
from sts_dino.hub import cli
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.licences import UNLICENSED
from sts_dino.hub.contract.pair_quality import report_pair_quality
from sts_dino.hub.contract.recipe import NAME, DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe, read_yaml, validate_recipe
from sts_dino.hub.contract.run_dir import ARTIFACTS
from sts_dino.hub.durable import write_bytes, write_text
from sts_dino.hub.errors import InputError
from sts_dino.hub.text_files import find_encoding
from sts_dino.probe import choose_prompt, get_draft_path
from sts_dino.proposals.chat_server import Payment
from sts_dino.proposals.corpus import (
    LEAST_PASSAGE_SHARE,
    LEAST_WORDS_IN_PASSAGE,
    SEARCH_PAGE,
    Corpus,
    Profile,
    measure_file,
    read_hub_corpus,
)
from sts_dino.proposals.recipes import (
    DEFAULT_LIMIT,
    SHIPPED_EXAMPLES,
    Generator,
    NoEncoderRecipe,
    choose_base,
    choose_generator,
    choose_instructions,
    format_dataset_recipe,
    format_model_recipe,
    has_chat_template,
    parse_labels,
    require_known_language,
)

logger = logging.getLogger(__name__)

FEWEST_TO_TRAIN = 40  # source sentences: fewer train no encoder
HUB_ID = re.compile(r"(?!\.)[\w.-]+/[\w.-]+(@[^@]+)?")
# characters; a recipe's name has 96 at most, with a suffix such as -encoder
LONGEST_CORPUS_NAME = 80
# Latin letters that Unicode does not decompose into a plain letter and an accent
_PLAIN_LETTERS = str.maketrans(
    {
        "ø": "o",
        "ł": "l",
        "đ": "d",
        "ð": "d",
        "ħ": "h",
        "ŧ": "t",
        "ŋ": "n",
        "ı": "i",
        "æ": "ae",
        "œ": "oe",
        "þ": "th",
    }
)

app = cli.make_app(__doc__)


@dataclass(frozen=True)
class CorpusChoices:
    """The user's choices for a dataset recipe; None: the corpus or the machine decides."""

    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the texts [default: guessed]")
    ] = None
    language: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Language of the corpus [default: recognised]"),
    ] = None
    kind: Annotated[
        str | None,
        typer.Option(
            help="statements, questions, titles or tickets [default: recognised; tickets never]"
        ),
    ] = None
    lm: Annotated[
        str | None,
        typer.Option(
            help="Language model: NAME of sts-dino lm, builtin, folder, FILE.gguf, "
            "ORG/NAME@REVISION, NAME@URL of a server, openai/NAME "
            "[default: the best of sts-dino lm on this machine]"
        ),
    ] = None
    lm_license: Annotated[str | None, typer.Option(help="Licence of another language model")] = None
    corpus_license: Annotated[
        str | None,
        typer.Option(
            "--license",
            help="Licence of the corpus [default: its card's on a Hub, else unlicensed]",
        ),
    ] = None
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="1,0.5,0", help="Labels to generate texts for: similarities [default: all]"
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"Maximal number of source sentences [default: {DEFAULT_LIMIT}]"),
    ] = None
    config: Annotated[str | None, typer.Option(help="Config of a Hub dataset that has several")] = (
        None
    )
    split: Annotated[
        str | None, typer.Option(help="Split of a Hub dataset [default: train, or its only]")
    ] = None


@dataclass(frozen=True)
class Proposal:
    """A proposed dataset recipe, with the choices in it."""

    recipe: Path
    corpus: Corpus
    license: str  # of the corpus
    generator: Generator
    examples: Path | None  # the file of the prompt's examples
    instructions: str  # a line that describes instructions and examples

    @property
    def facts(self) -> dict[str, Any]:
        """The statistics of the corpus and the choices in the recipe, for --json."""
        profile = self.corpus.profile
        facts = {**vars(profile), **profile.faults}
        del facts["texts"], facts["faults"]
        facts["first"] = profile.texts[:3]
        facts["recipe"] = self.recipe
        facts["instructions"] = self.instructions
        facts["source"] = {**self.corpus.source, "license": self.license}
        facts["examples"] = self.examples
        facts["lm"] = self.generator.section
        return facts


@app.command()
@cli.unpack_option_groups
def main(
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS",
            help="A file of texts (.txt, .csv, .tsv, .jsonl, .json, .parquet, .xlsx), "
            "or ORG/NAME@REVISION of a Hub",
        ),
    ],
    choices: CorpusChoices,
    payment: Payment,
    reading: cli.FileOptions,
    out: Annotated[
        Path | None,
        typer.Option(metavar="RECIPE", help="The recipe to write [default: CORPUS's name.yaml]"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the dataset [default: CORPUS-pairs]")
    ] = None,
    probes: Annotated[
        bool,
        typer.Option(
            "--probe/--no-probe",
            help="Try the chat template of a local model, about a minute; or propose the plain "
            "prompt",
        ),
    ] = True,
    as_json: cli.JsonOption = False,
) -> None:
    """Write a commented recipe for pairs from a corpus.

    Prompt examples and an encoder's recipe are written beside it. Existing files stay. A local
    model with a chat template generates some texts, to choose the prompt; no other model runs, and
    a server gets one short request. The first rows of a Hub dataset are streamed, and the recipe
    pins its commit.

    Examples:

      sts-dino new questions.csv --column question

      sts-dino new ORG/NAME@main --config default --split train --column question

      sts-dino new notes.txt --lm qwen2.5-coder-1.5b-instruct --license cc-by-4.0
    """
    # Propose both recipes.
    corpus_name = make_corpus_name(corpus)
    recipe = out or Path(f"{corpus_name}.yaml")
    if recipe.suffix not in (".yaml", ".yml"):
        raise InputError(recipe, "is not a recipe's name", allowed="NAME.yaml")
    if recipe.exists():
        raise InputError(recipe, "exists already", hint="edit it, remove it, or give another --out")
    dataset_name = f"{corpus_name}-pairs" if name is None else name
    if not re.fullmatch(NAME, dataset_name):
        raise InputError(
            "--name",
            f"{dataset_name!r} cannot be a name",
            allowed="lower-case letters, digits, dots and hyphens",
        )
    choices = choose_columns(choices, reading.columns)
    proposal = propose(
        corpus,
        recipe,
        dataset_name,
        choices,
        encoding=reading.encoding,
        probes=probes,
        payment=payment,
    )
    profile = proposal.corpus.profile
    dataset = load_recipe(recipe, DatasetRecipe)
    # Counting needs the model's tokenizer, which only a local folder has.
    rejected: dict[str, int] = {}
    if dataset.model.path:
        rejected = _count_rejected(dataset, recipe, profile.texts)
    encoder = recipe.with_name(f"{recipe.stem}.encoder.yaml")
    if not encoder.exists():
        run = (ARTIFACTS / "datasets" / dataset_name).as_posix()
        try:
            propose_encoder(dataset, encoder, run, None, None)
        except NoEncoderRecipe as error:
            logger.info(f"no recipe of an encoder is written: {error}")

    # Describe the corpus and both recipes.
    for line in profile.describe(proposal.corpus.title, rejected):
        logger.info(line)
    logger.info(proposal.instructions)
    report_pair_quality(dataset)
    limit = dataset.source.limit
    if limit and limit < profile.usable - profile.quoted:
        logger.info(f"the recipe takes the first {limit:,} of them: source.limit")
    text = recipe.read_text(encoding="utf-8")
    summary = f"{text}\n{recipe}: {len(text.splitlines())} lines"
    if proposal.examples:
        summary += f"; examples in {proposal.examples}"
    if encoder.exists():
        summary += f"; an encoder to train on the pairs in {encoder}"
    encoder_recipe = encoder if encoder.exists() else None
    facts = {**proposal.facts, "encoder": encoder_recipe}
    cli.print_answer(summary, facts, as_json, [f"sts-dino check {quote(str(recipe))}"])


def choose_columns(choices: CorpusChoices, columns: str | None) -> CorpusChoices:
    """Return the choices with the columns of ``--columns``.

    Raises InputError for both ``--column`` and ``--columns``.
    """
    if columns is None:
        return choices
    if choices.column is not None:
        raise InputError("--column", "is given, and --columns, too", hint="give one of them")
    return replace(choices, column=columns)


def _count_rejected(dataset: DatasetRecipe, recipe: Path, texts: Sequence[str]) -> dict[str, int]:
    """Count the texts that a run of a dataset recipe would skip, by reason.

    Raises InputError when the run would skip all texts or cannot read the model's tokenizer; the
    file ``recipe`` is then removed.
    """
    try:
        counts = count_rejected_texts(dataset, texts)
        if sum(counts.values()) == len(texts):
            raise InputError(
                dataset.source.path or recipe,
                f"has no usable text: {counts}",
                allowed="at least one",
            )
    except InputError:
        recipe.unlink()
        raise
    return counts


def propose(
    location: str | Path,
    recipe: Path,
    name: str,
    choices: CorpusChoices = CorpusChoices(),
    trains_encoder: bool = False,
    encoding: str | None = None,
    probes: bool = False,
    payment: Payment | None = None,
) -> Proposal:
    """Write the proposed recipe and its examples, log the language model, return the proposal.

    An equal recipe may exist already. The examples are written to ``NAME.examples.tsv`` beside the
    recipe; examples of the user in this file stay and are used.

    Args:
        location: the corpus, a file or ORG/NAME@REVISION of a Hub.
        recipe: the file to write.
        name: the name of the dataset.
        choices: the user's choices.
        trains_encoder: whether an encoder is trained on the pairs. It needs ``FEWEST_TO_TRAIN``
            usable texts, and a language model other than the built-in one unless the user chose it.
        encoding: the encoding of a corpus file that is not UTF-8; None: it is recognised.
        probes: whether a model with a chat template may generate texts, to choose the prompt;
            False: the plain prompt.
        payment: prices and budget of a server, which become keys of the recipe; None: none.

    Raises InputError for another recipe in the file, a corpus that cannot be read, too few usable
    texts, choices that do not fit the corpus, and without a language model; RunError for a Hub or a
    server that cannot be reached.
    """
    # Look at the corpus; choose a language model and instructions for it.
    get_draft_path(recipe).unlink(missing_ok=True)  # of a command that was killed
    labels = parse_labels(choices.labels)
    corpus = _read_corpus(location, recipe, choices, encoding)
    profile = corpus.profile
    generator = choose_generator(choices.lm, choices.lm_license, profile, not trains_encoder)
    require_known_language(location, generator, profile, choices.language)
    _require_usable_texts(location, profile, FEWEST_TO_TRAIN if trains_encoder else 1)
    if payment is not None:
        generator = generator.add_payment(payment)
    logger.info(generator.describe())
    kind, words = choose_instructions(profile, generator)
    licence = choices.corpus_license or corpus.license or UNLICENSED

    # Choose examples: the user's own if there are some, else those of the project.
    examples_path = recipe.with_name(f"{recipe.stem}.examples.tsv")
    shipped = [file.read_bytes() for file in find_asset("examples").glob("*.tsv")]
    has_own = examples_path.exists() and examples_path.read_bytes() not in shipped
    examples = None
    section: dict[str, str] = {}
    if generator.reads_examples and (kind or has_own):
        examples = examples_path
        section = {"kind": "hand", "path": examples.name, **SHIPPED_EXAMPLES}
        if has_own:
            section |= {"description": "examples of the corpus's owner", "license": licence}

    # Write the recipe and its examples; a probe of the prompts reads both.
    fixed_parts = (corpus, generator, name, licence, section, choices.limit, labels)
    text = format_dataset_recipe(*fixed_parts)
    shipped_examples = None if has_own else words["examples"]
    if probes and has_chat_template(generator.section):
        _write_examples(examples, shipped_examples)
        prompt_choice = choose_prompt(text, recipe, profile.usable - profile.quoted)
        text = format_dataset_recipe(*fixed_parts, prompt_choice)
    _write_recipe(recipe, text)
    _write_examples(examples, shipped_examples)
    instructions = _describe_instructions(profile, kind, words["name"], examples, has_own)
    return Proposal(recipe, corpus, licence, generator, examples, instructions)


def _require_usable_texts(location: str | Path, profile: Profile, least: int) -> None:
    """Raise InputError for fewer than ``least`` usable texts.

    Texts with a quotation mark do not count: a prompt puts the text between quotation marks.
    """
    usable = profile.usable - profile.quoted
    if usable >= least:
        return
    problem = f"has {usable} usable texts"
    if profile.quoted:
        problem += f" without a quotation mark, {profile.quoted} with one"
    hint = None
    if least > 1:
        hint = f"for pairs without an encoder: sts-dino new {quote(str(location))}"
    raise InputError(location, problem, allowed=f"{least} or more", hint=hint)


def _write_examples(path: Path | None, shipped: str | None) -> None:
    """Copy the project's examples to ``path``; do nothing if one of the arguments is None.

    Args:
        path: the file of the prompt's examples; None: the prompt has no examples.
        shipped: the name of the project's file; None: the examples are the user's.
    """
    if path is not None and shipped is not None:
        write_bytes(path, find_asset(f"examples/{shipped}").read_bytes())


def _write_recipe(recipe: Path, text: str) -> None:
    """Write a dataset recipe; an existing file with equal values stays.

    Raises InputError for an invalid recipe, and for an existing file that is malformed or has other
    values.
    """
    tree = yaml.load(text, yaml.BaseLoader)  # it reads every value as text
    validate_recipe(recipe, DatasetRecipe, tree)
    if not recipe.exists():
        write_text(recipe, text)
    elif read_yaml(recipe) != tree:
        raise InputError(
            recipe,
            "is another recipe than these arguments give",
            hint="remove it, or give another --out (sts-dino adapt) or name= (api.write_pairs); "
            "sts-dino adapt takes it as it is without options for the dataset",
        )


def _describe_instructions(
    profile: Profile, kind: str | None, language_name: str, examples: Path | None, has_own: bool
) -> str:
    """Return a line about instructions and examples, and a second one that warns of passages.

    Args:
        profile: the statistics of the corpus.
        kind: the kind of text that the instructions are for; None: the language has none.
        language_name: the English name of the corpus's language.
        examples: the file of the prompt's examples, or None.
        has_own: whether the examples are the user's.
    """
    # Instructions exist for a language and a kind of text, and may be those for statements.
    language = language_name if kind else profile.language
    line = f"{profile.usable:,} texts, {language}, "
    line += f"{profile.kind} ({profile.sign}; another kind: --kind): instructions"
    if examples and not has_own:
        line += " and examples"
    if kind is None:
        line += f" are the English ones, to translate (none for {language})"
    else:
        line += f" are those for {language} {kind}"
        if kind != profile.kind:
            line += f" (none for {profile.kind})"
    if examples and has_own:
        line += f"; your examples in {examples} stay"

    # Pairs of passages do not help a search.
    if profile.passages >= LEAST_PASSAGE_SHARE:
        line += (
            f"\nwarning: {profile.passages:.0%} of the texts are passages (several sentences, "
            f"{LEAST_WORDS_IN_PASSAGE} words or more). This recipe is for the similarity of single "
            f"sentences; {SEARCH_PAGE}"
        )
    return line


def _read_corpus(
    location: str | Path, recipe: Path, choices: CorpusChoices, encoding: str | None
) -> Corpus:
    """Read a corpus: a file's statistics, or those of a Hub dataset's first rows.

    The corpus's ``source`` has a file's path relative to the folder of ``recipe``, and the encoding
    of a file that is not UTF-8. Raises InputError for --config and --split with a file, and for a
    corpus that cannot be read; RunError for a Hub that cannot be reached.
    """
    # A dataset of a Hub
    text_choices = (choices.column, choices.language, choices.kind)
    if is_on_hub(str(location)):
        return read_hub_corpus(str(location), choices.config, choices.split, *text_choices)

    # A file has neither configs nor splits.
    options = (("--config", choices.config), ("--split", choices.split))
    for option, value in options:
        if value is not None:
            raise InputError(
                option,
                f"{value!r} has no meaning for a file",
                allowed="only with a corpus ORG/NAME@REVISION",
            )
    path = Path(location)
    # Both without links: ".." behind a link to a folder leads elsewhere
    real_path = path.parent.resolve() / path.name
    relative_path = Path(os.path.relpath(real_path, recipe.parent.resolve())).as_posix()
    source = {"kind": "file", "path": relative_path}
    profile = measure_file(path, *text_choices, encoding)
    found_encoding = find_encoding(path, path, encoding)
    if found_encoding is not None:
        source["encoding"] = found_encoding
    return Corpus(path.name, source, profile)


def is_on_hub(location: str) -> bool:
    """Return whether a corpus is a dataset of a Hub: ORG/NAME[@REVISION], and not a local file.

    Without ``@`` a name with a suffix, such as data/questions.csv, counts as a missing file.
    """
    if Path(location).exists() or not HUB_ID.fullmatch(location):
        return False
    return "@" in location or not Path(location).suffix


def propose_encoder(
    dataset: DatasetRecipe,
    recipe: Path,
    location: str,
    encoder: str | None,
    license_id: str | None,
    teacher: dict[str, Any] | None = None,
) -> None:
    """Write the proposed model recipe for a dataset; an existing file is replaced.

    Args:
        dataset: the dataset's recipe.
        recipe: the file to write.
        location: the dataset's run directory, relative to the recipe's folder.
        encoder: name, folder or Hub id of the base encoder; None: the default of the language.
        license_id: the licence of the base encoder; None: its card's.
        teacher: the section ``teacher`` of a larger encoder; None: no teacher.

    Raises InputError for an encoder or licence that cannot be used, for a dataset without scores
    and for one without a label that the training needs; RunError when the Hub cannot be read.
    """
    generator = dataset.model.model_dump(mode="json", exclude_none=True)
    base = choose_base(encoder, license_id, generator, dataset.language)
    name = f"{dataset.name.removesuffix('-pairs')}-encoder"
    text = format_model_recipe(dataset, location, base, name, teacher)
    validate_recipe(recipe, ModelRecipe, yaml.load(text, yaml.BaseLoader))
    write_text(recipe, text)


def make_corpus_name(corpus: str) -> str:
    """Make the name for a corpus's artefacts from the name of its file or repository.

    ``März 5.txt`` becomes ``marz-5``: letters lose their accents, and whatever is then not a-z or
    0-9 becomes a hyphen. The name has at most ``LONGEST_CORPUS_NAME`` characters. If nothing is
    left, it is ``corpus``.
    """
    stem = Path(corpus.removesuffix(".gz")).stem
    if is_on_hub(corpus):  # a dot in the name of a repository begins no suffix
        stem = corpus.partition("@")[0].rpartition("/")[2]
    decomposed = unicodedata.normalize("NFKD", stem.casefold()).translate(_PLAIN_LETTERS)
    letters = "".join(char for char in decomposed if not unicodedata.combining(char))
    name = re.sub(r"[^a-z0-9]+", "-", letters).strip("-")
    return name[:LONGEST_CORPUS_NAME].rstrip("-") or "corpus"

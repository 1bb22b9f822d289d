"""Measure how well the pairs of a recipe fit their labels, before minutes are spent on them.

The model generates the texts of some source sentences, as the run would. A judge encoder orders the
pairs, as ``sts-dino fidelity`` does. The user's folder keeps the figures of a model and its
prompts, so that they are measured once. ``choose_prompt`` compares the plain prompt with the
model's chat template.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import Annotated, Any

import numpy as np
import typer

from sts_dino.eval.audit.command import silence_transformers
from sts_dino.eval.audit.fidelity import find_fitting_pairs
from sts_dino.eval.encoders.embeddings import compute_text_cosines
from sts_dino.eval.encoders.load import (
    get_default_judge,
    has_default_judge,
    load_encoder,
    require_packaged_encoder,
)
from sts_dino.eval.scoring.paired import compute_mcnemar
from sts_dino.eval.tasks.task import Outcomes
from sts_dino.generation.backends.protocol import Writer
from sts_dino.generation.backends.registry import load_writer, resolve_model_dtype
from sts_dino.generation.inputs.prompts import ContextRoom, Prompts, load_prompts
from sts_dino.generation.inputs.sources import SourceSentence
from sts_dino.generation.plan import prepare_pilot_source, read_prefixes, spread
from sts_dino.generation.rows.attempts import generate_shards
from sts_dino.generation.rows.filters import filter_rows
from sts_dino.generation.run import is_built_in
from sts_dino.hub import cli
from sts_dino.hub.contract.pair_quality import (
    FITS,
    FITS_ANOTHER,
    REJECTED,
    PairQuality,
    find_pair_quality,
    hash_prompts,
    list_shipped,
    name_model,
    report_pair_quality,
    save_pair_quality,
)
from sts_dino.hub.contract.recipe import DatasetRecipe, Label
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.results import SIGNIFICANCE_LEVEL
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError, StsDinoError
from sts_dino.hub.messages import ProgressBar
from sts_dino.release.options import format_settings
from sts_dino.release.stages import read_answer

logger = logging.getLogger(__name__)

MOST_SENTENCES = 24
FEWEST_SENTENCES = 8  # a share of fewer pairs means little
PROBE_SECONDS = 30.0  # of generation, for each kind of prompt
# sentences of each part; the next part is shortened if the remaining time is too short for it
PART_SENTENCES = (4, 8, 12)
TEMPLATE_NOT_PROBED = "the chat template is not probed"
Clock = Callable[[], float]
Pairs = dict[tuple[str, str], str]  # (source sentence, label) → generated text

app = cli.make_app(__doc__)


@app.command()
def main(
    recipe_path: cli.RecipeArgument,
    both: Annotated[
        bool, typer.Option("--both", help="Probe the plain prompt and the model's chat template")
    ] = False,
    sentences: Annotated[
        int, typer.Option(min=FEWEST_SENTENCES, help="Number of source sentences")
    ] = MOST_SENTENCES,
    seconds: Annotated[
        float, typer.Option(min=1, help="Time of generation for each kind of prompt, about")
    ] = PROBE_SECONDS,
    settings: cli.SetOption = [],  # noqa: B006 - typer reads it
    as_json: cli.JsonOption = False,
) -> None:
    """Measure how many pairs of a recipe fit their labels, by a judge encoder.

    The judge is all-minilm-l6-v2 for English, else multilingual-e5-small. Figures of the same model
    and prompts are printed again, also those of another corpus or number of sentences. Models
    behind a server are not probed.

    Examples:

      sts-dino probe questions.yaml

      sts-dino probe questions.yaml --both --seconds 120
    """
    recipe = load_recipe(recipe_path, DatasetRecipe, settings)
    qualities = probe_recipe(recipe, both, sentences, seconds)
    if both and len(qualities) == 2:
        lines = compare_prompts(*qualities).lines
    else:
        lines = [quality.describe() for quality in qualities]
    facts = [quality.model_dump(mode="json") for quality in qualities]
    next_command = join(["sts-dino", "write", str(recipe_path), *format_settings(settings)])
    cli.print_answer("\n".join(lines), facts, as_json, [next_command])


def find_obstacle(recipe: DatasetRecipe) -> InputError | None:
    """Return the error of a recipe that cannot be probed; None if it can."""
    if recipe.model.server is not None:
        problem = "a model behind a server is not probed"
        hint = "write some pairs, then sts-dino fidelity: sts-dino write RECIPE --limit 24"
        return InputError("model.server", problem, hint=hint)
    if is_built_in(recipe.model):
        return InputError("model.path", "the built-in model only demonstrates; it is not probed")
    scores = {label.score for label in recipe.written_labels}
    if None in scores or len(scores) < 2:
        problem = "a probe compares the pairs of different scores"
        return InputError("labels", problem, allowed="two or more labels with distinct scores")
    if not has_default_judge(recipe.language):
        judge = get_default_judge(recipe.language).lower()
        problem = f"texts in language {recipe.language!r} are judged by {judge}, which is not here"
        return InputError("probe", problem, hint=f"sts-dino lm {judge}")
    return None


def probe_recipe(
    recipe: DatasetRecipe,
    both: bool = False,
    most_sentences: int = MOST_SENTENCES,
    seconds: float = PROBE_SECONDS,
) -> list[PairQuality]:
    """Return how well the pairs of a recipe's prompt fit, or those of both kinds of prompt.

    The kinds are the plain prompt and the model's chat template, in this order. A template that is
    missing or cannot be used is left out, with a message. The figures are saved in the user's
    folder; known figures of the model and prompts are returned without any generation.

    Args:
        recipe: the dataset's recipe.
        both: whether both kinds of prompt are measured, and not the recipe's alone.
        most_sentences: source sentences, at most.
        seconds: about the time of generation for each kind of prompt.

    Raises InputError for a recipe that cannot be probed, for a corpus of fewer than
    ``FEWEST_SENTENCES`` usable sentences, for a model that is too slow for them, and where no text
    passes the filters; the errors of loading the model and the judge.
    """
    obstacle = find_obstacle(recipe)
    if obstacle is not None:
        raise obstacle
    kinds = [recipe]
    if both:
        kinds = [copy_with_template(recipe, False), copy_with_template(recipe, True)]

    # Known figures are comparable if they are of the same sentences: as many of one corpus.
    qualities: list[PairQuality] = []
    for kind in kinds:
        quality = find_pair_quality(kind)
        if quality is not None:
            qualities.append(quality)
    samples = {(quality.corpus, quality.count_sentences()) for quality in qualities}
    if len(qualities) == len(kinds) and len(samples) == 1:
        return qualities

    qualities = measure_kinds(kinds, load_engine(kinds[0]), most_sentences, seconds)
    for quality in qualities:
        save_pair_quality(copy_with_template(recipe, quality.chat), quality)
    return qualities


def load_engine(recipe: DatasetRecipe) -> Any:
    """Load the language model of a recipe. Raises the errors of ``load_writer``."""
    return load_writer(resolve_model_dtype(recipe).model)


def measure_kinds(
    kinds: Sequence[DatasetRecipe],
    engine: Any,
    most_sentences: int = MOST_SENTENCES,
    seconds: float = PROBE_SECONDS,
) -> list[PairQuality]:
    """Measure kinds of prompts of one recipe on the same sentences, with a loaded model.

    Args:
        kinds: the recipe with the plain prompt, with the chat template, or both.
        engine: the loaded model.
        most_sentences, seconds: as ``probe_recipe``.

    Returns the figures of each kind, in order. A second kind whose chat template cannot be used is
    left out, with a message. Raises InputError when the model cannot read the prompts of the first
    kind, for fewer than ``FEWEST_SENTENCES`` usable sentences, for a model that is too slow for
    them, and where no text passes the filters; the errors of loading the judge.
    """
    trials = prepare_trials(kinds, engine)
    sentences = choose_sentences(trials[0], most_sentences)
    generate_texts(trials, sentences, seconds, time.monotonic)
    return [score_trial(trial, describe_corpus(kinds[0])) for trial in trials]


def copy_with_template(recipe: DatasetRecipe, chat: bool) -> DatasetRecipe:
    """Return a recipe with or without the chat template."""
    model = recipe.model.model_copy(update={"chat_template": chat})
    return recipe.model_copy(update={"model": model})


@dataclass
class Trial:
    """A kind of prompt, and the texts that the model generated after it.

    ``sentences``: the source sentences so far, in order. ``pairs`` lacks the texts that the filters
    rejected. ``seconds``: the time of generation.
    """

    recipe: DatasetRecipe
    writer: Writer
    prompts: Prompts
    sentences: list[str]
    pairs: Pairs
    seconds: float = 0.0


def prepare_trials(kinds: Sequence[DatasetRecipe], engine: Any) -> list[Trial]:
    """Return a trial for each kind of prompt, without texts yet.

    A second kind whose template cannot be used is left out, with a message. Raises InputError if
    the model cannot read the prompts of the first kind.
    """
    trials: list[Trial] = []
    for kind in kinds:
        writer = engine.copy_with_template(kind.model.chat_template)
        prompts = load_prompts(kind)
        try:
            # Both calls format a prompt, and raise InputError for a template that fails.
            ContextRoom(prompts, writer).count_excess("A sentence.")
            writer.encode(prompts.make_prompt(kind.labels[0], "A sentence.", kind.row_variants[0]))
        except InputError as error:
            if not trials:
                raise
            logger.info(f"{TEMPLATE_NOT_PROBED}: {error}")
            continue
        trials.append(Trial(kind, writer, prompts, [], {}))
    return trials


def choose_sentences(trial: Trial, most: int) -> list[SourceSentence]:
    """Return at most ``most`` source sentences of the corpus, spread over it.

    A sentence that stands in the examples of its own prompt is left out: the model would copy its
    pair. Raises InputError for fewer than ``FEWEST_SENTENCES`` sentences.
    """
    recipe = trial.recipe
    source = prepare_pilot_source(recipe, trial.writer, trial.prompts, time.monotonic)
    usable = [
        sentence for sentence in source.sample if not is_in_examples(sentence.text, trial.prompts)
    ]
    if len(usable) < FEWEST_SENTENCES:
        raise make_shortage(recipe, len(usable))
    return spread(usable, most)


def make_shortage(recipe: DatasetRecipe, usable: int) -> InputError:
    """Make the error for a corpus of too few sentences, of which ``usable`` can be probed."""
    return InputError(
        recipe.source.path or recipe.source.repo_id or "source",
        f"has {usable} source sentences that a probe can use",
        allowed=f"{FEWEST_SENTENCES} or more",
    )


def is_in_examples(sentence: str, prompts: Prompts) -> bool:
    """Return whether a source sentence stands in the examples of its own prompts."""
    variant = prompts.choose_variant(prompts.recipe.variants[0], sentence)
    if not variant.shots:
        return False
    for examples in prompts.sets[variant.shots][variant.example_set].values():
        for example in examples:
            if sentence in (example.premise, example.hypothesis):
                return True
    return False


def generate_texts(
    trials: Sequence[Trial], sentences: Sequence[SourceSentence], seconds: float, clock: Clock
) -> None:
    """Generate the texts of the trials, on as many sentences as the time allows.

    All trials get the same sentences, in parts of ``PART_SENTENCES``. ``seconds``: the time of one
    trial; reading the shared prefixes is not counted. The first part may take longer: it shows the
    time of a sentence. Raises InputError where the time allows fewer than ``FEWEST_SENTENCES``.
    """
    # Read the shared prefixes first, outside the counted time.
    for trial in trials:
        read_prefixes(trial.writer, trial.prompts, trial.recipe.variants[0], clock)

    # Generate part by part, as the remaining time of all trials together allows.
    allowed_seconds = seconds * len(trials)
    spent_seconds = 0.0
    position = 0
    total = len(sentences) * len(trials)
    with ProgressBar(total=total, desc="probe", unit="sentence") as bar:
        for part in PART_SENTENCES:
            # The last part takes all the other sentences
            remaining = len(sentences) - position
            size = remaining if part == PART_SENTENCES[-1] else min(part, remaining)
            if position:
                seconds_per_sentence = spent_seconds / position
                size = min(size, int((allowed_seconds - spent_seconds) / seconds_per_sentence))
            if size <= 0:
                break
            for trial in trials:
                generate_part(trial, sentences[position : position + size], clock)
                bar.update(size)
            spent_seconds = sum(trial.seconds for trial in trials)
            position += size
        bar.total = bar.n  # fewer sentences than planned still end the bar at 100 %
    if position < FEWEST_SENTENCES:
        raise InputError(
            "probe",
            f"{position} sentences took {spent_seconds:.0f} s: this model is slow",
            allowed=f"{FEWEST_SENTENCES} sentences in {allowed_seconds:.0f} s",
            hint="sts-dino probe RECIPE --seconds 300",
        )


def generate_part(trial: Trial, sentences: Sequence[SourceSentence], clock: Clock) -> None:
    """Generate the texts of some sentences as a run would; add texts and seconds to the trial.

    Of several texts of a sentence and a label, the first that passes the filters is taken.
    """
    recipe = trial.recipe
    started = clock()
    variant = recipe.variants[0]
    # All sentences are one shard; its progress is not reported.
    (shard,) = generate_shards(
        trial.writer, trial.prompts, recipe, [sentences], lambda _: None, variant
    )
    filtered, _ = filter_rows(shard.raw, recipe)
    for row in filtered:
        trial.pairs.setdefault((row["text1"], row["target"]), row["text2"])
    trial.sentences += [sentence.text for sentence in sentences]
    trial.seconds += clock() - started


def score_trial(trial: Trial, corpus: str) -> PairQuality:
    """Return how well the pairs of a trial fit: whether the judge gives each pair its label.

    corpus: the name of the source sentences. Raises InputError where no text passed the filters,
    and for a judge that is not installed.
    """
    recipe = trial.recipe
    if not trial.pairs:
        hint = "look at them: sts-dino write RECIPE --limit 8"
        raise InputError("probe", "no text of the model passed the filters", hint=hint)
    silence_transformers()
    judge = get_default_judge(recipe.language)
    encoder = load_encoder(str(require_packaged_encoder(judge)))

    # Each pair fits or not, as sts-dino fidelity decides it; the most similar label comes first
    labels: list[Label] = sorted(recipe.written_labels, key=lambda label: -(label.score or 0.0))
    score_of = {label.name: label.score or 0.0 for label in labels}
    scores = np.array([score_of[label] for _, label in trial.pairs])
    first = [sentence for sentence, _ in trial.pairs]
    cosines = compute_text_cosines(encoder, first, list(trial.pairs.values()))
    fits = dict(zip(trial.pairs, find_fitting_pairs(scores, np.asarray(cosines)), strict=True))

    outcomes = {label.name: mark_sentences(trial.sentences, label.name, fits) for label in labels}
    return PairQuality(
        model=name_model(recipe.model),
        dtype=recipe.model.dtype,
        language=recipe.language,
        chat=recipe.model.chat_template,
        prompts=hash_prompts(recipe),
        corpus=corpus,
        judge=judge.lower(),
        outcomes=outcomes,
    )


def mark_sentences(
    sentences: Sequence[str], label: str, fits: Mapping[tuple[str, str], bool]
) -> str:
    """Return one mark for each sentence, in order: whether its pair of a label fits.

    fits: (sentence, label) → whether the pair fits; the pair of a rejected text is missing.
    """
    marks = ""
    for sentence in sentences:
        if (sentence, label) not in fits:
            marks += REJECTED
        else:
            marks += FITS if fits[sentence, label] else FITS_ANOTHER
    return marks


def describe_corpus(recipe: DatasetRecipe) -> str:
    """Return the name of a recipe's source sentences: of its file, or of its Hub dataset."""
    source = recipe.source
    if source.path:
        return Path(source.path).name
    return source.repo_id or "the model itself"


@dataclass(frozen=True)
class PromptChoice:
    """The proposed kind of prompt, and the lines that give the reason."""

    chat: bool
    lines: list[str]


def compare_prompts(plain: PairQuality, chat: PairQuality) -> PromptChoice:
    """Propose the chat template if significantly more of its pairs fit, else the plain prompt.

    The test is McNemar's; both arguments are figures of the same sentences. A rejected text counts
    as a pair that does not fit. The plain prompt is the default because its downstream gain is
    measured (docs/better_pairs.md).
    """
    right = []
    for quality in (plain, chat):
        marks = "".join(quality.outcomes.values())
        right.append(np.array([float(mark == FITS) for mark in marks]))
    # A pair is right if it fits: the expected outcome of each is 1.
    gold = np.ones(len(right[0]))
    p = compute_mcnemar(Outcomes(gold, right[0]), Outcomes(gold, right[1])).p
    is_better = chat.count_fitting() > plain.count_fitting() and p < SIGNIFICANCE_LEVEL
    proposal = "the chat template" if is_better else "the plain prompt"
    counts = f"{plain.count_fitting()} and {chat.count_fitting()}"
    return PromptChoice(
        is_better,
        [
            f"probe of {plain.count_sentences()} sentences of {plain.corpus}, judge {plain.judge}:",
            f"plain prompt: {plain.describe_labels()}",
            f"chat template: {chat.describe_labels()}",
            f"proposed is {proposal}: {counts} of {len(gold)} pairs fit, p = {p:.2g} (McNemar)",
        ],
    )


def get_draft_path(recipe_path: Path) -> Path:
    """Return the file of a proposed recipe during its probe; a killed command leaves it behind."""
    return recipe_path.with_name(f".{recipe_path.stem}.probe.yaml")


def choose_prompt(text: str, recipe_path: Path, usable: int) -> PromptChoice | None:
    """Choose between the plain prompt and the chat template of a proposed recipe.

    Known figures of the model are used (``find_figures_of_both``). Without them another process
    probes both kinds of prompt, so that its memory is free afterwards. Returns None, with a
    message, where that is not possible.

    Args:
        text: the proposed recipe, with the plain prompt.
        recipe_path: its future path. The recipe is not written there.
        usable: the number of usable texts of the corpus.
    """
    # The recipe's paths are relative to its folder, so the draft is written there.
    draft = get_draft_path(recipe_path)
    write_text(draft, text)
    try:
        recipe = load_recipe(draft, DatasetRecipe)
        figures = find_figures_of_both(recipe)
        if figures is not None:
            return compare_prompts(*figures)

        # Probe both kinds of prompt where the model, the judge and the corpus allow it.
        obstacle = find_obstacle(recipe)
        if obstacle is not None:
            raise obstacle
        if usable < FEWEST_SENTENCES:
            raise make_shortage(recipe, usable)
        logger.info("probe of the prompts, about a minute ...")
        shown = ("probe", TEMPLATE_NOT_PROBED)
        answer = read_answer("probe", str(draft), "--both", "--json", shown_prefix=shown)
    except StsDinoError as error:
        logger.info(f"the chat template is not tried: {error}")
        return None
    finally:
        draft.unlink(missing_ok=True)

    # A template that cannot be used has no figures.
    qualities = [PairQuality.model_validate(quality) for quality in answer]
    return compare_prompts(*qualities) if len(qualities) == 2 else None


def find_figures_of_both(recipe: DatasetRecipe) -> tuple[PairQuality, PairQuality] | None:
    """Return known figures of the plain prompt and of the template, on the same sentences.

    The user's own figures come first, then the shipped ones of the model in this language, also
    those of other prompts. Returns None without figures of both kinds.
    """
    plain = find_pair_quality(copy_with_template(recipe, False))
    chat = find_pair_quality(copy_with_template(recipe, True))
    if (
        plain
        and chat
        and plain.corpus == chat.corpus
        and plain.count_sentences() == chat.count_sentences()
    ):
        return plain, chat
    shipped = {
        quality.chat: quality for quality in list_shipped(name_model(recipe.model), recipe.language)
    }
    if len(shipped) == 2:
        return shipped[False], shipped[True]
    return None


def report_probe(recipe_path: Path, recipe: DatasetRecipe, may_generate: bool = True) -> None:
    """Log how well the pairs of a recipe's model and prompts fit; probe them if that is not known.

    For a recipe that cannot be probed, the reason is logged; for the built-in model, nothing.

    Args:
        recipe_path: the recipe file.
        recipe: the recipe.
        may_generate: whether the model may run; False: only known figures are logged.
    """
    if is_built_in(recipe.model):
        return
    if may_generate and find_pair_quality(recipe) is None:
        obstacle = find_obstacle(recipe)
        try:
            if obstacle is not None:
                raise obstacle
            logger.info("probe of the pairs, at most half a minute (--no-estimate skips it) ...")
            read_answer("probe", str(recipe_path), "--json", shown_prefix="probe")
        except StsDinoError as error:
            logger.info(f"the pairs are not probed: {error}")
            return
    report_pair_quality(recipe)

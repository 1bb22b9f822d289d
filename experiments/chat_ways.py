"""Ways to generate pairs with a chat server, beside self-debiasing in this process.

Each way generates the pairs of the same source sentences. Judge encoders order the pairs of a way
by cosine, as ``sts-dino fidelity`` does: the pairs with the lowest cosines stand for the lowest
label, as many as have it, and so on. Label agreement is the share of pairs that stand for their own
label. With ``--seeds`` the proposed encoder is trained on the pairs of each way, too.

``plain`` is one request for each text. ``contrast`` is one request for the texts of all labels.
``best-of-n`` generates several texts of each label, and an encoder chooses among them.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from pydantic import Field

from sts_dino.eval.audit.agreement import (
    INTERVAL_PERCENTILES,
    SOURCE_RESAMPLES,
    compute_wilson_interval,
    make_interval,
)
from sts_dino.eval.audit.command import silence_transformers
from sts_dino.eval.audit.fidelity import draw_pairs, find_fitting_pairs
from sts_dino.eval.audit.source import find_rows
from sts_dino.eval.encoders.embeddings import Embeddings, compute_cosines
from sts_dino.eval.encoders.load import (
    find_local_encoder,
    find_minilm,
    load_encoder,
    require_model,
)
from sts_dino.experiments.domains import choose_names, compare_rows
from sts_dino.experiments.speed.trials import format_table
from sts_dino.experiments.steps import Steps, hash_parts
from sts_dino.experiments.variants import get_finished_config
from sts_dino.generation.backends.registry import parse_server
from sts_dino.hub.contract.measured import Estimate, Interval, write_json
from sts_dino.hub.contract.recipe import X1, DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.results import Frozen
from sts_dino.hub.contract.run_dir import (
    ARTIFACTS,
    MANIFEST,
    RECIPE,
    lock_run,
    read_manifest,
    require_complete,
)
from sts_dino.hub.durable import hash_file, write_text
from sts_dino.hub.errors import InputError
from sts_dino.proposals.recipes import CANDIDATES, SPARE_ATTEMPTS
from sts_dino.release.options import format_settings

logger = logging.getLogger(__name__)

SELF_DEBIASING = "self-debiasing"  # the way of the model in this process
JUDGES = ("embeddinggemma-300m", "all-minilm-l6-v2")
DEFAULT_SENTENCES = 120
FEWEST_SENTENCES = 8
EVERY_SENTENCE = 10**9  # more than a run has
RESAMPLING_SEED = 0
NAME = "chat-ways"  # of the datasets
PUBLISHED = "published"  # the encoder before training

PLAIN = "plain"
CONTRAST = "contrast"
BEST_OF_N = "best-of-n"
WAYS = (PLAIN, CONTRAST, BEST_OF_N)
COUNTS = {2: "two", 3: "three"}  # numbers of labels in the instruction
# label → the key of its text in the JSON, and what the instruction says of it
CONTRAST_KEYS = {
    "1": ("same_meaning", "means the same thing"),
    "0.5": ("somewhat_similar", "is only somewhat similar"),
    "0": ("different_topic", "is on a completely different topic"),
}

Samples = NDArray[np.float64]


class JudgeFigures(Frozen):
    """Label agreement of a way by one judge; intervals resample source sentences.

    agreement: share of pairs whose place in the judge's order is their label's.
    labels: label → that share among the pairs of the label.
    over_plain: the agreement minus that of the way ``plain``; None for ``plain`` itself, and when
    ``plain`` was not run.
    """

    agreement: Interval
    labels: dict[str, float]
    over_plain: Interval | None


class WayFigures(Frozen):
    """The pairs of one way.

    wanted: pairs of all sentences and labels. paid: texts that the model generated. kept: pairs
    after all filters.
    kept_of_wanted, kept_of_paid: shares with Wilson's intervals.
    prompt_tokens, completion_tokens: as the server counts them; None in this process.
    seconds: of generation. was_resumed: whether a killed run was resumed; then ``seconds`` lacks
    those before the kill.
    rejected: reason → texts.
    judges: judge → figures.
    gain: score of the encoder that the pairs trained, minus that of the encoder as published; None
    without ``--seeds``.
    """

    wanted: int
    paid: int
    kept: int
    kept_of_wanted: Interval
    kept_of_paid: Interval
    prompt_tokens: int | None
    completion_tokens: int | None
    seconds: float
    was_resumed: bool
    rejected: dict[str, int]
    judges: dict[str, JudgeFigures] = Field(default_factory=dict)
    gain: Estimate | None = None


class ChatWays(Frozen):
    """The comparison of the ways on the same source sentences.

    model: the name of the model on the server. in_process: the language model in this process.
    sentences: the number of source sentences. corpus, sha256: their file.
    candidates, choices, selector: settings of ``best-of-n``. selecting_judge: the judge that is the
    selector, too, so that its agreement flatters this way.
    seeds: number of training seeds; 0: no encoder was trained. task: the task and split on which
    the encoders are scored; None without encoders.
    """

    model: str
    in_process: str | None
    sentences: int
    corpus: str
    sha256: str
    candidates: int
    choices: int
    selector: str
    selecting_judge: str | None
    ways: dict[str, WayFigures]
    seeds: int = 0
    task: str | None = None


@dataclass(frozen=True)
class WayRun:
    """The finished run of a way.

    directory: the run directory. was_resumed: whether a killed generation was resumed, so that its
    timing lacks the seconds before the kill. encoder: the file of the recipe that ``sts-dino new``
    proposed for an encoder.
    """

    directory: Path
    was_resumed: bool
    encoder: Path


def main(
    server: Annotated[
        str, typer.Argument(metavar="NAME@URL", help="Model of a running chat server")
    ],
    sentences: Annotated[
        Path, typer.Option("--sentences", metavar="FILE", help="Source sentences, one a line")
    ],
    limit: Annotated[
        int, typer.Option(min=FEWEST_SENTENCES, help="Number of source sentences")
    ] = DEFAULT_SENTENCES,
    judges: Annotated[
        list[str] | None,
        typer.Option(
            "--judge",
            metavar="ENCODER",
            help=f"Judge: NAME of sts-dino lm or folder; repeatable [default: {', '.join(JUDGES)}]",
        ),
    ] = None,
    ways: Annotated[
        list[str] | None,
        typer.Option("--way", help=f"{', '.join(WAYS)}; repeatable [default: all]"),
    ] = None,
    in_process: Annotated[
        str | None,
        typer.Option(
            "--in-process", metavar="LM", help="The same model with self-debiasing: NAME or folder"
        ),
    ] = None,
    lm_license: Annotated[str | None, typer.Option(help="Licence of the language model")] = None,
    language: Annotated[
        str | None, typer.Option(metavar="CODE", help="Language [default: recognised]")
    ] = None,
    candidates: Annotated[
        int, typer.Option(min=2, help="Texts of a label among which best-of-n chooses")
    ] = CANDIDATES,
    choices: Annotated[
        int, typer.Option(min=1, help="Texts of one request for best-of-n (the field n)")
    ] = 1,
    selector: Annotated[
        str | None,
        typer.Option(
            metavar="ENCODER",
            help="Encoder that chooses for best-of-n: NAME of sts-dino lm or folder "
            "[default: all-minilm-l6-v2]",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=0, help="Training seeds of an encoder for each way; 0: train none")
    ] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Result to write")] = None,
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the steps")] = ARTIFACTS
    / "chat-ways",
) -> None:
    """Compare ways to generate pairs with a chat server by judges, kept pairs, tokens and seconds.

    Finished steps are kept, and a killed command resumes without paying for a request twice.

    Examples:

      sts-dino experiment chat-ways qwen@http://127.0.0.1:8080/v1 --sentences texts.txt
      --in-process qwen2.5-coder-1.5b-instruct --out chat_ways.json
    """
    # Check the options before a request is sent
    model = require_server_model(server)
    if not sentences.is_file():
        raise InputError(f"--sentences {sentences}", "no such file")
    chosen_ways = choose_names("--way", ways, list(WAYS))
    judge_places = {name: locate_encoder("--judge", name) for name in judges or JUDGES}
    encoder = {"path": locate_encoder("--selector", selector)} if selector else None

    # Generate the pairs of every way, and judge them
    maker = WayMaker(Steps(folder), sentences, limit, lm_license, language)
    runs: dict[str, WayRun] = {}
    with lock_run(folder):
        recipe = maker.propose(server)
        labels = [label.name for label in load_recipe(recipe, DatasetRecipe).written_labels]
        for way in chosen_ways:
            settings = make_way(
                way, labels, candidates=candidates, encoder=encoder, choices=choices
            )
            runs[way] = maker.write(recipe, way, settings)
        if in_process is not None:
            local = maker.propose(in_process)
            runs[SELF_DEBIASING] = maker.write(local, SELF_DEBIASING, {"premise_tokens": None})
        figures = measure_ways(runs, judge_places, folder / "embeddings")
        task = None
        if seeds:
            trainer = WayTrainer(maker.steps, runs, seeds)
            task = trainer.describe_task()
            for way, gain in trainer.measure_gains().items():
                figures[way] = figures[way].model_copy(update={"gain": gain})

    # Write and print the result
    selector_place = str(find_minilm()) if encoder is None else encoder["path"]
    place_names = {place: name for name, place in judge_places.items()}
    result = ChatWays(
        model=model,
        in_process=in_process,
        sentences=count_sentences(runs),
        corpus=sentences.name,
        sha256=hash_file(sentences),
        candidates=candidates,
        choices=choices,
        selector=selector or "all-minilm-l6-v2",
        selecting_judge=place_names.get(selector_place),
        ways=figures,
        seeds=seeds,
        task=task,
    )
    if out is not None:
        write_json(out, result)
        logger.info(f"wrote {out}")
    print(format_result(result))


def require_server_model(server: str) -> str:
    """Return the model's name in ``server``, which is NAME@URL or openai/NAME.

    Raises InputError for a text of another form, and for a URL that cannot be used.
    """
    served = parse_server("NAME@URL", server)
    if served is None:
        raise InputError(
            "NAME@URL",
            f"{server!r} is not a server",
            allowed="NAME@http://HOST:PORT/v1, openai/NAME",
        )
    return served.model


def locate_encoder(option: str, name: str) -> str:
    """Return the folder of an encoder that a user named.

    Raises InputError, naming ``option``, for an encoder that is not on this machine; and InputError
    for a folder that holds no encoder.
    """
    place = find_local_encoder(name) or name
    if not Path(place).is_dir():
        raise InputError(
            option, f"no encoder {name!r} here", hint=f"sts-dino lm {name}, or a folder"
        )
    require_model(place)
    return place


def make_contrast(labels: Sequence[str]) -> dict[str, Any]:
    """Return the recipe section ``model.server.contrast``: an instruction, and label → JSON key.

    The instruction is English for texts of any language: the examples show the language.
    ``labels``: two or three keys of ``CONTRAST_KEYS``.
    """
    keys: dict[str, str] = {}
    meanings: list[str] = []
    for label in labels:
        key, meaning = CONTRAST_KEYS[label]
        keys[label] = key
        meanings.append(f"{key}: {meaning}.")
    instruction = (
        f'Text: "{X1}"\nWrite {COUNTS[len(labels)]} texts of the same kind, in the same language. '
        f"{' '.join(meanings)}"
    )
    return {"instruction": instruction, "keys": keys}


def make_way(
    way: str,
    labels: Sequence[str],
    candidates: int = CANDIDATES,
    encoder: Mapping[str, str] | None = None,
    choices: int = 1,
) -> dict[str, Any]:
    """Return the settings of a recipe that make a way: dotted key → value; None removes a key.

    Args:
        way: one of ``WAYS``.
        labels: the labels whose texts are generated.
        candidates: texts of each label for ``best-of-n``.
        encoder: keys of the section ``selection`` that name the encoder; None: the default encoder.
        choices: texts of one request (the request's field n) for ``best-of-n``.
    """
    settings: dict[str, Any] = {
        "model.server.contrast": None,
        "model.server.choices": 1,
        "selection": None,
        "decoding.max_attempts": 1 + SPARE_ATTEMPTS,
    }
    if way == CONTRAST:
        settings["model.server.contrast"] = make_contrast(labels)
    if way == BEST_OF_N:
        settings["model.server.choices"] = choices
        settings["selection"] = {"candidates": candidates, **(encoder or {})}
        settings["decoding.max_attempts"] = candidates + SPARE_ATTEMPTS
    return settings


class WayMaker:
    """Proposes recipes for a file of sentences, and generates their pairs; each step runs once.

    limit: the number of sentences. lm_license, language: options of ``sts-dino new``; None:
    ``sts-dino new`` recognises the value.
    """

    def __init__(
        self,
        steps: Steps,
        sentences: Path,
        limit: int,
        lm_license: str | None,
        language: str | None,
    ):
        self.steps = steps
        self.sentences = sentences
        self.options = ["--limit", str(limit), "--license", "unlicensed", "--name", NAME]
        self.options += ["--lm-license", lm_license] if lm_license else []
        self.options += ["--language", language] if language else []

    def propose(self, lm: str) -> Path:
        """Return the file of the recipe that ``sts-dino new`` proposes for a language model.

        ``lm``: NAME@URL, or what ``sts-dino new --lm`` takes. Raises InputError or RunError when
        the command fails.
        """
        key = hash_parts(lm, hash_file(self.sentences), self.options)
        recipe = self.steps.folder / "recipes" / f"{NAME}-{key}.yaml"
        command = ["new", str(self.sentences), "--lm", lm, "--no-probe", "--out", str(recipe)]
        self.steps.run_once("recipe", key, [*command, *self.options], f"recipe for {lm}", recipe)
        return recipe

    def write(self, recipe: Path, way: str, settings: Mapping[str, Any]) -> WayRun:
        """Generate the run of a recipe with the settings of a way, unless it is finished.

        Raises InputError or RunError when the generation fails.

        Args:
            recipe: the proposed recipe.
            way: the name of the way.
            settings: key of the recipe → its value; None removes the key.
        """
        assignments = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
        # The recipe's text may be the same for other sentences; its file name has their hash
        key = hash_parts(recipe.name, recipe.read_text(encoding="utf-8"), assignments)
        run = self.steps.folder / "datasets" / f"{way}-{key}"
        # The timing of a resumed run lacks the seconds before the kill; a file records the resume
        mark = run.with_name(f"{run.name}.resumed")
        manifest = read_manifest(run)
        if manifest is not None and not manifest.complete:
            write_text(mark, "")
        command = ["write", str(recipe), "--out", str(run), *format_settings(assignments)]
        self.steps.run_once("dataset", key, command, way, run / MANIFEST)
        return WayRun(run, mark.exists(), recipe.with_suffix(".encoder.yaml"))


class WayTrainer:
    """Trains the proposed encoder on the pairs of each way, and scores it; each step runs once.

    runs: way → its run. seeds: the number of training seeds of each way. The task is the first
    evaluation in the proposed recipe of the encoder. Raises InputError for a recipe without
    evaluations.
    """

    def __init__(self, steps: Steps, runs: Mapping[str, WayRun], seeds: int):
        self.steps = steps
        self.runs = runs
        self.seeds = seeds
        first, *_ = runs.values()
        self.recipe_path = first.encoder
        self.recipe = load_recipe(self.recipe_path, ModelRecipe)
        if not self.recipe.evaluation:
            raise InputError(
                "--seeds",
                f"the encoder that is proposed for {self.recipe.language} has no evaluation",
                hint="leave it out: the agreement needs no encoder",
            )
        self.task, *_ = self.recipe.evaluation

    def describe_task(self) -> str:
        """Return the task and the split as text, e.g. ``stsb/cosine, validation``."""
        return f"{self.task.task}, {self.task.split}"

    def measure_gains(self) -> dict[str, Estimate]:
        """Return way → the mean score of its encoders minus the score of the encoder as published.

        Missing trainings and evaluations run first. The intervals resample the task's rows, and the
        training seeds with them. Raises InputError or RunError when a step fails.
        """
        base = self.recipe.base.location
        # The key names base and task: the folder may hold steps of another language
        key = f"{PUBLISHED}-{hash_parts(base, self.describe_task())}"
        published = self._score(PUBLISHED, base, key)
        evaluations = {PUBLISHED: {NAME: [published]}}
        for way, run in self.runs.items():
            folders = [self._evaluate(way, run, seed) for seed in range(1, self.seeds + 1)]
            evaluations[way] = {NAME: folders}
        compared = compare_rows(evaluations, {}, self.seeds, self.task.task, self.task.split)
        return compared.over_first

    def _evaluate(self, way: str, run: WayRun, seed: int) -> Path:
        """Train the encoder on a way's pairs and score it; return the folder of the evaluation."""
        recipe = load_recipe(run.encoder, ModelRecipe)
        section = recipe.datasets[0].model_dump(mode="json", exclude_unset=True)
        section |= {"path": str(run.directory), "config": get_finished_config(run.directory)}
        settings = [f"datasets={json.dumps([section])}", f"seed={seed}", "control=null"]
        key = f"{run.directory.name}-{seed}"
        title = f"{way}, training seed {seed}"
        encoder = self.steps.train(run.encoder, settings, key, title)
        return self._score(title, str(encoder.path), key)

    def _score(self, title: str, encoder: str, key: str) -> Path:
        """Score an encoder on the task, unless it has been; return the folder of the evaluation.

        Args:
            title: names the step in messages.
            encoder: folder or Hub id of the encoder.
            key: the name of the evaluation's folder, and of the step.
        """
        arguments = [str(self.recipe_path), "--model", encoder]
        return self.steps.score(arguments, key, title).path


def count_sentences(runs: Mapping[str, WayRun]) -> int:
    """Return the number of source sentences, which is the same for all runs.

    Raises InputError for different numbers: a model may skip sentences that another model takes.
    """
    counts = {way: require_complete(run.directory).counts["sources"] for way, run in runs.items()}
    if len(set(counts.values())) > 1:
        raise InputError("--sentences", f"the ways have different numbers of sentences: {counts}")
    return int(next(iter(counts.values())))


def measure_ways(
    runs: Mapping[str, WayRun], judge_places: Mapping[str, str], cache: Path
) -> dict[str, WayFigures]:
    """Return the figures of each way, without gains.

    Args:
        runs: way → its run.
        judge_places: name of the judge → its folder.
        cache: the folder that keeps the embeddings for the next call.
    """
    # Judge the pairs of every way
    figures = {way: read_figures(run) for way, run in runs.items()}
    outcomes: dict[str, dict[str, Outcomes]] = {way: {} for way in runs}
    silence_transformers()
    for judge, place in judge_places.items():
        with Embeddings(load_encoder(place), cache) as embeddings:
            for way, run in runs.items():
                outcomes[way][judge] = judge_pairs(run.directory, embeddings)

    # Summarize each way; the bootstrap resamples the sentences of all ways together
    every = [outcome for by_judge in outcomes.values() for outcome in by_judge.values()]
    sentences = list(dict.fromkeys(text for outcome in every for text in outcome.first))
    for way, by_judge in outcomes.items():
        for judge, outcome in by_judge.items():
            plain = outcomes[PLAIN][judge] if PLAIN in outcomes and way != PLAIN else None
            figures[way].judges[judge] = summarize_outcomes(outcome, plain, sentences)
    return figures


def read_figures(run: WayRun) -> WayFigures:
    """Return the figures of a run that need no judge: its texts, tokens and seconds.

    Paid texts are those that the model generated, rejected texts included. Raises InputError for an
    unfinished run.
    """
    directory = run.directory
    counts = require_complete(directory).counts
    recipe = load_recipe(directory / RECIPE, DatasetRecipe)
    labels = recipe.written_labels
    wanted = counts["sources"] * sum(recipe.get_decoding(label).samples for label in labels)

    # The usage of a server; a run in this process has no such file
    usage: dict[str, Any] = {}
    path = directory.with_name(f"{directory.name}.usage.json")
    paid = counts["requested"]
    if path.is_file():
        usage = json.loads(path.read_bytes())
        texts_per_answer = len(labels) if recipe.has_contrast else 1
        paid = usage["answers"] * texts_per_answer
    timing = json.loads(directory.with_name(f"{directory.name}.timing.json").read_bytes())
    kept = counts["kept"]
    return WayFigures(
        wanted=wanted,
        paid=paid,
        kept=kept,
        kept_of_wanted=compute_wilson_interval(kept, wanted),
        kept_of_paid=compute_wilson_interval(kept, paid),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        seconds=timing["seconds"],
        was_resumed=run.was_resumed,
        rejected=counts["rejected"],
    )


@dataclass(frozen=True)
class Outcomes:
    """One judge's verdicts on the n pairs of a way.

    first: source sentence of each pair. labels: label of each pair. fits: whether each pair has the
    label that its place in the judge's order stands for, (n,).
    """

    first: list[str]
    labels: list[str]
    fits: NDArray[np.bool_]

    @property
    def agreement(self) -> float:
        """The share of pairs that fit; 0 without pairs."""
        return float(self.fits.mean()) if len(self.fits) else 0.0


def judge_pairs(directory: Path, embeddings: Embeddings) -> Outcomes:
    """Judge all pairs of a run by the encoder of ``embeddings``.

    A run without kept pairs gives empty outcomes.
    """
    recipe = load_recipe(directory / RECIPE, DatasetRecipe)
    if not require_complete(directory).counts["kept"]:
        return Outcomes([], [], np.zeros(0, dtype=bool))
    score_of = {label.name: label.score or 0.0 for label in recipe.written_labels}
    pairs, _ = draw_pairs(find_rows(str(directory)), EVERY_SENTENCE, RESAMPLING_SEED)
    first = list(pairs["first"])
    second = list(pairs["second"])
    embeddings.declare([*first, *second])
    cosines = compute_cosines(embeddings.embed(first), embeddings.embed(second))
    labels = [str(label) for label in pairs["label"]]
    scores = np.array([score_of[label] for label in labels])
    return Outcomes(first, labels, find_fitting_pairs(scores, np.asarray(cosines)))


def summarize_outcomes(
    outcome: Outcomes, plain: Outcomes | None, sentences: Sequence[str]
) -> JudgeFigures:
    """Return the figures of a way by one judge.

    Args:
        outcome: the verdicts on the pairs of the way.
        plain: the verdicts on the pairs of the way ``plain``; None: compute no difference.
        sentences: the distinct source sentences of all ways, which are resampled.
    """
    samples = resample_agreement(outcome, sentences)
    over_plain = None
    if plain is not None:
        differences = samples - resample_agreement(plain, sentences)
        over_plain = make_bootstrap_interval(outcome.agreement - plain.agreement, differences)
    by_label: dict[str, float] = {}
    for label in dict.fromkeys(outcome.labels):
        is_label = np.array([name == label for name in outcome.labels])
        by_label[label] = round(float(outcome.fits[is_label].mean()), 4)
    return JudgeFigures(
        agreement=make_bootstrap_interval(outcome.agreement, samples),
        labels=by_label,
        over_plain=over_plain,
    )


def resample_agreement(outcome: Outcomes, sentences: Sequence[str]) -> Samples:
    """Return the agreement in each bootstrap resample of the sentences, (SOURCE_RESAMPLES,).

    The resamples are the same for all ways. A resample without a pair of the way gives 0.

    Args:
        outcome: the verdicts on the pairs of a way.
        sentences: distinct source sentences, among them all of ``outcome``.
    """
    index_of = {text: index for index, text in enumerate(sentences)}
    indices = np.array([index_of[text] for text in outcome.first], dtype=np.int64)
    pairs = np.bincount(indices, minlength=len(sentences))
    fitting = np.bincount(indices, weights=outcome.fits, minlength=len(sentences))
    generator = np.random.default_rng(RESAMPLING_SEED)
    draws = generator.integers(0, len(sentences), (SOURCE_RESAMPLES, len(sentences)))
    shares: Samples = fitting[draws].sum(axis=1) / np.maximum(1, pairs[draws].sum(axis=1))
    return shares


def make_bootstrap_interval(value: float, samples: Samples) -> Interval:
    """Return a value with the 95 % interval of its resamples, ``samples`` (resamples,)."""
    low, high = np.percentile(samples, INTERVAL_PERCENTILES)
    return make_interval(value, low, high)


def format_result(result: ChatWays) -> str:
    """Format a Markdown table with a row for each way, and lines that explain its columns."""
    judges = list(next(iter(result.ways.values())).judges)
    header = ["way", *(f"agreement, {judge}" for judge in judges)]
    header += ["kept of wanted", "kept of paid", "prompt tokens", "new tokens", "seconds a pair"]
    header += ["gain"] if result.seeds else []
    rows = [format_way(way, figures, judges) for way, figures in result.ways.items()]
    lines = [
        format_table(header, rows, names=1),
        f"{result.sentences} source sentences of {result.corpus}; agreement: share of pairs whose "
        "place in the judge's order is their label's; 95 % intervals over source sentences, of "
        "shares Wilson's",
    ]
    if result.seeds:
        lines.append(
            f"gain: score of the encoder trained on the pairs, minus that of the encoder as "
            f"published; {result.task}; training seeds: {result.seeds}"
        )
    if result.selecting_judge and BEST_OF_N in result.ways:
        lines.append(
            f"{result.selecting_judge} also chooses the texts of {BEST_OF_N}: its agreement "
            "flatters that way"
        )
    resumed = [way for way, figures in result.ways.items() if figures.was_resumed]
    if resumed:
        lines.append(f"killed and resumed, so that seconds lack some: {', '.join(resumed)}")
    return "\n".join(lines)


def format_way(way: str, figures: WayFigures, judges: Iterable[str]) -> list[str]:
    """Return the cells of a way for the columns of ``format_result``.

    Unknown numbers of tokens are a dash. ``judges``: the judges' names in the order of the columns.
    """
    tokens = [figures.prompt_tokens, figures.completion_tokens]
    gains = [] if figures.gain is None else [str(figures.gain)]
    return [
        way,
        *(str(figures.judges[judge].agreement) for judge in judges),
        str(figures.kept_of_wanted),
        f"{figures.kept_of_paid.value:.2f}",
        *("–" if count is None else f"{count:,}" for count in tokens),
        f"{figures.seconds / max(1, figures.kept):.2f}",
        *gains,
    ]

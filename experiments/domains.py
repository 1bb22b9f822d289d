"""Encoders for one domain or language, trained without a judged pair and scored on judged ones.

The sentences of a domain are those of pairs in STS15 and STS16 that nobody judged, without the
sentences of judged pairs. The judged pairs are its test. A language has both in files of its own.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from pydantic import Field

from sts_dino.experiments.plan import validate_plan
from sts_dino.experiments.speed.trials import format_table
from sts_dino.experiments.steps import Steps, hash_parts
from sts_dino.experiments.variants import get_finished_config
from sts_dino.hub import cli
from sts_dino.hub.contract.measured import Estimate, write_json
from sts_dino.hub.contract.recipe import TAUGHT_PAIRS, ModelRecipe, Positive, Strict
from sts_dino.hub.contract.recipe_file import load_recipe, read_yaml
from sts_dino.hub.contract.results import Frozen
from sts_dino.hub.contract.run_dir import ARTIFACTS, MANIFEST, RECIPE, lock_run, require_complete
from sts_dino.hub.durable import hash_file, write_text
from sts_dino.hub.errors import InputError, suggest_choice

logger = logging.getLogger(__name__)

PLAN = Path("experiments/domains.yaml")
# Domain → its two files below sts-original: {} is "input" (pairs of sentences) or "gs" (scores)
SUBSETS = {
    "questions": "STS16/STS2016.{}.question-question.txt",
    "answers": "STS16/STS2016.{}.answer-answer.txt",
    "plagiarism": "STS16/STS2016.{}.plagiarism.txt",
    "postediting": "STS16/STS2016.{}.postediting.txt",
    "headlines": "STS16/STS2016.{}.headlines.txt",
    "students": "STS15/STS.{}.answers-students.txt",
    "forums": "STS15/STS.{}.answers-forums.txt",
    "belief": "STS15/STS.{}.belief.txt",
    "images": "STS15/STS.{}.images.txt",
}
# Folders of DATA/languages with sentences.txt and pairs.tsv; a name begins with the language code
LANGUAGES = (
    *("es-stsb", "fr-stsb", "de-stsb", "zh-stsb"),
    *("ko-klue", "ja-jsts", "nl-sick", "ro-sts"),
)
# placeholder of a file of pairs that the teacher scored → whether the pairs have generated texts,
# and whether the scores are weighted means of the teacher's and the base's cosines; the base is the
# encoder before training
TAUGHT = {
    "{taught}": (True, False),
    "{taught_alone}": (False, False),
    "{joined}": (True, True),
    "{joined_alone}": (False, True),
}
MIN_WORDS, MAX_WORDS = 4, 40  # of a sentence of a domain
TASK = "pairs.tsv/cosine"
SPLIT = "test"
SAMPLES = 1000  # of the bootstrap
RESAMPLING_SEED = 42
SENTENCES_SEED = 42  # of the order of a domain's sentences

Samples = NDArray[np.float64]


class Row(Strict):
    """A row of the table: how an encoder is trained.

    ``datasets``: sections of a model recipe, in which ``{sentences}``, ``{pairs}``, ``{config}``
    and the keys of ``TAUGHT`` stand for the domain's files. Without datasets nothing is trained:
    the base is scored, or with ``is_teacher`` the teacher. ``from_start``: the encoder of
    ``--start`` replaces the recipe's base. ``set``: settings of the recipe. ``says``: the row's
    text in the table.
    """

    name: str
    says: str
    datasets: tuple[dict[str, Any], ...] = ()
    settings: Annotated[tuple[str, ...], Field(alias="set")] = ()
    is_teacher: bool = False
    from_start: bool = False


class DomainPlan(Strict):
    """The plan of the comparison.

    ``choice``: the domains on which choices are made; other domains are scored when they are named.
    ``sentences``: the largest number of a domain's sentences on which pairs are generated.
    ``taught_sentences``: the largest number of a domain's sentences that the teacher reads.
    ``student``: the recipe file of the encoder.
    """

    choice: tuple[str, ...]
    sentences: Positive
    taught_sentences: Positive
    student: Path
    rows: tuple[Row, ...]


class DomainResult(Frozen):
    """The result of the comparison.

    ``scores``: row → domain → Spearman x 100, the mean over training seeds. ``over_first``: row →
    its mean over domains minus that of the first row, which has no entry. ``seeds``: the number of
    training seeds. ``seconds``: row → CPU seconds of its trainings in all domains.
    """

    scores: dict[str, dict[str, float]]
    over_first: dict[str, Estimate]
    seeds: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class Domain:
    """A domain's files.

    sentences: a text file of the sentences on which pairs are generated.
    taught_sentences: a text file of the sentences that the teacher reads.
    pairs: a table of the judged pairs (TSV).
    """

    name: str
    sentences: Path
    taught_sentences: Path
    pairs: Path


def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DOMAIN...",
            help="Domains or languages [default: the domains on which choices are made]",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="STS_DINO_DATA", metavar="DIR", help="Folder with sts-original, languages"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Result to write")] = None,
    rows: Annotated[
        list[str] | None, typer.Option("--row", metavar="NAME", help="Row [default: all]")
    ] = None,
    lm: Annotated[str, typer.Option(help="Language model of the pairs")] = (
        "qwen2.5-coder-0.5b-instruct"
    ),
    teacher: Annotated[str, typer.Option(help="Teacher encoder")] = "embeddinggemma-300m",
    start: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Run directory of a trained encoder, for the rows from_start"
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Training seeds")] = 3,
    sentences: Annotated[
        int | None,
        typer.Option(min=1, help="Sentences of a domain [default: the plan's two numbers]"),
    ] = None,
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
    file: Annotated[Path, typer.Option("--plan", metavar="FILE", help="Plan")] = PLAN,
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the steps")] = ARTIFACTS
    / "domains",
) -> None:
    """Train encoders for domains without a judged pair, and score them on judged pairs.

    ``--set`` applies to the recipe of the encoder. Finished steps are kept.

    Examples:

      sts-dino experiment domains --data DIR --set @assets/offline.yaml --out choice.json

      sts-dino experiment domains es-stsb --data DIR --sentences 300
      --set base.repo_id=intfloat/multilingual-e5-small --set base.license=mit
      --set @assets/offline.yaml
    """
    # Check the options
    if data is None:
        raise InputError("--data", "is missing", hint="name the folder with sts-original")
    plan = validate_plan(DomainPlan, read_yaml(file), file)
    if sentences is not None:
        plan = plan.model_copy(update={"sentences": sentences, "taught_sentences": sentences})
    names = choose_names("DOMAIN", names or list(plan.choice), [*SUBSETS, *LANGUAGES])
    plan_rows = choose_rows(plan, rows, start)

    # Train and score every row in every domain
    maker = DomainMaker(plan, Steps(folder), lm, teacher, settings, start)
    evaluations: dict[str, dict[str, list[Path]]] = {row.name: {} for row in plan_rows}
    with lock_run(folder):
        for name in names:
            domain = extract_domain(name, data, folder, plan)
            for row in plan_rows:
                evaluations[row.name][name] = maker.score_row(row, domain, seeds)
        result = compare_rows(evaluations, maker.seconds, seeds)

    # Write and print the result
    if out is not None:
        write_json(out, result)
        logger.info(f"wrote {out}")
    print(_format_scores(plan_rows, names, result))


def _format_scores(rows: Sequence[Row], names: Sequence[str], result: DomainResult) -> str:
    """Return a Markdown table: the score of each row on the domains ``names``, and its mean.

    The last column is the row's mean minus the first row's; it is empty for the first row.
    """
    lines = []
    for row in rows:
        scores = result.scores[row.name]
        values = [f"{score:.1f}" for score in (*scores.values(), _average(scores))]
        lines.append([row.says, *values, result.over_first.get(row.name, "")])
    header = ["trained on", *names, "mean", f"over {rows[0].name}"]
    return format_table(header, lines, names=1)


def _average(scores: Mapping[str, float]) -> float:
    """Return the mean of a row's scores, each domain equal."""
    return float(np.mean(list(scores.values())))


def choose_names(option: str, requested: list[str] | None, known: Sequence[str]) -> list[str]:
    """Return the requested names in their order, each once; None or []: all known names.

    Raises InputError, naming ``option``, for a name that is not known.
    """
    for name in requested or []:
        if name not in known:
            raise InputError(
                option,
                f"unknown: {name}",
                allowed=list(known),  # quoted: a row's name may hold a comma
                hint=suggest_choice(name, known),
            )
    return list(dict.fromkeys(requested or known))


def choose_rows(plan: DomainPlan, requested: list[str] | None, start: Path | None) -> list[Row]:
    """Return the requested rows in the plan's order; None or []: all rows that can be made.

    Rows ``from_start`` cannot be made without ``start``, the directory of ``--start``. Raises
    InputError for an unknown row, for a requested row that lacks its ``--start``, and for a
    ``--start`` that is not a finished run.
    """
    if start is not None:
        require_complete(start)
    chosen = choose_names("--row", requested, [row.name for row in plan.rows])
    rows = []
    for row in plan.rows:
        can_be_made = start is not None or not row.from_start
        if row.name in chosen and can_be_made:
            rows.append(row)
        elif row.name in chosen and requested:
            hint = f"the row {row.name!r} trains an encoder further: give its run directory"
            raise InputError("--start", "is missing", hint=hint)
    return rows


def extract_domain(name: str, data: Path, folder: Path, plan: DomainPlan) -> Domain:
    """Write the files of a domain or a language, and return their paths as a ``Domain``.

    A domain's sentence has ``MIN_WORDS`` to ``MAX_WORDS`` words and stands in no judged pair. The
    sentences of a language are taken as its file has them. The sentences are shuffled by a fixed
    seed. The two files of sentences hold the first ``plan.sentences`` and the first
    ``plan.taught_sentences`` of them. Raises InputError for missing files, files that are not
    UTF-8, and the input of a domain that ``_read_subset`` refuses.

    Args:
        name: a key of ``SUBSETS``, or one of ``LANGUAGES``.
        data: the folder with sts-original and languages.
        folder: the files are written to ``data/NAME`` in this folder.
        plan: the numbers of sentences.
    """
    # Read the judged pairs, and the sentences that are not judged
    if name in LANGUAGES:
        source = data / "languages" / name
        judged = _read_lines(source / "pairs.tsv")
        usable = _read_lines(source / "sentences.txt")
    else:
        judged, usable = _read_subset(name, data / "sts-original")
    Random(SENTENCES_SEED).shuffle(usable)

    # Write the files
    files = folder / "data" / name
    domain = Domain(
        name, files / "sentences.txt", files / "taught_sentences.txt", files / "pairs.tsv"
    )
    write_text(domain.pairs, "\n".join(judged) + "\n")
    write_text(domain.sentences, "\n".join(usable[: plan.sentences]) + "\n")
    write_text(domain.taught_sentences, "\n".join(usable[: plan.taught_sentences]) + "\n")
    return domain


def _read_lines(path: Path) -> list[str]:
    """Return the lines of a file of ``--data``; [] for an empty file.

    Line feeds and carriage returns end a line. Other separators, such as U+2028, do not: a sentence
    may hold one. Raises InputError for a missing file, and for one that is not UTF-8.
    """
    if not path.is_file():
        hint = "--data names the folder that holds sts-original and languages"
        raise InputError(path, "no such file", hint=hint)
    try:
        text = path.read_text(encoding="utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InputError(path, f"is not UTF-8 (byte {error.start})") from error
    return text.split("\n") if text else []


def _read_subset(name: str, originals: Path) -> tuple[list[str], list[str]]:
    """Read a domain: the lines of its judged pairs, and the usable sentences of unjudged pairs.

    The lines begin with a header and are tab-separated. A usable sentence has ``MIN_WORDS`` to
    ``MAX_WORDS`` words and stands in no judged pair; each is returned once, in the file's order.
    Raises InputError for missing files, for files with different numbers of lines, and for a line
    that is not a pair.

    Args:
        name: a key of ``SUBSETS``.
        originals: the folder sts-original.
    """
    # Read the files
    input_file = originals / SUBSETS[name].format("input")
    lines = _read_lines(input_file)
    scores = _read_lines(originals / SUBSETS[name].format("gs"))
    if len(lines) != len(scores):
        raise InputError(input_file, f"has {len(lines)} lines, its file of scores {len(scores)}")

    # Divide the pairs by whether they have a score
    judged = ["sentence1\tsentence2\tscore"]
    judged_sentences: set[str] = set()
    unjudged: dict[str, None] = {}  # the sentences of pairs without a score, each once
    for number, (line, score) in enumerate(zip(lines, scores, strict=True), 1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise InputError(f"{input_file}, line {number}", "has no second sentence")
        first, second = [" ".join(text.split()) for text in columns[:2]]
        if score.strip():
            judged.append(f"{first}\t{second}\t{score.strip()}")
            judged_sentences |= {first, second}
        else:
            unjudged |= {first: None, second: None}
    usable = [
        sentence
        for sentence in unjudged
        if sentence not in judged_sentences and MIN_WORDS <= len(sentence.split()) <= MAX_WORDS
    ]
    return judged, usable


class DomainMaker:
    """Makes the evaluations of a plan's rows; each step runs once.

    A step generates pairs, scores pairs by the teacher, trains an encoder or evaluates one.

    lm, teacher: names of ``sts-dino lm``, folders or Hub ids. settings: overrides of the encoder's
    recipe. start: the run directory of the encoder that the rows ``from_start`` train further; None
    without such rows.
    """

    def __init__(
        self,
        plan: DomainPlan,
        steps: Steps,
        lm: str,
        teacher: str,
        settings: Sequence[str],
        start: Path | None = None,
    ):
        self.plan = plan
        self.steps = steps
        self.lm = lm
        self.teacher = teacher
        self.settings = list(settings)
        self.start = start
        self.seconds: dict[str, float] = {}  # row → CPU seconds

    def score_row(self, row: Row, domain: Domain, seeds: int) -> list[Path]:
        """Return the folders of a row's evaluations on a domain, one for each training seed.

        The training seeds are 1 to ``seeds``. An encoder that is not trained has one evaluation.
        Missing steps run. Raises InputError or RunError when a step fails.
        """
        if row.is_teacher:
            return [self._score(row, domain, self.teacher, self.teacher)]
        if row.datasets:
            return [self._evaluate(row, domain, seed) for seed in range(1, seeds + 1)]
        return [self._score(row, domain, self._find_base(row), self._get_base_key(row))]

    def _find_base(self, row: Row) -> str:
        """Return the encoder before training: its folder or Hub id."""
        return load_recipe(self.plan.student, ModelRecipe, self._list_settings(row)).base.location

    def _get_base_key(self, row: Row) -> str:
        """Return the text that identifies the base in the keys of steps.

        It is the base's folder or Hub id. For ``--start`` it is the manifest's SHA-256, because an
        encoder that was trained again in the same folder is another encoder.
        """
        if row.from_start and self.start is not None:
            return hash_file(self.start / MANIFEST)
        return self._find_base(row)

    def _list_settings(self, row: Row) -> list[str]:
        """Return the settings of a row's recipe that are the same in all domains.

        A row ``from_start`` has the encoder of ``--start`` as its base.
        """
        settings = list(self.settings)
        if row.from_start:
            assert self.start is not None
            start = load_recipe(self.start / RECIPE, ModelRecipe)
            base = {
                "path": str(self.start),
                "license": start.license,
                "modules": "sentence-transformer",
                "max_seq_length": start.base.max_seq_length,
            }
            settings += [f"base={json.dumps(base)}", f"license={start.license}"]
        return settings

    def _evaluate(self, row: Row, domain: Domain, seed: int) -> Path:
        """Train a row's encoder on a domain and score it; return the folder of the evaluation.

        Missing steps run. The training's CPU seconds are added to ``seconds``.
        """
        # List the settings, and everything else that decides the training
        places = self._make_data(row, domain)
        sections = [_fill_section(section, places) for section in row.datasets]
        settings = [f"seed={seed}", f"datasets={json.dumps(sections)}", *row.settings]
        settings += ["control=null", "evaluation=[]", *self._list_settings(row)]
        inputs = [hash_file(Path(path)) for path in places.values() if Path(path).is_file()]
        inputs.append(self._get_base_key(row))
        key = hash_parts(settings, inputs, self.plan.student.read_text(encoding="utf-8"))

        # Train and score
        title = f"{domain.name}, {row.name}, training seed {seed}"
        encoder = self.steps.train(self.plan.student, settings, key, title)
        self.seconds[row.name] = self.seconds.get(row.name, 0.0) + encoder.seconds
        return self._score(row, domain, str(encoder.path), key)

    def _make_data(self, row: Row, domain: Domain) -> dict[str, str]:
        """Return placeholder without braces → file, folder or config, for a row's datasets.

        ``sentences`` is always among them. Missing steps run.
        """
        used = json.dumps(row.datasets)
        files = {name: kind for name, kind in TAUGHT.items() if name in used}
        places = {"sentences": str(domain.taught_sentences)}
        if "{pairs}" in used or any(is_generated for is_generated, _ in files.values()):
            pairs = self._generate(domain)
            places |= {"pairs": str(pairs), "config": get_finished_config(pairs)}
        for name, (is_generated, has_base) in files.items():
            source = places["pairs"] if is_generated else None
            places[name.strip("{}")] = self._run_teacher(row, domain, source, has_base)
        return places

    def _generate(self, domain: Domain) -> Path:
        """Return the run directory of the pairs of a domain's sentences; missing steps run.

        The name of a language begins with its code; the domains are English.
        """
        key = hash_parts(self.lm, hash_file(domain.sentences))
        recipe = self.steps.folder / "recipes" / f"{domain.name}-{key}.yaml"
        run = self.steps.folder / "datasets" / f"{domain.name}-{key}"
        language = domain.name[:2] if domain.name in LANGUAGES else "en"
        command = ["new", str(domain.sentences), "--lm", self.lm, "--language", language]
        command += ["--license", "unlicensed", "--name", domain.name, "--out", str(recipe)]
        if not self.steps.is_finished("recipe", key):
            # A killed `new` leaves recipes, and the next one would refuse to overwrite them
            recipe.unlink(missing_ok=True)
            recipe.with_suffix(".encoder.yaml").unlink(missing_ok=True)
        self.steps.run_once("recipe", key, command, domain.name, recipe)
        command = ["write", str(recipe), "--out", str(run)]
        self.steps.run_once("dataset", key, command, domain.name, run / "manifest.json")
        return run

    def _run_teacher(self, row: Row, domain: Domain, pairs: str | None, has_base: bool) -> str:
        """Return the file of pairs that the teacher scored; missing steps run.

        Args:
            row: the row, whose base is trained.
            domain: the domain.
            pairs: the run directory of the generated pairs; None: score the sentences alone.
            has_base: whether a score is the mean of the teacher's and the base's cosine.
        """
        base_key = self._get_base_key(row) if has_base else None
        key = hash_parts(self.teacher, base_key, pairs, hash_file(domain.taught_sentences))
        out = self.steps.folder / "taught" / f"{domain.name}-{key}"
        source = pairs or str(domain.taught_sentences)
        command = ["teach", source, "--teacher", self.teacher, "--out", str(out)]
        if pairs is not None:
            command += ["--sentences", str(domain.taught_sentences)]
        if has_base:
            command += ["--base", self._find_base(row)]
        file = out / TAUGHT_PAIRS
        self.steps.run_once("taught", key, command, f"{domain.name}, teacher", file)
        return str(file)

    def _score(self, row: Row, domain: Domain, encoder: str, key: str) -> Path:
        """Score an encoder on the judged pairs of a domain; return the folder of the evaluation.

        Args:
            row: the row, for messages.
            domain: the domain.
            encoder: what ``sts-dino score`` takes as the encoder.
            key: the digest of everything that decides the encoder.
        """
        key = hash_parts(key, hash_file(domain.pairs))
        arguments = [encoder, "--pairs", str(domain.pairs)]
        return self.steps.score(arguments, key, f"{domain.name}, {row.name}").path


def _fill_section(section: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of a section of ``datasets`` with the placeholders in its text values replaced.

    Values of nested sections are unchanged. The copy has the licence ``unlicensed``.

    places: placeholder without braces → what replaces it.
    """
    filled = {**section, "license": "unlicensed"}
    for key, value in section.items():
        if isinstance(value, str):
            for name, place in places.items():
                value = value.replace(f"{{{name}}}", place)
            filled[key] = value
    return filled


def compare_rows(
    evaluations: Mapping[str, Mapping[str, Sequence[Path]]],
    seconds: Mapping[str, float],
    seeds: int,
    task: str = TASK,
    split: str = SPLIT,
) -> DomainResult:
    """Compare the rows, with a 95 % interval of each mean's difference to the first row.

    The bootstrap resamples the judged pairs of a domain, the same for all rows, and with them the
    training seeds of each row. A mean counts every domain equally. Raises InputError for an
    evaluation without the task.

    Args:
        evaluations: row → domain → folder of the evaluation of each training seed; all rows have
            the same domains.
        seconds: row → CPU seconds, for the result.
        seeds: the number of training seeds, for the result.
        task: the task that all evaluations have scored, by Spearman's correlation.
        split: the split of the task.
    """
    from sts_dino.eval.compare.seeds import resample_data_seeds
    from sts_dino.eval.runs.records import read_evaluation
    from sts_dino.eval.scoring.bootstrap import compute_interval, compute_score, resample

    scores: dict[str, dict[str, float]] = {name: {} for name in evaluations}
    samples: dict[str, list[Samples]] = {name: [] for name in evaluations}
    first, *_ = evaluations
    for number, domain in enumerate(evaluations[first]):
        # Resample the outcomes of all evaluations of the domain
        outcomes = []
        for folders in evaluations.values():
            for folder in folders[domain]:
                outcomes.append(read_evaluation(folder).read_outcomes(task, split))
        resampled = resample(outcomes, "spearman", "all", SAMPLES, RESAMPLING_SEED + number)

        # Average over the training seeds of each row
        start = 0
        for name, folders in evaluations.items():
            positions = slice(start, start + len(folders[domain]))
            start = positions.stop
            values = [compute_score(outcome, "spearman") for outcome in outcomes[positions]]
            scores[name][domain] = round(float(np.mean(values)), 2)
            samples[name].append(resample_data_seeds(resampled[positions], 1, RESAMPLING_SEED))

    # Compare the means over domains
    over_first = {}
    first_samples = np.mean(samples[first], axis=0)
    for name in [name for name in evaluations if name != first]:
        interval = compute_interval(np.mean(samples[name], axis=0) - first_samples)
        difference = _average(scores[name]) - _average(scores[first])
        over_first[name] = Estimate(score=difference, low=interval.low, high=interval.high)
    rounded = {name: round(value, 1) for name, value in seconds.items()}
    return DomainResult(scores=scores, over_first=over_first, seeds=seeds, seconds=rounded)

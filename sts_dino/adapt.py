"""From a corpus to a compared encoder: sts-dino adapt CORPUS --out DIR

DIR/NAME.yaml, DIR/NAME.encoder.yaml    the recipes, proposed from the corpus
DIR/datasets/NAME-pairs/                the dataset's run directory
DIR/models/NAME-encoder/                the encoder's; beside it the base, the SimCSE baseline and the scores
DIR/annotations/                        human answers
DIR/report.html                         the report
DIR/estimate.json, steps.log            the estimate, and the messages of the stages
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from shlex import join, quote
from typing import Annotated, Any

import typer

from eval.tasks.own import OwnData, OwnFiles, read_own
from generation.executors.options import ClusterOptions
from hub import cli
from hub.assets import asset
from hub.contract.measured import Fidelity
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import ARTIFACTS, locked, read_manifest, require_complete
from hub.durable import sha256_file, write_text
from hub.errors import InputError
from hub.process import peak_rss_mb
from release.options import words_of
from release.stages import Step, Taken, answer_of, run_steps
from sts_dino.new import CorpusChoices, propose, propose_encoder, stem_of
from training.run import usage

TRIAL = 600  # fewest source sentences whose pairs gained over the SimCSE baseline (docs/better_pairs.md)
DATA = ("write", "verify")  # steps whose result is shown before the training
FEWEST = 40  # source sentences: fewer train no encoder
TIMED = 512  # texts that the encoder is timed on
STAGE = 300  # MiB beside a pilot's: libraries that finish a dataset, simcse-baseline that waits for its training
JUDGED_PER_SECOND = 60.0  # texts that all-MiniLM-L6-v2 embeds on one core, roughly
SCORED_TEXTS = 2_900  # distinct sentences of the STS Benchmark's validation part
CHOICES, ESTIMATE, LOG = "choices.json", "estimate.json", "steps.log"

app = cli.new_app(__doc__)


@dataclass(frozen=True)
class EncoderChoices:
    """What to train, and how many workers generate."""

    encoder: Annotated[
        str | None, typer.Option(help="Base encoder: prompteol, static, NAME of sts-dino lm, folder, ORG/NAME@REVISION")
    ] = None
    encoder_license: Annotated[
        str | None, typer.Option(help="Licence of another base encoder [default: its card's]")
    ] = None
    workers: Annotated[int | None, typer.Option(min=1, help="Workers that generate: threads, or one per GPU")] = None

    @property
    def base(self) -> tuple[str | None, str | None]:
        """The base encoder and its licence."""
        return self.encoder, self.encoder_license


@dataclass(frozen=True)
class Adaptation:
    """A dataset recipe, the model recipe that trains on its pairs, and the folder of their results.

    settings: of the model recipe, the place of its dataset. own, own_words: the user's files, read and as options.
    """

    out: Path
    dataset_recipe: Path
    model_recipe: Path
    dataset: DatasetRecipe
    model: ModelRecipe
    workers: int | None = None
    settings: tuple[str, ...] = ()
    own: OwnData = field(default_factory=OwnData)
    own_words: tuple[str, ...] = ()

    @classmethod
    def of(cls, out: Path, dataset_recipe: Path, model_recipe: Path, workers: int | None) -> "Adaptation":
        """Read both recipes; the model's dataset of that name is the run directory in ``out``. Raises InputError."""
        dataset = load_recipe(dataset_recipe, DatasetRecipe)
        if (dataset.source.limit or FEWEST) < FEWEST:
            allowed = f"at least {FEWEST} source sentences"
            raise InputError(f"{dataset_recipe}:source.limit", f"is {dataset.source.limit}", allowed=allowed)
        pairs = out / "datasets" / dataset.name
        paths = load_recipe(model_recipe, ModelRecipe).local_paths()
        settings = [f"{key}={json.dumps(str(pairs))}" for key, path in paths.items() if Path(path).name == pairs.name]
        if not any(setting.startswith("datasets.") for setting in settings):
            hint = f"path: datasets/{dataset.name}"
            raise InputError(f"{model_recipe}:datasets", f"does not name {dataset.name}", hint=hint)
        model = load_recipe(model_recipe, ModelRecipe, settings)
        return cls(out, dataset_recipe, model_recipe, dataset, model, workers, tuple(settings))

    @property
    def pairs(self) -> Path:
        """The dataset's run directory."""
        return self.out / "datasets" / self.dataset.name

    @property
    def encoder(self) -> Path:
        """The model's run directory."""
        return self.out / "models" / self.model.name

    @property
    def answers(self) -> Path:
        """The folder of human answers."""
        return self.out / "annotations"

    @property
    def model_words(self) -> list[str]:
        """The model recipe as the words of a command line."""
        return [str(self.model_recipe), *(word for setting in self.settings for word in ("--set", setting))]

    @property
    def downloads(self) -> dict[str, str]:
        """What the encoder is tested against on the user's files: the side of its evaluation, and its name."""
        from eval.encoders.load import MINILM, minilm_here
        from eval.runs.records import BASE, COMPARED

        base = self.model.base
        name = base.repo_id or Path(base.path or "").name
        is_minilm = MINILM.lower() in str(base.repo_id or base.path).lower().replace("_", "-")
        found = {COMPARED: f"{MINILM} as downloaded"} if minilm_here() and not is_minilm else {}
        if base.modules == "sentence-transformer":
            return {BASE: f"{MINILM if is_minilm else name} as downloaded", **found}
        return found or {BASE: f"the encoder {base.start}"}

    @property
    def is_judged(self) -> bool:
        """Whether label agreement is measured: by all-MiniLM-L6-v2, for English, where it is on this machine."""
        from eval.encoders.load import minilm_here

        return self.dataset.language == "en" and minilm_here() is not None


@dataclass(frozen=True)
class AdaptationEstimate:
    """Predicted seconds of each step, bytes on the disk, and the most memory of all processes together, in MiB."""

    write: float
    verify: float
    train: float
    control: float
    score: float
    rows: int
    disk: int
    memory_mb: float
    read: Sequence[str] = ()  # ``generation.inputs.sources.what_was_read``

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return self.write + self.verify + self.train + self.control + self.score


@app.command()
@cli.option_groups
def main(
    source: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS", help="A file of texts, ORG/NAME@REVISION of a Hub, or a recipe of sts-dino new (.yaml)"
        ),
    ],
    choices: CorpusChoices,
    encoder: EncoderChoices,
    files: OwnFiles,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="[default: artifacts/adapted/CORPUS's name]")] = None,
    only_estimate: Annotated[bool, typer.Option("--estimate", help="Predict time, disk and memory, and stop")] = False,
    as_json: cli.JsonOption = False,
) -> None:
    """Generate pairs for a corpus, measure them, train an encoder on them, score it, and report all of it on one page.

    The command first predicts its time. Stop it at any time; the same command resumes. The proposed recipes are in DIR:
    edit them and give the same command, or begin with sts-dino new.

    Examples:

      sts-dino adapt questions.csv --out questions

      sts-dino adapt questions.csv --out questions --estimate

      sts-dino adapt questions.csv --out questions --pairs judged.csv

      sts-dino adapt notizen.txt --lm gemma-3-270m --encoder static --limit 300
    """
    out = out or ARTIFACTS / "adapted" / stem_of(source)
    own = read_own(files)
    found = replace(proposed(source, out, choices, encoder), own=own, own_words=tuple(words_of(files)))
    with locked(out / ".adapt"):
        predicted = estimated(found)
        for line in predicted.read:
            cli.say(line)
        if only_estimate:
            cli.answer(shown(found, predicted), {"out": out, **asdict(predicted)}, as_json)
            return
        cli.say(shown(found, predicted))
        chain, took = steps(found, predicted), dict[str, Taken]()
        last_of_data = [step for step in chain if step.name in DATA][-1]

        def after(step: Step, taken: Taken | None) -> None:
            took.update({step.name: taken} if taken else {})
            if step == last_of_data:
                cli.say(quality(found))

        run_steps(chain, out / LOG, after, predicted.read)
        cli.say(compared(predicted, took))
        page = report_of(found)
    facts = {"out": out, "dataset": found.pairs, "encoder": found.encoder, "report": page}
    cli.answer(summary(found, page), facts, as_json, following(found))
    cli.say(usage(found.encoder))


def following(found: Adaptation) -> list[str]:
    """The commands that a person may want next; the second one prints the plan of a publication."""
    annotate = ["sts-dino", "annotate", str(found.pairs), "--out", str(found.answers)]
    return [join(annotate), join(["sts-dino", "publish", str(found.pairs), str(found.encoder)])]


def proposed(corpus: str, out: Path, choices: CorpusChoices, encoder: EncoderChoices) -> Adaptation:
    """The recipes in ``out``: those that exist, else proposed ones.

    Raises InputError for recipes that were proposed for another corpus or other options, and for what no recipe can be
    proposed for.
    """
    given = Path(corpus) if Path(corpus).suffix in (".yaml", ".yml") else None
    name = given.stem if given else stem_of(corpus)
    recipe = given or out / f"{name}.yaml"
    kept, chosen = out / CHOICES, {"corpus": Path(corpus).name, **asdict(choices), "encoder": encoder.base}
    before = {"kind": None, **json.loads(kept.read_text(encoding="utf-8"))} if kept.is_file() else None
    if before and before != json.loads(json.dumps(chosen)):
        hint = f"give another --out, edit {recipe}, or remove {out}"
        raise InputError(out, "was begun with another corpus or other options", hint=hint)
    if given and choices != CorpusChoices():
        raise InputError(corpus, "is a recipe, and these options are for a corpus", hint="edit the recipe")
    if choices.limit is not None and choices.limit < FEWEST:
        raise InputError("--limit", f"is {choices.limit}", allowed=f"{FEWEST} or more: fewer train no encoder")
    if not given and not recipe.exists():
        cli.say(propose(corpus, recipe, f"{name}-pairs", choices, FEWEST)["instructions"])
    own = recipe.with_name(f"{name}.encoder.yaml")
    asked = encoder.base != (None, None)
    model_recipe = own if given and own.exists() and not asked else out / own.name
    if model_recipe.exists() and asked and not kept.is_file():
        raise InputError("--encoder", f"{model_recipe} names the base encoder", hint="edit it, or give another --out")
    if not model_recipe.exists():
        dataset = load_recipe(recipe, DatasetRecipe)
        propose_encoder(dataset, model_recipe, f"datasets/{dataset.name}", *encoder.base)
    found = Adaptation.of(out, recipe, model_recipe, encoder.workers)
    write_text(kept, json.dumps(chosen) + "\n")  # after everything that may be refused
    return found


def estimated(found: Adaptation) -> AdaptationEstimate:
    """Predict all steps by pilots, or read the prediction for these recipes. Raises the error of a pilot."""
    path = found.out / ESTIMATE
    key = [sha256_file(one) for one in (found.dataset_recipe, found.model_recipe)]
    key += [f"{found.own.texts} own texts"] if found.own.texts else []
    if path.is_file():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["recipes"] == key:
            return AdaptationEstimate(**kept["estimate"])
    sample = found.out / "estimate.txt"
    write_text(sample, "".join(f"{' '.join(text.split())}\n" for text in sample_of(found)))
    try:
        cli.say("pilots on this machine: generating some texts, training some steps; half a minute if small ...")
        writing = answer_of("write", str(found.dataset_recipe), "--estimate", "--json")
        longest = ["--longest", str(found.dataset.decoding.max_new_tokens)]
        training = answer_of("estimate-training", *found.model_words, "--texts", str(sample), *longest, "--json")
    finally:
        sample.unlink()
    result = predicted_by(found, writing, training)
    write_text(path, json.dumps({"recipes": key, "estimate": asdict(result)}, indent=2) + "\n")
    return result


def predicted_by(found: Adaptation, writing: dict[str, Any], training: dict[str, Any]) -> AdaptationEstimate:
    """The estimate from the answers of both pilots. All processes that are alive together count for the memory.

    Workers in one process share the model, and without ``threads`` the cores that the pilot had.
    """
    start, load, workers = training["start_seconds"], training["load_seconds"], found.workers or 1
    apart = ClusterOptions(workers=found.workers).on_ray(found.dataset)
    scored = (SCORED_TEXTS if found.model.evaluation else 0) + found.own.texts
    embedding = 3 * scored / training["texts_per_second"]  # by the encoder, its base and its baseline
    released = start + 4 * load  # the untrained and the trained encoder are merged and written
    stages = max((workers if apart else 1) * writing["memory_mb"], training["memory"] / 2**20) + STAGE
    return AdaptationEstimate(
        write=writing["start_seconds"] + writing["seconds"] / (workers if apart or found.dataset.model.threads else 1),
        verify=start + 2 * writing["rows"] / JUDGED_PER_SECOND if found.is_judged else 0.0,
        train=released + training["training_seconds"],
        control=released + training["control_seconds"] if found.model.control else 0.0,
        score=start + 2 * load + embedding if scored else 0.0,
        rows=writing["rows"],
        disk=training["disk"],
        memory_mb=peak_rss_mb() + stages,
        read=writing["read"],
    )


def sample_of(found: Adaptation) -> list[str]:
    """Some texts of the corpus; for a corpus of a Hub, sentences of the examples."""
    from generation.inputs.sources import file_rows

    source = found.dataset.source
    if source.kind == "file" and source.path:
        texts = (cells[0] for cells in file_rows(Path(source.path), source.columns, source.path))
        return list(islice((text for text in texts if text.strip()), TIMED))
    return [cells[0] for cells in file_rows(asset("examples/sts.tsv"), ("text1",), "examples")]


def steps(found: Adaptation, predicted: AdaptationEstimate) -> list[Step]:
    """The stages in order. A stage is done when its run directory says so, so an edited recipe runs it again."""
    from eval.encoders.load import MINILM
    from eval.runs.records import COMPARED

    workers = ["--workers", str(found.workers)] if found.workers else []
    own = [*found.own_words, *(["--compare", MINILM] if COMPARED in found.downloads and found.own_words else [])]
    model, encoder = found.model_words, str(found.encoder)
    written = partial(_is_finished, found.pairs, found.dataset)
    trained = partial(_is_finished, found.encoder, found.model)
    chain: list[tuple[str, str, list[str], Callable[[], bool]]] = [
        ("write", "write", [str(found.dataset_recipe), "--out", str(found.pairs), *workers], written),
        ("verify", "fidelity", [str(found.pairs)], partial(_is_judged, found)),
        ("train", "train", [*model, "--out", encoder], trained),
        ("control", "simcse-baseline", [*model, "--model", encoder], partial(_has_baseline, found)),
        ("score", "score", [*model, "--model", encoder, *own], partial(_is_scored, found)),
    ]
    every = [Step(name, command, tuple(words), getattr(predicted, name), done) for name, command, words, done in chain]
    return [step for step in every if step.seconds]


def _is_finished(directory: Path, recipe: DatasetRecipe | ModelRecipe) -> bool:
    from hub.client.fetch import is_run_of

    manifest = read_manifest(directory)
    return manifest is not None and manifest.complete and is_run_of(manifest, recipe)


def _is_judged(found: Adaptation) -> bool:
    try:
        return Fidelity.read(found.pairs, require_complete(found.pairs)) is not None
    except InputError:  # measured on other rows
        return False


def _has_baseline(found: Adaptation) -> bool:
    from release.simcse import baseline_recipe, places, steps_of

    steps = steps_of(require_complete(found.encoder), found.encoder)
    return _is_finished(places(found.encoder)[1], baseline_recipe(found.model, steps))


def _is_scored(found: Adaptation) -> bool:
    """Whether every score is there; of a user's files the stage itself knows."""
    from release.repeats import is_scored

    return not found.own.tasks and is_scored(found.encoder, require_complete(found.encoder), found.model)


def shown(found: Adaptation, predicted: AdaptationEstimate) -> str:
    """The estimate as a table in minutes."""
    limit = found.dataset.source.limit
    what = {
        "write": f"about {predicted.rows:,} texts before filters, {limit or 'all'} source sentences",
        "verify": "label agreement",
        "train": f"{found.model.arguments.get('max_steps', '?')} steps",
        "control": "as many of the SimCSE baseline, on the source sentences alone",
        "score": f"the encoder {found.model.base.start}, the SimCSE baseline and the trained encoder",
    }
    minutes = {name: f"{getattr(predicted, name) / 60:.1f}" for name in [*what, "seconds"]}
    rows = [("step", "minutes", ""), *((name, minutes[name], what[name]) for name in what if minutes[name] != "0.0")]
    table = cli.aligned([*rows, ("all", minutes["seconds"], "")], right=(1,))
    room = f"disk {predicted.disk / 2**30:.1f} GiB in {found.out}, memory {predicted.memory_mb / 1024:.1f} GiB"
    few = f"a trial: generated pairs gained over the SimCSE baseline from {TRIAL} source sentences on\n"
    return f"estimate, by pilots on this machine:\n\n{table}\n\n{room}\n{few if (limit or TRIAL) < TRIAL else ''}"


def compared(predicted: AdaptationEstimate, took: dict[str, Taken]) -> str:
    """A line per step that ran: minutes and memory, predicted and taken; shared pages count once a process."""
    rows = [("step", "minutes", "predicted")]
    rows += [(name, f"{of.seconds / 60:.1f}", f"{getattr(predicted, name) / 60:.1f}") for name, of in took.items()]
    most = max((of.memory_mb for of in took.values()), default=0.0)
    memory = f"memory {most / 1024:.1f} GiB, predicted: at most {predicted.memory_mb / 1024:.1f} GiB"
    return f"{cli.aligned(rows, right=(1, 2))}\n{memory}"


def quality(found: Adaptation) -> str:
    """Random pairs of each label and the label agreement, with a warning when it is low."""
    from generation.run import random_pairs

    manifest = require_complete(found.pairs)
    lines = [random_pairs(found.pairs, manifest, found.dataset)]
    measured = Fidelity.read(found.pairs, manifest) if found.is_judged else None
    if measured is None:
        judge = "it needs English texts and all-MiniLM-L6-v2 (sts-dino lm all-minilm-l6-v2)"
        return "\n".join([*lines, f"label agreement is not measured: {judge}; read the pairs"])
    cosines = ", ".join(f"label {label} {of.cosine}" for label, of in measured.labels.items())
    lines.append(f"label agreement by {measured.judge.name}: mean cosine of {cosines}")
    if rank := measured.spearman:
        lines[-1] += f"; Spearman of score and cosine {rank}"
    return "\n".join([*lines, *filter(None, [measured.doubt()])])


def report_of(found: Adaptation) -> Path:
    """Write the report's page, with the human answers if there are some."""
    from sts_dino.report.run import report

    page = found.out / "report.html"
    answered = [found.answers] if (found.answers / "answers.sqlite").is_file() else []
    command = f"sts-dino adapt {quote(found.dataset_recipe.name)} --out {quote(found.out.name)}"  # may be published
    report([found.pairs, found.encoder], page, [command], annotations=answered)
    return page


def summary(found: Adaptation, page: Path) -> str:
    """Counts of each label, the scores before and after, and the place of the page."""
    from eval.runs.table import table
    from generation.run import summary as of_dataset
    from hub.contract.results import read_results

    parts = [of_dataset(found.pairs, require_complete(found.pairs))]
    if found.model.evaluation or found.own.tasks:
        parts.append(table(read_results(found.encoder / "results.json"), found.model.base.start))
    else:
        parts.append(f"the project has no evaluation data in {found.dataset.language!r}: judge some pairs yourself")
    return "\n\n".join([*parts, f"report: {page}", *filter(None, ["\n".join(verdicts(found))])])


def verdicts(found: Adaptation) -> list[str]:
    """Whether the encoder is better than the download on the user's files; nothing without such files."""
    from eval.compare.tables import compared as comparison_of
    from eval.compare.tables import own_words
    from eval.runs.records import beside, read_evaluation

    lines, folder = list[str](), beside(found.encoder)
    for side, name in found.downloads.items() if found.own.tasks else ():
        judged = comparison_of([read_evaluation(folder), read_evaluation(folder / side)]).verdicts
        lines += own_words(found.own.tasks, read_evaluation(folder).results.scores, judged, name)
    return lines

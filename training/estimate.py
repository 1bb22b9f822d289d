"""Estimate what a training takes on this machine, by a short pilot: ``sts-dino estimate-training``.

The pilot is the real training, stopped after some optimiser steps: same base, batch, loss and
trainer. It reads the recipe's rows or, for a dataset that does not exist yet, rows made of the
lines of a text file. It writes to a temporary folder and leaves nothing.
"""

import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from sts_dino.hub import cli
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.licences import choose_untaught_licence
from sts_dino.hub.contract.recipe import ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.errors import InputError
from sts_dino.hub.process import measure_peak_rss_mb, measure_seconds_since_start
from sts_dino.training.data.objectives import (
    DOCUMENTS,
    EXAMPLE_TYPES,
    GRADED_TRIPLET,
    QUERY_PAIR,
    SELF_PAIR,
    TRIPLET,
    ExampleType,
    check_losses,
    parse_argument,
)
from sts_dino.training.loop.job import TrainingJob, prepare
from sts_dino.training.run import count_steps

FEWEST_PILOT_STEPS = 4  # optimiser steps
TIMED_TEXTS = 64  # texts that the encoder embeds to time scoring
# ``sts-dino score`` compares the trained encoder, the untrained one and the SimCSE baseline
SCORED_ENCODERS = 3
ADAM_MOMENTS = 2  # float32 values that a checkpoint holds for each trained weight, beside it
FLOAT_BYTES = 4  # of a float32
STSB_TEXT_COLUMN = 5  # sentence1 in a row of the STS Benchmark, from 0
MIB = 1 << 20
GIB = 1 << 30
# a pilot chooses no checkpoint and reports nothing
PILOT_SETTINGS = ["validation=[]", "merge=null", "arguments.report_to=none"]

app = cli.make_app(__doc__)


@dataclass(frozen=True)
class TrainingEstimate:
    """Predicted cost of a training on this machine; memory and disk in bytes.

    Attributes:
        steps: optimiser steps of the whole run.
        batch_size: rows of a step.
        pilot_steps: the steps that the pilot trained.
        start_seconds: from the start of the process until the encoder is built.
        load_seconds: the part of ``start_seconds`` that builds the encoder.
        step_seconds: the median of the pilot's steps.
        training_seconds: all steps of the run.
        control_seconds: all steps of the SimCSE baseline; 0.0 without one.
        texts_per_second: texts that the encoder embeds in a second.
        memory: the pilot's peak on the device that trains, or the need of scoring if that is more.
        disk: the trained and the untrained encoder, the baseline if any, and one checkpoint.
    """

    steps: int
    batch_size: int
    pilot_steps: int
    start_seconds: float
    load_seconds: float
    step_seconds: float
    training_seconds: float
    control_seconds: float
    texts_per_second: float
    memory: int
    disk: int

    def __str__(self) -> str:
        return (
            f"{self.steps} steps of {self.step_seconds:.2f} s: "
            f"{self.training_seconds / 60:.1f} min, "
            f"SimCSE baseline {self.control_seconds / 60:.1f} min; "
            f"scoring: {self.texts_per_second:.0f} texts/s; "
            f"memory {self.memory / GIB:.1f} GiB, disk {self.disk / GIB:.1f} GiB\n"
            f"memory is the peak of {self.pilot_steps} steps with whole batches "
            f"of {self.batch_size} rows; a batch of longer texts takes more"
        )


@app.command()
def main(
    recipe: cli.RecipeArgument,
    texts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Texts to train on, one a line [default: the datasets]"),
    ] = None,
    longest: Annotated[int, typer.Option(min=0, help="Tokens of the longest generated text")] = 0,
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
    as_json: cli.JsonOption = False,
) -> None:
    """Train RECIPE's encoder for some steps, and predict time, memory and disk of the run.

    With --texts, rows are made of the lines of FILE: for a dataset that does not exist yet.

    Example:

      sts-dino estimate-training recipes/my-encoder.yaml --texts sentences.txt
    """
    checked = load_recipe(recipe, ModelRecipe, settings)
    if checked.is_baseline:
        raise InputError(
            recipe, "is a baseline, which is not trained", hint="estimate a recipe with datasets"
        )
    with TemporaryDirectory() as folder:
        if texts is not None:
            rows = make_pilot_data(checked, recipe, texts, longest, Path(folder))
            settings = [*settings, *rows]
        estimate = run_pilot(recipe, settings, Path(folder))
    cli.print_answer(str(estimate), asdict(estimate), as_json)


def make_pilot_data(
    recipe: ModelRecipe, recipe_path: Path, file: Path, longest: int, folder: Path
) -> list[str]:
    """Write training data made from a text file, for a pilot before the recipe's data exist.

    Returns the settings (``KEY=VALUE``) that make the recipe read these data. The data imitate the
    recipe's first dataset.

    Args:
        recipe: the recipe, which has datasets.
        recipe_path: its file, which errors name.
        file: texts, one a line.
        longest: the last text of the first row has at least this many tokens; 0: no such text. It
            has no effect for documents and self-pairs, whose texts are those of ``file``.
        folder: an existing folder, where the data are written.

    Raises InputError for a file that is missing, is not UTF-8 or has no text, and for a loss that
    does not fit its dataset. Raises InputError also for a recipe without ``arguments.max_steps``:
    the steps of an epoch follow from data that do not exist yet.
    """
    check_losses(recipe, str(recipe_path))
    texts = _read_texts(file)
    where_steps = f"{recipe_path}:arguments.max_steps"
    if parse_argument(recipe.arguments.get("max_steps", "0"), int, where_steps) <= 0:
        raise InputError(
            where_steps,
            "is not given",
            allowed="a number of steps",
            hint="its dataset is not there to count; sts-dino check RECIPE counts it later",
        )

    text_file = folder / "texts.txt"
    text_file.write_text("\n".join(texts) + "\n", encoding="utf-8")

    # The rows imitate the first dataset alone. Their ``license`` is a placeholder, because they are
    # never published.
    spec = recipe.datasets[0]
    example_type = EXAMPLE_TYPES[spec.example_type]
    entry = spec.model_dump(mode="json", include={"loss", "loss_arguments", "spans", "guide"})
    entry |= {"config": "default", "license": "cc0-1.0", "path": str(text_file)}
    if example_type not in (DOCUMENTS, SELF_PAIR):
        # A graded type has rows of another type in its dataset; the pilot writes the trainer's.
        if example_type.made_from is not None:
            example_type = TRIPLET if example_type == GRADED_TRIPLET else QUERY_PAIR
        row_count = FEWEST_PILOT_STEPS * recipe.batch_size
        rows = _make_rows(texts, row_count, longest, example_type, Random(recipe.seed))
        row_file = folder / "rows.jsonl"
        row_file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        entry["path"] = str(row_file)
    entry["example_type"] = example_type.name
    overrides = [f"datasets={json.dumps([entry])}", f"license={choose_untaught_licence(recipe)}"]

    # A cut vocabulary keeps the tokens of the same texts.
    if recipe.base.vocabulary is not None:
        included = {"size", "dimensions", "sif"}
        vocabulary = recipe.base.vocabulary.model_dump(mode="json", include=included)
        vocabulary["path"] = str(text_file)
        overrides.append(f"base.vocabulary={json.dumps(vocabulary)}")
    return overrides


def _read_texts(file: Path) -> list[str]:
    """Return the lines of a file that are not blank, in order.

    Raises InputError for a missing file, for one that is not UTF-8 and for one without text.
    """
    try:
        content = file.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(file, "no such file", hint="give a file of texts, one a line") from error
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 (byte {error.start})"
        raise InputError(file, problem, hint="save it as UTF-8") from error
    texts = [line for line in content.splitlines() if line.strip()]
    if not texts:
        raise InputError(file, "holds no text", allowed="at least one line")
    return texts


def _make_rows(
    texts: list[str], row_count: int, longest: int, example_type: ExampleType, random: Random
) -> Iterator[dict[str, Any]]:
    """Yield ``row_count`` training rows (column → value) of texts drawn at random, with repetition.

    A target, if the type has one, is the lowest and the highest value in turn. The last text of
    the first row has ``longest`` tokens or more; 0: it is like the others.
    """
    target = example_type.target
    for number in range(row_count):
        row: dict[str, Any] = {column: random.choice(texts) for column in example_type.text_columns}
        if number == 0 and longest:
            # A word has at least one token, so ``longest`` words have at least as many tokens.
            words = cycle(" ".join(texts).split())
            row[example_type.text_columns[-1]] = " ".join(islice(words, longest))
        if target is not None:
            row[target.column] = target.high if number % 2 else target.low
        yield row


def run_pilot(path: Path, settings: list[str], folder: Path) -> TrainingEstimate:
    """Train a recipe's encoder for some steps, and predict time, memory and disk of the run.

    Args:
        path: the recipe file.
        settings: overrides of the recipe, ``KEY=VALUE`` or ``@FILE``.
        folder: an existing folder, into which the untrained encoder is written; it is not removed.

    Raises InputError for a recipe, base or data that cannot be trained, RunError when the Hub
    cannot be read, training diverges or fills a GPU's memory, or the saved tokenizer gives other
    ids. A GPU's memory that is full before or after the training steps is torch's own error.
    """
    import torch

    from sts_dino.training.data.rows import convert_stream_errors
    from sts_dino.training.encoder.encoder import save_release
    from sts_dino.training.loop.train import (
        ProgressReporter,
        StepTimer,
        build_untrained_encoder,
        convert_memory_errors,
        make_trainer,
    )

    # The recipe's job, without validation and checkpoints.
    job = prepare(path, folder / "pilot", None, [*settings, *PILOT_SETTINGS])
    job = replace(job, evaluator=None)
    job.arguments.set_evaluate("no")
    job.arguments.set_save("no")
    job.arguments.load_best_model_at_end = False

    # Build the untrained encoder, and write it as the run does: its files give the disk space.
    if job.recipe.threads is not None:
        torch.set_num_threads(job.recipe.threads)
    libraries_mb = measure_peak_rss_mb()
    started = time.monotonic()
    encoder = build_untrained_encoder(job)
    load_seconds = time.monotonic() - started
    start_seconds = measure_seconds_since_start()
    encoder_folder = job.get_path("base")
    save_release(encoder, encoder_folder, job.recipe.base, job.base, job.recipe.lora)

    # Train some steps, and time each.
    timer = StepTimer(FEWEST_PILOT_STEPS)
    with convert_stream_errors(job.sets[0].spec), convert_memory_errors():
        trainer = make_trainer(job, encoder, "pilot")
        trainer.remove_callback(ProgressReporter)
        trainer.add_callback(timer)
        trainer.train()
    # The first step also fills caches, so it is left out unless it is the only one.
    step_seconds = statistics.median(timer.seconds[1:] or timer.seconds)
    texts_per_second = _time_encoding(encoder, job.recipe.seed)

    # Memory: the peak of training, or that of several encoders while scores are compared.
    weight_bytes = sum(weight.numel() * weight.element_size() for weight in encoder.parameters())
    scoring_mb = libraries_mb + SCORED_ENCODERS * weight_bytes / MIB
    memory = int(max(measure_peak_rss_mb(), scoring_mb) * MIB)
    if encoder.device.type == "cuda":
        memory = max(torch.cuda.max_memory_allocated(), SCORED_ENCODERS * weight_bytes)

    # Disk: the trained and the untrained encoder, the baseline and a checkpoint.
    encoder_bytes = sum(file.stat().st_size for file in encoder_folder.rglob("*") if file.is_file())
    encoder_count = 3 if job.recipe.control else 2
    trained = [*trainer.encoder_parameters.values(), *trainer.loss_parameters.values()]
    trained_weights = sum(weight.numel() for weight in trained)
    checkpoint_bytes = (1 + ADAM_MOMENTS) * FLOAT_BYTES * trained_weights

    steps = count_steps(job)
    training_seconds = step_seconds * steps
    return TrainingEstimate(
        steps=steps,
        batch_size=job.recipe.batch_size,
        pilot_steps=len(timer.seconds),
        start_seconds=start_seconds,
        load_seconds=load_seconds,
        step_seconds=step_seconds,
        training_seconds=training_seconds,
        control_seconds=training_seconds * _get_baseline_share(job),
        texts_per_second=texts_per_second,
        memory=memory,
        disk=encoder_count * encoder_bytes + checkpoint_bytes,
    )


def _get_baseline_share(job: TrainingJob) -> float:
    """Return the SimCSE baseline's seconds per second of training; 0 without a baseline.

    A step's time is taken as proportional to its number of texts. A row of the baseline has two
    texts, a row of the recipe's first dataset two or three.
    """
    if not job.recipe.control:
        return 0.0
    example_type = EXAMPLE_TYPES[job.sets[0].spec.example_type]
    return 2 / max(2, len(example_type.text_columns))


def _time_encoding(encoder: Any, seed: int) -> float:
    """Return how many sentences of the STS Benchmark the encoder embeds in a second.

    ``TIMED_TEXTS`` sentences are timed, drawn from the validation split by ``seed``, with
    repetition.
    """
    rows = find_asset("stsb/sts-dev.csv").read_text(encoding="utf-8").splitlines()
    sampled_rows = Random(seed).choices(rows, k=TIMED_TEXTS)
    texts = [row.split("\t")[STSB_TEXT_COLUMN] for row in sampled_rows]
    started = time.monotonic()
    encoder.encode(texts, show_progress_bar=False)
    return len(texts) / (time.monotonic() - started)

"""Compare evaluations: ``sts-dino compare A B C [--out DIR]``.

Prints the scores and the verdict on every pair of models, and writes ``comparison.md``, CSV files
and plots. Evaluations are read as they are on disk; nothing is encoded.
"""

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, product
from pathlib import Path
from typing import Annotated, Any

import typer

from sts_dino.eval.compare import tables
from sts_dino.eval.compare.tables import AverageRow, Comparison, ScoreRow, make_result_tables
from sts_dino.eval.runs.records import FinishedEvaluation, Record, read_evaluation
from sts_dino.eval.scoring.bootstrap import EvaluationSettings
from sts_dino.eval.scoring.paired import (
    Difference,
    Measurement,
    Verdict,
    adjust_verdicts,
    resample_together,
)
from sts_dino.eval.tasks.registry import is_averaged
from sts_dino.hub.cli import JsonOption, make_app, print_answer
from sts_dino.hub.contract.results import TaskScore
from sts_dino.hub.contract.run_dir import ARTIFACTS
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError
from sts_dino.hub.untrusted import make_visible_line

logger = logging.getLogger(__name__)

MAX_FOLDER_CHARACTERS = 80  # of the models' names in the default folder's name
Evaluations = Mapping[str, FinishedEvaluation]  # label of the model → evaluation


app = make_app("Compare evaluations: which differences between scored encoders are significant.")


@app.command()
def main(
    evaluations: Annotated[
        list[Path],
        typer.Argument(metavar="EVALUATION...", help="Evaluations, scored models or results files"),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="[default: artifacts/comparisons/NAMES]")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare evaluations: scores, paired intervals, a verdict for each pair of models; tables and
    plots.

    Example:

      sts-dino compare artifacts/models/A artifacts/evaluations/B --out /tmp/comparison
    """
    compare(evaluations, out, as_json)


def compare(
    locations: Sequence[str | Path], out: Path | None = None, as_json: bool = False
) -> Comparison:
    """Compare evaluations, write the comparison to a folder, print it and return it.

    Args:
        locations: folders of records, run directories of models, or results.json files.
        out: the folder to write; None: artifacts/comparisons/NAMES.
        as_json: print the tables as JSON.

    Before anything is written, raises InputError for fewer than two locations, for a location given
    twice or without results, when no two evaluations share a measurement, and for scored rows that
    do not belong to the results; RunError when the rows cannot be resampled.
    """
    # Refuse a single location, and one that is given twice
    paths = [Path(location).resolve() for location in locations]
    if len(paths) < 2:
        raise InputError(
            "compare", f"needs two evaluations or more, {len(paths)} given", hint="name two"
        )
    for location, path in zip(locations, paths, strict=True):
        if paths.count(path) > 1:
            raise InputError("compare", f"{location} is given twice")

    # Compare, write and print
    comparison = compare_evaluations([read_evaluation(location) for location in locations])
    folder = out or ARTIFACTS / "comparisons" / make_folder_name(comparison.models)
    write_comparison(comparison, folder)
    result_tables = make_result_tables(comparison)
    facts: dict[str, Any] = {"directory": folder}
    facts |= {table.title: [table.header, *table.rows] for table in result_tables}
    print_answer("\n\n".join(map(tables.format_text, result_tables)), facts, as_json)
    logger.info(f"written: {folder}")
    return comparison


def write_comparison(comparison: Comparison, folder: Path) -> None:
    """Write comparison.md, scores.csv, differences.csv and the plots of a comparison.

    ``folder`` is made if it is missing. Existing files are replaced, each atomically.
    """
    from sts_dino.eval.compare.plots import write_plots  # importing matplotlib takes seconds

    images = write_plots(comparison, folder)
    document = tables.format_markdown(make_result_tables(comparison), images)
    write_text(folder / "comparison.md", document)
    write_text(folder / "scores.csv", tables.format_scores_csv(comparison))
    write_text(folder / "differences.csv", tables.format_verdicts_csv(comparison))


def make_folder_name(models: Sequence[str]) -> str:
    """Return the name of a folder for a comparison of models: their names, and a hash of these.

    Characters that are unsafe in a path become "-", and the joined names are cut to
    ``MAX_FOLDER_CHARACTERS``; the hash keeps the folders of other models apart.
    """
    names = [re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model" for name in models]
    digest = hashlib.sha256("\n".join(models).encode()).hexdigest()[:8]
    return f"{'--'.join(names)[:MAX_FOLDER_CHARACTERS].strip('-.')}-{digest}"


def compare_evaluations(evaluations: Sequence[FinishedEvaluation]) -> Comparison:
    """Compare evaluations on the measurements that they share.

    Raises InputError when no two evaluations share a measurement, and for scored rows that are not
    those of the evaluation's results; RunError when the rows cannot be resampled.
    """
    by_label = dict(zip(make_labels(evaluations), evaluations, strict=True))
    rows = _list_score_rows(by_label)
    if not any(len(row.scores) > 1 for row in rows):
        raise _make_mismatch_error(by_label)

    # Resample with the settings that all evaluations share: the differences are then those on the
    # model's card. Evaluations with different settings are compared with the default settings
    all_settings = set()
    for evaluation in evaluations:
        results = evaluation.results
        all_settings.add(
            EvaluationSettings(bootstrap_samples=results.bootstrap_samples, seed=results.seed)
        )
    settings = all_settings.pop() if len(all_settings) == 1 else EvaluationSettings()

    # Verdicts are collected by pair of models: p-values are adjusted over the tasks of a pair
    verdicts: dict[tuple[str, str], list[Verdict]] = {
        pair: [] for pair in combinations(by_label, 2)
    }
    for row in rows:
        for verdict in _make_verdicts(row, by_label, settings):
            verdicts[verdict.first, verdict.second].append(verdict)
    return Comparison(
        models=tuple(by_label),
        rows=rows,
        averages=_list_average_rows(by_label, rows),
        verdicts=tuple(chain.from_iterable(map(adjust_verdicts, verdicts.values()))),
        settings=settings,
        versions=_list_unlike_versions(by_label),
    )


def make_labels(evaluations: Sequence[FinishedEvaluation]) -> list[str]:
    """Return a distinct label of one line for each evaluation: the model's name.

    A name of several evaluations is followed by eight characters of the revision. A label that is
    still not distinct is followed by a number.
    """
    names = [make_visible_line(evaluation.results.model) for evaluation in evaluations]
    labels: list[str] = []
    for name, evaluation in zip(names, evaluations, strict=True):
        label = name
        if names.count(name) > 1:
            label = f"{name}@{evaluation.results.revision[:8]}"
        numbered = label
        number = 1
        while numbered in labels:
            number += 1
            numbered = f"{label} ({number})"
        labels.append(numbered)
    return labels


def _list_unlike_versions(evaluations: Evaluations) -> tuple[str, ...]:
    """Return a line for each library whose version differs between scores.

    The line is ``library: version (models), version (models)``.
    """
    # Library → version → models in order
    models: dict[str, dict[str, dict[str, None]]] = {}
    for label, evaluation in evaluations.items():
        for score in evaluation.results.scores:
            for library, version in (evaluation.results.versions | score.versions).items():
                models.setdefault(library, {}).setdefault(version, {})[label] = None
    unlike = []
    for library, versions in models.items():
        if len(versions) > 1:
            parts = (f"{version} ({', '.join(labels)})" for version, labels in versions.items())
            unlike.append(f"{library}: {', '.join(parts)}")
    return tuple(unlike)


def _list_score_rows(evaluations: Evaluations) -> tuple[ScoreRow, ...]:
    """Return a row for each measurement, in the order in which the models' results list the tasks.

    The first model's tasks come first, then those that only later models have. Different
    measurements of one task and split follow each other.
    """
    tasks: dict[tuple[str, str], dict[Measurement, ScoreRow]] = {}
    for label, evaluation in evaluations.items():
        for score in evaluation.results.scores:
            rows = tasks.setdefault((score.task, score.split), {})
            measurement = Measurement.from_score(score)
            rows.setdefault(measurement, ScoreRow(measurement, {})).scores[label] = score
    return tuple(chain.from_iterable(rows.values() for rows in tasks.values()))


def _make_mismatch_error(evaluations: Evaluations) -> InputError:
    """Make the error for the first two models, which share no measurement.

    The error says how their measurements of a common task and split differ. Without such a task it
    names the scores of each model.
    """
    # List the scores of each model
    first, second = list(evaluations)[:2]
    first_scores = evaluations[first].results.scores
    second_scores = evaluations[second].results.scores
    problem = f"{first} has {_describe_scores(first_scores)}; "
    problem += f"{second} has {_describe_scores(second_scores)}"

    # Name instead the differences of the first task and split that both have
    for first_score, second_score in product(first_scores, second_scores):
        task = f"{first_score.task} {first_score.split}"
        if task == f"{second_score.task} {second_score.split}":
            other = Measurement.from_score(second_score)
            unlike = Measurement.from_score(first_score).describe_mismatch(other)
            problem = f"{task}: {unlike}"
            break
    return InputError(
        f"{first} and {second}",
        f"share no measurement: {problem}",
        hint="score both under one protocol: sts-dino score --tasks TASK",
    )


def _describe_scores(scores: Sequence[TaskScore]) -> str:
    """Return the tasks and protocols of the first two scores, and the number of further scores."""
    if not scores:
        return "no score"
    names = ", ".join(f"{score.task} {score.split} ({score.protocol})" for score in scores[:2])
    return f"{names} and {len(scores) - 2} more" if len(scores) > 2 else names


def _make_verdicts(
    row: ScoreRow, evaluations: Evaluations, settings: EvaluationSettings
) -> Iterator[Verdict]:
    """Yield a verdict for each pair of models with a score in ``row``, all on the same resamples.

    The p-values are not adjusted yet. The difference of a pair is not tested when the evaluation of
    one model kept no scored rows. ``settings``: the number of resamples and their seed.

    Raises InputError for scored rows that are not those of the evaluation's results, RunError when
    the rows cannot be resampled.
    """
    task, split = row.measurement.task, row.measurement.split

    # Resample together the models whose scored rows were kept
    records: dict[str, Record] = {}
    for label in row.scores:
        record = evaluations[label].records.find(task, split)
        if record is not None and record.metric is not None:
            records[label] = record
    systems = None
    if len(records) > 1:
        record = next(iter(records.values()))
        assert record.metric is not None
        outcomes = [evaluations[label].read_outcomes(task, split) for label in records]
        systems = resample_together(outcomes, record.metric, record.aggregation, settings)
    positions = {label: position for position, label in enumerate(records)}

    # Compare each pair of models
    for first, second in combinations(row.scores, 2):
        scores = (row.scores[first], row.scores[second])
        difference = Difference(scores[0].main_score - scores[1].main_score)
        if systems is not None and first in positions and second in positions:
            difference = systems.compare(positions[first], positions[second], scores)
        yield Verdict(first, second, row.measurement, difference)


def _list_average_rows(
    evaluations: Evaluations, rows: Sequence[ScoreRow]
) -> tuple[AverageRow, ...]:
    """Return a row for each average of any model, in the order of the models' results.

    A model is left out of an average when its measurements of the tasks differ from those of the
    first model with this average.
    """
    average_rows: dict[str, AverageRow] = {}
    # Average → the measurements of the first model with this average
    first_measurements: dict[str, frozenset[Measurement]] = {}
    for label, evaluation in evaluations.items():
        measurements = {
            row.measurement.task: row.measurement
            for row in rows
            if label in row.scores and is_averaged(row.measurement.task, row.measurement.split)
        }
        for average in evaluation.results.averages:
            parts = frozenset(measurements[task] for task in average.tasks if task in measurements)
            average_row = average_rows.setdefault(average.name, AverageRow(average, {}))
            if parts == first_measurements.setdefault(average.name, parts):
                average_row.scores[label] = average.score
    return tuple(average_rows.values())

"""Score an encoder, its untrained base and its control, and write the results; one call for notebooks."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from eval.encoders.load import Encoder, load_encoder
from eval.runs.evaluate import ScoredEncoder, evaluate
from eval.runs.job import EvaluationJob, find_entries
from eval.runs.records import BASE, CONTROL, RESULTS, Records
from eval.runs.summary import everything, only, summarise
from eval.statistics.scores import EvaluationSettings
from eval.tasks.sources import Source
from eval.tasks.task_data import TaskData
from hub.cli import say
from hub.contract.results import Results, write_results
from hub.contract.run_dir import locked
from hub.errors import RunError


def score_encoder(
    encoder: Encoder | str,
    tasks: Sequence[str],
    source: Source | None = None,
    settings: EvaluationSettings | None = None,
    out: Path | None = None,
    cache: Path | None = None,
) -> Results:
    """The scores of an encoder on tasks and groups, each with its interval: what a notebook calls.

    encoder: a folder, a Hub id ``ORG/NAME[@REVISION]``, or a function in ``eval.encoders.load.wrap``. ``source`` is
    where data are read (the STS Benchmark ships with the project), ``out`` keeps records as ``sts-dino score``
    does, ``cache`` the embeddings; without them nothing is kept. Raises InputError for unknown tasks, data that are not
    there and encoders that give no usable embeddings, RunError when a task cannot be scored.
    """
    source, settings = source or Source(), settings or EvaluationSettings()
    data = TaskData(source, settings.limit, settings.seed)
    loaded = load_encoder(encoder) if isinstance(encoder, str) else encoder
    with TemporaryDirectory() as temporary:
        records = Records(out or Path(temporary))
        with locked(records.folder):
            entries, absent = find_entries(tasks, source)
            if absent:
                say(f"left out, because no source of their data is given: {', '.join(task.name for task in absent)}")
            scored = evaluate(entries, data, loaded, records, settings, cache)
            if scored.failures:
                raise scored.failures[0]
            results = summarise(scored, None, settings)
            write_results(records.folder / RESULTS, results)
    return results


def score(job: EvaluationJob, data: TaskData) -> tuple[Results, list[RunError]]:
    """Score the job's encoders and write the results; those asked for, and what could not be scored."""
    model = load_encoder(job.model)
    others = {name: load_encoder(place) for name, place in ((BASE, job.base), (CONTROL, job.control)) if place}
    folder, settings = job.records.folder, job.settings
    with locked(folder):
        job.records.clear_leftovers()
        scored = evaluate(job.entries, data, model, job.records, settings, job.cache)
        failures, whole = list(scored.failures), everything(scored, settings)
        sides = dict[str, ScoredEncoder]()
        for name, encoder in others.items():
            found = evaluate(job.entries, data, encoder, Records(folder / name), settings, job.cache)
            failures += found.failures
            sides[name] = everything(found, settings)
        written = summarise(whole, sides.get(BASE), settings, sides.get(CONTROL))
        _write(folder / RESULTS, written)
        for name, side in sides.items():
            write_results(folder / name / RESULTS, summarise(side, None, settings))
        if job.results is not None:
            _write(job.results, written)
    return only(written, [record.key for record in scored.records]), failures


def _write(path: Path, results: Results) -> None:
    write_results(path, results)
    say(f"written: {path}")

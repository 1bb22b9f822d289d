"""Score an encoder: ``sts-dino score MODEL [--tasks sts,transfer] [--pairs mine.csv]``.

Scores a recipe's model on the recipe's tasks, or any folder, Hub id or function on any tasks and on
a user's own files, and its untrained base on the same bootstrap resamples. A killed run resumes at
the next task.
"""

from shlex import quote

from sts_dino.eval.audit.command import silence_transformers
from sts_dino.eval.encoders.load import require_model
from sts_dino.eval.runs.job import Request, check_job, describe_job, prepare_job
from sts_dino.eval.runs.records import COMPARED_FOLDER, read_evaluation
from sts_dino.eval.scoring.paired import Verdict
from sts_dino.eval.tasks.own import OwnFiles, read_own
from sts_dino.eval.tasks.sources import Repository, Source, TaskReader
from sts_dino.hub.cli import (
    DryRunOption,
    FileOptions,
    JsonOption,
    make_app,
    print_answer,
    unpack_option_groups,
)
from sts_dino.hub.errors import RunError

app = make_app("Score a sentence encoder.")


@app.command()
@unpack_option_groups
def main(
    request: Request,
    files: OwnFiles,
    reading: FileOptions,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Score an encoder on tasks that state their protocol, with 95 % bootstrap intervals; scores
    are x 100.

    Groups of tasks: sts, sts-original, transfer, transfer-lbfgs, probing, probing-lbfgs, papers;
    the four of classifiers also with -validation, for choices without test rows. mteb/NAME is any
    task, benchmark or task type of MTEB.

    Examples:

      sts-dino score recipes/demo/demo-sts-dino.yaml

      sts-dino score ORG/NAME@v1.0.0 --tasks sts,transfer --skip snli/senteval --senteval-data DIR

      sts-dino score ORG/NAME --pairs mine.csv --compare all-MiniLM-L6-v2

      sts-dino score ORG/NAME --pairs export.csv --columns frage_a,frage_b,bewertung
    """
    # Prepare the job, and check its data and the names of its models before a model is loaded
    repository = Repository.parse(request.hub_data) if request.hub_data else None
    source = Source(
        request.senteval_data, request.sts_data, repository, own=read_own(files, reading)
    )
    job = prepare_job(request, source)
    data = TaskReader(source, job.settings.limit, job.settings.seed)
    check_job(job, data)
    if dry_run:
        lines = describe_job(job, data)
        print_answer("\n".join(lines), {"plan": lines}, as_json)
        return
    for model in (job.model, job.base, job.control, job.compared):
        if model:
            require_model(model)

    # Score the encoders; importing torch takes seconds
    import torch

    from sts_dino.eval.compare.run import compare_evaluations
    from sts_dino.eval.compare.tables import (
        describe_own_scores,
        format_results,
        format_text,
        make_result_tables,
    )
    from sts_dino.eval.runs.score import score_job

    silence_transformers()
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    results, failures = score_job(job, data)

    # Format the tables, and a sentence about each of the user's own files
    parts = [format_results(results, job.start)]
    facts = results.model_dump(mode="json")
    verdicts: tuple[Verdict, ...] = ()
    if job.compared and results.scores:
        folder = job.records.folder
        evaluations = [read_evaluation(folder), read_evaluation(folder / COMPARED_FOLDER)]
        comparison = compare_evaluations(evaluations)
        verdicts = comparison.verdicts
        if not results.base_scores:  # the comparison's table has the same scores
            parts.clear()
        for table in make_result_tables(comparison):
            parts.append(format_text(table))
            facts[table.title] = [table.header, *table.rows]
    own = describe_own_scores(data.source.own.tasks, results.scores, verdicts)
    if own:
        parts.append("\n".join(own))
    next_steps = [f"sts-dino card {quote(job.model)}"] if job.results else []
    print_answer("\n\n".join(parts), facts | {"own": own}, as_json, next_steps)

    # Exit with an error if a task has no score
    if failures:
        raise RunError(
            "evaluation", f"{len(failures)} not scored, see above", hint="the others are written"
        )
    if job.left_out:
        names = ",".join(job.left_out)
        raise RunError(
            "evaluation",
            f"left out, because no source of their data is given: {names}",
            hint="the others are written; name their data (--senteval-data, --sts-data, "
            f"--hub-data), or --skip {names}",
        )

"""Score an encoder: ``sts-dino score MODEL [--tasks sts,transfer] [--senteval-data DIR] [--pairs mine.csv]``.

Scores a recipe's model on the recipe's tasks, or any folder, Hub id or function on any tasks and on a user's own files,
and its untrained base on the same bootstrap resamples. A killed run resumes at the next task.
"""

from shlex import quote

from eval.audit.command import quiet_transformers
from eval.encoders.load import require_model
from eval.runs.job import Request, check, plan, prepare
from eval.runs.records import COMPARED, read_evaluation
from eval.statistics.paired import Verdict
from eval.tasks.hub import Repository
from eval.tasks.own import OwnFiles, read_own
from eval.tasks.sources import Source, TaskData
from hub.cli import DryRunOption, JsonOption, answer, new_app, option_groups
from hub.errors import RunError

app = new_app("Score a sentence encoder.")


@app.command()
@option_groups
def main(request: Request, files: OwnFiles, dry_run: DryRunOption = False, as_json: JsonOption = False) -> None:
    """Score an encoder on tasks that state their protocol, with 95 % bootstrap intervals; scores are x 100.

    Groups of tasks: sts, sts-original, transfer, transfer-lbfgs, probing, probing-lbfgs, papers; the four of
    classifiers also with -validation, for choices without test rows. mteb/NAME is any task, benchmark or task type of
    MTEB.

    Examples:

      sts-dino score recipes/demo/demo-sts-dino.yaml

      sts-dino score ORG/NAME@v1.0.0 --tasks sts,transfer --skip snli/senteval --senteval-data DIR

      sts-dino score ORG/NAME --pairs mine.csv --compare all-MiniLM-L6-v2
    """
    repository = Repository.parse(request.hub_data) if request.hub_data else None
    source = Source(request.senteval_data, request.sts_data, repository, own=read_own(files))
    job = prepare(request, source)
    data = TaskData(source, job.settings.limit, job.settings.seed)
    check(job, data)
    if dry_run:
        lines = list(plan(job, data))
        answer("\n".join(lines), {"plan": lines}, as_json)
        return
    for model in filter(None, (job.model, job.base, job.control, job.compared)):
        require_model(model)
    import torch  # it costs seconds

    from eval.compare.tables import compared, own_words, result_tables, text
    from eval.runs.score import score
    from eval.runs.table import table

    quiet_transformers()
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    results, failures = score(job, data)
    then = [f"sts-dino card {quote(job.model)}"] if job.results else []
    parts, facts, verdicts = [table(results, job.start)], results.model_dump(mode="json"), tuple[Verdict, ...]()
    if job.compared and results.scores:
        folder = job.records.folder
        comparison = compared([read_evaluation(place) for place in (folder, folder / COMPARED)])
        sheets, verdicts = result_tables(comparison), comparison.verdicts
        parts = [*(parts if results.base_scores else []), *map(text, sheets)]
        facts |= {sheet.title: [sheet.header, *sheet.rows] for sheet in sheets}
    own = own_words(data.source.own.tasks, results.scores, verdicts)
    answer("\n\n".join([*parts, *filter(None, ["\n".join(own)])]), facts | {"own": own}, as_json, then)
    if failures:
        raise RunError("evaluation", f"{len(failures)} not scored, see above", hint="the others are written")
    if job.left_out:
        names = ",".join(job.left_out)
        hint = f"the others are written; name their data (--senteval-data, --sts-data, --hub-data), or --skip {names}"
        raise RunError("evaluation", f"left out, because no source of their data is given: {names}", hint=hint)

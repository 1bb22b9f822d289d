"""Train one sentence encoder: ``sts-dino train RECIPE [--out --limit --set KEY.KEY=VALUE --dry-run]``.

Reads the recipe's pinned datasets and base, writes ``artifacts/models/NAME``: the model as plain SentenceTransformer
files, ``recipe.yaml`` and, last, ``manifest.json``. Beside it lie ``NAME.base`` (the untrained encoder, for the score
before training), ``NAME.logs`` (TensorBoard), ``NAME.timing.json`` and, while it runs, ``NAME.checkpoints``.
"""

from pathlib import Path
from shlex import join

from hub.cli import DryRunOption, JsonOption, LimitOption, OutOption, RecipeArgument, SetOption, answer, new_app, say
from hub.contract.published_paths import command_line
from hub.contract.run_dir import Manifest
from training.loop.distributed import is_main, leave_group, report_once
from training.loop.job import prepare

app = new_app("Train a sentence encoder from a model recipe.")


@app.command()
def main(
    recipe: RecipeArgument,
    out: OutOption = None,
    limit: LimitOption = None,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train the encoder of RECIPE on its pinned datasets; the untrained one is kept beside its run directory.

    A killed run resumes from its last whole checkpoint. Datasets named by repo id come from the Hub of HF_ENDPOINT. On
    several devices, start it with torchrun or accelerate launch: the batch of a step stays the recipe's.

    Examples:

      sts-dino train recipes/demo/demo-sts-dino.yaml --dry-run

      sts-dino train recipes/demo/demo-sts-dino.yaml --limit 500 --set arguments.learning_rate=1e-3 --out /tmp/m

      torchrun --nproc-per-node 4 -m sts_dino train recipes/models/sroberta-sts-dino-x2.yaml
    """
    with report_once():
        job = prepare(recipe, out, limit, settings)
        if dry_run:
            from training.estimate import plan

            if is_main():
                lines = plan(job)
                answer("\n".join(lines), {"directory": job.out, "plan": lines}, as_json)
            return
        from training.loop.train import work  # its libraries take seconds

        manifest = work(job, command_line("train", recipe, limit, settings))
    leave_group()
    if is_main():
        words = ["sts-dino", "score", str(recipe), "--model", str(job.out)]
        words += [word for setting in settings for word in ("--set", setting)]
        then = [join(words if job.recipe.evaluation else ["sts-dino", "card", str(job.out)])]
        facts = {"directory": job.out, "training": manifest.provenance["training"], **manifest.counts}
        answer("\n".join(summary(job.out, manifest)), facts, as_json, then)
        say(usage(job.out))


def usage(encoder: Path) -> str:
    """Three lines of Python that encode sentences with an encoder."""
    load = f"encoder = SentenceTransformer({str(encoder)!r})"
    use = 'embeddings = encoder.encode(["A sentence.", "Another one."])'
    return f"from sentence_transformers import SentenceTransformer\n{load}\n{use}"


def summary(out: Path, manifest: Manifest) -> list[str]:
    """Where the model lies and how it was chosen, as lines."""
    training, counts = manifest.provenance["training"], manifest.counts
    rows, seen = counts.get("training_rows"), counts.get("seen_rows")
    if training is None:
        return [f"{out}: a baseline, the base as it is"]
    chosen = "last step" if training["best_step"] is None else f"step {training['best_step']}"
    read = "a stream" if rows is None else f"{rows:,} rows"
    distinct = "" if seen is None else f", {seen:,} distinct rows seen"
    lines = [f"{out}: {read}, {training['steps']} steps{distinct}, kept {chosen}"]
    if merge := training.get("merge"):
        scores = "".join(f", {share}: {100 * score:.2f}" for share, score in merge.get("validation_scores", {}).items())
        lines += [f"merged: {merge['share']:g} of the trained weights, the rest of the base's{scores}"]
    for item in manifest.provenance["datasets"]:
        trained = next(iter(item["splits"].values()))  # None: a stream
        if trained is not None and trained < training["batch_size"]:
            place = item.get("path") or item["repo_id"]
            lines += [f"{place}: a batch has at most {trained:,} rows, fewer than batch_size {training['batch_size']}"]
    for name, without in counts.get("passed_over", {}).items():
        lines += [f"{name}: {without:,} source sentences or documents are passed over: no row can be made of them"]
    if training["validation_score"] is not None:
        lines += [f"validation: {training['validation_metric']} {100 * training['validation_score']:.2f}"]
    return lines

"""A model's card and its evaluation entries: the facts of its run directory, gathered for ``model_card.md.jinja``."""

from pathlib import Path
from typing import Any

from hub.errors import InputError
from hub.recipe import ModelRecipe
from hub.results import Gain, Results, TaskScore, read_results
from hub.run_dir import Manifest
from model_cards.attribution import attribution
from model_cards.changes import change_table
from model_cards.checks import check_files
from model_cards.citations import cited
from model_cards.escape import Markdown, code, fenced, table
from model_cards.eval_results import eval_result_files, model_index
from model_cards.facts import ModelProvenance, TrainedOn, Training, read_facts
from model_cards.front_matter import front_matter, model_data
from model_cards.licences import Verdict, check_model
from model_cards.papers import PaperRow, reproduced
from model_cards.plots import training_plot
from model_cards.templates import fill, section

RESULTS = "results.json"
EVALUATE = "run: python -m eval.run RECIPE"
NOT_RUN = "not run"
PICTURE = "assets/training.png"
CURVE_POINTS = 10  # of the loss, shown in the card; the rest stay in manifest.json


def model_files(directory: Path, manifest: Manifest, recipe: ModelRecipe, repo_id: str) -> dict[str, bytes]:
    """README.md and the evaluation entries of a finished model, path → content."""
    check_files(directory, manifest)
    provenance = read_facts(directory, "provenance", manifest.provenance, ModelProvenance)
    results = own_results(directory, manifest)
    index = model_index(manifest.name, results) if results else []
    head = front_matter(model_data(recipe, provenance, index))
    named = [(item.repo_id or item.path or "", item.license or "") for item in provenance.datasets]
    verdict = check_model(recipe, named)
    body = fill("model_card.md.jinja", context(recipe, provenance, results, repo_id, verdict))
    entries = eval_result_files(results) if results else {}
    files = {"README.md": (head + "\n" + body).encode(), **{path: text.encode() for path, text in entries.items()}}
    training = provenance.training
    if training.loss_curve:
        files[PICTURE] = training_plot(training.loss_curve, training.validation_curve, training.best_step)
    return files


def own_results(directory: Path, manifest: Manifest) -> Results | None:
    """results.json, or None when there is none. Raises InputError when it was measured on other weights."""
    if not (directory / RESULTS).exists():
        return None
    results = read_results(directory / RESULTS)
    if results.fingerprint not in (None, manifest.fingerprint):
        raise InputError(directory / RESULTS, "was measured on another version of this model", hint=EVALUATE)
    return results


def context(
    recipe: ModelRecipe, provenance: ModelProvenance, results: Results | None, repo_id: str, verdict: Verdict
) -> dict[str, Any]:
    """What the template reads."""
    training, row = provenance.training, reproduced(recipe)
    if row and results and not any(row.score(score) is not None for score in results.scores):
        row = None
    return {
        "recipe": recipe,
        "repo_id": Markdown(repo_id),
        "tag": Markdown(f"v{recipe.version}"),
        "prose": section(recipe.name),
        "datasets": dataset_table(provenance.datasets),
        "base": base_table(recipe, provenance),
        "training": training,
        "facts": training_table(recipe, training),
        "arguments": argument_table(training),
        "curve": curve_table(training),
        "picture": PICTURE,
        "changes": change_table(recipe.name, recipe.version, complete=True),
        "paper": row,
        "results": results,
        "scores": score_table(results, row) if results else None,
        "protocols": sorted({(score.task, score.main_metric, score.protocol) for score in results.scores})
        if results
        else [],
        "citation": fenced(cited({item.form for item in provenance.datasets}, debiased=False), "bibtex"),
        "command": provenance.command,
        "attribution": attribution(verdict),
    }


def dataset_table(items: tuple[TrainedOn, ...]) -> Markdown:
    """The datasets, each with the revision and the rows that were trained on."""
    rows: list[list[Any]] = []
    for item in items:
        name = item.repo_id or item.path or "a local run directory"
        pin = f"{item.revision} ({item.commit[:12]})" if item.revision and item.commit else item.revision or "local"
        splits = ", ".join(f"{split} {count:,}" for split, count in item.splits.items())
        rows.append([code(name), code(pin), code(item.config), item.form, code(item.loss), splits])
    return table(["dataset", "revision", "config", "form", "loss", "rows"], rows)


def base_table(recipe: ModelRecipe, provenance: ModelProvenance) -> Markdown:
    """The encoder that training started from."""
    base = recipe.base
    rows: list[list[Any]] = [["encoder", code(base.repo_id or base.path or "")]]
    if base.revision:
        rows.append(["revision", code(base.revision)])
    if provenance.base.sha256:
        rows.append(["SHA-256", code(provenance.base.sha256)])
    used = {"transformer": f"all layers, {base.pooling} pooling", "static": "its input embeddings alone, averaged"}
    rows += [["used", used[base.modules]], ["tokens, at most", base.max_seq_length], ["licence", base.license]]
    return table(["start", ""], rows)


def training_table(recipe: ModelRecipe, training: Training) -> Markdown:
    """Length and outcome of the training."""
    rows: list[list[Any]] = [["steps", training.steps], ["epochs", training.epochs], ["seed", recipe.seed]]
    if training.best_step is not None:
        rows.append(["step kept", training.best_step])
    if training.validation_spearman is not None:
        rows.append(["validation Spearman at that step", training.validation_spearman])
    return table(["training", ""], rows)


def argument_table(training: Training) -> Markdown | None:
    """The trainer's arguments under their upstream names, in alphabetical order."""
    rows: list[list[Any]] = [[code(name), code(str(value))] for name, value in sorted(training.arguments.items())]
    return table(["argument", "value"], rows) if rows else None


def curve_table(training: Training) -> Markdown | None:
    """The training loss at a few steps, evenly chosen, the first and the last among them."""
    curve = training.loss_curve
    if not curve:
        return None
    points = min(CURVE_POINTS, len(curve))
    chosen = [curve[round(i * (len(curve) - 1) / max(1, points - 1))] for i in range(points)]
    return table(["step", "loss"], [[step, Markdown(f"{loss:.4f}")] for step, loss in chosen])


def score_table(results: Results, row: PaperRow | None = None) -> Markdown:
    """Every score after training beside that of the untrained base under the same protocol, and beside the paper's."""
    gains = {(gain.task, gain.split): gain for gain in results.gains}
    rows: list[list[Any]] = [
        [
            code(after.task),
            after.split,
            after.pairs,
            _score(before),
            _score(after),
            _gain(gains.get((after.task, after.split))),
            *([_paper(row.score(after))] if row else []),
        ]
        for before, after in results.pairs_of_scores()
    ]
    header = ["task", "split", "pairs", "before training", "after training", "gain"]
    return table([*header, *(["paper"] if row else [])], rows)


def _score(score: TaskScore | None) -> Markdown:
    if score is None:
        return Markdown(NOT_RUN)
    return Markdown(f"{score.main_score:.2f} ({score.low:.2f} to {score.high:.2f})")


def _paper(score: float | None) -> Markdown:
    return Markdown("" if score is None else f"{score:.2f}")


def _gain(gain: Gain | None) -> Markdown:
    if gain is None:
        return Markdown(NOT_RUN)
    return Markdown(f"{gain.difference:+.2f} ({gain.low:+.2f} to {gain.high:+.2f})")

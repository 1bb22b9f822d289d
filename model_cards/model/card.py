"""A model's card and its evaluation entries: the facts of its run directory, gathered for ``model_card.md.jinja``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hub.contract.licences import Verdict, check_model, known
from hub.contract.measured import REPEATS, Repeats, has_report, read_repeats
from hub.contract.published_paths import origin_name
from hub.contract.recipe import ModelRecipe, Spans
from hub.contract.results import RULE, Method, Results, read_results
from hub.contract.run_dir import MANIFEST, Manifest
from hub.errors import InputError
from hub.untrusted import Markdown, fenced
from model_cards.model import tables
from model_cards.model.again import making_again
from model_cards.model.eval_results import eval_result_files, model_index
from model_cards.model.papers import PaperRow, reproduced
from model_cards.model.scores import average_table, part_table, repeat_tables, score_tables
from model_cards.shared.attribution import attribution
from model_cards.shared.changes import change_table
from model_cards.shared.checks import check_files
from model_cards.shared.citations import cited
from model_cards.shared.facts import ModelProvenance, TrainingFacts, read_facts
from model_cards.shared.front_matter import METHODS, front_matter, model_data
from model_cards.shared.templates import fill

RESULTS = "results.json"
EVALUATE = "run: sts-dino score RECIPE"
PICTURE = "assets/training.png"
INTERVALS: dict[Method, str] = {
    "percentile": "95 % percentile bootstrap intervals",
    "bca": "95 % bootstrap intervals, bias-corrected and accelerated (BCa),",
}
OPEN_PROTOCOLS = 6  # more of them are folded away


def model_files(directory: Path, manifest: Manifest, recipe: ModelRecipe, repo_id: str) -> dict[str, bytes]:
    """README.md and the evaluation entries of a finished model, path → content."""
    check_files(directory, manifest)
    provenance = read_facts(directory, "provenance", manifest.provenance, ModelProvenance)
    _check_training(directory, recipe, provenance)
    results, repeats = own_results(directory, manifest), own_repeats(directory, manifest)
    index = model_index(manifest.name, results) if results else []
    head = front_matter(model_data(recipe, provenance, index))
    told = about(recipe, provenance, results, repo_id, check_model(recipe, licensed(recipe, provenance)))
    told |= making_again(manifest, recipe, provenance, repo_id)
    files = {path: text.encode() for path, text in (eval_result_files(results) if results else {}).items()}
    training = provenance.training
    if training is None:
        return {"README.md": (head + "\n" + fill("baseline_card.md.jinja", told)).encode(), **files}
    told |= about_training(recipe, provenance, training, results, repeats)
    body = fill("model_card.md.jinja", told | {"report": has_report(directory, manifest)})
    if training.loss_curve:
        from model_cards.shared.plots import training_plot  # matplotlib takes a second to import

        files[PICTURE] = training_plot(training)
    return {"README.md": (head + "\n" + body).encode(), **files}


def licensed(recipe: ModelRecipe, provenance: ModelProvenance) -> list[tuple[str, str]]:
    """The datasets with their licences: what their own cards said, else what the recipe says now."""
    pairs = zip(provenance.datasets, recipe.datasets, strict=True)
    return [(origin_name(item.repo_id, item.path), item.license or spec.license or "") for item, spec in pairs]


def _check_training(directory: Path, recipe: ModelRecipe, provenance: ModelProvenance) -> None:
    trained = provenance.training is not None
    if trained == recipe.is_baseline:
        told = "tells of a training" if trained else "tells of no training"
        kind = "a baseline" if recipe.is_baseline else "a model to be trained"
        raise InputError(directory / MANIFEST, f"{told}, but the recipe is of {kind}", hint="run the stage again")


def own_results(directory: Path, manifest: Manifest) -> Results | None:
    """results.json, or None when there is none. Raises InputError when it is of other weights or part of the data."""
    if not (directory / RESULTS).exists():
        return None
    results = read_results(directory / RESULTS)
    if results.limit is not None:
        raise InputError(directory / RESULTS, f"is a trial: {results.limit}", hint=f"{EVALUATE}, without --limit")
    if results.fingerprint not in (None, manifest.fingerprint):
        raise InputError(directory / RESULTS, "was measured on another version of this model", hint=EVALUATE)
    return results


def own_repeats(directory: Path, manifest: Manifest) -> Repeats | None:
    """repeats.json, or None when there is none. Raises InputError when it is of another model or version."""
    if not (directory / REPEATS).exists():
        return None
    repeats = read_repeats(directory / REPEATS)
    others = {(repeats.model, run.version) for run in repeats.runs} - {(manifest.name, manifest.version)}
    if others and manifest.fingerprint not in {run.fingerprint for run in repeats.runs}:  # these weights are among them
        model, version = min(others)
        found = f"tells of trainings of {model} v{version}, this is {manifest.name} v{manifest.version}"
        raise InputError(directory / REPEATS, found, hint="run: sts-dino repeat RECIPE")
    return repeats


def about(
    recipe: ModelRecipe, provenance: ModelProvenance, results: Results | None, repo_id: str, verdict: Verdict
) -> dict[str, Any]:
    """Template variables of both cards: a trained model's and a baseline's."""
    row = reproduced(recipe)
    if row and results:
        row = row.beside(results.scores)
    return {
        "recipe": recipe,
        "repo_id": Markdown(repo_id),
        "base": tables.base_table(recipe, provenance),
        "paper": row,
        "results": results,
        **(about_scores(results, row, trained=not recipe.is_baseline) if results else {"scores": {}}),
        "attribution": attribution(verdict),
    }


def about_scores(results: Results, row: PaperRow | None, trained: bool) -> dict[str, Any]:
    """Template variables of ``scores.md.jinja``."""
    scores = [*results.scores, *results.base_scores, *results.control_scores]
    return {
        "scores": score_tables(results, row, trained),
        "averages": average_table(results, row),
        "parts": part_table(results),
        "no_interval": any(score.interval() is None for score in scores),
        "interval": INTERVALS[results.interval],
        "rule": RULE if any(gain.verdict for gain in (*results.gains, *results.over_control)) else None,
        "protocols": list({(score.task, score.protocol): score for score in results.scores}.values()),
        "open_protocols": OPEN_PROTOCOLS,
        "versions": listed(results.versions),
        "otherwise": made_otherwise(results),
    }


def listed(versions: Mapping[str, str]) -> str:
    """Libraries with their versions in a line."""
    return ", ".join(f"{library} {version}" for library, version in versions.items())


def made_otherwise(results: Results) -> list[tuple[str, str]]:
    """(task and split, libraries with their versions) of every score that was not made with the file's versions."""
    told = [("", score) for score in results.scores] + [("before training, ", score) for score in results.base_scores]
    told += [("copies control, ", score) for score in results.control_scores]
    return [(f"{when}{one.task} {one.split}", listed(one.versions)) for when, one in told if one.versions]


def about_training(
    recipe: ModelRecipe,
    provenance: ModelProvenance,
    training: TrainingFacts,
    results: Results | None,
    repeats: Repeats | None,
) -> dict[str, Any]:
    """Template variables of a trained model's card alone."""
    types = {item.example_type for item in provenance.datasets}
    methods = {METHODS[one] for one in types}
    return {
        "tag": Markdown(f"v{recipe.version}"),
        "documents": "documents" in types,
        "copies": types == {"self-pair"},
        "copies_too": "self-pair" in types,
        "adapter": tables.adapter(recipe.lora) if recipe.lora else None,
        "licence_terms": known("recipe: base.license", recipe.base.license).terms,
        "datasets": tables.dataset_table(provenance.datasets, recipe),
        "spans": [
            tables.span_table(item.spans or Spans()) for item in recipe.datasets if item.example_type == "documents"
        ],
        "training": training,
        "chosen_on": tables.chosen_on(recipe),
        "metric": training.validation_metric or tables.SCORE,
        "facts": tables.training_table(recipe, training),
        "arguments": tables.argument_table(training),
        "curve": tables.curve_table(training),
        "picture": PICTURE,
        "repeats": repeat_tables(repeats, results) if repeats else {},
        "repeated": repeated(repeats) if repeats else None,
        "changes": change_table(told_under(recipe), recipe.version, complete=True),
        "citation": fenced(cited(methods, debiased=False, prompted=recipe.base.prompt is not None), "bibtex"),
    }


def told_under(recipe: ModelRecipe) -> str:
    """The name that prose and versions stand under: an adapter's, for the model it was merged into a base as."""
    merged = recipe.lora is not None and recipe.lora.release == "merged"
    return recipe.name.removesuffix("-merged") if merged else recipe.name


def repeated(repeats: Repeats) -> str:
    """What told the trainings from one another."""
    what = {"seed": "seeds", "example_set": "sets of few-shot examples"}[repeats.over]
    return f"{what} ({', '.join(str(run.value) for run in repeats.runs)})"

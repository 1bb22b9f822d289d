"""A model's card and its evaluation entries: the facts of its run as variables of ``model_card.md.jinja``."""

from typing import Any

from hub.client.plan import DETAILS
from hub.contract.licences import known
from hub.contract.published_paths import origin_name
from hub.contract.recipe import Grades, ModelRecipe, Spans
from hub.untrusted import Markdown, fenced
from model_cards.facts import ModelFacts
from model_cards.manifest import TrainingFacts, check_files
from model_cards.metadata import eval_result_files, front_matter, methods, model_data, model_index
from model_cards.papers import reproduced
from model_cards.provenance import change_table, cited, reproduction
from model_cards.renderer import fill
from model_cards.scores import repeated_scores, score_context

PICTURE = "assets/training.png"
CURVE_POINTS = 10  # of the loss, on the card; manifest.json has all
USED = {  # base.modules → the part of the base that makes an embedding
    "static": "its input embeddings alone, averaged",
    "word-vectors": "its word vectors, averaged",
    "sentence-transformer": "with its own pooling",
}
ANCHORS = {
    "blocks": "each in a block of its own, as long as the longest span; neighbouring blocks are not used",
    "apart": "at least twice the longest span apart",
}
STRATEGIES = {
    "any": "positives lie beside, across or inside their anchor",
    "adjacent": "positives lie beside their anchor",
    "overlapping": "positives lie partly in their anchor",
    "subsumed": "positives lie inside their anchor",
}


def model_files(facts: ModelFacts, repo_id: str) -> dict[str, bytes]:
    """README.md, the plot and the evaluation entries of a finished model, path → content."""
    assert facts.provenance is not None
    check_files(facts.directory, facts.manifest)
    results, training = facts.results, facts.training
    head = model_data(facts.recipe, facts.provenance, model_index(facts.manifest.name, results) if results else [])
    context = model_context(facts) | reproduction(facts.manifest, facts.recipe, facts.provenance, repo_id)
    template = "model_card.md.jinja" if training else "baseline_card.md.jinja"
    body = fill(template, context | {"repo_id": Markdown(repo_id), "picture": PICTURE})
    files = {"README.md": (front_matter(head) + "\n" + body).encode()}
    if training:
        files[DETAILS] = fill("model_details.md.jinja", context | {"picture": PICTURE}).encode()
    files |= {path: text.encode() for path, text in (eval_result_files(results) if results else {}).items()}
    if training and training.loss_curve:
        from model_cards.plots import training_plot  # matplotlib takes a second to import

        files[PICTURE] = training_plot(training)
    return files


def model_context(facts: ModelFacts) -> dict[str, Any]:
    """Template variables of a finished model."""
    assert facts.provenance is not None
    recipe, provenance, results, training = facts.recipe, facts.provenance, facts.results, facts.training
    row, base = reproduced(recipe), recipe.base
    row = row.beside(results.scores) if row and results else row
    layers = "all layers" if base.layers is None else f"its first {base.layers} layers"
    context = {
        "recipe": recipe,
        "provenance": provenance,
        "verdict": facts.verdict,
        "used": USED.get(base.modules, f"{layers}, {base.pooling} pooling"),
        "paper": row,
        "report": facts.report,
        "removed": None,
        "history": None,
        "reproducible": None,
        "start": base.start,
        **(
            score_context(results, row, base.start, training is not None)
            if results
            else {"results": None, "scores": {}}
        ),
    }
    return context | (training_context(recipe, facts, training) if training else {})


def training_context(recipe: ModelRecipe, facts: ModelFacts, training: TrainingFacts) -> dict[str, Any]:
    """Template variables of a trained model alone."""
    assert facts.provenance is not None
    types = {item.example_type for item in facts.provenance.datasets}
    selection = [f"{origin_name(item.repo_id, item.path)} ({item.split})" for item in recipe.validation]
    curve, points = training.loss_curve, min(CURVE_POINTS, len(training.loss_curve))
    return {
        "tag": Markdown(f"v{recipe.version}"),
        "documents": "documents" in types,
        "simcse_alone": types == {"self-pair"},
        "simcse_too": "self-pair" in types,
        "own_positives": any(item.grades and item.grades.positives == "itself" for item in recipe.datasets),
        "licence_terms": known("recipe: base.license", recipe.base.license).terms,
        "grades": Grades(),
        "spans": [item.spans or Spans() for item in recipe.datasets if item.example_type == "documents"],
        "anchors": ANCHORS,
        "strategies": STRATEGIES,
        "training": training,
        "counts": facts.manifest.counts,
        "selected_on": " and ".join(selection) or "the training data's own validation splits",
        "metric": training.validation_metric or "score",
        "curve": [curve[round(i * (len(curve) - 1) / max(1, points - 1))] for i in range(points)],  # and both ends
        "repeats": repeated_scores(facts.repeats, facts.results) if facts.repeats else {},
        "repeated": facts.repeats,
        "changes": change_table(release_name(recipe), recipe.version, complete=True),
        "citation": fenced(cited(methods(recipe), debiased=False, prompted=recipe.base.prompt is not None), "bibtex"),
    }


def release_name(recipe: ModelRecipe) -> str:
    """The name in ``changes.yaml``: an adapter's name also for the model with the adapter merged into its base."""
    merged = recipe.lora is not None and recipe.lora.release == "merged"
    return recipe.name.removesuffix("-merged") if merged else recipe.name

"""A model's card and evaluation entries: a run's facts as variables of ``model_card.md.jinja``."""

from typing import Any

from sts_dino.hub.client.plan import CARD, DETAILS
from sts_dino.hub.contract.published_paths import name_origin
from sts_dino.hub.contract.recipe import Grades, ModelRecipe, Spans
from sts_dino.hub.contract.schema import is_generated
from sts_dino.hub.untrusted import Markdown, format_fenced
from sts_dino.model_cards.facts import Curve, ModelFacts, ModelProvenance, TrainingFacts
from sts_dino.model_cards.metadata import (
    build_model_index,
    build_model_metadata,
    format_front_matter,
    list_methods,
    make_eval_result_files,
)
from sts_dino.model_cards.provenance import describe_reproduction, format_changes, format_citations
from sts_dino.model_cards.renderer import fill_template
from sts_dino.model_cards.scores import (
    build_score_context,
    find_reproduced_row,
    group_repeated_scores,
)

TRAINING_PLOT = "assets/training.png"
MOST_CURVE_POINTS = 10  # of the loss curve on the card; manifest.json has all
USED_PARTS = {  # base.modules → the part of the base that makes an embedding
    "static": "its input embeddings alone, averaged",
    "word-vectors": "its word vectors, averaged",
    "sentence-transformer": "with its own pooling",
}
ANCHOR_MEANINGS = {  # spans.anchors → where the anchors of a document lie
    "blocks": (
        "each in a block of its own, as long as the longest span; neighbouring blocks are not used"
    ),
    "apart": "at least twice the longest span apart",
}
STRATEGY_MEANINGS = {  # spans.strategy → where a positive lies
    "any": "positives lie beside, across or inside their anchor",
    "adjacent": "positives lie beside their anchor",
    "overlapping": "positives lie partly in their anchor",
    "subsumed": "positives lie inside their anchor",
}


def make_model_files(facts: ModelFacts, repo_id: str) -> dict[str, bytes]:
    """Make the files of a finished model's card: path in the run directory → content.

    They are README.md and, for a trained model, DETAILS.md and the plot of its training, if the
    manifest has a loss curve. A model with results has the evaluation entries that the Hub reads,
    too.

    Args:
        facts: the checked facts of a finished run.
        repo_id: the Hub id on the card, which the caller has checked.

    Raises InputError when ``changes.yaml`` lists other versions of a trained model, but not this
    one.
    """
    assert facts.provenance is not None
    assert facts.verdict is not None
    training = facts.training

    # the card
    results = facts.results
    entries = build_model_index(facts.manifest.name, results) if results else []
    metadata = build_model_metadata(facts.recipe, facts.verdict.licence, facts.provenance, entries)
    context = {
        **build_model_context(facts),
        **describe_reproduction(facts.manifest, facts.recipe, facts.provenance, repo_id),
        "repo_id": Markdown(repo_id),
        "picture": TRAINING_PLOT,
    }
    template = "model_card.md.jinja" if training else "baseline_card.md.jinja"
    card = format_front_matter(metadata) + "\n" + fill_template(template, context)
    files = {CARD: card.encode()}

    # the files beside it
    if training:
        files[DETAILS] = fill_template("model_details.md.jinja", context).encode()
    if results:
        for path, text in make_eval_result_files(results).items():
            files[path] = text.encode()
    if training and training.loss_curve:
        # matplotlib takes a second to import
        from sts_dino.model_cards.plots import draw_training_plot

        files[TRAINING_PLOT] = draw_training_plot(training)
    return files


def build_model_context(facts: ModelFacts) -> dict[str, Any]:
    """Return the template variables of a finished model's card.

    Without results, the variables of the scores are None or empty. Without a training, the
    variables of the training are absent: the card of a baseline does not use them.

    Raises InputError when ``changes.yaml`` lists other versions of a trained model, but not this
    one.
    """
    assert facts.provenance is not None
    recipe = facts.recipe
    base = recipe.base
    results = facts.results
    paper_row = find_reproduced_row(recipe)
    if paper_row and results:
        paper_row = paper_row.select_tables(results.scores)
    layers = "all layers" if base.layers is None else f"its first {base.layers} layers"
    context: dict[str, Any] = {
        "recipe": recipe,
        "provenance": facts.provenance,
        "verdict": facts.verdict,
        "used": USED_PARTS.get(base.modules, f"{layers}, {base.pooling} pooling"),
        "paper": paper_row,
        "report": facts.report,
        "removed": None,
        "history": None,
        "reproducible": None,
        "start": base.start,
        "results": None,
        "scores": {},
    }
    if results:
        context |= build_score_context(results, paper_row, base.start, facts.training is not None)
    if facts.training:
        context |= _build_training_context(facts, facts.provenance, facts.training)
    return context


def _build_training_context(
    facts: ModelFacts, provenance: ModelProvenance, training: TrainingFacts
) -> dict[str, Any]:
    """Return the template variables that only a trained model's card has.

    ``provenance`` and ``training`` are those of ``facts``, which are not None there.

    Raises InputError when ``changes.yaml`` lists other versions of the model, but not this one.
    """
    recipe = facts.recipe

    # what it was trained on
    types = {item.example_type for item in provenance.datasets}
    documents = [item for item in recipe.datasets if item.example_type == "documents"]
    grades = [item.grades for item in recipe.datasets if item.grades]
    labelled = _list_labelled_configs(recipe)

    # what chose the checkpoint
    validation = " and ".join(
        f"{name_origin(item.repo_id, item.path)} ({item.split})" for item in recipe.validation
    )

    # papers to cite, and the terms of the base's licence
    citation = format_citations(
        list_methods(recipe),
        debiased=False,
        prompted=recipe.base.prompt is not None and recipe.base.modules == "transformer",
    )
    assert facts.verdict is not None
    base_licence = facts.verdict.parts[0].licence
    return {
        "tag": Markdown(f"v{recipe.version}"),
        "documents": "documents" in types,
        "simcse_alone": types == {"self-pair"},
        "simcse_too": "self-pair" in types,
        "labelled": labelled,
        "generated": all(map(is_generated, labelled)),
        "own_positives": any(grade.positives == "itself" for grade in grades),
        "licence_terms": base_licence.terms,
        "grades": Grades(),
        "spans": [item.spans or Spans() for item in documents],
        "anchors": ANCHOR_MEANINGS,
        "strategies": STRATEGY_MEANINGS,
        "training": training,
        "counts": facts.manifest.counts,
        "selected_on": validation or "the training data's own validation splits",
        "metric": training.validation_metric or "score",
        "curve": _select_points(training.loss_curve),
        "repeats": group_repeated_scores(facts.repeats, facts.results) if facts.repeats else {},
        "repeated": facts.repeats,
        "changes": format_changes(get_release_name(recipe), recipe.version, complete=True),
        "citation": format_fenced(citation, "bibtex"),
    }


def _list_labelled_configs(recipe: ModelRecipe) -> list[str]:
    """List the configs whose rows have labels of their own, not the scores of a teacher."""
    return [
        item.config
        for item in recipe.datasets
        if item.teacher is None and item.example_type not in ("documents", "self-pair")
    ]


def _select_points(curve: Curve) -> list[tuple[int, float]]:
    """Select at most ``MOST_CURVE_POINTS`` points of a curve, first and last included.

    They lie at equal distances in the curve, up to rounding. An empty curve gives an empty list.
    """
    count = min(MOST_CURVE_POINTS, len(curve))
    step = (len(curve) - 1) / max(1, count - 1)
    return [curve[round(index * step)] for index in range(count)]


def get_release_name(recipe: ModelRecipe) -> str:
    """Return the name under which ``changes.yaml`` lists a model's versions.

    It is the recipe's name. For an adapter that was merged into its base, it is the adapter's name,
    which lacks the suffix "-merged".
    """
    if recipe.lora is not None and recipe.lora.release == "merged":
        return recipe.name.removesuffix("-merged")
    return recipe.name

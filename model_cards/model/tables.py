"""The tables of a model's card that say how it was made: data, base, adapter, spans, training, arguments, loss."""

from typing import Any

from hub.contract.model_sections import Grades, Lora, TrainingData, Vocabulary
from hub.contract.published_paths import origin_name
from hub.contract.recipe import ModelRecipe, Spans
from hub.untrusted import Markdown, code, table
from model_cards.shared.facts import ModelProvenance, TrainedOn, TrainingFacts

CURVE_POINTS = 10  # of the loss, shown in the card; the rest stay in manifest.json
SCORE = "score"  # on validation, where the manifest does not name it
ANCHORS = {
    "blocks": "each in a block of its own, as long as the longest span; neighbouring blocks are not used",
    "apart": "at least twice the longest span apart",
}
STRATEGIES = {
    "any": "positives lie as they fall: beside, across or inside their anchor",
    "adjacent": "positives lie beside their anchor",
    "overlapping": "positives lie partly in their anchor",
    "subsumed": "positives lie inside their anchor",
}


def dataset_table(items: tuple[TrainedOn, ...], recipe: ModelRecipe) -> Markdown:
    """The datasets, each with the revision, the loss with its arguments, and the rows that were trained on."""
    rows: list[list[Any]] = []
    for item, spec in zip(items, recipe.datasets, strict=True):
        name = origin_name(item.repo_id, item.path) or "a local run directory"
        pin = f"{item.revision} ({item.commit[:12]})" if item.revision and item.commit else item.revision or "local"
        part = "" if item.example_set is None else f", example set {item.example_set}"
        given = ", ".join(f"{key}={value}" for key, value in spec.loss_arguments.items())
        loss = code(f"{item.loss}({given})" if given else item.loss)
        told = Markdown(", ".join([loss, *_beside_the_loss(spec)]))
        rows.append([code(name), code(pin), Markdown(f"{code(item.config)}{part}"), _form(spec), told, _rows(item)])
    return table(["dataset", "revision", "config", "example type", "loss", "rows"], rows)


def _form(spec: TrainingData) -> Markdown:
    """The form of the rows, and what they were made of."""
    if spec.example_type == "self-pair":
        columns = f" ({', '.join(map(code, spec.columns))})" if spec.columns else ""
        return Markdown(f"{spec.example_type}: each distinct text{columns} with itself")
    if not spec.example_type.startswith("graded-"):
        return Markdown(spec.example_type)
    grades = spec.grades or Grades()
    negatives = (
        f", negative {grades.negative_from:g} to {grades.negative_to:g}" if "triplet" in spec.example_type else ""
    )
    return Markdown(f"{spec.example_type}: positive from {grades.positive_from:g}{negatives}")


def _beside_the_loss(spec: TrainingData) -> list[str]:
    """What else decides the loss of a row."""
    told = [f"rows weighted by {code(spec.weights)}"] if spec.weights else []
    if spec.guide is not None:
        told.append(f"guided by {code(origin_name(spec.guide.repo_id, spec.guide.path))}")
    elif "GIST" in spec.loss:
        told.append("guided by the untrained encoder")
    return told


def _rows(item: TrainedOn) -> str:
    return ", ".join(f"{split} {'streamed' if rows is None else f'{rows:,}'}" for split, rows in item.splits.items())


def base_table(recipe: ModelRecipe, provenance: ModelProvenance) -> Markdown:
    """The encoder that training started from."""
    base = recipe.base
    rounded = ", ".join(f"{key}={value}" for key, value in (base.quantization or {}).items())
    rows: dict[str, Any] = {
        "encoder": code(origin_name(base.repo_id, base.path)),
        "revision": base.revision and code(base.revision),
        "file": base.file and code(base.file),
        "SHA-256": provenance.base.sha256 and code(provenance.base.sha256),
        "used": _used(recipe),
        "prompt around a sentence": base.prompt and code(base.prompt),
        "vocabulary": base.vocabulary and vocabulary(base.vocabulary),
        "adapter": recipe.lora and adapter(recipe.lora),
        "numbers of its weights": code(base.dtype) if base.dtype != "float32" else None,
        "rounded weights": rounded and code(rounded),
        "tokens, at most": base.max_seq_length,
        "licence": base.license,
    }
    return table(["start", ""], [[name, told] for name, told in rows.items() if told])


def _used(recipe: ModelRecipe) -> str:
    layers = "all layers" if recipe.base.layers is None else f"its first {recipe.base.layers} layers"
    return {
        "transformer": f"{layers}, {recipe.base.pooling} pooling",
        "static": "its input embeddings alone, averaged",
        "word-vectors": "its vectors of words, averaged",
        "sentence-transformer": "as it is, with its own pooling",
    }[recipe.base.modules]


def vocabulary(cut: Vocabulary) -> Markdown:
    """Which tokens of the base were kept, and what became of their vectors."""
    tokens = f"the {cut.size:,} most frequent tokens" if cut.size else "the tokens"
    told = [Markdown(f"{tokens} of {code(origin_name(cut.repo_id, cut.path))}, and what they are built from")]
    if cut.dimensions:
        told.append(Markdown(f"first {cut.dimensions} principal components"))
    if cut.sif:
        told.append(Markdown(f"weighted by a / (a + frequency), a = {cut.sif:g}"))
    return Markdown("; ".join(told))


def adapter(lora: Lora) -> Markdown:
    """An adapter in words."""
    layers = ", ".join(code(name) for name in lora.target_modules) if lora.target_modules else "all linear layers"
    return Markdown(f"LoRA in {layers}: rank {lora.r}, α {lora.alpha}, dropout {lora.dropout:g}")


def span_table(spans: Spans) -> Markdown:
    """How anchors and positives were cut from documents."""
    beta = "Beta({:g}, {:g})"
    rows: list[list[Any]] = [
        [f"{spans.unit} of a span", f"{spans.min_length} to {spans.max_length}"],
        ["anchors lie", ANCHORS[spans.anchor_placement]],
        ["anchors of a document", f"{spans.anchors}, lengths by {beta.format(*spans.anchor_beta)}"],
        ["positives of an anchor", f"{spans.positives}, lengths by {beta.format(*spans.positive_beta)}"],
        ["place", STRATEGIES[spans.strategy]],
        [f"{spans.unit} of a document, at least", spans.min_document],
        ["letters", "in lower case" if spans.lowercase else "as they are"],
    ]
    return table(["spans", ""], rows)


def training_table(recipe: ModelRecipe, training: TrainingFacts) -> Markdown:
    """Length and outcome of the training, and what chose its checkpoint."""
    processes = f", over {training.processes} processes" if training.processes > 1 else ""
    rows: list[list[Any]] = [
        ["steps", training.steps],
        ["epochs", training.epochs],
        ["batch size", f"{training.batch_size}{processes}"],
        ["seed", training.seed],
    ]
    if recipe.token_dropout:
        rows.append(["tokens of a text left out when it is read", f"{100 * recipe.token_dropout:g} %, at random"])
    if triangle := recipe.slanted_triangular:
        peak = f"up for {100 * triangle.cut_fraction:g} % of the steps, then down to 1/{triangle.ratio:g} of the peak"
        rows.append(["learning rate", f"slanted triangular: {peak}"])
    if training.best_step is not None:
        metric = training.validation_metric or SCORE
        rows += [["checkpoint chosen by", f"{metric} on {chosen_on(recipe)}"], ["step kept", training.best_step]]
        if training.validation_score is not None:
            rows.append([f"{metric} at that step", training.validation_score])
    return table(["training", ""], rows)


def chosen_on(recipe: ModelRecipe) -> str:
    """The data that the checkpoint was chosen by."""
    named = [f"{origin_name(item.repo_id, item.path)} ({item.split})" for item in recipe.validation]
    return " and ".join(named) or "the training data's own validation splits"


def argument_table(training: TrainingFacts) -> Markdown | None:
    """The trainer's arguments under their upstream names, in alphabetical order."""
    rows: list[list[Any]] = [[code(name), code(str(value))] for name, value in sorted(training.arguments.items())]
    return table(["argument", "value"], rows) if rows else None


def curve_table(training: TrainingFacts) -> Markdown | None:
    """The training loss at a few steps, evenly chosen, the first and the last among them."""
    curve = training.loss_curve
    if not curve:
        return None
    points = min(CURVE_POINTS, len(curve))
    chosen = [curve[round(i * (len(curve) - 1) / max(1, points - 1))] for i in range(points)]
    return table(["step", "loss"], [[step, Markdown(f"{loss:.4f}")] for step, loss in chosen])

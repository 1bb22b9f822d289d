"""Quality of a dataset: texts, repeats and labels in one pass over its rows, and NLI models.

Shares are fractions (0 to 1) with 95 % Wilson intervals, as if rows were independent. Memory holds
one batch of texts, the texts of at most ``DISTINCT_N_ROWS`` rows, and some 100 bytes of hashes and
numbers for each row. No text of the dataset is printed or stored on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from sts_dino.eval.audit import command
from sts_dino.eval.audit.agreement import compute_wilson_interval
from sts_dino.eval.audit.evaluation_sentences import normalize_text
from sts_dino.eval.audit.source import NO_LABEL, Batch, DatasetRows, find_rows
from sts_dino.eval.encoders.embeddings import compute_text_cosines
from sts_dino.eval.encoders.load import Encoder, download_model, hash_model_folder, load_encoder
from sts_dino.hub.cli import JsonOption, make_app
from sts_dino.hub.contract.measured import Interval
from sts_dino.hub.contract.schema import NLI_LABELS
from sts_dino.hub.errors import InputError, RunError
from sts_dino.hub.messages import ProgressBar
from sts_dino.hub.untrusted import (
    NO_CODE,
    NO_PICKLES,
    Markdown,
    convert_model_errors,
    format_code,
    format_table,
    require_safetensors,
)
from sts_dino.hub.word_overlap import compute_word_overlap

if TYPE_CHECKING:
    import pandas

# Function of n first and n second texts that returns n values
Measure = Callable[[list[str], list[str]], Sequence[Any]]
RECORDED_LIBRARIES = (
    "numpy",
    "pyarrow",
    "scipy",
    "scikit-learn",
    "torch",
    "transformers",
    "sentence-transformers",
)
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# In the order of rising similarity
LABELS_BY_SIMILARITY = ("contradiction", "negative", "neutral", "entailment", "positive")
NLI_CLASS_OF_LABEL = {
    **{name: name for name in NLI_LABELS},
    "positive": "entailment",
    "negative": "contradiction",
}
SHORT_TEXT_TOKENS = 3  # texts with fewer tokens are counted; tokens are separated by blanks
# Shortest and longest premise that Auto-NLI used (section 4.1, appendix A)
PREMISE_TOKENS = (4, 32)
# distinct-n falls as texts are added, so every dataset is measured on the same number of rows
DISTINCT_N_ROWS = 10_000
NLI_BATCH_PAIRS = 32


@dataclass(frozen=True)
class Quality:
    """Quality of one config: ``facts`` about the measurement, and tables.

    ``texts`` has a row for each text column. ``repeats`` has a row for exact repeats and a row for
    repeats of the normal form. ``measures`` (name → table) has tables with a row for each label,
    in rising order of similarity. ``nli`` has a row for each label and a row for all labels; None
    without an NLI model.
    """

    facts: dict[str, Any]
    texts: pandas.DataFrame
    repeats: pandas.DataFrame
    measures: dict[str, pandas.DataFrame]
    nli: pandas.DataFrame | None

    def to_document(self) -> dict[str, Any]:
        """Return the facts and the tables, for JSON.

        A table is a list of rows, each column → name, number, ``Interval`` or None. ``nli`` is None
        without an NLI model.
        """
        return {
            **self.facts,
            "texts": _list_records(self.texts),
            "repeats": _list_records(self.repeats),
            "nli": None if self.nli is None else _list_records(self.nli),
            "measures": {name: _list_records(table) for name, table in self.measures.items()},
        }

    def to_markdown(self) -> str:
        """Return the facts and tables as Markdown; untrusted names are escaped."""
        return command.fill_template(
            "quality.md.jinja", quality=self, format_frame=_format_frame, **self.facts
        )


def _list_records(frame: pandas.DataFrame) -> Any:
    """Return the rows of a table in order, each as column → value; the index is a column, too."""
    return frame.reset_index().to_dict("records")


def _format_frame(frame: pandas.DataFrame, first: str) -> Markdown:
    """Return a table as Markdown; ``first`` is the header of the column with the row names."""
    rows = [
        [format_code(str(label)), *map(_format_cell, cells)] for label, *cells in frame.itertuples()
    ]
    return format_table([first, *frame.columns], rows)


def _format_cell(value: Any) -> Any:
    """Return the cell of an interval or a number, with three decimals; a dash for None and NaN."""
    if isinstance(value, Interval):
        return Markdown(f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]")
    return "–" if value is None or np.isnan(value) else round(value, 3)


@dataclass(frozen=True)
class NliModel:
    """A loaded cross-encoder for NLI.

    ``classes`` are the names of the model's outputs, in the order of the outputs. ``revision`` is
    the Hub commit, or the hash of the model's folder.
    """

    model: Any  # sentence_transformers.CrossEncoder
    name: str
    revision: str
    classes: tuple[str, ...]

    def predict(self, first: list[str], second: list[str]) -> list[str]:
        """Return the most probable of ``classes`` for each pair, (n,).

        Args:
            first: the premises, (n,) with n ≥ 1.
            second: the hypotheses, (n,).

        Raises RunError when an output of the model is not finite.
        """
        import torch

        pairs = list(zip(first, second, strict=True))
        # ``predict`` batches pairs of similar length, and returns the logits in the given order
        logits = self.model.predict(
            pairs,
            batch_size=NLI_BATCH_PAIRS,
            activation_fn=torch.nn.Identity(),
            show_progress_bar=False,
        )
        if not np.isfinite(logits).all():
            raise RunError(
                self.name, "gives outputs that are not finite", hint="use another NLI model"
            )
        return [self.classes[column] for column in logits.argmax(axis=1)]


def load_nli_model(location: str, labels: str | None = None) -> NliModel:
    """Load the NLI model in a folder or under the Hub id ``ORG/NAME[@REVISION]``.

    Only safetensors are read, and no remote code runs.

    Args:
        location: the folder or Hub id.
        labels: the names of the outputs in their order, separated by commas; for a model whose
            config does not name them (``LABEL_0`` ...). None: the config names them.

    Raises InputError when the model is missing or cannot be loaded, or when its outputs are not the
    three NLI classes. Raises RunError when the Hub cannot be read.
    """
    from sentence_transformers import CrossEncoder

    folder = Path(location)
    revision = None
    if not folder.is_dir():
        folder, revision = download_model(location)
    require_safetensors(folder, location)
    with convert_model_errors(location, "cannot be loaded as a cross-encoder"):
        model = CrossEncoder(
            str(folder), model_kwargs=dict(NO_PICKLES), local_files_only=True, **NO_CODE
        )
        # Predict one pair as a test: a chat template may refuse it
        model.predict([("A sentence.", "Another.")], show_progress_bar=False)
    assert model.model is not None
    classes = list_class_names(model.model.config.id2label, labels, location)
    name = location.partition("@")[0] if revision else folder.resolve().name
    return NliModel(model, name, revision or hash_model_folder(folder), classes)


def list_class_names(
    id2label: Mapping[int, str], labels: str | None, location: str
) -> tuple[str, ...]:
    """Return the NLI class of each output of a model, in the order of the outputs.

    Args:
        id2label: index of the output → name, from the model's config.
        labels: names of the outputs in their order, separated by commas, for a config with
            ``LABEL_0`` ...; None or empty: the config's names.
        location: the model as the user named it, for errors.

    Raises InputError when the names are not entailment, neutral and contradiction in some order,
    and when ``labels`` contradicts the names of the config. Case does not count.
    """
    # Read the names of the config; transformers calls unnamed outputs LABEL_0, LABEL_1, ...
    outputs = tuple(id2label[number].strip().lower() for number in sorted(id2label))
    is_unnamed = outputs == tuple(f"label_{number}" for number in range(3))

    # ``labels`` may name unnamed outputs, or repeat the names of the config
    names = outputs
    problem = f"its outputs are {', '.join(outputs)}"
    if labels:
        names = tuple(name.strip().lower() for name in labels.split(","))
        problem += f", --nli-labels names {', '.join(names)}"
    if sorted(names) == sorted(NLI_LABELS) and (is_unnamed or names == outputs):
        return names
    hint = None
    if is_unnamed:
        example = ",".join(sorted(NLI_LABELS))
        hint = f"name its outputs: --nli-labels {example}, in their order"
    raise InputError(location, problem, allowed=", ".join(NLI_LABELS), hint=hint)


def measure_quality(
    rows: DatasetRows,
    sample: int | None = None,
    seed: int = 42,
    encoder: Encoder | None = None,
    nli: NliModel | None = None,
    progress: Callable[[int], object] = lambda rows: None,
) -> Quality:
    """Measure the quality of one config of a dataset.

    Args:
        rows: the rows of the config.
        sample: the number of rows to draw at random; None, or more than there are: all rows.
        seed: seed of the draw.
        encoder: the encoder that measures cosines by label; None: no cosines.
        nli: the NLI model whose classes are counted by label; None: no classes.
        progress: called after each batch with the number of its rows.

    Raises InputError when an encoder or NLI model is given for single texts, when the encoder
    gives no embeddings, for a damaged shard and for a score that is not finite. Raises RunError
    when an output of the NLI model is not finite, and when an encoder that is a function raises.
    """
    import pandas

    if len(rows.columns) < 2 and (encoder or nli):
        raise InputError(rows.location, "has single texts: no pairs to compare")
    measures = _choose_measures(encoder, nli)

    # Keep hashes and numbers of each row, in one pass over the rows
    text_frames = []
    pair_frames = []
    for batch in rows.read_batches(sample, seed):
        text_frames.append(_measure_texts(batch))
        pair_frames.append(_measure_pairs(batch, measures))
        progress(len(batch))
    texts = pandas.concat(text_frames)
    pairs = pandas.concat(pair_frames)

    # Keep the texts of some rows for distinct-n, in a second pass
    distinct: dict[str, list[str]] = {column: [] for column in rows.columns}
    for batch in rows.read_batches(min(len(texts), DISTINCT_N_ROWS), seed):
        for column, batch_texts in batch.texts.items():
            distinct[column] += batch_texts

    # Make the tables; the NLI model's classes are not numbers, and have a table of their own
    columns = {name: _measure_column(name, texts, distinct[name]) for name in rows.columns}
    repeats = {kind: _count_repeats(kind, texts, rows.columns) for kind in ("exact", "normal")}
    by_label = {
        name: _describe_by_label(name, pairs)
        for name in measures
        if name in pairs and pairs[name].dtype.kind == "f"
    }
    return Quality(
        facts=_describe_measurement(rows, len(texts), seed, encoder, nli),
        texts=pandas.DataFrame(columns, dtype=object).T,
        repeats=pandas.DataFrame(repeats).T,
        measures=by_label,
        nli=_measure_nli_agreement(pairs) if nli else None,
    )


def _choose_measures(encoder: Encoder | None, nli: NliModel | None) -> dict[str, Measure]:
    """Return name → measure of pairs: "word overlap", and "cosine" or "nli" of each given model."""
    measures: dict[str, Measure] = {"word overlap": _compute_overlaps}
    if encoder:
        measures["cosine"] = partial(compute_text_cosines, encoder)
    if nli:
        measures["nli"] = nli.predict
    return measures


def _compute_overlaps(first: list[str], second: list[str]) -> list[float]:
    """Return the word overlap of each pair of texts, (n,), 0 to 1."""
    return list(map(compute_word_overlap, first, second))


def _describe_measurement(
    rows: DatasetRows, count: int, seed: int, encoder: Encoder | None, nli: NliModel | None
) -> dict[str, Any]:
    """Return the facts about a measurement: dataset, rows, seed, models and library versions.

    Args:
        rows: the rows of the config.
        count: the number of measured rows.
        seed: seed of the draw.
        encoder: the encoder; None: the fact ``encoder`` is None.
        nli: the NLI model; None: the fact ``nli_model`` is None.
    """
    encoder_facts = None
    if encoder:
        encoder_facts = {"name": encoder.name, "revision": encoder.revision}
    nli_facts = None
    if nli:
        nli_facts = {"name": nli.name, "revision": nli.revision, "classes": list(nli.classes)}
    versions = {"python": sys.version.split()[0]}
    versions |= {library: version(library) for library in RECORDED_LIBRARIES}
    return {
        "dataset": rows.name,
        "revision": rows.revision,
        "config": rows.config,
        "example_type": rows.example_type,
        "splits": rows.splits,
        "rows": count,
        "seed": seed,
        "encoder": encoder_facts,
        "nli_model": nli_facts,
        "versions": versions,
    }


def _measure_texts(batch: Batch) -> pandas.DataFrame:
    """Return a table with a row for each row of the batch.

    Columns: ``label``, the hash of the label (of "" without labels). For each text column C: ``C
    length`` in tokens, ``C empty``, and the hashes ``C exact`` of the text and ``C normal`` of its
    normal form.
    """
    import pandas

    values: dict[str, Any] = {"label": _hash_texts(batch.labels or [""] * len(batch))}
    for column, texts in batch.texts.items():
        values[f"{column} length"] = [len(text.split()) for text in texts]
        values[f"{column} empty"] = [not text.strip() for text in texts]
        values[f"{column} exact"] = _hash_texts(texts)
        values[f"{column} normal"] = _hash_texts([normalize_text(text) for text in texts])
    return pandas.DataFrame(values)


def _hash_texts(texts: list[str]) -> Any:
    """Return a 64-bit hash of each text, (n,) uint64."""
    import pandas

    return pandas.util.hash_array(np.array(texts, dtype=object), categorize=False)


def _measure_pairs(batch: Batch, measures: Mapping[str, Measure]) -> pandas.DataFrame:
    """Return a table with a row for each pair of a batch.

    Columns: ``label`` (``NO_LABEL`` without labels), ``score`` (0 without scores), and one for each
    measure. A batch of single texts gives an empty table.

    ``measures``: name → function that measures pairs.
    """
    import pandas

    first, second, labels = batch.to_pairs()
    if not first:
        return pandas.DataFrame()
    values: dict[str, Any] = {
        "label": labels or [NO_LABEL] * len(first),
        "score": batch.scores or 0.0,
    }
    for name, measure in measures.items():
        values[name] = measure(first, second)
    return pandas.DataFrame(values)


def _measure_column(name: str, rows: pandas.DataFrame, drawn: Sequence[str]) -> dict[str, Any]:
    """Return the counts and lengths of a column's texts, and distinct-n of some of its texts.

    distinct-n is the number of different n-grams of tokens divided by the number of n-grams, 0 to 1
    (Li et al. 2016). Lengths are in tokens. "4 to 32" is the share of texts of such a length.

    Args:
        name: the text column.
        rows: the table of ``_measure_texts`` for all measured rows.
        drawn: the column's texts for distinct-n.
    """
    # Count texts and measure lengths
    lengths = rows[f"{name} length"]
    in_range = int(lengths.between(*PREMISE_TOKENS).sum())
    values: dict[str, Any] = {
        "texts": len(rows),
        "empty": int(rows[f"{name} empty"].sum()),
        "under 3": int((lengths < SHORT_TEXT_TOKENS).sum()),
        "4 to 32": compute_wilson_interval(in_range, len(rows)),
        "mean length": float(lengths.mean()),
        "different": rows[f"{name} exact"].nunique(),
        "different, normal": rows[f"{name} normal"].nunique(),
    }

    # Compute distinct-n
    tokens = [text.lower().split() for text in drawn]
    for n in (1, 2, 3):
        grams: list[tuple[str, ...]] = []
        for text_tokens in tokens:
            # The tokens from index 0 on, 1 on, ..., side by side, are the n-grams
            shifted = [text_tokens[start:] for start in range(n)]
            grams += zip(*shifted, strict=False)
        values[f"distinct-{n}"] = len(set(grams)) / max(len(grams), 1)  # 0 without n-grams
    return values


def _count_repeats(kind: str, rows: pandas.DataFrame, columns: Sequence[str]) -> dict[str, int]:
    """Count rows that repeat an earlier row (all texts and the label).

    With several text columns, count rows whose first two texts are equal, too. Returns name of the
    count → rows.

    Args:
        kind: "exact" compares texts, "normal" compares their normal forms.
        rows: the table of ``_measure_texts`` for all measured rows.
        columns: the text columns.
    """
    keys = ["label", *(f"{column} {kind}" for column in columns)]
    counts = {"rows that repeat an earlier one": int(rows.duplicated(keys).sum())}
    if len(columns) > 1:
        same = rows[f"{columns[0]} {kind}"] == rows[f"{columns[1]} {kind}"]
        counts["rows whose first two texts are the same"] = int(same.sum())
    return counts


def _describe_by_label(name: str, pairs: pandas.DataFrame) -> pandas.DataFrame:
    """Return the distribution of a measure, a row for each label.

    Columns: number of pairs, mean, standard deviation (0 for a single pair), ``QUANTILES``, AUC.
    Labels are ordered by the mean score of their pairs; ties by ``LABELS_BY_SIMILARITY``, then by
    name. AUC (0 to 1) is the probability that a pair of the label has a larger value than a pair of
    the row above; ties count half. It is None for the first label.

    Args:
        name: the measure, which has numbers as values.
        pairs: the table of ``_measure_pairs`` for all measured pairs.
    """
    from sklearn.metrics import roc_auc_score

    # Order the labels
    scores = pairs.groupby("label")["score"].mean()
    order = {label: number for number, label in enumerate(LABELS_BY_SIMILARITY)}

    def make_sort_key(label: str) -> tuple[float, int, str]:
        # Labels outside of ``LABELS_BY_SIMILARITY`` come last among equal mean scores
        return scores[label], order.get(label, len(order)), label

    labels = sorted(scores.index, key=make_sort_key)

    # Describe the values of each label; the standard deviation of a single value becomes 0
    table = pairs.groupby("label")[name].describe(percentiles=QUANTILES).loc[labels].fillna(0.0)
    table = table.drop(columns=["min", "max"]).rename(columns={"count": "pairs", "std": "sd"})

    # Compare each label with the one before; the first has none
    aucs: list[float | None] = [None]
    for lower, higher in pairwise(labels):
        two_labels = pairs[pairs["label"].isin([lower, higher])]
        aucs.append(float(roc_auc_score(two_labels["label"] == higher, two_labels[name])))
    table = table.astype({"pairs": int}).astype(object)
    return table.assign(AUC=np.array(aucs, dtype=object))


def _measure_nli_agreement(pairs: pandas.DataFrame) -> pandas.DataFrame:
    """Return the shares of the NLI model's classes, a row for each label and a row "all".

    Each share is an ``Interval``. ``agreement`` is the share of pairs whose class is that of their
    label: Auto-NLI's measure of label quality (section 4.1). It is None for a label without a class
    in ``NLI_CLASS_OF_LABEL``. The row "all" has the pairs whose labels have a class; without such
    pairs there is no row "all".

    ``pairs``: the table of ``_measure_pairs`` for all measured pairs.
    """
    import pandas

    # Group the pairs by label, and add the group of all pairs whose labels have a class
    groups = list(pairs.groupby("label"))
    with_class = pairs[pairs["label"].isin(NLI_CLASS_OF_LABEL)]
    if len(with_class):
        groups.append(("all", with_class))

    # Count the classes of each group
    rows: dict[str, dict[str, Any]] = {}
    for label, group in groups:
        n = len(group)
        row: dict[str, Any] = {"pairs": n}
        for name in NLI_LABELS:
            row[name] = compute_wilson_interval(int((group["nli"] == name).sum()), n)
        row["agreement"] = None
        if group["label"].isin(NLI_CLASS_OF_LABEL).all():
            hits = group["nli"] == group["label"].map(NLI_CLASS_OF_LABEL)
            row["agreement"] = compute_wilson_interval(int(hits.sum()), n)
        rows[str(label)] = row
    return pandas.DataFrame.from_dict(rows, orient="index", dtype=object).rename_axis("label")


app = make_app("Measure the quality of a dataset of pairs, triplets or texts.")


@app.command()
def main(
    run: command.DatasetArgument,
    encoder: Annotated[
        str | None, typer.Option(help=f"{command.MODEL_HELP}, for similarity by label")
    ] = None,
    nli: command.NliOption = None,
    nli_labels: command.NliLabelsOption = None,
    config: command.ConfigOption = None,
    split: Annotated[str | None, typer.Option(help="[default: all]")] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Number of rows, drawn at random [default: all]")
    ] = None,
    seed: command.SeedOption = 42,
    out: command.OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the dataset RUN: labels against an NLI model, similarity by label, overlap, lengths,
    repeats.

    Without --nli and --encoder only the texts are counted. The 95 % intervals are Wilson's.

    Examples:

      sts-dino quality artifacts/datasets/auto-nli --nli microsoft/deberta-base-mnli

      sts-dino quality ORG/sts-dino-x2@v1.0.0 --encoder DIR --sample 10000
    """
    # Check options, dataset and folder before a model is loaded
    command.require_nli_model(nli, nli_labels)
    rows = find_rows(run, config, split)
    folder = command.make_output_folder(
        out or command.get_default_folder("quality", rows.name, rows.config)
    )
    command.silence_transformers()
    nli_model = load_nli_model(nli, nli_labels) if nli else None
    loaded_encoder = load_encoder(encoder) if encoder else None
    total = min(sample or rows.total, rows.total)
    with ProgressBar(total=total, desc=f"measuring {rows.config}", unit=" row") as bar:
        quality = measure_quality(rows, sample, seed, loaded_encoder, nli_model, bar.update)
    command.write_report(folder, "quality", quality.to_markdown(), quality.to_document(), as_json)

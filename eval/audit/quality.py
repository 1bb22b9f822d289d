"""Quality of a dataset: texts, repeats and labels in one pass over its rows; cross-encoders for NLI.

Shares are fractions (0 to 1) with 95 % Wilson intervals, as if rows were independent. Memory: one batch of texts, the
texts of at most ``DISTINCT_ROWS`` rows, and some 100 bytes of hashes and numbers for each row. No text of the dataset
is printed or kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from tqdm import tqdm

from eval.audit import command
from eval.audit.agreement import wilson
from eval.audit.evaluation_sentences import normal_form
from eval.audit.source import Batch, DatasetRows, find_rows
from eval.encoders.embeddings import cosine
from eval.encoders.load import Encoder, content_hash, download, load_encoder
from hub.cli import JsonOption, new_app
from hub.contract.measured import Interval
from hub.contract.schema import NLI_LABELS
from hub.errors import InputError, RunError
from hub.untrusted import NO_CODE, NO_PICKLES, Markdown, code, reading_model, require_safetensors, table
from hub.word_overlap import word_overlap

if TYPE_CHECKING:
    import pandas

Measures = Mapping[str, Callable[[list[str], list[str]], Sequence[Any]]]  # name → a value for each pair
LIBRARIES = ("numpy", "pyarrow", "scipy", "scikit-learn", "torch", "transformers", "sentence-transformers")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
ORDER = ("contradiction", "negative", "neutral", "entailment", "positive")  # rising similarity
INTENDED = {**{name: name for name in NLI_LABELS}, "positive": "entailment", "negative": "contradiction"}
SHORT = 3  # tokens between blanks, as in all lengths
NEEDED = (4, 32)  # tokens: the premises that Auto-NLI used (section 4.1, appendix A), both ends included
DISTINCT_ROWS = 10_000  # distinct-n falls as texts are added: datasets are compared on as many
NLI_BATCH = 32  # pairs of similar length


@dataclass(frozen=True)
class Quality:
    """Everything measured of one config: ``facts`` about the measurement, and a table for each question.

    ``texts`` has a row for each text column, ``repeats`` one for exact and one for normal repeats, ``measures`` (name →
    table) one for each label in rising order, ``nli`` one for each label and one for all.
    """

    facts: dict[str, Any]
    texts: pandas.DataFrame
    repeats: pandas.DataFrame
    measures: dict[str, pandas.DataFrame]
    nli: pandas.DataFrame | None

    def document(self) -> dict[str, Any]:
        """The tables as lists of rows; cells are numbers, None and ``Interval``."""

        def records(frame: pandas.DataFrame | None) -> Any:
            return None if frame is None else frame.reset_index().to_dict("records")

        measures = {name: records(frame) for name, frame in self.measures.items()}
        tables = {"texts": records(self.texts), "repeats": records(self.repeats), "nli": records(self.nli)}
        return {**self.facts, **tables, "measures": measures}

    def report(self) -> str:
        """The tables as Markdown; untrusted names are escaped."""
        return command.fill("quality.md.jinja", quality=self, shown=_shown, **self.facts)


def _shown(frame: pandas.DataFrame, first: str) -> Markdown:
    """A table as Markdown; ``first`` heads the column of names."""
    rows = [[code(str(label)), *map(_cell, row)] for label, *row in frame.itertuples()]
    return table([first, *frame.columns], rows)


def _cell(value: Any) -> Any:
    if isinstance(value, Interval):  # three decimals, as in the paper
        return Markdown(f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]")
    return "–" if value is None or np.isnan(value) else round(value, 3)


@dataclass(frozen=True)
class NliModel:
    """A loaded cross-encoder; ``classes`` are the names of its outputs, in their order."""

    model: Any  # sentence_transformers.CrossEncoder
    name: str
    revision: str
    classes: tuple[str, ...]

    def predict(self, first: list[str], second: list[str]) -> list[str]:
        """The most probable class of every (premise, hypothesis). Raises RunError when an output is not finite."""
        import torch

        pairs = list(zip(first, second, strict=True))  # the library sorts them by length
        logits = self.model.predict(
            pairs, batch_size=NLI_BATCH, activation_fn=torch.nn.Identity(), show_progress_bar=False
        )
        if not np.isfinite(logits).all():
            raise RunError(self.name, "gives outputs that are not finite", hint="use another NLI model")
        return [self.classes[column] for column in logits.argmax(axis=1)]


def load_nli_model(place: str, labels: str | None = None) -> NliModel:
    """The NLI model in a folder or under the Hub id ``ORG/NAME[@REVISION]``; safetensors, no remote code.

    ``labels`` names the outputs in their order, for a model whose config does not (``LABEL_0`` ...).
    Raises InputError when it cannot be loaded or its outputs are not the three classes, RunError when the Hub fails.
    """
    from sentence_transformers import CrossEncoder

    folder, revision = (Path(place), None) if Path(place).is_dir() else download(place)
    require_safetensors(folder, place)
    with reading_model(place, "cannot be loaded as a cross-encoder"):
        model = CrossEncoder(str(folder), model_kwargs=dict(NO_PICKLES), local_files_only=True, **NO_CODE)
        model.predict([("A sentence.", "Another.")], show_progress_bar=False)  # a chat template may refuse it
    assert model.model is not None
    classes = class_names(model.model.config.id2label, labels, place)
    name = place.partition("@")[0] if revision else folder.name
    return NliModel(model, name, revision or content_hash(folder), classes)


def class_names(id2label: Mapping[int, str], labels: str | None, place: str) -> tuple[str, ...]:
    """The model's classes in the order of its outputs, as NLI names them; ``labels`` names those of ``LABEL_0`` ...

    Raises InputError when they are not entailment, neutral and contradiction, or ``labels`` contradicts the config.
    """
    found = tuple(id2label[number].strip().lower() for number in sorted(id2label))
    given = tuple(name.strip().lower() for name in labels.split(",")) if labels else found
    is_unnamed = list(found) == [f"label_{number}" for number in range(3)]
    if sorted(given) != sorted(NLI_LABELS) or not (is_unnamed or given == found):
        problem = f"its outputs are {', '.join(found)}" + (f", --nli-labels names {', '.join(given)}" if labels else "")
        hint = f"name its outputs: --nli-labels {','.join(sorted(NLI_LABELS))}, in their order" if is_unnamed else None
        raise InputError(place, problem, allowed=", ".join(NLI_LABELS), hint=hint)
    return given


def measure(
    rows: DatasetRows,
    sample: int | None = None,
    seed: int = 42,
    encoder: Encoder | None = None,
    nli: NliModel | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> Quality:
    """The quality of a dataset, or of ``sample`` of its rows drawn at random.

    ``progress`` is called with the number of rows of each batch. Raises InputError when an encoder or NLI model is
    given and there are no pairs, or one of them fails.
    """
    import pandas

    if len(rows.columns) < 2 and (encoder or nli):
        raise InputError(rows.place, "has single texts: no pairs to compare")
    values: Measures = {
        "word overlap": lambda first, second: list(map(word_overlap, first, second)),
        **({"cosine": cosine(encoder)} if encoder else {}),
        **({"nli": nli.predict} if nli else {}),
    }
    found = list[tuple[pandas.DataFrame, pandas.DataFrame]]()
    for batch in rows.batches(sample, seed):
        found.append((_texts(batch), _pairs(batch, values)))
        progress(len(batch))
    texts, pairs = (pandas.concat(frames) for frames in zip(*found, strict=True))
    facts = {
        "dataset": rows.name,
        "revision": rows.revision,
        "config": rows.config,
        "example_type": rows.example_type,
        "splits": rows.splits,
        "rows": len(texts),
        "seed": seed,
        "encoder": encoder and {"name": encoder.name, "revision": encoder.revision},
        "nli_model": nli and {"name": nli.name, "revision": nli.revision, "classes": list(nli.classes)},
        "versions": {"python": sys.version.split()[0], **{library: version(library) for library in LIBRARIES}},
    }
    drawn = list(rows.batches(min(len(texts), DISTINCT_ROWS), seed))
    kept = {column: [text for batch in drawn for text in batch.texts[column]] for column in rows.columns}
    return Quality(
        facts,
        pandas.DataFrame({column: _column(column, texts, kept[column]) for column in rows.columns}, dtype=object).T,
        pandas.DataFrame({kind: _repeats(kind, texts, rows.columns) for kind in ("exact", "normal")}).T,
        {name: _by_label(name, pairs) for name in values if name in pairs and pairs[name].dtype.kind == "f"},
        _agreement(pairs) if nli else None,
    )


def _texts(batch: Batch) -> pandas.DataFrame:
    """Per row: the length, emptiness and hashes (exact, normal) of each text, and the hash of the label."""
    import pandas

    def hashes(texts: list[str]) -> Any:
        return pandas.util.hash_array(np.array(texts, dtype=object), categorize=False)

    found: dict[str, Any] = {"label": hashes(batch.labels or [""] * len(batch))}
    for column, texts in batch.texts.items():
        found[f"{column} length"] = [len(text.split()) for text in texts]
        found[f"{column} empty"] = [not text.strip() for text in texts]
        found[f"{column} exact"] = hashes(texts)
        found[f"{column} normal"] = hashes([normal_form(text) for text in texts])
    return pandas.DataFrame(found)


def _pairs(batch: Batch, values: Measures) -> pandas.DataFrame:
    """Per pair: label, score (0 where there is none) and every measured value; no columns for single texts."""
    import pandas

    first, second, labels = batch.pairs()
    if not first:
        return pandas.DataFrame()
    found = {name: measured(first, second) for name, measured in values.items()}
    return pandas.DataFrame({"label": labels, "score": batch.scores or 0.0, **found})


def _column(name: str, rows: pandas.DataFrame, drawn: Sequence[str]) -> dict[str, Any]:
    """Counts of a column's texts; distinct-n (Li et al. 2016) of the ``drawn`` ones: different over all n-grams."""
    lengths, tokens = rows[f"{name} length"], [text.lower().split() for text in drawn]
    grams = {
        n: [gram for one in tokens for gram in zip(*(one[at:] for at in range(n)), strict=False)] for n in (1, 2, 3)
    }
    return {
        "texts": len(rows),
        "empty": int(rows[f"{name} empty"].sum()),
        "under 3": int((lengths < SHORT).sum()),
        "4 to 32": wilson(int(lengths.between(*NEEDED).sum()), len(rows)),
        "mean length": float(lengths.mean()),
        "different": rows[f"{name} exact"].nunique(),
        "different, normal": rows[f"{name} normal"].nunique(),
        **{f"distinct-{n}": len(set(found)) / max(len(found), 1) for n, found in grams.items()},
    }


def _repeats(kind: str, rows: pandas.DataFrame, columns: Sequence[str]) -> dict[str, int]:
    """Rows that repeat an earlier one (texts and label), and rows whose first two texts are the same."""
    found = {
        "rows that repeat an earlier one": int(rows.duplicated(["label", *(f"{c} {kind}" for c in columns)]).sum())
    }
    if len(columns) > 1:
        same = rows[f"{columns[0]} {kind}"] == rows[f"{columns[1]} {kind}"]
        found["rows whose first two texts are the same"] = int(same.sum())
    return found


def _by_label(name: str, pairs: pandas.DataFrame) -> pandas.DataFrame:
    """Distribution by label, labels by the mean score of their pairs, else by meaning, else by name.

    AUC: the probability that a pair has a larger value than one of the label before; ties count half.
    """
    from sklearn.metrics import roc_auc_score

    scores = pairs.groupby("label")["score"].mean()
    ordered = sorted(scores.index, key=lambda one: (scores[one], ORDER.index(one) if one in ORDER else len(ORDER), one))
    found = pairs.groupby("label")[name].describe(percentiles=QUANTILES).loc[ordered].fillna(0.0)
    found = found.drop(columns=["min", "max"]).rename(columns={"count": "pairs", "std": "sd"}).astype({"pairs": int})
    two = [pairs[pairs["label"].isin(both)] for both in pairwise(ordered)]
    aucs = [roc_auc_score(one["label"] == label, one[name]) for one, label in zip(two, ordered[1:], strict=True)]
    return found.astype(object).assign(AUC=np.array([None, *map(float, aucs)], dtype=object))


def _agreement(pairs: pandas.DataFrame) -> pandas.DataFrame:
    """The NLI model's classes by label, and the share of the class that the label stands for (Auto-NLI, 4.1)."""
    import pandas

    meant, found = pairs[pairs["label"].isin(INTENDED)], dict[str, dict[str, Any]]()
    for label, of in [*pairs.groupby("label"), *([("all", meant)] if len(meant) else [])]:
        shares = {name: wilson(int((of["nli"] == name).sum()), len(of)) for name in NLI_LABELS}
        hits, has_class = of["nli"] == of["label"].map(INTENDED), of["label"].isin(INTENDED).all()
        found[str(label)] = {
            "pairs": len(of),
            **shares,
            "agreement": wilson(int(hits.sum()), len(of)) if has_class else None,
        }
    return pandas.DataFrame.from_dict(found, orient="index", dtype=object).rename_axis("label")


app = new_app("Measure the quality of a dataset of pairs, triplets or texts.")


@app.command()
def main(
    place: command.PlaceArgument,
    encoder: Annotated[str | None, typer.Option(help=f"{command.MODEL}, for similarity by label")] = None,
    nli: command.NliOption = None,
    nli_labels: command.NliLabelsOption = None,
    config: command.ConfigOption = None,
    split: Annotated[str | None, typer.Option(help="[default: all]")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="So many rows, drawn at random [default: all]")] = None,
    seed: command.SeedOption = 42,
    out: command.OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the dataset RUN: labels against an NLI model, similarity by label, overlap, lengths, repeats.

    Without --nli and --encoder only the texts are counted. The 95 % intervals are Wilson's.

    Examples:

      sts-dino quality artifacts/datasets/auto-nli --nli microsoft/deberta-base-mnli

      sts-dino quality ORG/sts-dino-x2@v1.0.0 --encoder sentence-transformers/all-MiniLM-L6-v2 --sample 10000
    """
    rows = find_rows(place, config, split)
    folder = command.made_folder(out or command.default_folder("quality", rows.name, rows.config))
    command.quiet_transformers()
    loaded = load_nli_model(nli, nli_labels) if nli else None
    embedder = load_encoder(encoder) if encoder else None
    with tqdm(total=min(sample or rows.total, rows.total), desc=f"measuring {rows.config}", unit=" rows") as bar:
        quality = measure(rows, sample, seed, embedder, loaded, bar.update)
    command.write_report(folder, "quality", quality.report(), quality.document(), as_json)

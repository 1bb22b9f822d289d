"""quality.json: texts, pairs and labels of a dataset, measured in one pass over its rows.

Shares are fractions (0 to 1) with 95 % Wilson intervals, as if rows were independent. Memory: one batch of texts, the
texts of at most ``DISTINCT_ROWS`` rows, and some 100 bytes of hashes and numbers for each row.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from eval.audit.source import Batch, DatasetRows
from eval.audit.text_forms import normal_form, words
from eval.encoders.embeddings import cosine
from eval.encoders.load import Encoder, content_hash, download
from hub.contract.schema import NLI_LABELS
from hub.errors import InputError, RunError
from hub.untrusted import NO_CODE, NO_PICKLES, reading_model, require_safetensors

Finite = Annotated[float, Field(allow_inf_nan=False)]
Lengths = Callable[[Sequence[str]], list[int]]
LIBRARIES = ("numpy", "pyarrow", "scipy", "scikit-learn", "torch", "transformers", "sentence-transformers")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
ORDER = ("contradiction", "negative", "neutral", "entailment", "positive")  # rising similarity
INTENDED = {**{name: name for name in NLI_LABELS}, "positive": "entailment", "negative": "contradiction"}
SHORT = 3  # tokens
NEEDED = (4, 32)  # tokens: the premises that Auto-NLI used (section 4.1, appendix A), both ends included
DISTINCT_ROWS = 10_000  # distinct-n falls as texts are added: datasets are compared on as many
BIN = 0.05  # width of a histogram's bin
NLI_BATCH = 32  # pairs of similar length


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Share(_Frozen):
    """``count`` of ``n`` with its interval."""

    count: int
    n: int
    share: Finite
    low: Finite
    high: Finite


class LabelAgreement(_Frozen):
    """The NLI model's classes for the pairs of one label; ``agreement`` where the label stands for a class."""

    label: str
    intended: str | None
    predicted: dict[str, Share]
    agreement: Share | None


class NliAgreement(_Frozen):
    """Agreement with an NLI model (Auto-NLI, section 4.1); ``classes`` in the order of the model's outputs."""

    model: str
    revision: str
    classes: tuple[str, ...]
    labels: tuple[LabelAgreement, ...]
    agreement: Share | None  # over all pairs whose label stands for a class


class Spread(_Frozen):
    """Values of a measure over the pairs of one label; ``histogram`` counts them between the edges."""

    label: str
    n: int
    mean: Finite
    sd: Finite
    quantiles: dict[str, Finite]
    histogram: tuple[int, ...]


class Auc(_Frozen):
    """Probability that a pair of label ``higher`` has a larger value than one of ``lower``; ties count half."""

    lower: str
    higher: str
    auc: Finite


class Measure(_Frozen):
    """One number per pair, label by label in rising order; ``source`` and ``revision`` of the encoder, if one."""

    name: str
    source: str | None = None
    revision: str | None = None
    edges: tuple[Finite, ...]
    labels: tuple[Spread, ...]
    separations: tuple[Auc, ...]


class Distinct(_Frozen):
    """distinct-n (Li et al. 2016): different n-grams over all n-grams of ``texts`` texts drawn at random."""

    n: int
    different: int
    total: int
    ratio: Finite
    texts: int


class Column(_Frozen):
    """Texts of one column. ``lengths``: length → texts; ``different_normal`` compares letters and digits alone."""

    name: str
    texts: int
    empty: int
    short: int  # fewer than SHORT tokens, the empty ones included
    between_4_and_32: Share
    mean_length: Finite
    lengths: dict[int, int]
    different: int
    different_normal: int
    distinct: tuple[Distinct, ...]


class Repeats(_Frozen):
    """Rows that repeat an earlier one (texts and label), and pairs whose two texts are the same."""

    rows: int
    exact: int
    normal: int
    same_sides: int
    same_sides_normal: int


class Quality(_Frozen):
    """Everything measured of one config. ``rows`` of ``splits`` were read, drawn at random if fewer than there are."""

    dataset: str
    revision: str
    config: str
    form: str
    splits: dict[str, int]
    rows: int
    seed: int
    length_unit: str
    versions: dict[str, str]
    columns: tuple[Column, ...]
    repeats: Repeats
    measures: tuple[Measure, ...] = ()
    nli: NliAgreement | None = None


def share(count: int, n: int) -> Share:
    """``count`` of ``n`` with its interval; of nothing, 0 with the interval [0, 1]."""
    if n == 0:
        return Share(count=0, n=0, share=0.0, low=0.0, high=1.0)
    from scipy.stats import binomtest  # costs most of a second

    around = binomtest(count, n).proportion_ci(0.95, method="wilson")
    return Share(count=count, n=n, share=count / n, low=float(around.low), high=float(around.high))


def whitespace_lengths(texts: Sequence[str]) -> list[int]:
    """Tokens between blanks."""
    return [len(text.split()) for text in texts]


def tokenizer_lengths(place: str) -> Lengths:
    """Count tokens with a model's tokenizer, without its special tokens. Raises InputError when it cannot be loaded."""
    from transformers import AutoTokenizer

    with reading_model(place, "has no tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(place, **NO_CODE)
    return lambda texts: [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]


def jaccard(first: list[str], second: list[str]) -> list[float]:
    """Words in both texts over words in either; 1 where both have none."""
    return [len(a & b) / len(a | b) if a | b else 1.0 for a, b in _word_sets(first, second)]


def overlap_coefficient(first: list[str], second: list[str]) -> list[float]:
    """Words in both texts over the words of the text with fewer; 1 where one has none."""
    return [len(a & b) / min(len(a), len(b)) if a and b else 1.0 for a, b in _word_sets(first, second)]


def _word_sets(first: list[str], second: list[str]) -> list[tuple[set[str], set[str]]]:
    return [(set(words(a)), set(words(b))) for a, b in zip(first, second, strict=True)]


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
    """The model's classes in the order of its outputs, as NLI names them.

    Raises InputError when they are not entailment, neutral and contradiction, or ``labels`` contradicts the config.
    """
    found = tuple(id2label[number].strip().lower() for number in sorted(id2label))
    given = tuple(name.strip().lower() for name in labels.split(",")) if labels else None
    if given is not None and sorted(given) != sorted(NLI_LABELS):
        raise InputError("--nli-labels", f"names {', '.join(given)}", allowed=f"{', '.join(NLI_LABELS)}, in any order")
    if sorted(found) == sorted(NLI_LABELS):
        if given not in (None, found):
            raise InputError("--nli-labels", f"{place} itself says {', '.join(found)}", hint="leave the option out")
        return found
    is_unnamed = list(found) == [f"label_{number}" for number in range(3)]
    if is_unnamed and given is not None:
        return given
    hint = "name its outputs: --nli-labels contradiction,entailment,neutral" if is_unnamed else None
    raise InputError(place, f"classifies into {', '.join(found)}", allowed=", ".join(NLI_LABELS), hint=hint)


def measure(
    rows: DatasetRows,
    sample: int | None = None,
    seed: int = 42,
    encoder: Encoder | None = None,
    nli: NliModel | None = None,
    lengths: tuple[Lengths, str] = (whitespace_lengths, "tokens between blanks"),
    progress: Callable[[int], object] = lambda done: None,
) -> Quality:
    """The quality of a dataset, or of ``sample`` of its rows drawn at random.

    lengths: what counts tokens, and in which unit. ``progress`` is called with the number of rows of each batch.
    Raises InputError when an encoder or NLI model is given and there are no pairs, or one of them fails.
    """
    if len(rows.columns) < 2 and (encoder or nli):
        raise InputError(f"{rows.name} ({rows.config})", "has single texts: no pairs to compare")
    values: dict[str, Callable[[list[str], list[str]], Sequence[Any]]] = {
        "jaccard": jaccard,
        "overlap coefficient": overlap_coefficient,
        **({"cosine": cosine(encoder)} if encoder else {}),
        **({"nli": nli.predict} if nli else {}),
    }
    total = len(rows.drawn(sample, seed))
    drawn = np.arange(total)
    if total > DISTINCT_ROWS:
        drawn = np.sort(np.random.default_rng(seed + 1).choice(total, DISTINCT_ROWS, replace=False))
    texts, pairs, kept, done = list[pandas.DataFrame](), list[pandas.DataFrame](), dict[str, list[str]](), 0
    for batch in rows.batches(sample, seed):
        texts.append(_texts(batch, lengths[0]))
        pairs.append(_pairs(batch, values))
        low, high = np.searchsorted(drawn, [done, done + len(batch)])
        for column, found in batch.texts.items():
            kept.setdefault(column, []).extend(found[place] for place in drawn[low:high] - done)
        done += len(batch)
        progress(len(batch))
    every, compared = pandas.concat(texts), pandas.concat(pairs)
    encoded = {"source": encoder.name, "revision": encoder.revision} if encoder else {}
    measures = [("jaccard", 0.0, {}), ("overlap coefficient", 0.0, {}), ("cosine", -1.0, encoded)]
    return Quality(
        dataset=rows.name,
        revision=rows.revision,
        config=rows.config,
        form=rows.example_type,
        splits=rows.splits,
        rows=done,
        seed=seed,
        length_unit=lengths[1],
        versions={"python": sys.version.split()[0], **{library: version(library) for library in LIBRARIES}},
        columns=tuple(_column(column, every, kept[column]) for column in rows.columns),
        repeats=_repeats(every, rows.columns),
        measures=tuple(
            _measure(name, compared, low, **source) for name, low, source in measures if name in compared.columns
        ),
        nli=_agreement(nli, compared) if nli else None,
    )


def _texts(batch: Batch, lengths: Lengths) -> pandas.DataFrame:
    """Per row: the length, emptiness and hashes (exact, normal) of each text, and the hashes of the whole row."""
    columns: dict[str, Any] = {}
    label = _hashes(batch.labels or [""] * len(batch))
    rows = {"exact": label, "normal": label}
    for column, texts in batch.texts.items():
        columns[f"{column} length"] = lengths(texts)
        columns[f"{column} empty"] = [not text.strip() for text in texts]
        for kind, hashes in (("exact", _hashes(texts)), ("normal", _hashes([normal_form(text) for text in texts]))):
            columns[f"{column} {kind}"] = hashes
            rows[kind] = rows[kind] * np.uint64(1_000_003) ^ hashes
    return pandas.DataFrame(columns | rows)


def _hashes(texts: Sequence[str]) -> NDArray[np.uint64]:
    return pandas.util.hash_array(np.array(texts, dtype=object), categorize=False)


def _pairs(batch: Batch, values: Mapping[str, Callable[[list[str], list[str]], Sequence[Any]]]) -> pandas.DataFrame:
    """Per pair: label, score (0 where there is none) and every measured value; no columns for single texts."""
    first, second, labels = batch.pairs()
    if not first:
        return pandas.DataFrame()
    found = {name: measured(first, second) for name, measured in values.items()}
    return pandas.DataFrame({"label": labels, "score": batch.scores or 0.0, **found})


def _column(name: str, rows: pandas.DataFrame, drawn: Sequence[str]) -> Column:
    lengths = rows[f"{name} length"]
    distinct = []
    tokens = [text.lower().split() for text in drawn]
    for n in (1, 2, 3):
        grams = [gram for one in tokens for gram in zip(*(one[start:] for start in range(n)), strict=False)]
        ratio = len(set(grams)) / max(len(grams), 1)
        distinct.append(Distinct(n=n, different=len(set(grams)), total=len(grams), ratio=ratio, texts=len(drawn)))
    return Column(
        name=name,
        texts=len(rows),
        empty=int(rows[f"{name} empty"].sum()),
        short=int((lengths < SHORT).sum()),
        between_4_and_32=share(int(lengths.between(*NEEDED).sum()), len(rows)),
        mean_length=float(lengths.mean()),
        lengths=lengths.value_counts().sort_index().to_dict(),
        different=rows[f"{name} exact"].nunique(),
        different_normal=rows[f"{name} normal"].nunique(),
        distinct=tuple(distinct),
    )


def _repeats(rows: pandas.DataFrame, columns: Sequence[str]) -> Repeats:
    same = dict.fromkeys(("exact", "normal"), 0)
    if len(columns) > 1:
        same = {kind: int((rows[f"{columns[0]} {kind}"] == rows[f"{columns[1]} {kind}"]).sum()) for kind in same}
    return Repeats(
        rows=len(rows),
        exact=len(rows) - rows["exact"].nunique(),
        normal=len(rows) - rows["normal"].nunique(),
        same_sides=same["exact"],
        same_sides_normal=same["normal"],
    )


def _measure(name: str, pairs: pandas.DataFrame, low: float, **source: str) -> Measure:
    """Distribution by label, labels by the mean score of their pairs, else by meaning, else by name."""
    scores = pairs.groupby("label")["score"].mean()
    ordered = sorted(scores.index, key=lambda one: (scores[one], ORDER.index(one) if one in ORDER else len(ORDER), one))
    values = {label: found.to_numpy(dtype=np.float64) for label, found in pairs.groupby("label")[name]}
    edges = np.linspace(low, 1.0, round((1.0 - low) / BIN) + 1)
    return Measure(
        name=name,
        edges=tuple(edges),
        labels=tuple(_spread(label, values[label], edges) for label in ordered),
        separations=tuple(
            Auc(lower=lower, higher=higher, auc=auc(values[lower], values[higher]))
            for lower, higher in pairwise(ordered)
        ),
        **source,
    )


def _spread(label: str, values: NDArray[np.float64], edges: NDArray[np.float64]) -> Spread:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return Spread(
        label=label,
        n=len(values),
        mean=float(values.mean()),
        sd=float(values.std()),
        quantiles={f"{q:g}": float(value) for q, value in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True)},
        histogram=tuple(counts.tolist()),
    )


def auc(lower: NDArray[np.float64], higher: NDArray[np.float64]) -> float:
    """Probability that a value of ``higher`` exceeds one of ``lower``; ties count half."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(np.repeat([0, 1], [len(lower), len(higher)]), np.concatenate([lower, higher])))


def _agreement(model: NliModel, pairs: pandas.DataFrame) -> NliAgreement:
    """Predicted classes by label, and their agreement with the labels that stand for a class."""
    counts = pandas.crosstab(pairs["label"], pairs["nli"]).reindex(columns=list(NLI_LABELS), fill_value=0)
    labels = []
    for label, row in counts.iterrows():
        predicted = {name: share(int(row[name]), int(row.sum())) for name in NLI_LABELS}
        intended = INTENDED.get(str(label))
        found = predicted[intended] if intended else None
        labels.append(LabelAgreement(label=str(label), intended=intended, predicted=predicted, agreement=found))
    meant = [row.agreement for row in labels if row.agreement is not None]
    whole = share(sum(one.count for one in meant), sum(one.n for one in meant)) if meant else None
    return NliAgreement(
        model=model.name, revision=model.revision, classes=model.classes, labels=tuple(labels), agreement=whole
    )

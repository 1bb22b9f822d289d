"""quality.json: what was measured of a dataset, in the form that reports and comparisons read.

Shares are fractions (0 to 1), each with its counts; intervals are 95 % Wilson intervals (Wilson 1927).
"""

import hashlib
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from huggingface_hub import HfApi, constants, snapshot_download
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from sentence_transformers import CrossEncoder
from sklearn.metrics import roc_auc_score
from transformers import AutoTokenizer

from eval.audit.source import Batch, DatasetRows
from eval.audit.text_forms import normal_form, words
from eval.encoders.embeddings import cosine
from eval.encoders.load import Encoder
from hub.client.failures import reading
from hub.contract.recipe import NLI_LABELS
from hub.contract.shards import sha256_file
from hub.errors import InputError, RunError
from hub.model_folder import NO_CODE, NO_PICKLES, reading_model, require_safetensors

Finite = Annotated[float, Field(allow_inf_nan=False)]
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Share(_Frozen):
    """``count`` of ``n``; ``low`` and ``high`` are the interval if rows were drawn independently."""

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
    """A measure's values over the pairs of one label; ``histogram`` counts them between the edges."""

    label: str
    n: int
    mean: Finite
    sd: Finite
    quantiles: dict[str, Finite]
    histogram: tuple[int, ...]


class Auc(_Frozen):
    """The chance that a pair of label ``higher`` has a larger value than one of ``lower``; ties count half (AUC)."""

    lower: str
    higher: str
    auc: Finite


class Measure(_Frozen):
    """A number per pair, label by label in rising order. ``source`` and its ``revision``: the encoder, if one."""

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
    """The texts of one column; ``lengths`` is length → texts."""

    name: str
    texts: int
    empty: int
    short: int  # fewer than SHORT tokens, the empty ones included
    between_4_and_32: Share
    mean_length: Finite
    lengths: dict[int, int]
    different: int  # exactly
    different_normal: int  # by letters and digits alone
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
    """``count`` of ``n`` with its 95 % Wilson interval; of nothing, 0 with the interval [0, 1]."""
    if n == 0:
        return Share(count=0, n=0, share=0.0, low=0.0, high=1.0)
    from scipy.stats import binomtest  # costs most of a second

    around = binomtest(count, n).proportion_ci(0.95, method="wilson")
    return Share(count=count, n=n, share=count / n, low=float(around.low), high=float(around.high))


INTENDED = {**{name: name for name in NLI_LABELS}, "positive": "entailment", "negative": "contradiction"}
NLI_BATCH = 32  # pairs of like length
READ = ("*.json", "*.safetensors", "*.txt", "*.model")  # of a repository: no pickles, no code


@dataclass(frozen=True)
class NliModel:
    """A loaded cross-encoder; ``classes`` are the names of its outputs, in their order."""

    model: CrossEncoder
    name: str
    revision: str
    classes: tuple[str, ...]

    def predict(self, first: list[str], second: list[str]) -> list[str]:
        """The most probable class of every (premise, hypothesis). Raises RunError when an output is not finite."""
        pairs = list(zip(first, second, strict=True))  # the library sorts them by length
        as_they_are = torch.nn.Identity()
        logits = self.model.predict(pairs, batch_size=NLI_BATCH, activation_fn=as_they_are, show_progress_bar=False)
        if not np.isfinite(logits).all():
            raise RunError(self.name, "gives outputs that are not finite", hint="use another NLI model")
        return [self.classes[column] for column in logits.argmax(axis=1)]


def load_nli_model(place: str, labels: str | None = None) -> NliModel:
    """The NLI model in a folder or under the Hub id ``ORG/NAME[@REVISION]``; safetensors, no remote code.

    ``labels`` names the outputs in their order, for a model whose config does not (``LABEL_0`` ...).
    Raises InputError when it cannot be loaded or its outputs are not the three classes, RunError when the Hub fails.
    """
    folder, revision = (Path(place), None) if Path(place).is_dir() else _download(place)
    require_safetensors(folder, place)
    with reading_model(place, "cannot be loaded as a cross-encoder"):
        model = CrossEncoder(str(folder), model_kwargs=dict(NO_PICKLES), local_files_only=True, **NO_CODE)
        model.predict([("A sentence.", "Another.")], show_progress_bar=False)  # a chat template may refuse it
    assert model.model is not None
    classes = class_names(model.model.config.id2label, labels, place)
    return NliModel(model, place.partition("@")[0] if revision else folder.name, revision or _digest(folder), classes)


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
    unnamed = [f"label_{number}" for number in range(3)]
    if list(found) == unnamed and given is not None:
        return given
    hint = "say what its outputs are: --nli-labels contradiction,entailment,neutral" if list(found) == unnamed else None
    raise InputError(place, f"classifies into {', '.join(found)}", allowed=", ".join(NLI_LABELS), hint=hint)


def _download(place: str) -> tuple[Path, str]:
    """A local copy of a Hub model and the commit it is of; with HF_HUB_OFFLINE, of what was downloaded before."""
    repo_id, _, revision = place.partition("@")
    if Path(place).is_absolute() or len(Path(place).parts) != 2 or Path(place).parts[0] in (".", ".."):
        raise InputError(place, "no such model folder", hint="a Hub model is ORG/NAME[@REVISION]")
    with reading(repo_id, revision or None):
        if not constants.HF_HUB_OFFLINE:  # the client gives what it has when the Hub does not answer
            HfApi().model_info(repo_id, revision=revision or None)
        folder = Path(snapshot_download(repo_id, revision=revision or None, allow_patterns=list(READ)))
    return folder, folder.name


def _digest(folder: Path) -> str:
    """What a folder's weights are, by their bytes."""
    return ",".join(sha256_file(path)[:16] for path in sorted(folder.glob("*.safetensors")))


class NliCounter:
    """Predicted classes by label, batch by batch."""

    def __init__(self, model: NliModel):
        self._model, self._counts = model, Counter[tuple[str, str]]()

    def add(self, batch: Batch) -> None:
        """Classify a batch's pairs."""
        first, second, labels = batch.pairs()
        if first:
            self._counts.update(zip(labels, self._model.predict(first, second), strict=True))

    def agreement(self) -> NliAgreement | None:
        """Ratios by label; None without pairs."""
        labels = sorted({label for label, _ in self._counts})
        if not labels:
            return None
        rows = tuple(self._of_label(label) for label in labels)
        meant = [row.agreement for row in rows if row.agreement is not None]
        whole = share(sum(one.count for one in meant), sum(one.n for one in meant)) if meant else None
        model = self._model
        return NliAgreement(
            model=model.name, revision=model.revision, classes=model.classes, labels=rows, agreement=whole
        )

    def _of_label(self, label: str) -> LabelAgreement:
        total = sum(self._counts[label, name] for name in self._model.classes)
        predicted = {name: share(self._counts[label, name], total) for name in NLI_LABELS}
        intended = INTENDED.get(label)
        agreement = predicted[intended] if intended else None
        return LabelAgreement(label=label, intended=intended, predicted=predicted, agreement=agreement)


Values = Callable[[list[str], list[str]], Sequence[float]]  # first and second texts → a number per pair
ORDER = ("contradiction", "negative", "neutral", "entailment", "positive")  # rising likeness
BIN = 0.05  # of histograms


def jaccard(first: list[str], second: list[str]) -> list[float]:
    """Words in both texts over words in either; 1 where both have none."""
    return [len(a & b) / len(a | b) if a | b else 1.0 for a, b in _word_sets(first, second)]


def overlap_coefficient(first: list[str], second: list[str]) -> list[float]:
    """Words in both texts over the words of the text with fewer; 1 where one has none."""
    return [len(a & b) / min(len(a), len(b)) if a and b else 1.0 for a, b in _word_sets(first, second)]


def _word_sets(first: list[str], second: list[str]) -> list[tuple[set[str], set[str]]]:
    return [(set(words(a)), set(words(b))) for a, b in zip(first, second, strict=True)]


class PairMeasure:
    """One measure over all pairs, label by label."""

    def __init__(self, name: str, values: Values, low: float, source: str | None = None, revision: str | None = None):
        self._name, self._values, self._source, self._revision = name, values, source, revision
        self._edges = np.linspace(low, 1.0, round((1.0 - low) / BIN) + 1)
        self._found: dict[str, array[float]] = defaultdict(lambda: array("f"))
        self._scores: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])  # label → sum of its scores, pairs

    def add(self, batch: Batch) -> None:
        """Measure a batch's pairs."""
        first, second, labels = batch.pairs()
        if not first:
            return
        for label, value in zip(labels, self._values(first, second), strict=True):
            self._found[label].append(value)
        for label, score in zip(labels, batch.scores, strict=False):
            self._scores[label][0] += score
            self._scores[label][1] += 1

    def measure(self) -> Measure | None:
        """What was measured, labels in rising order; None without pairs."""
        if not self._found:
            return None
        ordered = sorted(self._found, key=self._rank)
        values = {label: np.asarray(self._found[label], dtype=np.float64) for label in ordered}
        return Measure(
            name=self._name,
            source=self._source,
            revision=self._revision,
            edges=tuple(self._edges),
            labels=tuple(self._spread(label, values[label]) for label in ordered),
            separations=tuple(
                Auc(lower=lower, higher=higher, auc=auc(values[lower], values[higher]))
                for lower, higher in pairwise(ordered)
            ),
        )

    def _rank(self, label: str) -> tuple[float, int, str]:
        """By the mean score of its pairs, else by what the label means, else by name."""
        total, pairs = self._scores.get(label, (0.0, 0.0))
        return (total / pairs if pairs else 0.0, ORDER.index(label) if label in ORDER else len(ORDER), label)

    def _spread(self, label: str, values: NDArray[np.float64]) -> Spread:
        cuts = np.quantile(values, QUANTILES)
        cells, _ = np.histogram(np.clip(values, self._edges[0], self._edges[-1]), self._edges)
        return Spread(
            label=label,
            n=len(values),
            mean=float(values.mean()),
            sd=float(values.std()),
            quantiles={f"{q:g}": float(value) for q, value in zip(QUANTILES, cuts, strict=True)},
            histogram=tuple(int(cell) for cell in cells),
        )


def auc(lower: NDArray[np.float64], higher: NDArray[np.float64]) -> float:
    """The chance that a value of ``higher`` exceeds one of ``lower``, ties counting half."""
    is_higher = np.repeat([0, 1], [len(lower), len(higher)])
    return float(roc_auc_score(is_higher, np.concatenate([lower, higher])))


SHORT = 3  # tokens
NEEDED = (4, 32)  # tokens: the premises Auto-NLI used (section 4.1, appendix A), both ends included
DISTINCT_ROWS = 10_000  # distinct-n falls as texts are added: sets of unlike size are compared on as many texts
Lengths = Callable[[Sequence[str]], list[int]]


def whitespace_lengths(texts: Sequence[str]) -> list[int]:
    """Tokens between blanks."""
    return [len(text.split()) for text in texts]


def tokenizer_lengths(place: str) -> Lengths:
    """What the tokenizer of a model counts, without its special tokens. Raises InputError when it cannot be loaded."""
    with reading_model(place, "has no tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(place, **NO_CODE)

    def lengths(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]

    return lengths


class Texts:
    """Counts over the texts of one column, batch by batch."""

    def __init__(self, name: str, lengths: Lengths):
        self._name, self._of = name, lengths
        self._lengths = Counter[int]()
        self._empty, self._sampled = 0, 0
        self._exact, self._normal = array("Q"), array("Q")
        self._grams = {n: Counter[tuple[str, ...]]() for n in (1, 2, 3)}

    def add(self, texts: list[str], sampled: NDArray[np.int64]) -> None:
        """Count ``texts``; ``sampled`` are the places of those whose n-grams are counted."""
        self._lengths.update(self._of(texts))
        self._empty += sum(not text.strip() for text in texts)
        self._exact.extend(_text_hash(text) for text in texts)
        self._normal.extend(_text_hash(normal_form(text)) for text in texts)
        self._sampled += len(sampled)
        for place in sampled:
            tokens = texts[place].lower().split()
            for n, grams in self._grams.items():
                grams.update(zip(*(tokens[start:] for start in range(n)), strict=False))

    def column(self) -> Column:
        """What was counted. ``different`` texts are told apart by 64-bit hashes."""
        total = self._lengths.total()
        inside = sum(count for length, count in self._lengths.items() if NEEDED[0] <= length <= NEEDED[1])
        return Column(
            name=self._name,
            texts=total,
            empty=self._empty,
            short=sum(count for length, count in self._lengths.items() if length < SHORT),
            between_4_and_32=share(inside, total),
            mean_length=sum(length * count for length, count in self._lengths.items()) / max(total, 1),
            lengths=dict(sorted(self._lengths.items())),
            different=_different(self._exact),
            different_normal=_different(self._normal),
            distinct=tuple(self._distinct(n) for n in self._grams),
        )

    def _distinct(self, n: int) -> Distinct:
        different, total = len(self._grams[n]), self._grams[n].total()
        ratio = different / max(total, 1)
        return Distinct(n=n, different=different, total=total, ratio=ratio, texts=self._sampled)


class Rowwise:
    """Rows that repeat an earlier one, and pairs whose sides are the same, batch by batch."""

    def __init__(self) -> None:
        self._exact, self._normal = array("Q"), array("Q")
        self._same, self._same_normal = 0, 0

    def add(self, batch: Batch) -> None:
        """Count a batch's rows."""
        columns = list(batch.texts.values())
        labels = batch.labels or [""] * len(batch)
        for label, *texts in zip(labels, *columns, strict=True):
            normal = [normal_form(text) for text in texts]
            self._exact.append(_text_hash("\0".join((label, *texts))))
            self._normal.append(_text_hash("\0".join((label, *normal))))
            self._same += len(texts) > 1 and texts[0] == texts[1]
            self._same_normal += len(texts) > 1 and normal[0] == normal[1]

    def repeats(self) -> Repeats:
        """What was counted; the same sides include the exactly same ones."""
        rows = len(self._exact)
        return Repeats(
            rows=rows,
            exact=rows - _different(self._exact),
            normal=rows - _different(self._normal),
            same_sides=self._same,
            same_sides_normal=self._same_normal,
        )


def _text_hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _different(hashes: "array[int]") -> int:
    return len(np.unique(np.frombuffer(hashes, dtype=np.uint64))) if hashes else 0


LIBRARIES = ("numpy", "pyarrow", "scipy", "scikit-learn", "torch", "transformers", "sentence-transformers")


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
    texts = {column: Texts(column, lengths[0]) for column in rows.columns}
    rowwise, measures = Rowwise(), _measures(encoder)
    agreement = NliCounter(nli) if nli else None
    sampled = _sampled(len(rows.drawn(sample, seed)), seed)
    done = 0
    for batch in rows.batches(sample, seed):
        low, high = np.searchsorted(sampled, [done, done + len(batch)])
        for column, values in batch.texts.items():
            texts[column].add(values, sampled[low:high] - done)
        rowwise.add(batch)
        for one in measures:
            one.add(batch)
        if agreement:
            agreement.add(batch)
        done += len(batch)
        progress(len(batch))
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
        columns=tuple(column.column() for column in texts.values()),
        repeats=rowwise.repeats(),
        measures=tuple(found for one in measures if (found := one.measure()) is not None),
        nli=agreement.agreement() if agreement else None,
    )


def _measures(encoder: Encoder | None) -> list[PairMeasure]:
    lexical = [PairMeasure("jaccard", jaccard, 0.0), PairMeasure("overlap coefficient", overlap_coefficient, 0.0)]
    if encoder is None:
        return lexical
    return [*lexical, PairMeasure("cosine", cosine(encoder), -1.0, encoder.name, encoder.revision)]


def _sampled(rows: int, seed: int) -> np.ndarray:
    """Places, among the rows read, of those whose n-grams are counted."""
    if rows <= DISTINCT_ROWS:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed + 1).choice(rows, DISTINCT_ROWS, replace=False))

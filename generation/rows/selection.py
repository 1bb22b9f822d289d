"""Verification and selection: which texts of a source sentence and label are kept.

Verification: a text's likelihood under the prompt of every label shows which label it fits best. It
is the same text under every prompt, with the same source sentence, so its length and the frequency
of its words cancel. log p(text | prompt) sums the language model's own log-probabilities of the
drawn tokens, the ending one included: before debiasing, top-k and top-p, over the tokens that can
be drawn, as ``log_prob`` does. Calibration first subtracts each label's mean over the raw rows of
the shard, since one prompt may make all texts likelier than another does. The targets weigh alike,
however many texts each has.

Selection: an encoder chooses the best of several texts. It takes the place of self-debiasing where
a server draws the tokens. The label of the highest score keeps the texts with the highest cosines
to the source sentence: the filters have already rejected copies and near-copies. The label of the
lowest score keeps the texts with the lowest cosines. A label between them keeps the texts nearest
to a target between the mean cosines of those two, at its score: 0.5 lies in the middle, where both
other labels are farthest. The means are those of the chosen texts of a shard, so the scale of the
encoder does not matter. The encoder loads before any text is requested.

Numbers are rounded to the columns' float32 before anything is decided, so that readers of the rows
decide alike.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from sts_dino.generation.backends.protocol import Completion
from sts_dino.hub.client.connection import convert_read_errors
from sts_dino.hub.contract.packaged import (
    MINILM,
    MULTILINGUAL,
    find_downloaded_model,
    find_minilm,
)
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.schema import (
    COSINE,
    LABEL_PROBABILITY,
    LOG_LIKELIHOODS,
    NOT_BEST,
    OTHER_LABEL,
)
from sts_dino.hub.errors import InputError
from sts_dino.hub.untrusted import (
    NO_CODE,
    NO_PICKLES,
    SKIPPED_FILES,
    convert_model_errors,
    require_modules,
    require_safetensors,
)

_DECIDING_SUFFIXES = (".json", ".safetensors", ".txt", ".model")  # of files that change embeddings
SMALLEST_NORM = 1e-12  # of an embedding: keeps the cosines of a vector of zeros finite
BATCH_TEXTS = 32
PROBE_SENTENCE = "A sentence."  # an encoder that fails on it costs no text

Row = dict[str, Any]
LabelBias = Mapping[str, float]  # label → nats
NO_BIAS: LabelBias = {}
TextsByLabel = Mapping[tuple[str, str], list[str]]  # (source sentence, label) → texts
Embed = Callable[[Sequence[str]], Any]  # n texts → (n, dimension), finite float64
Cosines = Mapping[tuple[str, str], Mapping[str, float]]  # (source sentence, label) → text → cosine


# Verification


def make_columns(completion: Completion, target: str, recipe: DatasetRecipe) -> Row:
    """Return the verification columns of a text that was generated for the label ``target``.

    They are label → log-likelihood in nats, and the probability of ``target``. Empty without the
    recipe's section ``verification``.
    """
    if recipe.verification is None:
        return {}
    log_likelihoods = {}
    for label, nats in zip(recipe.written_labels, completion.log_likelihoods, strict=True):
        log_likelihoods[label.name] = float(np.float32(nats))
    row: Row = {LOG_LIKELIHOODS: log_likelihoods}
    row[LABEL_PROBABILITY] = float(np.float32(compute_probabilities(row)[target]))
    return row


def _subtract_bias(row: Row, bias: LabelBias) -> dict[str, float]:
    """Return label → log-likelihood of a row's text, in nats, less the label's bias if any."""
    return {label: nats - bias.get(label, 0.0) for label, nats in row[LOG_LIKELIHOODS].items()}


def compute_probabilities(
    row: Row, bias: LabelBias = NO_BIAS, temperature: float = 1.0
) -> dict[str, float]:
    """Return p(label | text), the softmax of (log-likelihood - bias) / temperature.

    The prior is uniform over the labels.
    """
    log_likelihoods = _subtract_bias(row, bias)
    highest = max(log_likelihoods.values())
    weights = {
        label: math.exp((nats - highest) / temperature) for label, nats in log_likelihoods.items()
    }
    total = math.fsum(weights.values())
    return {label: weight / total for label, weight in weights.items()}


def choose_likeliest_label(row: Row, bias: LabelBias = NO_BIAS) -> str:
    """Return the label under whose prompt the text has the highest log-likelihood less bias.

    Among equals the row's target wins, then the first label.
    """
    log_likelihoods = _subtract_bias(row, bias)
    target = str(row["target"])
    if log_likelihoods[target] == max(log_likelihoods.values()):
        return target
    return max(log_likelihoods, key=log_likelihoods.__getitem__)


def compute_label_bias(raw: Sequence[Row], recipe: DatasetRecipe) -> dict[str, float]:
    """Return each label's bias in nats from the raw rows of a shard; empty unless calibrated.

    A row's log-likelihoods minus their mean are averaged over the texts of each target, then over
    the targets. Copies of the source sentence do not count. A shard in which a target has no text
    is not calibrated.
    """
    if recipe.verification is None or not recipe.verification.calibrated:
        return {}

    # centre each row, so that a text's own likelihood does not count
    labels = [label.name for label in recipe.written_labels]
    centred: dict[str, list[LabelBias]] = {label: [] for label in labels}
    for row in raw:
        if row["text1"] != row["text2"]:
            log_likelihoods = row[LOG_LIKELIHOODS]
            mean = fmean(log_likelihoods[label] for label in labels)
            centred[row["target"]].append(
                {label: log_likelihoods[label] - mean for label in labels}
            )
    if not all(centred.values()):
        return {}

    # average the texts of a target, then the targets
    target_means = [_average_labels(rows, labels) for rows in centred.values()]
    return _average_labels(target_means, labels)


def _average_labels(rows: Sequence[LabelBias], labels: Iterable[str]) -> dict[str, float]:
    """Return label → mean of its values in ``rows``. There has to be at least one row."""
    means = {}
    for label in labels:
        means[label] = fmean(row[label] for row in rows)
    return means


def should_retry(row: Row, recipe: DatasetRecipe) -> bool:
    """Return whether the text fits another label better, so that verification will drop it.

    False without ``verification``, or when it drops no text or is calibrated: a calibrated decision
    needs all raw rows of the shard.
    """
    options = recipe.verification
    if options is None or options.calibrated or not options.drop:
        return False
    return choose_likeliest_label(row) != row["target"]


def find_rejections(raw: Sequence[Row], recipe: DatasetRecipe) -> list[str | None]:
    """Return for each raw row of a shard the reason why verification drops it, or None.

    The reasons are in the order of the rows. ``raw``: all raw rows of the shard.
    """
    options = recipe.verification
    if options is None or not (options.drop or options.best_of > 1):
        return [None] * len(raw)

    # drop the texts that fit another label better
    bias = compute_label_bias(raw, recipe)
    reasons: list[str | None] = [None] * len(raw)
    if options.drop:
        for index, row in enumerate(raw):
            if choose_likeliest_label(row, bias) != row["target"]:
                reasons[index] = OTHER_LABEL

    # of the others, keep the most probable ones of each source sentence and label
    if options.best_of > 1:
        fitting = [row for row, reason in zip(raw, reasons, strict=True) if reason is None]
        _reject_others(raw, reasons, _choose_best_texts(fitting, recipe))
    return reasons


def _reject_others(raw: Sequence[Row], reasons: list[str | None], chosen: TextsByLabel) -> None:
    """Set the reason NOT_BEST of each row without a reason whose text is not chosen.

    ``reasons``: one for each row of ``raw``; this list is changed.
    """
    for index, row in enumerate(raw):
        is_chosen = row["text2"] in chosen.get((row["text1"], row["target"]), ())
        if reasons[index] is None and not is_chosen:
            reasons[index] = NOT_BEST


def _choose_best_texts(rows: Iterable[Row], recipe: DatasetRecipe) -> TextsByLabel:
    """Return the most probable texts of each (source sentence, target label).

    There are at most as many as the label's ``samples``. Of equally probable texts the earlier one
    wins. A text equal to its source sentence is left out.
    """
    # a text that repeats keeps its first probability
    probabilities = defaultdict[tuple[str, str], dict[str, float]](dict)
    for row in rows:
        if row["text1"] != row["text2"]:
            texts = probabilities[row["text1"], row["target"]]
            texts.setdefault(row["text2"], row[LABEL_PROBABILITY])

    samples = {label.name: recipe.get_decoding(label).samples for label in recipe.written_labels}
    return {
        (text1, target): heapq.nlargest(samples[target], texts, key=texts.__getitem__)
        for (text1, target), texts in probabilities.items()
    }


# Selection


def find_selector(recipe: DatasetRecipe) -> Path | None:
    """Return the folder of the encoder of ``selection``; None for one of a Hub.

    Raises InputError for a folder that is missing, holds no sentence encoder, has no safetensors or
    has a folder with only a pickle, and where the default encoder is not on this machine.
    """
    section = recipe.selection
    assert section is not None, "the recipe has a selection"
    if section.repo_id is not None:
        return None
    if section.path is not None:
        folder = Path(section.path)
        location = f"selection.path {folder}"
        if not folder.is_dir():
            hint = "give the folder of a sentence encoder, or leave path out"
            raise InputError(location, "no such folder", hint=hint)
        require_modules(folder, location)
        require_safetensors(folder, location)
        return folder

    default = find_default_selector(recipe.language)
    if default is None:
        name = get_default_selector(recipe.language)
        hint = f"sts-dino lm {name.lower()}, or name a folder in selection.path"
        raise InputError("selection", f"{name} is not on this machine", hint=hint)
    return default


def get_default_selector(language: str) -> str:
    """Return the name of the default encoder of ``selection`` for a language code, e.g. ``en``."""
    return MINILM if language == "en" else MULTILINGUAL


def find_default_selector(language: str) -> Path | None:
    """Return the folder of the default encoder of a language; None if this machine lacks it."""
    name = get_default_selector(language)
    return find_minilm() if name == MINILM else find_downloaded_model(name)


def list_selector_files(folder: Path) -> list[Path]:
    """Return the files of an encoder's folder that decide its embeddings, sorted by path."""
    files = [path for path in folder.rglob("*") if path.suffix in _DECIDING_SUFFIXES]
    return sorted(path for path in files if path.is_file())


def load_selector(recipe: DatasetRecipe) -> Embed:
    """Load the encoder of ``selection``, and return the function that embeds texts with it.

    A folder is loaded once in a process. Raises InputError for an encoder that is missing, cannot
    be loaded, or embeds a text in numbers that are not finite; RunError when the Hub does not
    answer. The returned function raises InputError for numbers that are not finite, too.
    """
    return _load_folder(str(download_selector(recipe)))


def download_selector(recipe: DatasetRecipe) -> Path:
    """Return the folder of the encoder of ``selection``, which is downloaded from a Hub if needed.

    Raises InputError for an encoder that is missing and as ``find_selector``; RunError when the Hub
    refuses access or does not answer.
    """
    section = recipe.selection
    folder = find_selector(recipe)
    if folder is not None:
        return folder
    from huggingface_hub import snapshot_download

    assert section is not None and section.repo_id is not None, "an encoder on a Hub"
    with convert_read_errors(section.repo_id, section.revision):
        return Path(
            snapshot_download(
                section.repo_id, revision=section.revision, ignore_patterns=SKIPPED_FILES
            )
        )


@cache
def _load_folder(folder: str) -> Embed:
    """Load the encoder in a folder on the CPU, and return the function that embeds texts with it.

    ``PROBE_SENTENCE`` is embedded as a trial. No pickle is read and no code of the folder is run.
    Raises InputError as ``load_selector``.
    """
    # load the encoder
    require_modules(Path(folder), folder)
    require_safetensors(Path(folder), folder)
    with convert_model_errors(folder):
        from sentence_transformers import SentenceTransformer

        loaded = SentenceTransformer(
            folder, device="cpu", model_kwargs=dict(NO_PICKLES), **NO_CODE
        ).eval()

    # wrap it in a function that checks its embeddings
    def embed(texts: Sequence[str]) -> Any:
        """Return the embeddings of n texts: (n, dimension), float64.

        Raises InputError for numbers that are not finite.
        """
        embeddings = np.asarray(
            loaded.encode(list(texts), batch_size=BATCH_TEXTS, show_progress_bar=False),
            dtype=np.float64,
        )
        if not np.isfinite(embeddings).all():
            raise InputError(
                f"selection {folder}",
                "the encoder's embeddings have numbers that are not finite (NaN)",
                hint="name another encoder: selection.path, or repo_id and revision",
            )
        return embeddings

    embed([PROBE_SENTENCE])
    return embed


def add_cosines(raw: Sequence[Row], recipe: DatasetRecipe) -> None:
    """Set the column ``cosine`` of raw rows: the cosine of both texts by the encoder.

    It is rounded to the column's float32, so that readers of the rows decide alike. Raises the
    errors of ``load_selector``, unless ``raw`` is empty.
    """
    if not raw:
        return
    embed = load_selector(recipe)
    # In a fixed order: the order of a set differs between processes, and the batches with it
    texts = sorted({row["text1"] for row in raw} | {row["text2"] for row in raw})
    vectors = embed(texts)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.maximum(norms, SMALLEST_NORM)
    index = {text: number for number, text in enumerate(texts)}
    for row in raw:
        product = units[index[row["text1"]]] @ units[index[row["text2"]]]
        row[COSINE] = float(np.float32(product))


def reject_unselected(
    raw: Sequence[Row], reasons: Sequence[str | None], recipe: DatasetRecipe
) -> list[str | None]:
    """Return the rejection reasons of a shard's raw rows, with those of ``selection``.

    A row gets the reason NOT_BEST if it has no other reason and its text is not chosen. Without
    ``selection`` the reasons stay as they are.

    Args:
        raw: all raw rows of a shard, with the column ``cosine``.
        reasons: the reason of each row so far, or None; this list is not changed.
        recipe: the dataset's recipe.
    """
    # collect the texts that can be chosen
    if recipe.selection is None:
        return list(reasons)
    cosines = defaultdict[tuple[str, str], dict[str, float]](dict)
    for row, reason in zip(raw, reasons, strict=True):
        if reason is None and row["text1"] != row["text2"]:
            cosines[row["text1"], row["target"]][row["text2"]] = row[COSINE]

    # reject the others
    new_reasons = list(reasons)
    _reject_others(raw, new_reasons, choose_texts(cosines, recipe))
    return new_reasons


def choose_texts(cosines: Cosines, recipe: DatasetRecipe) -> TextsByLabel:
    """Return the chosen texts of each (source sentence, label), at most the label's ``samples``.

    The label of the highest score gets the highest cosines, the label of the lowest score the
    lowest. A label between them gets the cosines nearest to its target (docstring of this module).
    Of texts that are equally good the earlier one wins.

    ``cosines``: the texts of a shard that can be chosen.
    """
    scores = {label.name: label.score or 0.0 for label in recipe.written_labels}
    samples = {label.name: recipe.get_decoding(label).samples for label in recipe.written_labels}
    lowest, highest = min(scores.values()), max(scores.values())

    # Choose for the labels of the highest and of the lowest score, and collect their cosines
    chosen: dict[tuple[str, str], list[str]] = {}
    extremes: dict[float, list[float]] = {lowest: [], highest: []}
    for (text1, label), candidates in cosines.items():
        score = scores[label]
        if score not in extremes:
            continue
        sign = 1.0 if score == highest else -1.0
        ranks = {text: sign * cosine for text, cosine in candidates.items()}
        chosen[text1, label] = heapq.nlargest(samples[label], ranks, key=ranks.__getitem__)
        extremes[score] += [candidates[text] for text in chosen[text1, label]]

    # Choose for the labels between them, near the target; without chosen texts of both extremes,
    # near the mean of the candidates
    for (text1, label), candidates in cosines.items():
        score = scores[label]
        if score in extremes:
            continue
        target = fmean(candidates.values())
        if extremes[lowest] and extremes[highest]:
            share = (score - lowest) / (highest - lowest)
            low = fmean(extremes[lowest])
            target = low + share * (fmean(extremes[highest]) - low)
        distances = {text: abs(cosine - target) for text, cosine in candidates.items()}
        chosen[text1, label] = heapq.nsmallest(samples[label], distances, key=distances.__getitem__)
    return chosen

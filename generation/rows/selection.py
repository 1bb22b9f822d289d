"""Selection: an encoder chooses the best of several texts for a source sentence and label.

It takes the place of self-debiasing where a server draws the tokens. The label of the highest score
keeps the texts with the highest cosines to the source sentence: the filters have already rejected
copies and near-copies. The label of the lowest score keeps the texts with the lowest cosines. A
label between them keeps the texts nearest to a target between the mean cosines of those two, at its
score: 0.5 lies in the middle, where both other labels are farthest. The means are those of the
chosen texts of a shard, so the scale of the encoder does not matter.

Cosines are rounded to the column's float32 before anything is decided, so that readers of the rows
decide alike. The encoder loads before any text is requested.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from sts_dino.generation.rows.verification import Row
from sts_dino.hub.client.connection import convert_read_errors
from sts_dino.hub.contract.packaged import (
    MINILM,
    MULTILINGUAL,
    find_downloaded_model,
    find_minilm,
)
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.schema import COSINE, NOT_BEST
from sts_dino.hub.errors import InputError
from sts_dino.hub.untrusted import (
    NO_CODE,
    NO_PICKLES,
    convert_model_errors,
    require_modules,
    require_safetensors,
)

_DECIDING_SUFFIXES = (".json", ".safetensors", ".txt", ".model")  # of files that change embeddings
_PICKLES = ["*.bin", "*.pt", "*.pth", "*.pkl", "*.h5", "*.onnx", "openvino/*"]
SMALLEST_NORM = 1e-12  # of an embedding: keeps the cosines of a vector of zeros finite
BATCH_TEXTS = 32
PROBE_SENTENCE = "A sentence."  # an encoder that fails on it costs no text

Embed = Callable[[Sequence[str]], Any]  # n texts → (n, dimension), finite float64
Chosen = Mapping[tuple[str, str], list[str]]  # (source sentence, label) → chosen texts
Cosines = Mapping[tuple[str, str], Mapping[str, float]]  # (source sentence, label) → text → cosine


def find_selector(recipe: DatasetRecipe) -> Path | None:
    """Return the folder of the encoder of ``selection``; None for one of a Hub.

    Raises InputError for a folder that is missing or holds no sentence encoder, and where the
    default encoder is not on this machine.
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
    """Return the name of the encoder that chooses texts of a language by default."""
    return MINILM if language == "en" else MULTILINGUAL


def find_default_selector(language: str) -> Path | None:
    """Return the folder of the default encoder of a language; None if it is not here."""
    name = get_default_selector(language)
    return find_minilm() if name == MINILM else find_downloaded_model(name)


def list_selector_files(folder: Path) -> list[Path]:
    """Return the files of an encoder's folder that decide its embeddings."""
    files = [path for path in folder.rglob("*") if path.suffix in _DECIDING_SUFFIXES]
    return sorted(path for path in files if path.is_file())


def load_selector(recipe: DatasetRecipe) -> Embed:
    """Load the encoder of ``selection``; a second call returns the loaded one.

    Raises InputError for an encoder that is missing, cannot be loaded, or embeds a text in numbers
    that are not finite, RunError when the Hub does not answer. The returned function raises
    InputError for numbers that are not finite, too.
    """
    return _load_folder(str(download_selector(recipe)))


def download_selector(recipe: DatasetRecipe) -> Path:
    """Return the folder of the encoder of ``selection``; one of a Hub is downloaded.

    Raises InputError for an encoder that is missing, RunError when the Hub does not answer.
    """
    section = recipe.selection
    folder = find_selector(recipe)
    if folder is not None:
        return folder
    from huggingface_hub import snapshot_download

    assert section is not None and section.repo_id is not None, "find_selector checks this"
    with convert_read_errors(section.repo_id, section.revision):
        return Path(
            snapshot_download(section.repo_id, revision=section.revision, ignore_patterns=_PICKLES)
        )


@cache
def _load_folder(folder: str) -> Embed:
    """Load the encoder in a folder on the CPU, and embed ``PROBE_SENTENCE`` as a trial.

    No pickle is read and no code of the folder is run. Raises InputError as ``load_selector``.
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
        """Return the embeddings of n texts: (n, dimension), float64."""
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

    It is rounded to the column's float32, so that readers of the rows decide alike. Raises
    InputError as ``load_selector``.
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

    A row gets the reason NOT_BEST if it has no other reason and its text is not chosen.

    Args:
        raw: the raw rows of a shard.
        reasons: the reason of each row so far, or None.
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
    chosen = choose_texts(cosines, recipe)
    new_reasons = list(reasons)
    for number, row in enumerate(raw):
        is_chosen = row["text2"] in chosen.get((row["text1"], row["target"]), ())
        if reasons[number] is None and not is_chosen:
            new_reasons[number] = NOT_BEST
    return new_reasons


def choose_texts(cosines: Cosines, recipe: DatasetRecipe) -> Chosen:
    """Return the chosen texts of each (source sentence, label), at most the label's ``samples``.

    Of texts that are equally good the earlier one wins. ``cosines``: the texts of a shard that can
    be chosen.
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

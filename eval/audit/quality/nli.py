"""Agreement of a dataset's labels with a natural language inference model (Auto-NLI, section 4.1 and Table 1).

Any cross-encoder with the classes entailment, neutral and contradiction serves; the paper used
microsoft/deberta-v2-xxlarge-mnli. Of a pair nothing is kept but a count.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import HfApi, constants, snapshot_download
from sentence_transformers import CrossEncoder

from eval.audit.quality.measures import LabelAgreement, NliAgreement, share
from eval.audit.rows import Batch
from hub.client.failures import reading
from hub.contract.recipe import NLI_LABELS
from hub.contract.shards import sha256_file
from hub.errors import InputError, RunError
from hub.model_folder import NO_CODE, NO_PICKLES, reading_model, require_safetensors

INTENDED = {**{name: name for name in NLI_LABELS}, "positive": "entailment", "negative": "contradiction"}
BATCH = 32  # pairs of like length
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
        logits = self.model.predict(pairs, batch_size=BATCH, activation_fn=as_they_are, show_progress_bar=False)
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

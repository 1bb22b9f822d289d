"""How well the pairs of a language model fit their labels: the figures of ``sts-dino probe``.

``assets/pair_quality.yaml`` has the figures of models of ``sts-dino lm``. The figures of other
models, and of other prompts, lie in the user's folder, one file for each of them.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.packaged import GENERATORS, get_user_folder
from sts_dino.hub.contract.recipe import DatasetRecipe, LanguageModel
from sts_dino.hub.contract.results import Frozen
from sts_dino.hub.durable import hash_file, make_folder, write_text

logger = logging.getLogger(__name__)

SHIPPED = "pair_quality.yaml"
FITS = "1"
FITS_ANOTHER = "0"  # the judge gives the pair another label
REJECTED = "-"  # no text of the sentence passed the filters
LEAST_FITTING_SHARE = 0.5  # of the pairs of the most similar label
DIGEST_CHARACTERS = 16
_WEIGHT_SUFFIXES = (".gguf", ".safetensors")
# keys of a recipe that decide the length or the speed of texts, not their quality
_SETTINGS_APART = {"max_new_tokens", "batch_size"}
_EXAMPLES_APART = {"examples": {"path", "encoding", "description", "license"}}


class PairQuality(Frozen):
    """The outcome of a probe: whether each pair fits its label, by a judge encoder.

    model: the identity of the language model (``name_model``).
    dtype: ``model.dtype`` of the recipe.
    language: the language code of the texts.
    chat: whether the prompts went through the model's chat template.
    prompts: the digest of the prompts and of decoding (``hash_prompts``).
    corpus: the name of the source sentences.
    judge: the name of the judge.
    outcomes: label → an outcome for each source sentence, in order: ``FITS``, ``FITS_ANOTHER`` or
        ``REJECTED``. The label of the most similar pairs is the first one.
    """

    model: str
    dtype: str
    language: str
    chat: bool
    prompts: str
    corpus: str
    judge: str
    outcomes: Annotated[
        dict[str, Annotated[str, Field(pattern=f"^[{FITS}{FITS_ANOTHER}{REJECTED}]+$")]],
        Field(min_length=2),
    ]

    def count_sentences(self) -> int:
        """Return the number of source sentences."""
        return len(next(iter(self.outcomes.values())))

    def count_fitting(self) -> int:
        """Return the number of pairs that fit their label, over all labels."""
        return sum(outcomes.count(FITS) for outcomes in self.outcomes.values())

    @property
    def is_weak(self) -> bool:
        """Whether fewer than ``LEAST_FITTING_SHARE`` of the most similar label's pairs fit.

        Rejected texts make no pairs. True, too, when all texts of that label were rejected.
        """
        outcomes = next(iter(self.outcomes.values()))
        pairs = len(outcomes) - outcomes.count(REJECTED)
        return pairs == 0 or outcomes.count(FITS) < LEAST_FITTING_SHARE * pairs

    def describe_labels(self) -> str:
        """Return part of a sentence: fitting pairs of each label, and all rejected texts."""
        parts: list[str] = []
        all_rejected = 0
        unit = " pairs"  # named once, for the first label
        for label, outcomes in self.outcomes.items():
            rejected = outcomes.count(REJECTED)
            parts.append(
                f"label {label}: {outcomes.count(FITS)} of {len(outcomes) - rejected}{unit} fit"
            )
            all_rejected += rejected
            unit = ""
        if all_rejected:
            texts = self.count_sentences() * len(self.outcomes)
            parts.append(f"{all_rejected} of {texts} texts rejected")
        return ", ".join(parts)

    def describe(self) -> str:
        """Return one line: the model, the prompt, the counts, the judge and the sentences."""
        prompt = "chat template" if self.chat else "plain prompt"
        name = self.model.partition(" ")[0]
        return (
            f"pairs of {name} in language {self.language} ({prompt}): {self.describe_labels()} "
            f"(judge {self.judge}, {self.count_sentences()} sentences of {self.corpus})"
        )


def report_pair_quality(recipe: DatasetRecipe) -> PairQuality | None:
    """Log the known figures of a recipe's model and prompts, and return them; None without any.

    Where few pairs fit (``PairQuality.is_weak``), a warning asks for another language model.
    """
    quality = find_pair_quality(recipe)
    if quality is None:
        return None
    logger.info(quality.describe())
    if quality.is_weak:
        label = next(iter(quality.outcomes))
        logger.warning(
            f"fewer than half of label {label}'s pairs fit: take a better language model for these "
            "texts, --lm NAME or --lm NAME@URL (sts-dino lm lists some)"
        )
    return quality


def find_pair_quality(recipe: DatasetRecipe) -> PairQuality | None:
    """Return the figures of a recipe's model and prompts: the user's own, else the shipped ones.

    None without figures for this model with these prompts. Raises OSError for a file of the user
    that cannot be read.
    """
    path = get_quality_path(recipe)
    if path.is_file():
        try:
            return PairQuality.model_validate_json(path.read_bytes())
        except ValidationError:  # a file of another version counts as absent
            logger.debug("%s has another form than expected", path)
    identity = name_model(recipe.model)
    prompts = hash_prompts(recipe)
    for quality in list_shipped(identity, recipe.language):
        if quality.chat == recipe.model.chat_template and quality.prompts == prompts:
            return quality
    return None


def list_shipped(identity: str, language: str) -> Iterator[PairQuality]:
    """Yield the shipped figures of a model in a language; none for a model outside ``GENERATORS``.

    ``identity``: the result of ``name_model``. ``language``: the language code.
    """
    if identity not in GENERATORS:
        return
    for quality in read_qualities(find_asset(SHIPPED)):
        if quality.model == identity and quality.language == language:
            yield quality


def read_qualities(path: Path) -> list[PairQuality]:
    """Read a YAML file of figures, which is trusted; an absent or empty file has none."""
    if not path.is_file():
        return []
    entries = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    return TypeAdapter(list[PairQuality]).validate_python(entries)


def save_pair_quality(recipe: DatasetRecipe, quality: PairQuality) -> Path:
    """Write the figures of a recipe's model and prompts to the user's folder; return the path."""
    path = get_quality_path(recipe)
    make_folder(path.parent)
    write_text(path, quality.model_dump_json(indent=2) + "\n")
    return path


def get_quality_path(recipe: DatasetRecipe) -> Path:
    """Return the path of the user's figures for a recipe's model and prompts; it may be absent."""
    model = recipe.model
    key = [name_model(model), model.dtype, model.chat_template, hash_prompts(recipe)]
    return get_user_folder() / "probes" / f"{_hash_json(key)}.json"


def name_model(model: LanguageModel) -> str:
    """Return the identity of a language model, a name first, as one text.

    For a model of ``sts-dino lm`` it is the name there. For a Hub model the revision follows the
    repository, and for a model of a server the address follows the model. For another folder a
    digest of its weight files' names, sizes and times of change follows the folder's name.
    """
    # a model of sts-dino lm, in its folder or on a Hub
    for packaged in GENERATORS.values():
        repositories = (packaged.hub.partition("@")[0], packaged.upstream)
        is_local = (
            model.path is not None and Path(model.path).resolve() == packaged.folder.resolve()
        )
        if is_local or (model.repo_id is not None and model.repo_id in repositories):
            return packaged.name

    # another model of a Hub, or of a server
    if model.path is None:
        location = f"{model.repo_id} {model.revision}"
        if model.server is not None:
            location = f"{model.server.model} {model.server.base_url}"
        return f"{location} {model.gguf_file or ''}".strip()

    # another folder
    model_folder = Path(model.path)
    facts = []
    for file in sorted(model_folder.glob(model.gguf_file or "*")):
        if file.suffix in _WEIGHT_SUFFIXES:
            status = file.stat()
            facts.append([file.name, status.st_size, status.st_mtime_ns])
    return f"{model_folder.name} {_hash_json(facts)}"


def hash_prompts(recipe: DatasetRecipe) -> str:
    """Return a digest of a recipe's values that decide how good its texts are, as hex digits.

    It covers language, labels, decoding, seed, and few-shot settings with the content of a local
    file of examples. Model and source sentences are left out.
    """
    labels = recipe.model_dump(mode="json", include={"labels"})["labels"]
    for label in labels:
        label.pop("meaning", None)  # only the card shows it
    facts = {
        "language": recipe.language,
        "labels": labels,
        "decoding": recipe.decoding.model_dump(mode="json", exclude=_SETTINGS_APART),
        "seed": recipe.seed,
    }
    if recipe.few_shot is not None:
        facts["few_shot"] = recipe.few_shot.model_dump(mode="json", exclude=_EXAMPLES_APART)
        path = Path(recipe.few_shot.examples.path or "")
        if path.is_file():
            facts["examples"] = hash_file(path)
    return _hash_json(facts)


def _hash_json(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]

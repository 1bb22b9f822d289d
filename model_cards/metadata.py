"""The metadata that the Hub reads: front matter, ``model-index`` and ``.eval_results/*.yaml``.

It is built as data and dumped by PyYAML, never by a template. Only scores on a task's whole test set become an entry of
``.eval_results``: the Hub ranks those against other models.
"""

from dataclasses import dataclass
from typing import Any

import yaml

from hub.contract.licences import Licence, known
from hub.contract.recipe import DatasetRecipe, ModelRecipe, config_features
from hub.contract.results import Results, TaskScore
from hub.untrusted import visible_line
from model_cards.manifest import ModelProvenance
from model_cards.renderer import DATA
from model_cards.rows import Split, default_config

# example type of training data → tag of the paper
METHODS = {
    **{"sts": "dino", "pair": "dino", "triplet": "auto-nli", "pair-class": "auto-nli", "documents": "declutr"},
    **{"self-pair": "simcse", "graded-pair": "dino", "graded-triplet": "dino"},
}
PAGE = "https://huggingface.co/"
WORDS = yaml.safe_load((DATA / "words.yaml").read_text(encoding="utf-8"))
FOLDER = ".eval_results"
SIMILARITY = ("sentence-similarity", "Semantic textual similarity")
OTHER = ("other", "Evaluation of sentence embeddings")
TASK_TYPES = {  # main metric → task type of the Hub, name
    **dict.fromkeys(("spearman", "pearson", "cosine_spearman"), SIMILARITY),
    "accuracy": ("text-classification", "Classification of texts or pairs by a probe on the embeddings"),
}


@dataclass(frozen=True)
class Benchmark:
    """A task on the Hub: MTEB's dataset, its task and its test pairs, and the file of the entry."""

    dataset_id: str
    task_id: str
    name: str
    test_pairs: int
    file: str


_TABLE = DATA / "benchmarks.yaml"
_KNOWN = {task: Benchmark(**keys) for task, keys in yaml.safe_load(_TABLE.read_text(encoding="utf-8")).items()}
BENCHMARKS = _KNOWN | {f"mteb/{known.task_id}": known for known in _KNOWN.values()}
"""Task name → benchmark: our tasks with the protocol and rows of MTEB, and MTEB's own; not ``sts12/mean``."""


def front_matter(data: dict[str, Any]) -> str:
    """``data`` between the two lines that mark front matter."""
    body = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    return f"---\n{body}---\n"


def dataset_data(recipe: DatasetRecipe, configs: dict[str, list[Split]], page: str) -> dict[str, Any]:
    """Front matter of a dataset card. ``configs``: existing ones in the recipe's order; ``page``: the card's URL."""
    words = WORDS["schemas"][recipe.schema_name]
    data: dict[str, Any] = {
        "pretty_name": visible_line(recipe.pretty_name),
        "language": [recipe.language],
        **license_fields(known("recipe: license", recipe.license), page),
        "task_categories": words["task_categories"],
        **({"task_ids": words["task_ids"]} if words["task_ids"] else {}),
        "annotations_creators": ["machine-generated"],
        "language_creators": ["machine-generated"] + (["found"] if not recipe.source.facts.generated else []),
        "tags": ["synthetic", "sts-dino", words["method"], *words["tags"]],
    }
    if configs:
        default = default_config(configs, recipe)
        data["size_categories"] = [size_category(sum(split.rows for split in configs[default]))]
        data["configs"] = [
            {
                "config_name": config,
                "data_files": [{"split": one.name, "path": _path(config, one)} for one in splits],
                **({"default": True} if config == default else {}),
            }
            for config, splits in configs.items()
        ]
        data["dataset_info"] = [dataset_info(config, splits, recipe) for config, splits in configs.items()]
    return data


def _path(config: str, split: Split) -> str | list[str]:
    """A pattern, or the files beside empty shards: datasets 5.2 cannot read a parquet file without rows."""
    return split.paths if split.gaps else f"data/{config}/{split.name}-*.parquet"


def dataset_info(config: str, splits: list[Split], recipe: DatasetRecipe) -> dict[str, Any]:
    """The ``dataset_info`` entry of a config, in the Hub's own YAML form.

    ``load_dataset`` refuses other numbers of rows than these, so a commit holds the card and the shards it counts.
    """
    import datasets
    from datasets.info import DatasetInfosDict
    from datasets.splits import SplitDict, SplitInfo
    from huggingface_hub import DatasetCardData

    infos = [SplitInfo(split.name, num_bytes=split.data_bytes, num_examples=split.rows) for split in splits]
    info = datasets.DatasetInfo(
        features=config_features(config, recipe),
        splits=SplitDict({split.name: split for split in infos}),
        download_size=sum(split.file_bytes for split in splits),
        dataset_size=sum(split.data_bytes for split in splits),
    )
    card = DatasetCardData()
    DatasetInfosDict({config: info}).to_dataset_card_data(card)
    keys = ("config_name", "features", "splits", "download_size", "dataset_size")
    return {key: card["dataset_info"][key] for key in keys}


def size_category(rows: int) -> str:
    """The Hub's size class of so many rows."""
    bounds = {1_000: "1K", 10_000: "10K", 100_000: "100K", 10**6: "1M", 10**7: "10M", 10**8: "100M", 10**9: "1B"}
    below = next((name for bound, name in bounds.items() if rows < bound), None)
    above = "".join([name for bound, name in bounds.items() if rows >= bound][-1:])
    return f"{above}<n<{below}".removeprefix("<") if below else f"n>{above}"


def license_fields(licence: Licence, page: str = "") -> dict[str, str]:
    """A licence in the Hub's fields: one of its ids, or ``other`` with a name and a link (to a section of ``page``)."""
    if licence.hub:
        return {"license": licence.id}
    link = f"{page}{licence.link}" if licence.link.startswith("#") else licence.link
    return {"license": "other", "license_name": licence.id, "license_link": link}


def methods(recipe: ModelRecipe) -> tuple[str, ...]:
    """Tags of the papers that the training follows, in the order of its datasets."""
    types = ("pair" if item.config.startswith("query-triplet") else item.example_type for item in recipe.datasets)
    found = [METHODS[one] for one in types]  # triplets of search pairs are DINO's, not Auto-NLI's
    found += ["simcse" for item in recipe.datasets if item.grades and item.grades.positives == "itself"]
    return tuple(dict.fromkeys(found))


def model_data(recipe: ModelRecipe, provenance: ModelProvenance, model_index: list[dict[str, Any]]) -> dict[str, Any]:
    """Front matter of a model card, without empty keys."""
    adapter = recipe.lora is not None and recipe.lora.release == "adapter"
    tags = ["sentence-transformers", "sentence-similarity", "feature-extraction", "sts-dino"]
    data: dict[str, Any] = {
        "language": [recipe.language],
        **license_fields(known("recipe: license", recipe.license)),
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": [*tags, *(["peft", "lora"] if recipe.lora else []), *methods(recipe)],
        "base_model": recipe.base.repo_id,
        "base_model_relation": ("adapter" if adapter else "finetune")
        if recipe.base.repo_id and not recipe.is_baseline
        else None,
        "datasets": sorted({item.repo_id for item in provenance.datasets if item.repo_id}),
        "model-index": model_index,
    }
    return {key: value for key, value in data.items() if value}


def model_index(name: str, results: Results) -> list[dict[str, Any]]:
    """The scores after training as ``model-index`` data."""
    from huggingface_hub import EvalResult, ModelCardData  # takes half a second

    entries = []
    for score in results.scores:
        known = BENCHMARKS.get(score.task)
        task_type, task_name = TASK_TYPES.get(score.main_metric, OTHER)
        entry = EvalResult(
            task_type=task_type,
            task_name=task_name,
            dataset_type=known.dataset_id if known else score.task,
            dataset_name=f"{known.name if known else score.task} ({score.split})",
            dataset_split=score.split,
            dataset_revision=_revision(score, known),
            metric_type=score.main_metric,
            metric_name=f"{score.main_metric} x 100",
            metric_value=round(score.main_score, 2),
        )
        entries.append(entry)
    return list(ModelCardData(model_name=name, eval_results=entries).to_dict()["model-index"]) if entries else []


def _revision(score: TaskScore, known: Benchmark | None) -> str | None:
    """The commit of the Hub's dataset, where the score records it."""
    repo_id, _, commit = (score.data_revision or "").partition("@")
    return commit if known and repo_id == known.dataset_id else None


def eval_result_files(results: Results) -> dict[str, str]:
    """``.eval_results/<benchmark>.yaml`` for every known benchmark with a score on its whole test set.

    Of our task and MTEB's own, which agree up to rounding, the one with the dataset's revision becomes the entry.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    found: dict[str, EvalResultEntry] = {}
    for score in results.scores:
        known = BENCHMARKS.get(score.task)
        if not known or score.split != "test" or score.n != known.test_pairs:
            continue
        if known.file not in found or found[known.file].dataset_revision is None:
            data = f"rows with SHA-256 {score.data_sha256}" if score.data_sha256 else score.data_revision
            found[known.file] = EvalResultEntry(
                dataset_id=known.dataset_id,
                task_id=known.task_id,
                value=round(score.main_score, 2),
                dataset_revision=_revision(score, known),
                notes=f"{score.main_metric} x 100; {data}",
            )
    form: Any = {"sort_keys": False, "allow_unicode": True, "width": 120}
    entries = {name: eval_result_entries_to_yaml([entry]) for name, entry in found.items()}
    return {f"{FOLDER}/{name}.yaml": yaml.safe_dump(entry, **form) for name, entry in entries.items()}

"""The metadata that the Hub reads: front matter, ``model-index`` and ``.eval_results/*.yaml``.

It is built as data and dumped by PyYAML, never by a template. Only scores on a task's whole test
set become an entry of ``.eval_results``: the Hub ranks those against other models.
"""

from dataclasses import dataclass
from typing import Any

import yaml

from sts_dino.hub.contract.licences import Licence
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe, build_config_features
from sts_dino.hub.contract.results import Results, TaskScore
from sts_dino.hub.untrusted import make_visible_line
from sts_dino.model_cards.facts import ModelProvenance
from sts_dino.model_cards.renderer import DATA
from sts_dino.model_cards.rows import Split

# example type of training data → tag of the method's paper
METHOD_TAGS = {
    "sts": "dino",
    "pair": "dino",
    "triplet": "auto-nli",
    "pair-class": "auto-nli",
    "documents": "declutr",
    "self-pair": "simcse",
    "graded-pair": "dino",
    "graded-triplet": "dino",
}
YAML_WIDTH = 120  # characters of a line
HUB_URL = "https://huggingface.co/"
WORDS = yaml.safe_load((DATA / "words.yaml").read_text(encoding="utf-8"))
EVAL_RESULTS_FOLDER = ".eval_results"
SIMILARITY_TASK = ("sentence-similarity", "Semantic textual similarity")
OTHER_TASK = ("other", "Evaluation of sentence embeddings")
TASK_TYPES = {  # main metric → task type of the Hub, name
    **dict.fromkeys(("spearman", "pearson", "cosine_spearman"), SIMILARITY_TASK),
    "accuracy": (
        "text-classification",
        "Classification of texts or pairs by a probe on the embeddings",
    ),
}


@dataclass(frozen=True)
class Benchmark:
    """A task on the Hub: MTEB's dataset and its task, with the number of pairs of its test split.

    ``file``: the name of the evaluation entry in ``.eval_results``, without its suffix.
    """

    dataset_id: str
    task_id: str
    name: str
    test_pairs: int
    file: str


_TABLE = DATA / "benchmarks.yaml"
_OWN_TASKS = {
    task: Benchmark(**keys)
    for task, keys in yaml.safe_load(_TABLE.read_text(encoding="utf-8")).items()
}
_MTEB_TASKS = {f"mteb/{benchmark.task_id}": benchmark for benchmark in _OWN_TASKS.values()}
BENCHMARKS = _OWN_TASKS | _MTEB_TASKS
"""Task → benchmark: our tasks with MTEB's protocol and rows (not ``sts12/mean``), and MTEB's."""


# the Hub's size classes: upper bound in rows → its name
SIZE_BOUNDS = {
    1_000: "1K",
    10_000: "10K",
    100_000: "100K",
    10**6: "1M",
    10**7: "10M",
    10**8: "100M",
    10**9: "1B",
}


def format_front_matter(data: dict[str, Any]) -> str:
    """Format ``data`` as YAML between the two lines that mark front matter.

    Texts become single lines with U+FFFD for hidden characters. Texts below ``dataset_info`` stay,
    because the names of features have to be those of the shards.
    """
    visible = {
        key: value if key == "dataset_info" else make_visible_tree(value)
        for key, value in data.items()
    }
    body = yaml.safe_dump(visible, sort_keys=False, allow_unicode=True, width=YAML_WIDTH)
    return f"---\n{body}---\n"


def make_visible_tree(value: Any) -> Any:
    """Return a YAML value with every text in it on one line, U+FFFD for hidden characters.

    The keys of mappings stay.
    """
    if isinstance(value, str):
        return make_visible_line(value)
    if isinstance(value, dict):
        return {key: make_visible_tree(item) for key, item in value.items()}
    if isinstance(value, list):
        return [make_visible_tree(item) for item in value]
    return value


def build_dataset_metadata(
    recipe: DatasetRecipe,
    licence: Licence,
    configs: dict[str, list[Split]],
    data_files: list[dict[str, Any]],
    page: str,
) -> dict[str, Any]:
    """Return the front matter of a dataset card.

    Args:
        recipe: the dataset's recipe.
        licence: the dataset's licence.
        configs: config → splits, for configs that have rows, in the recipe's order of configs.
        data_files: the value of ``configs`` in the front matter, with exactly one default; of the
            same configs (``describe_configs`` in ``sts_dino.hub.contract.shards``).
        page: the card's URL.
    """
    # what the recipe says
    words = WORDS["schemas"][recipe.schema_name]
    data: dict[str, Any] = {
        "pretty_name": recipe.pretty_name,
        "language": [recipe.language],
        **make_license_fields(licence, page),
        "task_categories": words["task_categories"],
        "task_ids": words["task_ids"],
        "annotations_creators": ["machine-generated"],
        "language_creators": ["machine-generated"],
        "tags": ["synthetic", "sts-dino", words["method"], *words["tags"]],
    }
    if not words["task_ids"]:
        del data["task_ids"]
    if not recipe.source.is_generated:
        data["language_creators"].append("found")
    if not configs:
        return data

    # what load_dataset reads
    (default,) = [entry["config_name"] for entry in data_files if entry.get("default")]
    data["size_categories"] = [find_size_category(sum(split.rows for split in configs[default]))]
    data["configs"] = data_files
    data["dataset_info"] = [
        build_dataset_info(config, splits, recipe) for config, splits in configs.items()
    ]
    return data


def build_dataset_info(config: str, splits: list[Split], recipe: DatasetRecipe) -> dict[str, Any]:
    """Return the ``dataset_info`` entry of a config, in the Hub's own YAML form.

    ``load_dataset`` refuses shards with other numbers of rows, so one commit has to hold the card
    and the shards.

    Args:
        config: the config.
        splits: the sizes of its splits.
        recipe: the dataset's recipe, which has the config's columns.
    """
    import datasets
    from datasets.info import DatasetInfosDict
    from datasets.splits import SplitDict, SplitInfo
    from huggingface_hub import DatasetCardData

    infos = {
        split.name: SplitInfo(split.name, num_bytes=split.data_bytes, num_examples=split.rows)
        for split in splits
    }
    info = datasets.DatasetInfo(
        features=build_config_features(config, recipe),
        splits=SplitDict(infos),
        download_size=sum(split.file_bytes for split in splits),
        dataset_size=sum(split.data_bytes for split in splits),
    )
    card = DatasetCardData()
    DatasetInfosDict({config: info}).to_dataset_card_data(card)
    keys = ("config_name", "features", "splits", "download_size", "dataset_size")
    return {key: card["dataset_info"][key] for key in keys}


def find_size_category(rows: int) -> str:
    """Return the Hub's size class of a number of rows, e.g. 1K<n<10K for 1,000 to 9,999 rows."""
    lower_name = ""
    for bound, name in SIZE_BOUNDS.items():
        if rows < bound:
            return f"{lower_name}<n<{name}" if lower_name else f"n<{name}"
        lower_name = name
    return f"n>{lower_name}"


def make_license_fields(licence: Licence, page: str = "") -> dict[str, str]:
    """Return the front matter's keys for a licence: a Hub id, or ``other`` with name and link.

    ``page``: the card's URL, which is put before a link that is only a section of the card (#...).
    """
    if licence.hub:
        return {"license": licence.id}
    link = f"{page}{licence.link}" if licence.link.startswith("#") else licence.link
    return {"license": "other", "license_name": licence.id, "license_link": link}


def list_methods(recipe: ModelRecipe) -> tuple[str, ...]:
    """List the distinct tags of the papers that the training of ``recipe`` follows.

    They are in the order of its datasets; "simcse" for graded data is last. Empty for a baseline.
    """
    tags = []
    for item in recipe.datasets:
        if item.config.startswith("query-triplet"):
            tags.append("dino")  # not Auto-NLI's, as other triplets
        else:
            tags.append(METHOD_TAGS[item.example_type])
    if any(item.grades and item.grades.positives == "itself" for item in recipe.datasets):
        tags.append("simcse")
    return tuple(dict.fromkeys(tags))


def build_model_metadata(
    recipe: ModelRecipe,
    licence: Licence,
    provenance: ModelProvenance,
    entries: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the front matter of a model card, without empty keys.

    Args:
        recipe: the model's recipe.
        licence: the model's licence.
        provenance: names the training datasets.
        entries: the value of ``model-index``.
    """
    tags = ["sentence-transformers", "sentence-similarity", "feature-extraction", "sts-dino"]
    if recipe.lora:
        tags += ["peft", "lora"]

    # the Hub links a model to its base
    base_id = find_base_repo(recipe, provenance)
    relation = None
    if base_id and not recipe.is_baseline:
        is_adapter = recipe.lora is not None and recipe.lora.release == "adapter"
        relation = "adapter" if is_adapter else "finetune"
    dataset_ids = set()
    for item in provenance.datasets:
        if item.repo_id and is_repo_id(item.repo_id):
            dataset_ids.add(item.repo_id)
    data: dict[str, Any] = {
        "language": [recipe.language],
        **make_license_fields(licence),
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": [*tags, *list_methods(recipe)],
        "base_model": base_id,
        "base_model_relation": relation,
        "datasets": sorted(dataset_ids),
        "model-index": entries,
    }
    return {key: value for key, value in data.items() if value}


def is_repo_id(text: str) -> bool:
    """Return whether a text is the id of a Hub repository with its owner: ORG/NAME."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return text.count("/") == 1


def find_base_repo(recipe: ModelRecipe, provenance: ModelProvenance) -> str | None:
    """Return the Hub repository of the base encoder: the recipe's, else the one its folder names.

    ``provenance`` records what the folder of a local base names. Returns None for a local base
    whose folder names no repository.
    """
    if recipe.base.repo_id:
        return recipe.base.repo_id
    upstream = provenance.base.upstream
    if upstream and is_repo_id(upstream.model):  # the folder's text may be untrusted
        return upstream.model
    return None


def build_model_index(name: str, results: Results) -> list[dict[str, Any]]:
    """Return the encoder's scores as the value of ``model-index``; empty without scores.

    ``name``: the model's name. A task of ``BENCHMARKS`` has the Hub's names for its data.
    """
    from huggingface_hub import EvalResult, ModelCardData  # takes half a second

    entries = []
    for score in results.scores:
        benchmark = BENCHMARKS.get(score.task)
        task_type, task_name = TASK_TYPES.get(score.main_metric, OTHER_TASK)
        dataset_name = benchmark.name if benchmark else score.task
        entry = EvalResult(
            task_type=task_type,
            task_name=task_name,
            dataset_type=benchmark.dataset_id if benchmark else score.task,
            dataset_name=f"{dataset_name} ({score.split})",
            dataset_split=score.split,
            dataset_revision=_find_dataset_revision(score, benchmark),
            metric_type=score.main_metric,
            metric_name=f"{score.main_metric} x 100",
            metric_value=round(score.main_score, 2),
        )
        entries.append(entry)
    if not entries:
        return []
    return list(ModelCardData(model_name=name, eval_results=entries).to_dict()["model-index"])


def _find_dataset_revision(score: TaskScore, benchmark: Benchmark | None) -> str | None:
    """Return the Hub commit of the data of a score, if the data are the benchmark's dataset.

    A score records it as ORG/NAME@COMMIT. Returns None without a benchmark, without a recorded
    commit, and for the commit of another dataset.
    """
    repo_id, _, commit = (score.data_revision or "").partition("@")
    return commit if benchmark and repo_id == benchmark.dataset_id else None


def make_eval_result_files(results: Results) -> dict[str, str]:
    """Make the evaluation entries, ``.eval_results/BENCHMARK.yaml`` → content.

    Only scores on a whole test split of a benchmark have an entry. Our task and MTEB's task of a
    benchmark have the same score up to rounding, so one entry stands for both. It has the first
    score that records the benchmark's revision, or the last score if none does.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries: dict[str, EvalResultEntry] = {}
    for score in results.scores:
        benchmark = BENCHMARKS.get(score.task)
        if not benchmark or score.split != "test" or score.n != benchmark.test_pairs:
            continue
        earlier = entries.get(benchmark.file)
        if earlier and earlier.dataset_revision is not None:
            continue
        measured_on = score.data_revision
        if score.data_sha256:
            measured_on = f"rows with SHA-256 {score.data_sha256}"
        entries[benchmark.file] = EvalResultEntry(
            dataset_id=benchmark.dataset_id,
            task_id=benchmark.task_id,
            value=round(score.main_score, 2),
            dataset_revision=_find_dataset_revision(score, benchmark),
            notes=f"{score.main_metric} x 100; {measured_on}",
        )
    files = {}
    for name, entry in entries.items():
        # results.json may come from another machine, so its texts are untrusted
        tree = make_visible_tree(eval_result_entries_to_yaml([entry]))
        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=YAML_WIDTH)
        files[f"{EVAL_RESULTS_FOLDER}/{name}.yaml"] = text
    return files

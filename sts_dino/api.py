"""The stages as functions: generate pairs, train on them, score, compare and publish.

Each function does what its command does. The same call resumes an interrupted one, by ``name`` and
arguments:

    from sts_dino import api

    # a datasets.Dataset: sentence1, sentence2, score
    pairs = api.write_pairs(texts, name="support")

    base = "gemma-3-270m"  # after: sts-dino lm gemma-3-270m
    encoder = api.train(pairs, base, base_license="gemma", name="support-encoder")
    scores = api.evaluate("artifacts/models/support-encoder", ["stsb/cosine"])
    print(scores.to_pandas())

``InputError`` means that an argument has to change, ``RunError`` that a Hub, disk or process failed
(``sts_dino.hub.errors``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from sts_dino.hub.contract import licences
from sts_dino.hub.contract.packaged import find_downloaded_model, find_moved_folder
from sts_dino.hub.contract.published_paths import format_command
from sts_dino.hub.contract.recipe import NAME, DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe, validate_recipe
from sts_dino.hub.contract.results import Results
from sts_dino.hub.contract.run_dir import ARTIFACTS, RECIPE
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

    from sts_dino.eval.compare.tables import Comparison
    from sts_dino.eval.tasks.sources import Source
    from sts_dino.hub.client.plan import Plan

# The default peak learning rate of each kind of modules
LEARNING_RATES = {"static": 1e-3, "transformer": 5e-5, "sentence-transformer": 2e-5}


def write_pairs(
    texts: Iterable[str],
    recipe: str | Path | None = None,
    *,
    labels: Mapping[float, str] | None = None,
    name: str = "pairs",
    lm: str | Path | None = None,
    lm_license: str | None = None,
    license: str = "unlicensed",
    language: str | None = None,
    price_in: float | None = None,
    price_out: float | None = None,
    budget: float | None = None,
    settings: Sequence[str] = (),
) -> Dataset:
    """Generate pairs for source sentences: ``sts-dino new`` and ``sts-dino write`` in one call.

    Returns the rows of the training split: sentence1, sentence2, score for the schema sts, then
    provenance. Raises InputError when that name has a run on other texts or by another recipe, when
    ``NAME.yaml`` exists and is another recipe than the one proposed, for arguments of a proposed
    recipe beside ``recipe``, and for what ``sts-dino new`` and ``write`` refuse.

    Args:
        texts: the source sentences. A proposed recipe takes the first 1,000 usable ones;
            ``settings=["source.limit=5000"]`` takes more.
        recipe: a dataset recipe; the texts replace its source, and the licence follows from its
            parts. Without one, ``sts-dino new`` proposes it.
        labels: similarity (0 to 1) → instruction, with ``<X1>`` for the source sentence and an open
            quotation mark at its end. The labels of higher similarity are counter-labels of each,
            and the prompt has no examples.
        name: of the run directory ``artifacts/datasets/NAME``; texts and recipe lie beside it.
        lm, lm_license, language: as with ``sts-dino new``, for the recipe that it proposes; with
            ``recipe`` they are refused. ``NAME@URL`` is a model behind a server.
        license: the licence of the texts.
        price_in, price_out, budget: as with ``sts-dino adapt``: prices of a million tokens of the
            server, and the most that the pairs may cost. A call with a larger budget resumes.
        settings: ``KEY=VALUE`` as with ``--set``.
    """
    from sts_dino.generation.executors.cluster import ClusterOptions
    from sts_dino.generation.run import load_checked_recipe, write_dataset
    from sts_dino.new import CorpusChoices, propose
    from sts_dino.proposals.chat_server import Payment

    if recipe is not None and (lm, lm_license, language) != (None, None, None):
        raise InputError(
            "lm, lm_license, language",
            "are for a recipe that is proposed",
            hint="name them in the recipe, or leave out recipe=",
        )

    # Write the source sentences beside the run directory.
    directory = _get_run_directory("datasets", name)
    sentences = _require_strings("texts", texts)
    overrides = _require_strings("settings", settings)
    corpus = directory.with_name(f"{name}.texts.jsonl")
    _write_texts(corpus, sentences, directory)

    # Take the recipe, or propose one.
    if labels is not None:
        overrides = [*_format_label_settings(labels), *overrides]
    if recipe is not None:
        path = Path(recipe)
        source = {
            "kind": "file",
            "path": str(corpus.resolve()),
            "columns": ["text"],
            "license": license,
            "description": f"texts of {name}",
        }
        overrides = [f"source={json.dumps(source)}", *overrides]
        # The licence in the recipe is that of its own source; take the first that fits the texts.
        changed_recipe = load_recipe(path, DatasetRecipe, overrides)
        possible_licences = licences.list_possible_licences(changed_recipe)
        overrides.append(f"license={possible_licences[0]}")
    else:
        path = directory.with_name(f"{name}.yaml")
        choices = CorpusChoices(
            "text",
            language,
            lm=str(lm) if lm else None,
            lm_license=lm_license,
            corpus_license=license,
        )
        propose(corpus, path, name, choices)

    # Generate the pairs.
    options = ClusterOptions()
    model = load_recipe(path, DatasetRecipe, overrides).model
    overrides += Payment(price_in, price_out, budget).format_settings(model)
    checked, _ = load_checked_recipe(path, directory, None, overrides, options)
    write_dataset(checked, directory, format_command("write", path, None, overrides), options)
    return read_pairs(directory)


def _write_texts(corpus: Path, sentences: list[str], directory: Path) -> None:
    """Write a file of texts.

    Raises InputError if it exists with other texts and ``directory``, the run on them, exists, too.
    Without a run, e.g. after a refused call, the other texts are replaced.
    """
    rows = [json.dumps({"text": sentence}, ensure_ascii=False) for sentence in sentences]
    content = "".join(f"{row}\n" for row in rows)
    is_same = corpus.is_file() and corpus.read_text(encoding="utf-8") == content
    if corpus.is_file() and not is_same and directory.exists():
        hint = f"give another name=, or remove {directory}"
        raise InputError(corpus, "holds other texts than these", hint=hint)
    if not is_same:
        write_text(corpus, content)


def _format_label_settings(instructions: Mapping[float, str]) -> list[str]:
    """Return the ``--set`` settings that replace a recipe's labels and remove its examples.

    A label's counter-labels are all labels of higher similarity (DINO, section 4).

    instructions: similarity → instruction. Raises InputError for a similarity that is a text; the
    recipe refuses numbers beyond 0 and 1.
    """
    if any(isinstance(score, str) for score in instructions):
        raise InputError(
            "labels",
            "has text for a similarity",
            allowed="numbers from 0 to 1, e.g. {1: ..., 0: ...}",
        )
    scores = sorted(instructions, reverse=True)
    names = [f"{score:g}" for score in scores]
    labels = []
    for index, score in enumerate(scores):
        label = {
            "name": names[index],
            "score": names[index],
            "counter_labels": names[:index],
            "instruction": instructions[score],
        }
        labels.append(label)
    return [f"labels={json.dumps(labels)}", "few_shot=null"]


def read_pairs(directory: str | Path, config: str | None = None, split: str = "train") -> Dataset:
    """Read the rows of a split of a finished run directory into memory.

    ``.info.license`` of the result is the dataset's licence.

    Args:
        directory: the run directory.
        config: for a run with several, e.g. ``triplet`` and ``pair-class``; by default the
            dataset's default config.
        split: the split.

    Raises InputError for an unfinished or damaged run, an unknown config, and a split without rows.
    """
    import pyarrow as pa
    from datasets import Dataset, DatasetInfo

    from sts_dino.hub.client.fetch import open_local_run
    from sts_dino.hub.contract.shards import read_table

    run = open_local_run(_require_path(directory), str(directory))
    recipe = load_recipe(Path(directory) / RECIPE, DatasetRecipe)
    # The first config has the filtered rows, which encoders train on.
    config = config or recipe.configs[0]
    if config not in run.configs:
        raise InputError(
            f"{directory}: config {config!r}", "not in the run", allowed=", ".join(run.configs)
        )
    folder, shards = run.fetch_shards(config)
    tables = [read_table(folder / shard.path) for shard in shards if shard.split == split]
    if not tables:
        raise InputError(f"{directory}: split {split!r}", f"has no rows in {config}")
    return Dataset(pa.concat_tables(tables), info=DatasetInfo(license=recipe.license))


def train(
    dataset: Dataset | str | Path,
    base: str | Path,
    *,
    base_license: str,
    name: str = "encoder",
    modules: str | None = None,
    example_type: str = "graded-triplet",
    loss: str = "MultipleNegativesRankingLoss",
    steps: int = 100,
    batch_size: int = 32,
    learning_rate: float | None = None,
    dataset_license: str | None = None,
    merge: float | Literal["auto"] | None = None,
    settings: Sequence[str] = (),
) -> SentenceTransformer:
    """Train an encoder on pairs, in ``artifacts/models/NAME``; its base and recipe lie beside it.

    Raises InputError and RunError as ``sts-dino train`` does.

    Args:
        dataset: what ``write_pairs`` returned or any ``Dataset`` with its columns, a finished run
            directory, or ``ORG/NAME@REVISION``.
        base: a folder, a model of ``sts-dino lm``, or ``ORG/NAME@REVISION``.
        base_license, dataset_license: their licences (SPDX ids). By default a run directory has its
            recipe's, and a dataset in memory has ``dataset.info.license``, which ``write_pairs``
            and ``read_pairs`` set, else ``unlicensed``. The encoder's licence follows from both: it
            is the base's where the data allow that.
        name: of the encoder.
        modules: ``sentence-transformer`` (a finished encoder with its own modules; the default for
            one), ``transformer`` (all layers, the mean of the tokens), ``static`` (its token
            embeddings alone, small and fast) or ``prompteol`` (a causal language model under
            PromptEOL's prompt, with LoRA, the slowest).
        example_type, loss: as in a model recipe.
        steps, batch_size: optimiser steps, and the rows of one.
        learning_rate: the peak; by default one that suits the modules.
        merge: multiplies what the training changed in the base's weights, at most by 2 (``auto``:
            chosen on validation pairs).
        settings: more keys of the recipe, ``KEY=VALUE``.
    """
    from sentence_transformers import SentenceTransformer

    from sts_dino.proposals.recipes import (
        LORA,
        PROMPTEOL_RATE,
        is_finished_encoder,
        make_prompteol_base,
        read_max_seq_length,
    )
    from sts_dino.training.loop.job import prepare
    from sts_dino.training.loop.train import run_training

    directory = _get_run_directory("models", name)
    overrides = _require_strings("settings", settings)

    # The section of the dataset
    rows = directory.with_name(f"{name}.pairs.parquet")
    data: dict[str, Any] = {"config": "default", "example_type": example_type, "loss": loss}
    data |= _locate_pairs(dataset, rows)
    if dataset_license:
        data["license"] = dataset_license

    # The section of the base, and what its modules need
    location = _resolve_location(base)
    section: dict[str, Any] = {**location, "license": base_license}
    if modules is None:
        modules = "sentence-transformer" if is_finished_encoder(location) else "transformer"
    is_finished = modules == "sentence-transformer"
    extra_arguments: dict[str, str] = {}
    extra_sections: dict[str, Any] = {}
    if modules == "prompteol":
        section, extra_arguments = make_prompteol_base(section)
        default_rate = float(PROMPTEOL_RATE)
        extra_sections["lora"] = LORA
    else:
        section["modules"] = modules
        # Unknown modules are refused when the recipe is validated.
        default_rate = LEARNING_RATES.get(modules, LEARNING_RATES["transformer"])
    if is_finished:
        section["max_seq_length"] = read_max_seq_length(section)

    # The licence of the encoder; that of a Hub dataset is checked when the dataset is read
    base_terms = licences.require_licence("base_license", base_license)
    data_terms = []
    if "license" in data:
        data_terms.append(licences.require_licence("dataset_license", data["license"]))
    licence = licences.choose_model_licence(base_terms, data_terms, name)

    # The recipe
    arguments = {
        "max_steps": steps,
        "learning_rate": default_rate if learning_rate is None else learning_rate,
        "warmup_steps": 0.1,
        "report_to": "none",
        "batch_sampler": "no_duplicates",
        "save_strategy": "steps",
        "save_steps": steps,
        **extra_arguments,
    }
    tree = {
        "kind": "model",
        "name": name,
        "version": "0.1.0",
        "pretty_name": name,
        "license": licence,
        "base": section,
        **extra_sections,
        "datasets": [data],
        "token_dropout": 0.0 if is_finished else 0.1,
        "batch_size": batch_size,
    }
    if merge is not None:
        tree["merge"] = merge
    tree["arguments"] = {key: str(value) for key, value in arguments.items()}
    path = directory.with_name(f"{name}.yaml")
    validate_recipe(path, ModelRecipe, tree)
    write_text(path, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))

    # Train.
    command = format_command("train", path, None, overrides)
    run_training(prepare(path, directory, None, overrides), command)
    return SentenceTransformer(str(directory), trust_remote_code=False)


def _locate_pairs(dataset: Dataset | str | Path, rows: Path) -> dict[str, Any]:
    """Return the keys of a model recipe that locate a dataset, and its licence where it is known.

    A run directory has its default config, too. A dataset in memory is written to the file
    ``rows``. Raises InputError for a dataset that cannot be located or written, and for a file or a
    folder that is not a run directory.
    """
    if not isinstance(dataset, str | Path):
        _write_rows(dataset, rows)
        licence = dataset.info.license or licences.UNLICENSED
        return {"path": str(rows.resolve()), "license": licence}
    location = _resolve_location(dataset)
    if "path" not in location:
        return location
    recipe_path = Path(location["path"]) / RECIPE
    if not recipe_path.is_file():
        raise InputError(
            dataset,
            f"is not a run directory (no {RECIPE})",
            allowed="a Dataset, run directory, ORG/NAME@REVISION",
            hint="datasets.Dataset.from_parquet, from_csv and from_json make a Dataset of a file",
        )
    recipe = load_recipe(recipe_path, DatasetRecipe)
    return {**location, "config": recipe.configs[0], "license": recipe.license}


def _write_rows(dataset: Dataset, path: Path) -> None:
    """Write a dataset in memory as a Parquet file, over an existing one.

    Raises InputError for an object that is not a ``datasets.Dataset``.
    """
    if not hasattr(dataset, "to_parquet") or not hasattr(dataset, "column_names"):
        hint = None
        if isinstance(dataset, Mapping):
            hint = "datasets.Dataset.from_dict makes one of columns"
        if hasattr(dataset, "column_names"):  # a DatasetDict
            hint = "name one of its splits: dataset['train']"
        if hasattr(dataset, "columns"):
            hint = "datasets.Dataset.from_pandas makes one of a table"
        raise InputError(
            "dataset",
            f"is a {type(dataset).__name__}",
            allowed="a Dataset, folder or name",
            hint=hint,
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.to_parquet(str(path))


def evaluate(
    model: str | Path | SentenceTransformer,
    tasks: Sequence[str] = ("stsb/cosine",),
    source: Source | None = None,
    limit: int | None = None,
    out: str | Path | None = None,
) -> Results:
    """Score an encoder on tasks and groups, with 95 % bootstrap intervals.

    ``.to_pandas()`` of the result is the table.

    Args:
        model: a folder, ``ORG/NAME[@REVISION]``, or a loaded encoder.
        tasks: names of tasks and groups.
        source: where evaluation data are (``sts_dino.eval.tasks.sources.Source``); None: the data
            that come with the project.
        limit: a trial on this number of rows of each split, drawn by the seed; None: all rows.
        out: a folder that keeps the records, so that an interrupted call resumes; None: none.

    Raises InputError for an unknown task, missing data, a limit below 1 and an object that is no
    encoder; the errors of loading the model.
    """
    from sts_dino.eval.encoders.load import PROBE_TEXTS, wrap
    from sts_dino.eval.runs.score import score_encoder
    from sts_dino.eval.scoring.bootstrap import EvaluationSettings

    if limit is not None and limit < 1:
        raise InputError("limit", f"is {limit}", allowed="1 or more, or None for all rows")
    if isinstance(model, str | Path):
        encoder: Any = str(model)
    elif not hasattr(model, "encode"):
        raise InputError(
            "model", f"is a {type(model).__name__}", allowed="a folder, name or loaded encoder"
        )
    else:
        # The revision is a digest of embeddings, so records of another encoder do not count.
        revision = hashlib.sha256(model.encode(PROBE_TEXTS).tobytes()).hexdigest()
        encoder = wrap(model.encode, "model", revision)
    names = _require_strings("tasks", tasks)
    folder = Path(out) if out is not None else None
    return score_encoder(encoder, names, source, EvaluationSettings(limit=limit), folder)


def compare(*evaluations: str | Path, out: str | Path | None = None) -> Comparison:
    """Compare evaluations with paired tests; write Markdown, CSV and plots, and print the table.

    evaluations: the folders of scored encoders. out: the folder of the results; None: that of
    ``sts-dino compare``. Raises InputError for a folder without scores.
    """
    from sts_dino.eval.compare.run import compare as compare_folders

    folders = tuple(map(_require_path, evaluations))
    return compare_folders(folders, Path(out) if out is not None else None)


def publish(
    directory: str | Path, org: str | None = None, yes: bool = False, public: bool = False
) -> Plan:
    """Publish a finished run with its card on the Hub of ``HF_ENDPOINT``, and return the plan.

    The card in the run directory is written first, for that repository, unless it is up to date.

    Args:
        directory: the run directory.
        org: a user or an organisation; None: the token's user.
        yes: whether to publish; False: the publication is only planned.
        public: whether anyone may read a new repository; an existing one stays as it is.

    Raises InputError for a run that may not be published, RunError where the Hub fails.
    """
    from sts_dino.release.options import PublishOptions
    from sts_dino.release.publish import publish_run, write_card

    run = _require_path(directory)
    options = PublishOptions(org=org, yes=yes, public=public or None)
    write_card(run, options)
    return publish_run(run, options)


def _require_strings(argument: str, values: Iterable[Any]) -> list[str]:
    """Return an argument as a list of strings.

    Raises InputError for a single string, a table, an item that is not a string, and strings that
    UTF-8 cannot hold.
    """
    is_table = hasattr(values, "columns")
    is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
    if is_table or not is_list:
        raise InputError(
            argument,
            f"is a {type(values).__name__}",
            allowed="a list of strings",
            hint="name a column: table['text']" if is_table else None,
        )
    strings = list(values)
    for number, text in enumerate(strings):
        place = f"{argument}[{number}]"
        if not isinstance(text, str):
            raise InputError(place, f"is a {type(text).__name__}", allowed="a string")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(place, f"cannot be UTF-8: {error.reason}", hint="remove it") from None
    return strings


def _require_path(directory: str | Path) -> Path:
    """Return a folder's name as a path. Raises InputError for an object that is not a name."""
    if not isinstance(directory, str | Path):
        raise InputError(
            "directory", f"is a {type(directory).__name__}", allowed="the name of a folder"
        )
    return Path(directory)


def _get_run_directory(kind: str, name: str) -> Path:
    """Return ``artifacts/KIND/NAME``. Raises InputError for a name that no artefact can have."""
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise InputError(
            "name",
            f"{name!r} cannot be a name",
            allowed="lower-case letters, digits, dots and hyphens",
        )
    return ARTIFACTS / kind / name


def _resolve_location(location: str | Path) -> dict[str, Any]:
    """Return the keys of a recipe that locate an encoder or a dataset.

    They are ``path`` for a folder or a model of ``sts-dino lm``, ``repo_id`` and ``revision`` for
    ``ORG/NAME@REVISION``. Raises InputError for anything else, such as a loaded encoder.
    """
    if not isinstance(location, str | Path):
        raise InputError("base", f"is a {type(location).__name__}", allowed="a folder or name")
    if Path(location).exists():
        return {"path": str(Path(location).resolve())}
    # Earlier versions had other folders for downloaded models.
    folder = find_moved_folder(str(location)) or find_downloaded_model(str(location))
    if folder is not None:
        return {"path": str(folder.resolve())}
    repo_id, _, revision = str(location).partition("@")
    if repo_id.count("/") != 1 or not revision:
        raise InputError(
            location,
            "is not a folder, a model of sts-dino lm or a pinned repository",
            allowed="a folder, NAME of sts-dino lm, ORG/NAME@REVISION",
        )
    return {"repo_id": repo_id, "revision": revision}

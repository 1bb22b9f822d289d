"""The stages as functions, for notebooks and scripts: generate pairs, train on them, score, compare, publish.

Each function does what its command does. The same call resumes an interrupted one, by ``name`` and arguments:

    from sts_dino import api

    pairs = api.write_pairs(texts, name="support")              # a datasets.Dataset: sentence1, sentence2, score
    encoder = api.train(pairs, base="artifacts/lm/gemma-3-270m", base_license="gemma", name="support-encoder")
    scores = api.evaluate("artifacts/models/support-encoder", ["stsb/cosine"]).to_pandas()

``InputError`` means that an argument has to change, ``RunError`` that a Hub, disk or process failed (``hub.errors``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from hub.contract import licences
from hub.contract.published_paths import command_line
from hub.contract.recipe import NAME, DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import checked, load_recipe
from hub.contract.results import Results
from hub.contract.run_dir import ARTIFACTS, RECIPE, require_complete
from hub.durable import write_text
from hub.errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

    from eval.compare.tables import Comparison
    from eval.tasks.sources import Source
    from hub.client.plan import Plan

RATES = {"static": 1e-3, "transformer": 5e-5, "sentence-transformer": 2e-5}


def write_pairs(
    texts: Iterable[str],
    recipe: str | Path | None = None,
    *,
    labels: Mapping[float, str] | None = None,
    name: str = "pairs",
    lm: str | None = None,
    lm_license: str | None = None,
    license: str = "unlicensed",
    language: str | None = None,
    settings: Sequence[str] = (),
) -> Dataset:
    """Generate pairs for source sentences with a language model: ``sts-dino new`` and ``write`` in one.

    recipe: a dataset recipe; the texts replace its source, and the licence follows from its parts. Without one,
    ``sts-dino new`` proposes it (``lm``, ``lm_license``, ``license``, ``language`` as there). labels: similarity (0 to
    1) → instruction, with ``<X1>`` for the source sentence and an open quotation mark at its end. The labels of higher
    similarity are counter-labels of each, and the prompt has no examples. name: of the run directory
    ``artifacts/datasets/NAME``; texts and recipe lie beside it. settings: ``KEY=VALUE`` as with ``--set``.

    Returns the rows of the training split: sentence1, sentence2, score for the schema sts, then provenance. Raises
    InputError when that name exists with other texts or another recipe, and for what ``sts-dino new`` and ``write``
    refuse.
    """
    from generation.executors.options import ClusterOptions
    from generation.run import checked_recipe, write
    from sts_dino.new import CorpusChoices, propose

    directory = _directory("datasets", name)
    sentences, settings = _strings("texts", texts), _strings("settings", settings)
    corpus, path = directory.with_name(f"{name}.texts.jsonl"), directory.with_name(f"{name}.yaml")
    content = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in sentences)
    if not corpus.is_file():
        write_text(corpus, content)
    elif corpus.read_text(encoding="utf-8") != content:
        raise InputError(corpus, "holds other texts than these", hint="give another name=, or remove the file")
    given = [*(_labels(labels) if labels is not None else ()), *settings]
    if recipe is not None:
        source = {"kind": "file", "path": str(corpus.resolve()), "columns": ["text"], "license": license}
        source["description"] = f"texts of {name}"
        given = [f"source={json.dumps(source)}", *given]
        path = Path(recipe)
        given.append(f"license={licences.possible(load_recipe(path, DatasetRecipe, given))[0]}")
    else:
        choices = CorpusChoices("text", language, lm=lm, lm_license=lm_license, corpus_license=license)
        propose(corpus, path, name, choices)
    options = ClusterOptions()
    found, _ = checked_recipe(path, directory, None, given, options)
    write(found, directory, command_line("write", path, None, given), options)
    return read_pairs(directory)


def _labels(instructions: Mapping[float, str]) -> list[str]:
    """The settings that replace a recipe's labels; the counter-labels follow DINO, section 4."""
    order = sorted(instructions, reverse=True)
    if any(isinstance(score, str) for score in order):
        raise InputError("labels", "has text for a similarity", allowed="numbers from 0 to 1, e.g. {1: ..., 0: ...}")
    labels = [
        {
            "name": f"{score:g}",
            "score": f"{score:g}",
            "counter_labels": [f"{higher:g}" for higher in order[:place]],
            "instruction": instructions[score],
        }
        for place, score in enumerate(order)
    ]
    return [f"labels={json.dumps(labels)}", "few_shot=null"]


def read_pairs(directory: str | Path, config: str | None = None, split: str = "train") -> Dataset:
    """The rows of a finished run directory, in memory. Raises InputError for an unfinished or damaged one.

    config: where the run has several, e.g. ``triplet`` and ``pair-class``; by default the dataset's own default.
    """
    import pyarrow as pa
    from datasets import Dataset

    from hub.client.fetch import local_run
    from hub.contract.shards import read_table

    run = local_run(_folder(directory), str(directory))
    chosen = config or _config_of(directory)
    if chosen not in run.configs:
        raise InputError(f"{directory}: config {chosen!r}", "not in the run", allowed=", ".join(run.configs))
    folder, shards = run.shards(chosen)
    parts = [read_table(folder / shard.path) for shard in shards if shard.split == split]
    if not parts:
        raise InputError(f"{directory}: split {split!r}", f"has no rows in {chosen}")
    return Dataset(pa.concat_tables(parts))


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
    """Train an encoder on pairs, in ``artifacts/models/NAME``, with its base and its recipe beside it.

    dataset: what ``write_pairs`` returned or any ``Dataset`` with its columns, a finished run directory, or
    ``ORG/NAME@REVISION``. base: a folder or ``ORG/NAME@REVISION``; modules: ``sentence-transformer`` (a finished
    encoder with its own modules; the default for one), ``transformer`` (all layers, the mean of the tokens),
    ``static`` (its token embeddings alone, small and fast) or ``prompteol`` (a causal language model under PromptEOL's
    prompt, with LoRA, the slowest). merge: the share of the trained weights in the result, the rest is the base's
    (``auto``: chosen on validation pairs). settings: more keys of the recipe.

    Raises InputError and RunError as ``sts-dino train`` does.
    """
    from sentence_transformers import SentenceTransformer

    from sts_dino.proposals.recipes import LORA, PROMPTEOL_RATE, is_finished, own_length, prompteol
    from training.loop.job import prepare
    from training.loop.train import work

    directory, settings = _directory("models", name), _strings("settings", settings)
    data: dict[str, Any] = {"config": "default", "example_type": example_type, "loss": loss}
    if isinstance(dataset, str | Path):
        data |= _place(dataset)
        data |= {"config": _config_of(data["path"])} if "path" in data else {}
    else:
        if not hasattr(dataset, "to_parquet") or not hasattr(dataset, "column_names"):
            hint = "datasets.Dataset.from_pandas makes one of a table" if hasattr(dataset, "columns") else None
            found = f"is a {type(dataset).__name__}"
            raise InputError("dataset", found, allowed="a Dataset, folder or name", hint=hint)
        rows = directory.with_name(f"{name}.pairs.parquet")
        rows.parent.mkdir(parents=True, exist_ok=True)
        dataset.to_parquet(str(rows))
        data |= {"path": str(rows.resolve()), "license": dataset_license or base_license}
    data |= {"license": dataset_license} if dataset_license else {}
    named: dict[str, Any] = {**_place(base), "license": base_license}
    modules = modules or ("sentence-transformer" if is_finished(_place(base)) else "transformer")
    finished = modules == "sentence-transformer"
    if modules == "prompteol":
        section, more = prompteol(named)
        rate, special = learning_rate or float(PROMPTEOL_RATE), {"lora": LORA}
    else:
        length = {"max_seq_length": own_length(named)} if finished else {}
        section, more, special = {**named, "modules": modules, **length}, {}, {}
        rate = learning_rate or RATES.get(modules, RATES["transformer"])
    arguments = {"max_steps": steps, "learning_rate": rate, "warmup_steps": 0.1, "report_to": "none"}
    arguments |= {"batch_sampler": "no_duplicates", "save_strategy": "steps", "save_steps": steps, **more}
    tree = {
        "kind": "model",
        "name": name,
        "version": "0.1.0",
        "pretty_name": name,
        "license": base_license,
        "base": section,
        **special,
        "datasets": [data],
        "token_dropout": 0.0 if finished else 0.1,
        "batch_size": batch_size,
        **({} if merge is None else {"merge": merge}),
        "arguments": {key: str(value) for key, value in arguments.items()},
    }
    path = directory.with_name(f"{name}.yaml")
    checked(path, ModelRecipe, tree)
    write_text(path, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
    given = list(settings)
    work(prepare(path, directory, None, given), command_line("train", path, None, given))
    return SentenceTransformer(str(directory), trust_remote_code=False)


def evaluate(
    model: str | Path | SentenceTransformer,
    tasks: Sequence[str] = ("stsb/cosine",),
    source: Source | None = None,
    limit: int | None = None,
    out: str | Path | None = None,
) -> Results:
    """Score an encoder on tasks and groups, with 95 % bootstrap intervals; ``.to_pandas()`` is the table.

    model: a folder, ``ORG/NAME[@REVISION]``, or a loaded encoder. source: where evaluation data are
    (``eval.tasks.sources.Source``); without it those that come with the project. limit: a trial on so many rows of each
    split, drawn by the seed. out: a folder that keeps the records, so that an interrupted call goes on.
    """
    from eval.encoders.load import PROBE, wrap
    from eval.runs.score import score_encoder
    from eval.statistics.bootstrap import EvaluationSettings

    if isinstance(model, str | Path):
        encoder: Any = str(model)
    elif not hasattr(model, "encode"):
        raise InputError("model", f"is a {type(model).__name__}", allowed="a folder, name or loaded encoder")
    else:  # its revision is a digest of its embeddings of some texts, so records of another encoder do not count
        encoder = wrap(model.encode, "model", hashlib.sha256(model.encode(PROBE).tobytes()).hexdigest())
    settings = EvaluationSettings(limit=limit)
    return score_encoder(encoder, _strings("tasks", tasks), source, settings, Path(out) if out is not None else None)


def compare(*evaluations: str | Path, out: str | Path | None = None) -> Comparison:
    """Compare evaluations with paired tests; write Markdown, CSV and plots, and print the table."""
    from eval.compare.run import compare as side_by_side

    return side_by_side(tuple(map(_folder, evaluations)), Path(out) if out is not None else None)


def publish(directory: str | Path, org: str | None = None, yes: bool = False, public: bool = False) -> Plan:
    """Publish a finished run with its card on the Hub of ``HF_ENDPOINT``; without ``yes`` only plan it.

    org: a user or an organisation; left out, the token's user. public: whether anyone may read a new repository; an
    existing one stays as it is. The card is written first, for that place.

    Raises InputError for a run that may not be published, RunError where the Hub fails.
    """
    from release.options import PublishOptions
    from release.publish import publish_run, write_card

    require_complete(_folder(directory))
    options = PublishOptions(org=org, yes=yes, public=public or None)
    write_card(Path(directory), options, anew=True)
    return publish_run(Path(directory), options)


def _strings(argument: str, values: Iterable[Any]) -> list[str]:
    """An argument that is a list of texts. Raises InputError for a single one, a table, and what UTF-8 cannot hold."""
    if isinstance(values, str | bytes | Mapping) or hasattr(values, "columns") or not isinstance(values, Iterable):
        hint = "name a column: table['text']" if hasattr(values, "columns") else None
        raise InputError(argument, f"is a {type(values).__name__}", allowed="a list of strings", hint=hint)
    found = list(values)
    for number, text in enumerate(found):
        try:
            is_text = isinstance(text, str) and text.encode() is not None
        except UnicodeEncodeError as error:
            raise InputError(f"{argument}[{number}]", f"cannot be UTF-8: {error.reason}", hint="remove it") from None
        if not is_text:
            raise InputError(f"{argument}[{number}]", f"is a {type(text).__name__}", allowed="a string")
    return found


def _folder(place: str | Path) -> Path:
    if not isinstance(place, str | Path):
        raise InputError("directory", f"is a {type(place).__name__}", allowed="the name of a folder")
    return Path(place)


def _directory(kind: str, name: str) -> Path:
    """The run directory of a name. Raises InputError for a name that no artefact can have."""
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise InputError("name", f"{name!r} cannot be a name", allowed="lower-case letters, digits, dots and hyphens")
    return ARTIFACTS / kind / name


def _place(place: str | Path) -> dict[str, Any]:
    """A folder as ``path``, anything else as a Hub id with its revision."""
    if Path(place).exists():
        return {"path": str(Path(place).resolve())}
    repo_id, _, revision = str(place).partition("@")
    if repo_id.count("/") != 1 or not revision:
        raise InputError(place, "is not a folder or pinned repository", allowed="a folder, ORG/NAME@REVISION")
    return {"repo_id": repo_id, "revision": revision}


def _config_of(directory: str | Path) -> str:
    """The default config of a run directory: the finished one that encoders are trained on."""
    return load_recipe(Path(directory) / RECIPE, DatasetRecipe).configs[0]

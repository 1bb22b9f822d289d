"""The datasets of a plan's variants, each made by steps that run once.

Source sentences are drawn, and pairs are generated. ``refinish_run`` filters and scores the texts
of a finished dataset again, without a language model.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sts_dino.experiments.plan import Plan, Source, Variant
from sts_dino.experiments.steps import StepOutput, Steps, hash_parts
from sts_dino.generation.pipeline.directory import DatasetRun
from sts_dino.generation.pipeline.finish import finish
from sts_dino.generation.pipeline.tasks import (
    WriteShard,
    list_shards,
    make_shard_paths,
    make_shard_result,
)
from sts_dino.hub import cli
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import (
    apply_overrides,
    begin_run,
    get_deciding_values,
    load_recipe,
    read_yaml,
    validate_recipe,
)
from sts_dino.hub.contract.run_dir import RECIPE, Manifest, lock_run, require_complete
from sts_dino.hub.contract.schema import ROW_FILTERS, get_base_config, is_finished
from sts_dino.hub.contract.shards import read_parquet_schema, read_shard, read_table
from sts_dino.hub.durable import hash_file
from sts_dino.hub.errors import InputError
from sts_dino.release.options import format_settings

SPARE = 2  # draw twice the sentences: a recipe skips some by their number of tokens
ALL_PAIRS = ["--pairs", "--texts", "10000"]  # of a file in the STS Benchmark's layout
GENERATED_TOP_P = 0.9  # nucleus of generated source sentences: Schick & Schütze 2021, section 4


class DatasetMaker:
    """Makes the datasets of a plan.

    Args:
        plan: the plan.
        steps: runs the commands.
        data: the folder with files of sources and, for the check of sentences, ``senteval``; None:
            sources are files of the repository, and the shipped evaluation data is checked.
        settings: added to every dataset recipe.
    """

    def __init__(self, plan: Plan, steps: Steps, data: Path | None, settings: Sequence[str] = ()):
        self.datasets = plan.datasets
        self.steps = steps
        self.data = data
        self.settings = tuple(settings)
        self.senteval: Path | None = None
        if data and (data / "senteval" / "downstream").is_dir():
            self.senteval = data / "senteval"

    def make_dataset(self, name: str, seed: int) -> StepOutput:
        """Return the dataset of the variant ``name`` under a data seed; missing steps run.

        With ``same_texts`` the texts of another variant are filtered and scored again: the CPU
        seconds include those of that variant.
        """
        variant = self.datasets.get_variant(name)
        if variant.same_texts is None:
            return self._generate(variant, seed)
        base = self.make_dataset(variant.same_texts, seed)
        if not variant.settings:
            return base
        settings = format_settings(variant.settings)
        command = ["experiment", "refinish", str(base.path), *settings]
        dataset = self._run_dataset_command(variant, seed, command, [base.path.name, settings])
        return StepOutput(dataset.path, base.seconds + dataset.seconds)

    def _generate(self, variant: Variant, seed: int) -> StepOutput:
        """Return the dataset that the variant's recipe generates."""
        generation = self.datasets.get_generation(variant.name)
        spec = self.datasets.sources[generation.source]
        limit = spec.texts or self.datasets.texts

        # The section ``source``: the language model generates the sentences, or a file has them.
        source: dict[str, Any] = {
            "limit": limit,
            "description": spec.description,
            "license": spec.license,
        }
        if spec.path is None:
            source |= {"kind": "model", "top_p": GENERATED_TOP_P}
        else:
            path = self._draw_sentences(generation.source, spec.path, spec, limit, seed)
            source |= {"kind": "file", "path": str(path)}

        settings = [
            f"license={spec.dataset_license}",
            *generation.settings,
            *self.settings,
            f"source={json.dumps(source)}",
            f"seed={seed}",
        ]
        recipe = load_recipe(generation.recipe, DatasetRecipe, settings)
        command = ["write", str(generation.recipe), *format_settings(settings)]
        return self._run_dataset_command(variant, seed, command, get_deciding_values(recipe))

    def _run_dataset_command(
        self, variant: Variant, seed: int, command: list[str], row_settings: Any
    ) -> StepOutput:
        """Run a command that writes a dataset, unless it has run with equal ``row_settings``.

        Returns the folder of the dataset and the CPU seconds of the run. Raises InputError or
        RunError when the command fails.

        Args:
            variant: the variant, which messages name.
            seed: data seed, which messages and the folder name.
            command: the command without ``--out``.
            row_settings: everything that decides the rows, the seed included; JSON can hold it.
        """
        key = hash_parts(row_settings)
        out = self.steps.folder / "datasets" / f"{seed}-{key}"
        title = f"{variant.name}, data seed {seed}"
        command = [*command, "--out", str(out)]
        return StepOutput(out, self.steps.run_once("dataset", key, command, title, out))

    def _draw_sentences(self, name: str, path: str, spec: Source, limit: int, seed: int) -> Path:
        """Return the file of source sentences that a data seed draws; a missing one is drawn.

        Raises InputError for a missing source, and InputError or RunError when a step fails.

        Args:
            name: the source in the plan.
            path: its file, relative to the data folder or to the repository.
            spec: the source.
            limit: number of sentences that the recipe reads.
            seed: data seed.
        """
        file = Path(path)
        if self.data and (self.data / path).is_file():
            file = self.data / path
        if not file.is_file():
            hint = "--data DIR (STS_DINO_DATA) holds it"
            raise InputError(path, f"source {name}: no such file", hint=hint)
        options = ["--texts", str(SPARE * limit), "--seed", str(seed)]
        if spec.pairs:
            file = self._draw_texts(name, file, ALL_PAIRS, ".jsonl", spec.checked)
            options = ["--column", "sentence1", "--column", "sentence2", *options]
        return self._draw_texts(name, file, options, ".txt", spec.checked)

    def _draw_texts(
        self, name: str, file: Path, options: Sequence[str], suffix: str, checked: bool
    ) -> Path:
        """Return the texts that ``sts-dino experiment source-sentences`` draws from a file.

        Args:
            name: the source in the plan.
            file: file to draw from.
            options: options of the command.
            suffix: of the output: .txt or .jsonl.
            checked: whether to leave out the sentences of all evaluation sets.
        """
        evaluation = list[str]()
        if self.senteval and checked:
            evaluation = ["--senteval-data", str(self.senteval)]
        key = hash_parts(hash_file(file), options, bool(evaluation))
        out = self.steps.folder / "source_sentences" / f"{name}-{key}{suffix}"
        command = ["experiment", "source-sentences", str(file), *options, *evaluation]
        command += ["--out", str(out)]
        self.steps.run_once("source_sentences", key, command, f"source {name}", out)
        return out


def get_finished_config(directory: Path) -> str:
    """Return the config of a dataset that encoders train on: the first finished one.

    Raises InputError for a dataset of several shot counts, which has this config for each.
    """
    recipe = load_recipe(directory / RECIPE, DatasetRecipe)
    configs = [config for config in recipe.configs if is_finished(config)]
    base = get_base_config(configs[0])
    candidates = [config for config in configs if get_base_config(config) == base]
    if len(candidates) != 1:
        hint = "one variant per shot count"
        raise InputError(directory, "several configs to train on", allowed=candidates, hint=hint)
    return configs[0]


def read_source_sentences(directory: Path) -> list[str]:
    """Read the texts in the first column of a dataset's training rows, each once.

    In pairs of sentences and in triplets they are the source sentences.
    """
    config = get_finished_config(directory)
    sentences = list[str]()
    for file in require_complete(directory).files:
        if file.config == config and file.split == "train":
            path = directory / file.path
            column = read_parquet_schema(path).names[0]
            sentences += read_table(path, [column])[column].to_pylist()
    return list(dict.fromkeys(sentences))


def read_finished_rows(directory: Path, columns: Sequence[str], hint: str) -> list[tuple[Any, ...]]:
    """Read these columns of every row of a dataset's finished configs.

    Raises InputError, with the hint, for a dataset without such rows or columns.
    """
    rows = list[tuple[Any, ...]]()
    for file in require_complete(directory).files:
        if not file.config or not is_finished(file.config):
            continue
        table = read_table(directory / file.path, list(columns))
        for column in columns:
            # The reader leaves unknown columns out
            if column not in table.column_names:
                raise InputError(directory, f"has no column {column!r}", hint=hint)
        for row in table.to_pylist():
            rows.append(tuple(row[column] for column in columns))
    if not rows:
        raise InputError(directory, "has no rows of the expected config", hint=hint)
    return rows


def refinish_run(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished dataset")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The run directory to write")],
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
) -> None:
    """Write a run directory of the same texts under other settings of verification and postprocess.

    Prints the counts of the run as JSON.

    Examples:

      sts-dino experiment refinish RUN --set "verification={drop: true}" --out DIR
    """
    manifest = require_complete(directory)
    tree = apply_overrides(read_yaml(directory / RECIPE), settings)
    recipe = validate_recipe(directory / RECIPE, DatasetRecipe, tree)
    with lock_run(out):
        first_manifest = begin_run(out, recipe, manifest.inputs, manifest.versions)
        run = DatasetRun(out, recipe, first_manifest)
        if not run.manifest.complete:
            _write_filtered(run, directory, manifest)
    print(json.dumps({"directory": str(out), **run.manifest.counts}, ensure_ascii=False))


def _write_filtered(run: DatasetRun, directory: Path, manifest: Manifest) -> None:
    """Filter the texts of a finished run under the recipe of another run, and finish this run.

    Args:
        run: the run to write.
        directory: the run directory with the texts.
        manifest: the manifest in ``directory``.
    """
    source_count = manifest.counts["sources"]
    paths = {file.path for file in manifest.files}
    recipe = load_recipe(directory / RECIPE, DatasetRecipe)
    shards = list_shards(recipe, math.ceil(source_count / recipe.shard_size))
    run.update_manifest(provenance=manifest.provenance, counts={"sources": source_count})
    for shard in shards:
        # A shard without raw or without rejected rows has no such file.
        raw_path, rejected_path = make_shard_paths(recipe, shard)
        raw = read_shard(directory / raw_path) if raw_path in paths else []
        rejected = read_shard(directory / rejected_path) if rejected_path in paths else []
        # These texts are rejected whatever the settings of the filters of rows.
        unusable = [row for row in rejected if row["reason"] not in ROW_FILTERS]
        result = make_shard_result(run.recipe, WriteShard(shard, ()), raw, unusable)
        run.add_shard(result, shard.blocks)
    run.write_progress(shards[0].blocks)
    finish(run, shards[0].blocks, source_count)

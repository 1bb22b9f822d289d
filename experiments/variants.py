"""The datasets of a plan's variants: source sentences drawn, pairs generated or filtered again, each step once."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.plan import Plan, Source, Variant
from experiments.steps import Made, Steps, digest
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import deciding, load_recipe
from hub.contract.run_dir import RECIPE, require_complete
from hub.contract.schema import base_config, is_finished
from hub.contract.shards import parquet_schema, read_table
from hub.durable import sha256_file
from hub.errors import InputError
from release.options import set_words

SPARE = 2  # draw twice the sentences: a recipe skips some by their number of tokens
ALL_PAIRS = ["--pairs", "--texts", "10000"]  # of a file in the STS Benchmark's layout
GENERATED_TOP_P = 0.9  # of generated source sentences: Schick & Schütze 2021, section 4
DRAW, REFINISH = ["experiment", "source-sentences"], ["experiment", "refinish"]


class DatasetMaker:
    """Makes the datasets of a plan. ``settings``: added to every dataset recipe."""

    def __init__(self, plan: Plan, steps: Steps, data: Path | None, settings: Sequence[str] = ()):
        self.datasets, self.steps, self.data, self.settings = plan.datasets, steps, data, tuple(settings)
        senteval = data / "senteval" if data else None
        self.senteval = senteval if senteval and (senteval / "downstream").is_dir() else None

    def find(self, name: str, seed: int) -> Made:
        """The finished dataset of a variant under a data seed."""
        variant = self.datasets.variant(name)
        if variant.same_texts is None:
            return self._generated(variant, seed)
        base = self.find(variant.same_texts, seed)
        if not variant.settings:
            return base
        words = set_words(variant.settings)
        return self._dataset(variant, seed, [*REFINISH, str(base.path), *words], [base.path.name, words], base.seconds)

    def _generated(self, variant: Variant, seed: int) -> Made:
        texts = self.datasets.generation(variant.name)
        spec = self.datasets.sources[texts.source]
        limit = spec.texts or self.datasets.texts
        source: dict[str, Any] = {"limit": limit, "description": spec.description, "license": spec.license}
        if spec.path is None:
            source |= {"kind": "model", "top_p": GENERATED_TOP_P}
        else:
            source |= {"kind": "file", "path": str(self._drawn(texts.source, spec, limit, seed))}
        own = [f"license={spec.dataset_license}", *texts.settings, *self.settings]
        given = [*own, f"source={json.dumps(source)}", f"seed={seed}"]
        recipe = load_recipe(texts.recipe, DatasetRecipe, given)
        return self._dataset(variant, seed, ["write", str(texts.recipe), *set_words(given)], deciding(recipe))

    def _dataset(self, variant: Variant, seed: int, words: list[str], decides: Any, before: float = 0.0) -> Made:
        key = digest(decides)
        out = self.steps.folder / "datasets" / f"{seed}-{key}"
        what = f"{variant.name}, data seed {seed}"
        return Made(out, before + self.steps.once("dataset", key, [*words, "--out", str(out)], what, out))

    def _drawn(self, name: str, spec: Source, limit: int, seed: int) -> Path:
        """The file of source sentences that a data seed draws."""
        assert spec.path is not None
        places = [*([self.data / spec.path] if self.data else []), Path(spec.path)]
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            raise InputError(spec.path, f"source {name}: no such file", hint="--data DIR (STS_DINO_DATA) holds it")
        words = ["--texts", str(SPARE * limit), "--seed", str(seed)]
        if spec.pairs:
            file = self._texts(name, file, ALL_PAIRS, ".jsonl", spec.checked)
            words = ["--column", "sentence1", "--column", "sentence2", *words]
        return self._texts(name, file, words, ".txt", spec.checked)

    def _texts(self, name: str, file: Path, words: Sequence[str], suffix: str, checked: bool) -> Path:
        where = ["--senteval-data", str(self.senteval)] if self.senteval and checked else []
        key = digest(sha256_file(file), words, bool(where))
        out = self.steps.folder / "source_sentences" / f"{name}-{key}{suffix}"
        line = [*DRAW, str(file), *words, *where, "--out", str(out)]
        self.steps.once("source_sentences", key, line, f"source {name}", out)
        return out


def finished_config(directory: Path) -> str:
    """The config of a dataset that encoders train on. Raises InputError for several shot counts."""
    configs = [*filter(is_finished, load_recipe(directory / RECIPE, DatasetRecipe).configs)]
    alike = [config for config in configs if base_config(config) == base_config(configs[0])]
    if len(alike) != 1:
        raise InputError(directory, "several configs to train on", allowed=alike, hint="one variant per shot count")
    return configs[0]


def source_sentences(directory: Path) -> list[str]:
    """The source sentences of a dataset's training rows, each once."""
    config = finished_config(directory)
    files = [file for file in require_complete(directory).files if file.config == config and file.split == "train"]
    column = parquet_schema(directory / files[0].path).names[0]
    texts = (text for file in files for text in read_table(directory / file.path, [column])[column].to_pylist())
    return list(dict.fromkeys(texts))


def finished_rows(directory: Path, columns: Sequence[str], hint: str) -> list[tuple[Any, ...]]:
    """These columns of every row of a dataset's finished configs.

    Raises InputError, with the hint, for a dataset without such rows or columns.
    """
    rows = list[tuple[Any, ...]]()
    for file in require_complete(directory).files:
        if file.config and is_finished(file.config):
            try:
                found = read_table(directory / file.path, list(columns)).to_pylist()
            except KeyError as error:
                raise InputError(directory, f"has no column {error}", hint=hint) from error
            rows += [tuple(row[column] for column in columns) for row in found]
    if not rows:
        raise InputError(directory, "has no rows of the expected config", hint=hint)
    return rows

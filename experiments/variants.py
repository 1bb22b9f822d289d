"""The datasets of a plan's variants, each made by steps that run once.

``DatasetMaker`` draws source sentences and generates pairs. ``draw_source_sentences`` draws
sentences, or the STS Benchmark's pairs, and leaves out exact, normalised and near matches of
evaluation sentences (by ``sts_dino.eval.audit.evaluation_sentences``). A file beside the output,
with the suffix .json, counts those that were left out. ``refinish_run`` filters and scores the
texts of a finished dataset again, without a language model.
"""

import gzip
import json
import logging
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from sts_dino.experiments.plan import Plan, Source, Variant
from sts_dino.experiments.steps import StepOutput, Steps, hash_parts
from sts_dino.generation.inputs.sources import read_file_rows
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
from sts_dino.hub.contract.shards import (
    make_reading_error,
    read_parquet_schema,
    read_shard,
    read_table,
)
from sts_dino.hub.durable import hash_file, write_text
from sts_dino.hub.errors import InputError
from sts_dino.hub.text_files import READERS, kind_of
from sts_dino.release.options import format_settings
from sts_dino.release.value import read_human_pairs

logger = logging.getLogger(__name__)

SPARE = 2  # draw twice the sentences: a recipe skips some by their number of tokens
ALL_PAIRS = ["--pairs", "--texts", "10000"]  # of a file in the STS Benchmark's layout
GENERATED_TOP_P = 0.9  # nucleus of generated source sentences: Schick & Schütze 2021, section 4
EVALUATION_SETS = (*(f"sts{year}" for year in range(12, 17)), "stsb-tokenised", "sick-r-tokenised")
CHECKED_ROWS = 500  # rows that are looked up in the evaluation sets together
MIN_WORDS = 4  # a heading has fewer
MAX_WORDS = 40  # a run-on line has more
# A sentence has a lower-case letter of English, and no quotation mark, which would end a text
STATEMENT_PATTERN = re.compile(r'[^"\u201c\u201d]*[a-z][^"\u201c\u201d]*')
Row = tuple[str, ...]
FindKinds = Callable[[Sequence[str]], list[str | None]]


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

        ``same_texts`` names a base variant: its texts are filtered and scored again, and the CPU
        seconds include the base's generation. Without settings the base's dataset itself is
        returned. Raises InputError or RunError when a step fails.
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
        """Return the dataset that the variant's recipe generates under a data seed.

        Missing steps run. The CPU seconds are those of ``sts-dino write`` alone.
        """
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
            variant: the variant, for messages.
            seed: the data seed, for messages and the folder's name.
            command: the command without ``--out``.
            row_settings: JSON values of everything that decides the rows, the seed included.
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
            name: the source's name in the plan.
            path: the source's file, relative to the data folder or else to the working directory.
            spec: the source.
            limit: number of sentences that the recipe reads; ``SPARE`` times as many are drawn.
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
            name: the source's name in the plan.
            file: file to draw from.
            options: options of the command.
            suffix: suffix of the output: .txt or .jsonl.
            checked: whether to leave out the sentences of all ``EVALUATION_SETS``, which needs
                SentEval's data. Otherwise only those of the shipped evaluation data are left out.
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
    """Read the distinct texts in the first column of a dataset's split "train", in row order.

    In pairs of sentences and in triplets they are the source sentences. The rows are those of
    ``get_finished_config``. Raises InputError for an unfinished run, and as that function does.
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
    """Read ``columns`` of every row of all finished configs and splits of a dataset.

    Returns a tuple of values for each row, in the order of ``columns``. Raises InputError, with
    ``hint``, for a finished config without one of the columns, and when no finished config has
    rows; without it for an unfinished run.
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
        raise InputError(directory, "has no rows of a finished config", hint=hint)
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
    """Filter the texts of a finished run under the recipe of ``run``, and finish ``run``.

    Args:
        run: the run to write.
        directory: the finished run directory with the texts.
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
        # A text that was rejected for a reason outside ``ROW_FILTERS`` stays rejected
        unusable = [row for row in rejected if row["reason"] not in ROW_FILTERS]
        result = make_shard_result(run.recipe, WriteShard(shard, ()), raw, unusable)
        run.add_shard(result, shard.blocks)
    run.write_progress(shards[0].blocks)
    finish(run, shards[0].blocks, source_count)


def draw_source_sentences(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Sentences as `sts-dino write` reads them, or .gz"),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="A .txt file, with --pairs a .jsonl file")
    ],
    columns: Annotated[
        list[str], typer.Option("--column", help="Column of a table; repeatable")
    ] = [],  # noqa: B006
    texts: Annotated[
        int, typer.Option("--texts", min=1, help="Number of sentences or pairs")
    ] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 42,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="FILE has the STS Benchmark's layout")
    ] = False,
    senteval: Annotated[
        Path | None, typer.Option("--senteval-data", metavar="DIR", help="SentEval's data")
    ] = None,
    without: Annotated[
        list[Path],
        typer.Option("--without", metavar="FILE", help="Leave out its lines; repeatable"),
    ] = [],  # noqa: B006
) -> None:
    """Draw source sentences, or human-annotated pairs, that no evaluation set contains.

    Examples:

      sts-dino experiment source-sentences captions.en.gz --texts 500 --out sentences.txt

      sts-dino experiment source-sentences wiki.txt --without sentences.txt --out unseen.txt
    """
    # Check the output: neither it nor the file of its counts replaces a file that is read
    if out.suffix == ".json":
        raise InputError(f"--out {out}", "is the file of the counts", allowed=".txt or .jsonl")
    counts_file = out.with_suffix(".json")
    for path in (file, *without):
        if path.resolve() in (out.resolve(), counts_file.resolve()):
            raise InputError(f"--out {out}", f"would replace {path}", hint="choose another name")

    # Read the rows
    excluded = set[str]()
    for path in without:
        if not path.is_file():
            raise InputError(f"--without {path}", "no such file")
        try:
            excluded.update(path.read_text(encoding="utf-8").splitlines())
        except UnicodeDecodeError as error:
            problem = f"is not UTF-8 (byte {error.start})"
            raise InputError(f"--without {path}", problem, hint="save it as UTF-8") from error
    scores = dict[Row, float]()
    if pairs:
        human_pairs = read_human_pairs(file, "--pairs")
        rows: list[Row] = list(zip(human_pairs.firsts, human_pairs.seconds, strict=True))
        scores = dict(zip(rows, human_pairs.scores, strict=True))
    else:
        rows = [(sentence,) for sentence in read_sentences(file, columns)]
    rows = [row for row in rows if not excluded.intersection(row)]

    # Draw rows that are in no evaluation set
    find_kinds, splits = load_evaluation_check(senteval, scored_only=pairs)
    drawn, left_out = draw_rows(rows, texts, seed, find_kinds)

    # Write the drawn rows, and the counts beside them
    lines = []
    for row in drawn:
        line = row[0]
        if pairs:
            line = json.dumps({"sentence1": row[0], "sentence2": row[1], "score": scores[row]})
        lines.append(line)
    facts = {
        "file": file.name,
        "seed": seed,
        "without": len(excluded),
        "rows": len(drawn),
        "left_out": left_out,
        "checked": splits,
    }
    write_text(counts_file, json.dumps(facts, indent=1) + "\n")
    write_text(out, "\n".join(lines) + "\n")
    counts = f"{len(drawn):,} rows; left out: {left_out}"
    logger.info(f"wrote {out}, {counts}; checked: {', '.join(splits)}")


def read_sentences(file: Path, columns: Sequence[str]) -> list[str]:
    """Read the distinct sentences of a file, in order.

    Only texts of ``MIN_WORDS`` to ``MAX_WORDS`` words that match ``STATEMENT_PATTERN`` count.

    columns: the columns of a table to read; empty for other files. Raises InputError for a missing
    or damaged file, for an unknown column, and for a file without sentences.
    """
    if not file.is_file():
        hint = "--data names the folder that holds it (or STS_DINO_DATA)"
        raise InputError(file, "no such file", hint=hint)
    # A .gz file of another kind has a caption on each line, as Multi30k's train.1.en.gz.
    if file.suffix == ".gz" and kind_of(file) not in READERS:
        try:
            cells = gzip.decompress(file.read_bytes()).decode("utf-8").split("\n")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise make_reading_error(error, file) from error
    else:
        cells = list[str]()
        for row in read_file_rows(file, tuple(columns), str(file)):
            cells += row
    sentences = dict[str, None]()
    for cell in cells:
        text = cell.strip()
        if MIN_WORDS <= len(text.split()) <= MAX_WORDS and STATEMENT_PATTERN.fullmatch(text):
            sentences[text] = None
    if not sentences:
        raise InputError(
            file,
            f"has no sentence of {MIN_WORDS} to {MAX_WORDS} words "
            "with a lower-case English letter and without double quotation marks",
        )
    return list(sentences)


def load_evaluation_check(senteval: Path | None, scored_only: bool) -> tuple[FindKinds, list[str]]:
    """Return a function that finds evaluation sentences among texts, and the names of the splits.

    The function returns the strongest kind of match of each text with an evaluation sentence, (n,);
    None for a text without a match of ``DEFAULT_DROPPED_KINDS``.

    Args:
        senteval: SentEval's data, with the sets ``EVALUATION_SETS``. None: the splits are the STS
            Benchmark's validation and test, which the repository ships.
        scored_only: whether to search the splits of ``SCORED_SPLITS`` alone, and no train split.

    Raises the errors of ``read_evaluation_sets``.
    """
    from sts_dino.eval.audit.decontaminate import DEFAULT_DROPPED_KINDS, SCORED_SPLITS
    from sts_dino.eval.audit.evaluation_sentences import SentenceIndex, read_evaluation_sets

    names = EVALUATION_SETS if senteval else ()
    sets = list(read_evaluation_sets(senteval, None, names).sets)
    if scored_only:
        sets = [evaluation for evaluation in sets if evaluation.split in SCORED_SPLITS]
    sentences = SentenceIndex(sets)

    def find_kinds(texts: Sequence[str]) -> list[str | None]:
        """Return each text's strongest kind of match that leaves it out, or None, (n,)."""
        kinds = list[str | None]()
        for matches in sentences.find_matches(texts):
            dropped = [match.kind for match in matches if match.kind in DEFAULT_DROPPED_KINDS]
            kinds.append(dropped[0] if dropped else None)
        return kinds

    return find_kinds, [evaluation.name for evaluation in sets]


def draw_rows(
    rows: Sequence[Row], limit: int, seed: int, find_kinds: FindKinds
) -> tuple[list[Row], dict[str, int]]:
    """Draw the first ``limit`` rows without a match, in an order shuffled by ``seed``.

    Returns the drawn rows, fewer than ``limit`` where the rows do not suffice; and kind of match →
    number of rows that were left out on the way.
    """
    order = list(rows)
    Random(seed).shuffle(order)
    drawn = list[Row]()
    left_out = Counter[str]()
    for start in range(0, len(order), CHECKED_ROWS):
        batch = order[start : start + CHECKED_ROWS]
        for row, kind in zip(batch, _find_row_kinds(batch, find_kinds), strict=True):
            if len(drawn) == limit:
                return drawn, dict(left_out)
            if kind is None:
                drawn.append(row)
            else:
                left_out[kind] += 1
    return drawn, dict(left_out)


def _find_row_kinds(rows: Sequence[Row], find_kinds: FindKinds) -> list[str | None]:
    """Return the kind of match of each row, (n,); None for a row without one.

    The first sentence of a row that has a match decides.
    """
    kinds: list[str | None] = [None] * len(rows)
    for sentences in zip(*rows, strict=True):
        for index, kind in enumerate(find_kinds(sentences)):
            kinds[index] = kinds[index] or kind
    return kinds

"""The end of a run: raw shards to finished configs, group by group, and the manifest's counts.

Sampled negatives (DINO section 4: "for each x1, we sample two x2's from other dataset entries")
would need all second sentences at once. Instead, the negatives of a shard come from partner shards:
first the shard half the source away, since sources are often ordered by topic, then the shards
after it, until the split has ``POOL_PAIRS`` pairs or ``MOST_PARTNER_SHARDS`` shards were read.
A hash of (seed, source sentence, index of the negative) chooses among these pairs.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sts_dino.generation.inputs.sources import SeenTexts
from sts_dino.generation.pipeline import tasks
from sts_dino.generation.pipeline.directory import DatasetRun
from sts_dino.generation.pipeline.tasks import Executor, FinishGroup, Group, Read, Shard, TaskResult
from sts_dino.generation.rows import pairs
from sts_dino.generation.rows.filters import filter_rows
from sts_dino.generation.rows.selection import Row, choose_likeliest_label, compute_label_bias
from sts_dino.hub.contract.recipe import (
    DatasetRecipe,
    build_config_features,
    format_config_name,
    get_verified_columns,
)
from sts_dino.hub.contract.run_dir import File
from sts_dino.hub.contract.schema import DUPLICATE, SAMPLED
from sts_dino.hub.contract.shards import Parts, read_shard, write_loading_file
from sts_dino.hub.errors import RunError

POOL_PAIRS = 256  # this many pairs are enough to choose sampled negatives from
MOST_PARTNER_SHARDS = 16  # most shards that are read for these pairs


@dataclass(frozen=True)
class TextLength:
    """How the length of a text is measured.

    ``unit``: words or tokens. ``tokenizer``: the model whose tokenizer counts tokens; None for
    words. ``measure``: returns the length of a text.
    """

    unit: str
    tokenizer: str | None
    measure: Callable[[str], int]


LENGTH_IN_WORDS = TextLength("words", None, lambda text: len(text.split()))
CountKey = tuple[str, int | None, str, Any]  # see ``Tally``


class Tally:
    """Counts of kept and rejected texts and of text lengths.

    A key of ``counts`` says what is counted, the shot count of the config (None without few-shot
    examples), the label that was asked for, and one more value:

    - "kept": kept texts; no value.
    - "rejected": rejected texts; the reason.
    - "length": kept texts; their length.
    - "likeliest": raw texts; the label that they fit best.
    - "sampled": sampled negatives, whose label is ``SAMPLED``; no value.
    """

    def __init__(self) -> None:
        self.counts = Counter[CountKey]()

    def add_raw(self, shots: int | None, raw: Sequence[Row], recipe: DatasetRecipe) -> None:
        """Count the likeliest label of each raw text; nothing without verification.

        ``raw``: all raw rows of a shard, which decide the bias of calibrated labels.
        """
        if recipe.verification:
            bias = compute_label_bias(raw, recipe)
            self.counts.update(
                ("likeliest", shots, row["target"], choose_likeliest_label(row, bias))
                for row in raw
            )

    def add_kept(
        self, shots: int | None, rows: Sequence[Row], measure: Callable[[str], int]
    ) -> None:
        """Count kept rows of a shot count, and the lengths of their second texts.

        ``measure``: returns the length of a text.
        """
        for row in rows:
            self.counts["kept", shots, row["target"], ""] += 1
            self.counts["length", shots, row["target"], measure(row["text2"])] += 1

    def add_rejected(self, shots: int | None, rows: Sequence[Row]) -> None:
        """Count rejected rows, each with its ``reason``."""
        self.counts.update(("rejected", shots, row["target"], row["reason"]) for row in rows)

    def to_json(self) -> list[Any]:
        """Return the counts as a list for JSON: [*key, count] for every key, in a fixed order."""
        return sorted(([*key, count] for key, count in self.counts.items()), key=repr)

    def add_json(self, facts: Sequence[Any]) -> None:
        """Add the counts of another tally; ``facts``: what its ``to_json`` returned."""
        for *key, count in facts:
            self.counts[tuple(key)] += count

    def make_counts(self, recipe: DatasetRecipe, length: TextLength) -> dict[str, Any]:
        """Return the manifest's counts of texts.

        Kept and rejected texts add up to ``requested``, in all and for every label.

        - ``rejected``: reason → number of texts. Of a label or a shot count it is the number alone.
        - ``by_label``: label → its counts, with ``reasons``: reason → number of rejected texts.
        - ``token_lengths``: unit, tokenizer, and label → length → number of kept texts.
        - ``variants``, with few-shot examples: shot count → its counts.
        - ``likeliest``, with verification: the label that was asked for → the label that the text
          fits best → number of raw texts.
        """
        # count by label
        labels = [label.name for label in recipe.written_labels]
        by_label = {}
        lengths = {}
        for label in labels:
            reasons = self._sum_values("rejected", label)
            by_label[label] = {**self._count_texts(label), "reasons": reasons}
            sizes = self._sum_values("length", label)
            lengths[label] = {str(size): count for size, count in sizes.items()}

        # count in all, and what only some recipes have
        counts: dict[str, Any] = {
            **self._count_texts(),
            "rejected": self._sum_values("rejected"),
            "sampled_negatives": self._sum_values("sampled").get("", 0),
            "by_label": by_label,
            "token_lengths": {
                "unit": length.unit,
                "tokenizer": length.tokenizer,
                "by_label": lengths,
            },
        }
        if recipe.few_shot:
            counts["variants"] = {
                f"{shots}shot": self._count_texts(shots=shots)
                for shots in tasks.group_variants(recipe)
            }
        if recipe.verification:
            zeros = dict.fromkeys(labels, 0)
            counts["likeliest"] = {
                label: zeros | self._sum_values("likeliest", label) for label in labels
            }
        return counts

    def _count_texts(self, label: str | None = None, shots: int | None = None) -> dict[str, int]:
        """Return the numbers of requested, kept and rejected texts.

        ``label`` and ``shots`` restrict them to a label and to a shot count; None: all.
        """
        kept_texts = sum(self._sum_values("kept", label, shots).values())
        rejected = sum(self._sum_values("rejected", label, shots).values())
        return {"requested": kept_texts + rejected, "kept": kept_texts, "rejected": rejected}

    def _sum_values(
        self, kind: str, label: str | None = None, shots: int | None = None
    ) -> dict[Any, int]:
        """Return the last value of a key → sum of its counts, in the order of the values.

        ``kind``: what is counted, the first part of a key. ``label`` and ``shots`` restrict the
        keys; None: all.
        """
        sums = Counter[Any]()
        for (key_kind, key_shots, key_label, value), count in self.counts.items():
            # an argument that is None admits every key
            if key_kind == kind and label in (None, key_label) and shots in (None, key_shots):
                sums[value] += count
        return dict(sorted(sums.items()))

    def require_every_label(self, recipe: DatasetRecipe, directory: object) -> None:
        """Raise RunError when a label has no kept row at one of the recipe's shot counts.

        ``directory``: the run directory, which the error names.
        """
        for shots in tasks.group_variants(recipe):
            for label in recipe.written_labels:
                if not self.counts["kept", shots, label.name, ""]:
                    at_shots = "" if shots is None else f" at {shots} shots"
                    reasons = self._sum_values("rejected", label.name, shots)
                    raise RunError(
                        f"{directory}: label {label.name!r}",
                        f"no row is left of it{at_shots} (rejected: {reasons})",
                        hint="use a stronger model, other instructions or more source sentences",
                    )


class RawRows:
    """Reads the raw and rejected rows of generated shards.

    Args:
        recipe: the dataset's recipe.
        read: path from the run directory → full path or content of the file.
        empty: paths without a file, because the shard has no such row.
    """

    def __init__(self, recipe: DatasetRecipe, read: Read, empty: frozenset[str]):
        self.recipe = recipe
        self._read = read
        self._empty = empty
        # the shards of a group share most of their partners
        self._get_pairs = lru_cache(maxsize=MOST_PARTNER_SHARDS)(self._read_pairs)

    def read(self, path: str, columns: Sequence[str] | None = None) -> list[Row]:
        """Return the rows of a shard's file; an empty list for a path in ``empty``.

        ``path``: the path from the run directory. ``columns``: None: all.
        """
        return [] if path in self._empty else read_shard(self._read(path), columns)

    def collect_pool(self, shard: Shard, split: str) -> list[pairs.Pair]:
        """Return the pairs of a split from which a shard's sampled negatives are chosen.

        They come from whole partner shards, until there are ``POOL_PAIRS`` or more. The list is
        empty where the schema has no sampled negatives.
        """
        pool: list[pairs.Pair] = []
        if self.recipe.dataset_schema.sampled_negatives:
            for partner in list_partners(shard):
                pool += self._get_pairs(partner)[split]
                if len(pool) >= POOL_PAIRS:
                    break
        return pool

    def _read_pairs(self, shard: Shard) -> dict[str, list[pairs.Pair]]:
        """Return split → (text1, text2) of the kept rows of a shard."""
        columns = ("text1", "text2", "target", *get_verified_columns("raw", self.recipe))
        raw = self.read(tasks.make_shard_paths(self.recipe, shard).raw, columns)
        kept_rows, _ = filter_rows(raw, self.recipe)
        shard_pairs = {}
        for split, rows in pairs.split_rows(kept_rows, self.recipe).items():
            shard_pairs[split] = [(row["text1"], row["text2"]) for row in rows]
        return shard_pairs


def list_partners(shard: Shard) -> list[Shard]:
    """Return the shards that a shard's sampled negatives may come from, in order of preference.

    They are at most ``MOST_PARTNER_SHARDS`` consecutive shards of the same variant. The first one
    is half the source away; after the last block comes block 0. ``shard`` itself may be among them.
    """
    start = shard.block + shard.blocks // 2
    return [
        Shard(shard.variant, (start + step) % shard.blocks, shard.blocks)
        for step in range(min(shard.blocks, MOST_PARTNER_SHARDS))
    ]


def finish_group(
    recipe: DatasetRecipe,
    task: FinishGroup,
    read: Read,
    measure: Callable[[str], int],
    seen_texts: SeenTexts | None = None,
) -> tuple[TaskResult, list[Row]]:
    """Make the finished rows of a group of shards, and count its texts.

    Args:
        recipe: the dataset's recipe.
        task: the group.
        read: path from the run directory → full path or content of the file.
        measure: returns the length of a text.
        seen_texts: the (text, label) of all earlier shards, to which those of this group are added;
            None for a schema that may repeat texts.

    Returns:
        The group's result, with its files in memory and ``Tally.to_json`` as facts; and the rows
        that duplicate ``seen_texts``, with their reason.
    """
    raw_rows = RawRows(recipe, read, task.empty)
    tally = Tally()
    shots = task.group.shots
    files = defaultdict[str, list[Row]](list)
    make_finished_rows = pairs.FINISHING[recipe.schema_name]
    duplicates: list[Row] = []
    for shard in task.group.shards:
        # filter and score the shard's rows
        paths = tasks.make_shard_paths(recipe, shard)
        tally.add_rejected(shots, raw_rows.read(paths.rejected, ("target", "reason")))
        raw = raw_rows.read(paths.raw)
        tally.add_raw(shots, raw, recipe)
        filtered, _ = filter_rows(raw, recipe)
        kept_rows = pairs.add_scores(filtered, raw, recipe)
        if seen_texts is not None:
            kept_rows, repeated = _split_off_duplicates(kept_rows, seen_texts)
            duplicates += repeated
        tally.add_kept(shots, kept_rows, measure)

        # make the rows of every finished config
        for split, split_rows in pairs.split_rows(kept_rows, recipe).items():
            pool = raw_rows.collect_pool(shard, split)
            for config, rows in make_finished_rows(split_rows, pool, recipe).items():
                files[task.group.make_path(config, split)] += rows
                sampled = sum(row.get("target") == SAMPLED for row in rows)
                tally.counts["sampled", shots, SAMPLED, ""] += sampled
    tally.add_rejected(shots, duplicates)
    result = TaskResult(key=task.key, task=task, facts=tally.to_json())
    return tasks.add_files(result, recipe, files), duplicates


def _split_off_duplicates(
    rows: Sequence[Row], seen_texts: SeenTexts
) -> tuple[list[Row], list[Row]]:
    """Return the rows with a new (text, label), and copies of all other rows with their reason.

    Each new (text, label) is added to ``seen_texts``. Both lists are in the order of ``rows``.
    """
    new_rows = []
    repeated_rows = []
    for row in rows:
        is_new = seen_texts.add(f"{row['target']}\n{row['text2']}")
        if is_new:
            new_rows.append(row)
        else:
            repeated_rows.append({**row, "reason": DUPLICATE})
    return new_rows, repeated_rows


def list_input_files(recipe: DatasetRecipe, group: Group) -> set[str]:
    """Return the paths, from the run directory, of all files that finishing a group may read.

    A file without rows does not exist, though its path is among them.
    """
    paths: set[str] = set()
    for shard in group.shards:
        paths.update(tasks.make_shard_paths(recipe, shard))
        if recipe.dataset_schema.sampled_negatives:
            for partner in list_partners(shard):
                paths.add(tasks.make_shard_paths(recipe, partner).raw)
    return paths


def finish(
    run: DatasetRun,
    blocks: int,
    sources: int,
    length: TextLength = LENGTH_IN_WORDS,
    executor: Executor | None = None,
) -> None:
    """Write the finished configs from the raw shards, count texts and rows, and mark the run
    complete.

    A group that an earlier start finished from the same raw files is kept. A schema of distinct
    texts is the exception: all its groups are finished anew, in this process.

    Args:
        run: the run, all its shards written.
        blocks: number of blocks of source sentences.
        sources: number of source sentences.
        length: how the length of a text is measured.
        executor: finishes the groups, and measures lengths as ``length`` does; None: this process.
            Unused with a schema of distinct texts.

    Raises RunError when a label has no row left at one of the shot counts, unless rows are
    appended: the dataset then has rows of every label. Raises the errors of the executor, and
    OSError when the disk fails.
    """
    # finish the groups
    if run.recipe.dataset_schema.distinct:
        results = _finish_distinct_texts(run, blocks, length)
    else:
        results = _finish_groups(run, blocks, length, executor)
    tally = Tally()
    files: list[File] = []
    for result in results:
        tally.add_json(result.facts)
        files += result.files
    if run.base is None:
        tally.require_every_label(run.recipe, run.directory)
    run.update_manifest(files)

    # count texts and rows, then mark the run complete
    splits = defaultdict[str, Counter[str]](Counter)
    for file in run.manifest.files:
        if file.config and file.split and file.rows is not None:
            splits[file.config][file.split] += file.rows
    counts: dict[str, Any] = {}
    for name in ("sources_skipped", "sources_rejected", "empty_shards"):
        if run.manifest.counts.get(name):
            counts[name] = run.manifest.counts[name]
    counts |= {"sources": sources, **tally.make_counts(run.recipe, length), "splits": dict(splits)}
    run.update_manifest(counts=counts)
    write_loading_file(run.directory, run.manifest, run.recipe.configs)
    run.update_manifest(complete=True)


def _finish_groups(
    run: DatasetRun, blocks: int, length: TextLength, executor: Executor | None
) -> Iterator[TaskResult]:
    """Yield the result of every group, without the contents of its files.

    Groups that an earlier start finished from the same raw files come first. All other groups
    follow as they are finished and stored. ``executor``: finishes them; None: this process.
    """
    raw_digest = run.hash_raw_files()
    finished = run.find_finished_groups(raw_digest)
    yield from finished.values()

    all_tasks = (_make_task(run, group) for group in tasks.iter_groups(run.recipe, blocks))
    missing = (task for task in all_tasks if task.key not in finished)
    if executor is not None:
        results = executor.run_tasks(missing)
    else:
        read = run.directory.joinpath
        results = (finish_group(run.recipe, task, read, length.measure)[0] for task in missing)
    for result in results:
        yield run.store_result(result.model_copy(update={"raw": raw_digest}))


def _make_task(run: DatasetRun, group: Group) -> FinishGroup:
    """Return the task that finishes a group, with the paths of its input files without a file."""
    return FinishGroup(group, frozenset(run.empty & list_input_files(run.recipe, group)))


def _finish_distinct_texts(
    run: DatasetRun, blocks: int, length: TextLength
) -> Iterator[TaskResult]:
    """Finish the groups of a schema of distinct texts, in this process and in order.

    Whether a text is new depends on all earlier shards of its shot count. The duplicates of a shot
    count go to one more file of rejected rows, after the files of its shards. Nothing is
    journalled: a new start has to see all rows again.

    Yields the result of each group, then for each shot count a result with its file of duplicates.
    Without duplicates that result has no file.
    """
    seen_texts = SeenTexts()  # of the current shot count
    duplicate_files: dict[int | None, Parts] = {}  # shots → the file of its duplicates
    try:
        # finish group after group; each shot count has its own texts
        for group in tasks.iter_groups(run.recipe, blocks):
            if group.shots not in duplicate_files:
                seen_texts = _collect_base_texts(run, group.shots)
                duplicate_files[group.shots] = _open_duplicate_file(run, group.shots, blocks)
            result, duplicates = finish_group(
                run.recipe,
                _make_task(run, group),
                run.directory.joinpath,
                length.measure,
                seen_texts,
            )
            duplicate_files[group.shots].add(duplicates)
            yield run.write_files(result)

        # then complete the files of duplicates, whose texts are counted in the groups' results
        for parts in duplicate_files.values():
            files = tuple(run.name_parts(parts))
            yield TaskResult(key="duplicates", files=files, facts=Tally().to_json())
    finally:
        for parts in duplicate_files.values():
            parts.discard()


def _collect_base_texts(run: DatasetRun, shots: int | None) -> SeenTexts:
    """Return the (text, label) of one shot count in the finished run that rows are appended to.

    Empty if no rows are appended. ``shots``: None: the prompts have no examples.
    """
    seen_texts = SeenTexts()
    if run.base is not None:
        config = format_config_name(run.recipe.dataset_schema.labelled, shots)
        for row in run.base.read_rows(config, ("text", "target")):
            seen_texts.add(f"{row['target']}\n{row['text']}")
    return seen_texts


def _open_duplicate_file(run: DatasetRun, shots: int | None, blocks: int) -> Parts:
    """Open the file of rejected rows that gets the duplicate texts of a shot count.

    The files of rejected rows are numbered by their shard, from 0. This file has the next number.
    It is not written if it gets no row.

    Args:
        run: the run.
        shots: the shot count; None: the prompts have no examples.
        blocks: number of blocks of source sentences; each variant has a shard for each block.
    """
    config = format_config_name("rejected", shots)
    shard_count = blocks * len(tasks.group_variants(run.recipe)[shots])
    return Parts(
        run.directory,
        config,
        "train",
        build_config_features(config, run.recipe),
        rows_per_file=None,
        first=shard_count,
    )

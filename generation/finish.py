"""The end of a run: raw shards to finished configs and counts, one shard in memory at a time.

Sampled negatives (DINO section 4: "for each x1, we sample two x2's from other dataset entries") would ask for all
second texts at once. Instead, those of a shard's first texts come from partner shards: the one half the source away,
then those after it, until the split in question has ``POOL`` pairs or ``PARTNERS`` shards were read. Half the source
away, because sources are often ordered by topic, and a neighbour's text is no certain negative. Within the pool a hash
of (seed, first text, number) chooses. So the choice follows from the recipe and the raw rows alone, memory is bounded,
and no text is taken much more often than another: every shard is the first partner of exactly one.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from generation import pairs
from generation.dataset_run import DatasetRun, Row, Shard
from generation.sources import SeenTexts
from hub.errors import RunError
from hub.recipe import DatasetRecipe, Variant, config_name
from hub.schema import config_features
from hub.shards import Parts

POOL = 256  # pairs that sampled negatives are chosen from, if so many can be had
PARTNERS = 16  # shards read for them, at most


@dataclass(frozen=True)
class TextLength:
    """How long a text is: its unit, whose tokenizer counts (None: nobody's), and the count."""

    unit: str
    tokenizer: str | None
    of: Callable[[str], int]


WORDS = TextLength("words", None, lambda text: len(text.split()))


class Tally:
    """Kept and rejected rows by shot count, label and (rejected) reason, and the lengths of the kept texts."""

    def __init__(self, length: TextLength) -> None:
        self._length = length
        self.lengths = Counter[tuple[str, int]]()
        self.kept = Counter[tuple[int | None, str]]()
        self.rejected = Counter[tuple[int | None, str, str]]()
        self.sampled = 0

    def keep(self, shots: int | None, rows: list[Row]) -> None:
        """Count rows that are kept, and the length of their second texts."""
        self.kept.update((shots, row["target"]) for row in rows)
        self.lengths.update((row["target"], self._length.of(row["text2"])) for row in rows)

    def token_lengths(self, recipe: DatasetRecipe) -> dict[str, Any]:
        """Label → length → kept texts, with the unit and whose tokenizer counted."""
        by_label = {
            label.name: {str(size): n for (name, size), n in sorted(self.lengths.items()) if name == label.name}
            for label in recipe.labels
        }
        return {"unit": self._length.unit, "tokenizer": self._length.tokenizer, "by_label": by_label}

    def by_label(self, recipe: DatasetRecipe) -> dict[str, dict[str, Any]]:
        """Requested, kept and rejected texts of every label, and the rejected ones by reason."""
        found = {}
        for label in recipe.labels:
            kept = sum(n for (_, name), n in self.kept.items() if name == label.name)
            reasons = Counter[str]()
            for (_, name, reason), n in self.rejected.items():
                reasons[reason] += n if name == label.name else 0
            reasons = +reasons
            rejected = reasons.total()
            sums = {"requested": kept + rejected, "kept": kept, "rejected": rejected}
            found[label.name] = {**sums, "reasons": dict(sorted(reasons.items()))}
        return found

    def by_shots(self, recipe: DatasetRecipe) -> dict[str, dict[str, int]]:
        """Requested, kept and rejected texts of every shot count: ``0shot``, ``5shot`` ..."""
        found = {}
        for shots in dict.fromkeys(variant.shots for variant in recipe.variants):
            kept = sum(n for (count, _), n in self.kept.items() if count == shots)
            rejected = sum(n for (count, _, _), n in self.rejected.items() if count == shots)
            found[f"{shots}shot"] = {"requested": kept + rejected, "kept": kept, "rejected": rejected}
        return found

    def counts(self, recipe: DatasetRecipe) -> dict[str, Any]:
        """The manifest's counts of texts. ``kept`` + ``rejected`` = ``requested``, in all and for every label."""
        reasons = Counter[str]()
        for (_, _, reason), n in self.rejected.items():
            reasons[reason] += n
        variants = {"variants": self.by_shots(recipe)} if recipe.few_shot else {}
        return {
            "requested": self.kept.total() + reasons.total(),
            "kept": self.kept.total(),
            "rejected": dict(sorted(reasons.items())),
            "sampled_negatives": self.sampled,
            "by_label": self.by_label(recipe),
            "token_lengths": self.token_lengths(recipe),
            **variants,
        }


class Outputs:
    """The files of the finished configs, opened as rows come."""

    def __init__(self, run: DatasetRun):
        self._run, self._parts = run, dict[tuple[str, str], Parts]()

    def add(self, config: str, split: str, rows: list[Row]) -> None:
        """Append rows to a config's split."""
        if not rows:
            return
        if (config, split) not in self._parts:
            features = config_features(config, self._run.recipe)
            self._parts[config, split] = Parts(self._run.directory, config, split, features)
        self._parts[config, split].add(rows)

    def add_late(self, shots: int | None, blocks: int, rows: list[Row]) -> None:
        """Append rejected rows that only a look at all shards can find; they stand in one file after the shards'."""
        config = config_name("rejected", shots)
        if rows and (config, "train") not in self._parts:
            total = blocks * sum(variant.shots == shots for variant in self._run.recipe.variants)
            features = config_features(config, self._run.recipe)
            self._parts[config, "train"] = Parts(self._run.directory, config, "train", features, None, total)
        self.add(config, "train", rows)

    def publish(self) -> None:
        """Name the files and enter them in the manifest."""
        self._run.record([file for parts in self._parts.values() for file in self._run.named(parts)])

    def discard(self) -> None:
        """Remove what has no name yet."""
        for parts in self._parts.values():
            parts.discard()


class Partners:
    """The (text1, text2) that a shard's sampled negatives are chosen from."""

    def __init__(self, run: DatasetRun, variant: Variant, blocks: int):
        self._run, self._variant, self._blocks = run, variant, blocks
        self._pairs = lru_cache(maxsize=PARTNERS)(self._read)

    def pool(self, block: int, split: str) -> list[pairs.Pair]:
        """Pairs of one split from the partner shards of a block."""
        found = list[pairs.Pair]()
        for step in range(min(self._blocks, PARTNERS)):
            found += self._pairs((block + self._blocks // 2 + step) % self._blocks)[split]
            if len(found) >= POOL:
                break
        return found

    def _read(self, block: int) -> dict[str, list[pairs.Pair]]:
        kept = self._run.kept(Shard(self._variant, block, self._blocks), ("text1", "text2", "target"))
        splits = pairs.by_split(kept, self._run.recipe)
        return {name: [(row["text1"], row["text2"]) for row in rows] for name, rows in splits.items()}


def finish(run: DatasetRun, blocks: int, sources: int, length: TextLength = WORDS) -> None:
    """Write the finished configs from the raw shards, count everything, mark the run complete.

    Raises RunError when a label has no row left.
    """
    tally = Tally(length)
    with _outputs(run) as outputs:
        for shots in dict.fromkeys(variant.shots for variant in run.recipe.variants):
            _finish_shots(run, shots, blocks, outputs, tally)
        _check_labels(run, tally)
        outputs.publish()
    before = run.manifest.counts
    kept = ("sources_skipped", "sources_rejected", "empty_shards")
    counts = {name: before[name] for name in kept if before.get(name)}
    run.record([], counts={**counts, "sources": sources, **tally.counts(run.recipe), "splits": _splits(run)})
    run.record([], complete=True)


@contextmanager
def _outputs(run: DatasetRun) -> Iterator[Outputs]:
    outputs = Outputs(run)
    try:
        yield outputs
    finally:
        outputs.discard()


def _finish_shots(run: DatasetRun, shots: int | None, blocks: int, outputs: Outputs, tally: Tally) -> None:
    """Finished rows and counts of one shot count: all its example sets, shard by shard."""
    seen = SeenTexts()
    for variant in (variant for variant in run.recipe.variants if variant.shots == shots):
        partners = Partners(run, variant, blocks)
        for block in range(blocks):
            shard = Shard(variant, block, blocks)
            tally.rejected.update((shots, row["target"], row["reason"]) for row in run.rejects(shard))
            kept = run.kept(shard)
            if run.recipe.form == "text":
                kept, late = _new_texts(kept, seen)
                tally.rejected.update((shots, row["target"], row["reason"]) for row in late)
                outputs.add_late(shots, blocks, late)
            tally.keep(shots, kept)
            for split, rows in pairs.by_split(kept, run.recipe).items():
                pool = partners.pool(block, split) if run.recipe.form == "sts" else []
                for config, finished in pairs.finished_rows(rows, pool, run.recipe).items():
                    outputs.add(config_name(config, shots), split, finished)
                    tally.sampled += sum(row.get("target") == pairs.SAMPLED for row in finished)


def _new_texts(kept: list[Row], seen: SeenTexts) -> tuple[list[Row], list[Row]]:
    """The text form's rows whose (text, label) no earlier shard holds, and the others as rejected rows."""
    new, late = list[Row](), list[Row]()
    for row in kept:
        if seen.add(f"{row['target']}\n{row['text2']}"):
            new.append(row)
        else:
            late.append({**row, "reason": "duplicate"})
    return new, late


def _check_labels(run: DatasetRun, tally: Tally) -> None:
    for shots in dict.fromkeys(variant.shots for variant in run.recipe.variants):
        for label in run.recipe.labels:
            if not tally.kept[shots, label.name]:
                reasons = {
                    r: n for (count, name, r), n in tally.rejected.items() if (count, name) == (shots, label.name)
                }
                asked = "" if shots is None else f" at {shots} shots"
                raise RunError(
                    f"{run.directory}: label {label.name!r}",
                    f"no row is left of it{asked} (rejected: {dict(sorted(reasons.items()))})",
                    hint="use a stronger model, other instructions or more first texts",
                )


def _splits(run: DatasetRun) -> dict[str, dict[str, int]]:
    """Config → split → rows, from the manifest's files."""
    splits: dict[str, dict[str, int]] = {}
    for file in run.manifest.files:
        if file.config and file.split and file.rows is not None:
            config = splits.setdefault(file.config, {})
            config[file.split] = config.get(file.split, 0) + file.rows
    return splits

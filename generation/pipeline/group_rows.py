"""Finishing of a group of shards: raw rows to finished rows, pure.

Sampled negatives (DINO section 4: "for each x1, we sample two x2's from other dataset entries") would ask for all
second texts at once. Instead, those of a shard's first texts come from partner shards: the one half the source away,
then those after it, until the split in question has ``POOL`` pairs or ``PARTNERS`` shards were read. Half the source
away, because sources are often ordered by topic, and a neighbour's text is no certain negative. Within the pool a hash
of (seed, first text, number) chooses. So the choice follows from the recipe and the raw rows alone, memory is bounded,
and no text is taken much more often than another: every shard is the first partner of exactly one.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from generation.inputs.sources import SeenTexts
from generation.rows import pairs
from generation.rows.counts import Tally
from generation.rows.filters import sifted
from generation.run_state import layout
from generation.run_state.layout import Shard
from generation.run_state.output_files import output_files
from generation.run_state.tasks import FinishGroup, Read, Row, TaskResult
from hub.contract.recipe import DatasetRecipe, verified_columns
from hub.contract.schema import DUPLICATE, SAMPLED
from hub.contract.shards import read_shard

POOL = 256  # pairs that sampled negatives are chosen from, if so many can be had
PARTNERS = 16  # shards read for them, at most


class RawRows:
    """The rows of finished shards. ``empty``: files that were not written, for want of rows."""

    def __init__(self, recipe: DatasetRecipe, read: Read, empty: frozenset[str]):
        self.recipe, self._read, self._empty = recipe, read, empty
        self.pairs = lru_cache(maxsize=PARTNERS)(self._pairs)

    def all(self, shard: Shard, columns: Sequence[str] | None = None) -> list[Row]:
        """All raw rows of a shard."""
        raw, _ = layout.paths(self.recipe, shard)
        return self._rows(raw, columns)

    def kept(self, shard: Shard, columns: Sequence[str] | None = None) -> list[Row]:
        """The rows that sifting keeps; ``columns`` must hold text1, text2 and target."""
        read = columns and (*columns, *verified_columns("raw", self.recipe))
        return sifted(self.all(shard, read), self.recipe)[0]

    def rejects(self, shard: Shard) -> list[Row]:
        """Target and reason of the rejected rows."""
        _, rejected = layout.paths(self.recipe, shard)
        return self._rows(rejected, ("target", "reason"))

    def pool(self, shard: Shard, split: str) -> list[pairs.Pair]:
        """The (text1, text2) of one split that a shard's sampled negatives are chosen from."""
        found = list[pairs.Pair]()
        for partner in partners(shard):
            found += self.pairs(partner)[split]
            if len(found) >= POOL:
                break
        return found

    def _rows(self, path: str, columns: Sequence[str] | None) -> list[Row]:
        return [] if path in self._empty else read_shard(self._read(path), columns)

    def _pairs(self, shard: Shard) -> dict[str, list[pairs.Pair]]:
        splits = pairs.by_split(self.kept(shard, ("text1", "text2", "target")), self.recipe)
        return {name: [(row["text1"], row["text2"]) for row in rows] for name, rows in splits.items()}


def partners(shard: Shard) -> list[Shard]:
    """The shards that sampled negatives of ``shard`` may come from, the first one first."""
    steps = range(min(shard.blocks, PARTNERS))
    blocks = [(shard.block + shard.blocks // 2 + step) % shard.blocks for step in steps]
    return [Shard(shard.variant, block, shard.blocks) for block in blocks]


class FinishedGroup(NamedTuple):
    """A group's result (facts: ``Tally.parts``), and the rows that were dropped as duplicates of an earlier shard's."""

    result: TaskResult
    late: list[Row]


def finish_group(
    recipe: DatasetRecipe, task: FinishGroup, read: Read, length: Callable[[str], int], seen: SeenTexts | None = None
) -> FinishedGroup:
    """Finish a group. ``seen``: the (text, label) of all earlier shards, which this group's join (text form alone)."""
    raw, tally, shots = RawRows(recipe, read, task.empty), Tally(), task.group.shots
    files, late = dict[str, list[Row]](), list[Row]()
    for shard in task.group.shards:
        tally.reject(shots, raw.rejects(shard))
        rows = raw.all(shard)
        tally.verify(shots, rows, recipe)
        kept = pairs.scored(sifted(rows, recipe)[0], rows, recipe)
        if seen is not None:
            kept, known = _new_and_known(kept, seen)
            late += known
        tally.keep(shots, kept, length)
        for split, of_split in pairs.by_split(kept, recipe).items():
            pool = raw.pool(shard, split) if recipe.dataset_schema.sampled_negatives else []
            for config, finished in pairs.finished_rows(of_split, pool, recipe).items():
                if finished:
                    files.setdefault(task.group.path(config, split), []).extend(finished)
                tally.sampled += sum(row.get("target") == SAMPLED for row in finished)
    tally.reject(shots, late)
    return FinishedGroup(TaskResult(task, output_files(recipe, files), facts=tally.parts()), late)


def _new_and_known(kept: list[Row], seen: SeenTexts) -> tuple[list[Row], list[Row]]:
    """Rows whose (text, label) is not ``seen``, which they join, and the others as rejected rows."""
    new, known = list[Row](), list[Row]()
    for row in kept:
        if seen.add(text_identity(row["text2"], row["target"])):
            new.append(row)
        else:
            known.append({**row, "reason": DUPLICATE.name})
    return new, known


def text_identity(text: str, label: str) -> str:
    """What stands once in a dataset of the text form: a text with its label."""
    return f"{label}\n{text}"


def files_read(recipe: DatasetRecipe, group: layout.Group) -> set[str]:
    """Every file that finishing a group may read."""
    own = {path for shard in group.shards for path in layout.paths(recipe, shard)}
    if not recipe.dataset_schema.sampled_negatives:
        return own
    far = {partner for shard in group.shards for partner in partners(shard)}
    return own | {layout.paths(recipe, partner)[0] for partner in far}

"""Raw rows of a group of shards to its finished rows, pure.

Sampled negatives (DINO section 4: "for each x1, we sample two x2's from other dataset entries") would ask for all
second texts at once. Instead, those of a shard's first texts come from partner shards: the one half the source away,
then those after it, until the split in question has ``POOL`` pairs or ``PARTNERS`` shards were read. Half the source
away, because sources are often ordered by topic, and a neighbour's text is no certain negative. Within the pool a hash
of (seed, first text, number) chooses. So the choice follows from the recipe and the raw rows alone, memory is bounded,
and no text is taken much more often than another: every shard is the first partner of exactly one.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

from generation import layout, pairs
from generation.filters import sift
from generation.layout import Shard
from generation.sources import SeenTexts
from generation.tally import Tally
from generation.tasks import FinishGroup, Read, Row
from hub.recipe import DatasetRecipe
from hub.shards import read_shard

POOL = 256  # pairs that sampled negatives are chosen from, if so many can be had
PARTNERS = 16  # shards read for them, at most


class RawRows:
    """The rows of finished shards. ``empty``: files that were not written, for want of rows."""

    def __init__(self, recipe: DatasetRecipe, read: Read, empty: frozenset[str]):
        self.recipe, self._read, self._empty = recipe, read, empty
        self.pairs = lru_cache(maxsize=PARTNERS)(self._pairs)

    def kept(self, shard: Shard, columns: Sequence[str] | None = None) -> list[Row]:
        """The rows that sifting keeps; ``columns`` must hold text1, text2 and target."""
        raw, _ = layout.paths(self.recipe, shard)
        return sift(self._rows(raw, columns), self.recipe.postprocess.max_per_label)[0]

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


def finished_group(
    recipe: DatasetRecipe,
    task: FinishGroup,
    read: Read,
    length: Callable[[str], int],
    new: Callable[[list[Row]], list[Row]] = lambda rows: rows,
) -> tuple[dict[str, list[Row]], Tally]:
    """The rows of a group's finished files, by path, and what was kept and rejected.

    ``new`` takes away kept rows that an earlier shard of the run holds (the text form alone: ``generation.finish``).
    """
    raw, tally, shots = RawRows(recipe, read, task.empty), Tally(), task.group.shots
    files = dict[str, list[Row]]()
    for shard in task.group.shards:
        tally.reject(shots, raw.rejects(shard))
        kept = new(raw.kept(shard))
        tally.keep(shots, kept, length)
        for split, rows in pairs.by_split(kept, recipe).items():
            pool = raw.pool(shard, split) if recipe.form == "sts" else []
            for config, finished in pairs.finished_rows(rows, pool, recipe).items():
                if finished:
                    files.setdefault(task.group.path(config, split), []).extend(finished)
                tally.sampled += sum(row.get("target") == pairs.SAMPLED for row in finished)
    return files, tally


def files_read(recipe: DatasetRecipe, group: layout.Group) -> set[str]:
    """Every file that finishing a group may read."""
    own = {path for shard in group.shards for path in layout.paths(recipe, shard)}
    if recipe.form != "sts":
        return own
    far = {partner for shard in group.shards for partner in partners(shard)}
    return own | {layout.paths(recipe, partner)[0] for partner in far}


class Distinct:
    """The text form's rows whose (text, label) no earlier shard holds; the others are kept aside as rejected rows."""

    def __init__(self) -> None:
        self._seen, self.late = SeenTexts(), list[Row]()

    def new(self, kept: list[Row]) -> list[Row]:
        """The new ones of ``kept``; the others, in order, join ``late``."""
        new = list[Row]()
        for row in kept:
            if self._seen.add(f"{row['target']}\n{row['text2']}"):
                new.append(row)
            else:
                self.late.append({**row, "reason": "duplicate"})
        return new

"""The finished run that rows are appended to: what it was asked, and which texts it has."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from generation.inputs.sources import FirstText, SeenTexts
from generation.run_state.tasks import Row
from hub.contract.run_dir import APPENDED, Manifest
from hub.contract.schema import base_config
from hub.contract.shards import ROWS_PER_FILE, shard_tables
from hub.errors import InputError


@dataclass(frozen=True)
class BaseRun:
    """A finished dataset run, as it lies in its directory."""

    directory: Path
    manifest: Manifest

    @property
    def inputs(self) -> dict[str, str]:
        """What it is among the inputs of the run of the new rows, so that those are known to follow these."""
        return {f"{APPENDED}{self.manifest.version}": self.manifest.fingerprint}

    @property
    def first_texts(self) -> int:
        """How many first texts it has."""
        return int(self.manifest.counts["sources"])

    @property
    def asked(self) -> int:
        """The numbers that were used up where the model writes the first texts."""
        return self.first_texts + sum(self.manifest.counts.get("sources_rejected", {}).values())

    def rows(self, config: str, columns: Sequence[str]) -> Iterator[Row]:
        """The rows of a config, some columns of them."""
        for file in self.manifest.shards(config):
            for table in shard_tables(self.directory / file.path, ROWS_PER_FILE, columns):
                yield from table.to_pylist()

    def new_among(self, texts: Iterable[FirstText], place: str | None) -> Iterator[FirstText]:
        """The first texts of a source (``place``) after those of this run, which have to come first and unchanged.

        Raises InputError when they do not, or when no other comes after them.
        """
        known, hint = self._known(), "leave the first texts that are there as they are, and add new ones after them"
        total, version, number = self.first_texts, f"v{self.manifest.version}", 0
        for number, first in enumerate(texts, start=1):
            if number > total:
                yield first
            elif known.add(_identity(first.source_id, first.text)):
                problem = (
                    f"row {first.source_id} is no first text of {version}, where it stands among its first {total:,}"
                )
                raise InputError(place, problem, hint=hint)
        if number <= total:
            problem = f"gives {number:,} first texts, and {version} has {total:,} already: there is nothing to append"
            raise InputError(place, problem, hint="raise source.limit, or add rows at the end of the source")

    def _known(self) -> SeenTexts:
        """Its first texts: each stands in raw or rejected rows."""
        known, configs = SeenTexts(), dict.fromkeys(file.config or "" for file in self.manifest.files)
        for config in (name for name in configs if base_config(name) in ("raw", "rejected")):
            for row in self.rows(config, ("source_id", "text1")):
                known.add(_identity(row["source_id"], row["text1"]))
        return known


def _identity(source_id: str, text: str) -> str:
    return f"{source_id}\n{text}"

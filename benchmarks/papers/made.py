"""Files and folders that experiments read and a module of ours writes, each once: ``<made:NAME>`` in a plan."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.better_pairs.steps import Steps, digest
from hub.durable import sha256_file
from hub.errors import InputError

MADE = re.compile(r"<made:([a-z0-9.-]+)>")
DATA = "<data>"


def names_in(words: Iterable[str]) -> list[str]:
    """What settings or the words of commands name as made, each once."""
    return list(dict.fromkeys(name for word in words for name in MADE.findall(word)))


@dataclass(frozen=True)
class MadeFile:
    """Where a file or folder is, and the CPU seconds that it took, with those of what it was made from."""

    path: Path
    seconds: float


class Made:
    """What a plan declares as made: name → the words of the module that writes it to ``<out>``.

    A name is that of the file or folder, its suffix included; words may name others that are made before it. ``data``:
    what ``<data>`` stands for.
    """

    def __init__(self, declared: Mapping[str, Sequence[str]], steps: Steps, data: Path | None):
        self.declared, self.steps, self.data = declared, steps, data

    def filled(self, setting: str) -> str:
        """A setting with the places of what it names, which is made when it is not there yet."""
        return MADE.sub(lambda found: str(self.find(found[1]).path), setting)

    def find(self, name: str) -> MadeFile:
        """The file or folder, named by the words, and by the data and the made files that they name."""
        words = self.declared[name]
        given = [with_data(word, self.data, name) for word in words]
        read = [contents(Path(word)) for word, before in zip(given, words, strict=True) if DATA in before]
        before = {other: self.find(other) for other in names_in(words)}
        keys = [str(one.path.relative_to(self.steps.folder)) for one in before.values()]
        key = digest(words, read, keys) if keys else digest(words, read)
        out = self.steps.folder / "made" / key / name
        line = [self.filled(word).replace("<out>", str(out)) for word in given]
        step = self.steps.once("made", key, line, name, out)
        return MadeFile(out, step.seconds + sum(one.seconds for one in before.values()))

    def seconds(self, words: Iterable[str]) -> dict[str, float]:
        """What settings or words name → the CPU seconds that it took."""
        return {name: self.find(name).seconds for name in names_in(words)}

    def commands(self, lines: Iterable[str]) -> list[str]:
        """The commands that make what other commands name, as a user types them, in the order they run."""
        found = list[str]()
        for name in names_in(lines):
            words = [word.replace("<out>", f"<made:{name}>") for word in self.declared[name]]
            found += [*self.commands(self.declared[name]), f"python -m {shlex.join(words)}"]
        return list(dict.fromkeys(found))


def with_data(word: str, data: Path | None, place: str) -> str:
    """A word with the data folder put in. Raises InputError when there is none."""
    if DATA in word and data is None:
        raise InputError(place, "reads the data folder", hint="--data DIR (STS_DINO_DATA)")
    return word.replace(DATA, str(data))


def contents(path: Path) -> list[tuple[str, str]]:
    """The name and SHA-256 of a file, of all files of a folder, or of those with that ending (``SNLI/dev``)."""
    found = path.rglob("*") if path.is_dir() else path.parent.glob(f"*{path.name}")
    return [(one.name, sha256_file(one)) for one in sorted(found) if one.is_file()]


def source_of(place: str) -> str | None:
    """SHA-256 of the source file of ``MODULE`` or ``python:MODULE:FUNCTION``; None for anything else."""
    module = place.removeprefix("python:").split(":")[0]
    try:
        found = find_spec(module) if re.fullmatch(r"[a-z_][\w.]*", module) else None
    except ModuleNotFoundError:  # the step itself says so
        return None
    return sha256_file(Path(found.origin)) if found and found.origin else None

"""Files and folders that experiments read and a module of ours writes, each once: ``<made:NAME>`` in a plan."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.better_pairs.steps import Steps, digest
from hub.contract.shards import sha256_file
from hub.errors import InputError

MADE = re.compile(r"<made:([a-z0-9.-]+)>")
DATA = "<data>"


class Made:
    """What a plan declares as made: name → the words of the module that writes it to ``<out>``.

    A name is that of the file or folder, its suffix included. ``data``: what ``<data>`` stands for.
    """

    def __init__(self, declared: Mapping[str, Sequence[str]], steps: Steps, data: Path | None):
        self.declared, self.steps, self.data = declared, steps, data

    def filled(self, setting: str) -> str:
        """A setting with the places of what it names, which is made when it is not there yet."""
        return MADE.sub(lambda found: str(self.path(found[1])), setting)

    def path(self, name: str) -> Path:
        """Where the file or folder is: named by the words and the contents of the data that they name."""
        words = self.declared[name]
        given = [with_data(word, self.data, name) for word in words]
        read = [contents(Path(word)) for word, before in zip(given, words, strict=True) if DATA in before]
        key = digest(words, read)
        out = self.steps.folder / "made" / key / name
        self.steps.once("made", key, [word.replace("<out>", str(out)) for word in given], name, out)
        return out

    def commands(self, lines: Iterable[str]) -> list[str]:
        """The commands that make what other commands name, as a user types them."""
        names = dict.fromkeys(name for line in lines for name in MADE.findall(line))
        words = {name: [word.replace("<out>", f"<made:{name}>") for word in self.declared[name]] for name in names}
        return [f"python -m {shlex.join(found)}" for found in words.values()]


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

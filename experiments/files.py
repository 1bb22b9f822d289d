"""Files and folders of a plan that a command of ``sts-dino experiment`` writes once: ``<file:NAME>`` in the plan."""

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from experiments.steps import Made, Steps, digest
from hub.durable import sha256_file
from hub.errors import InputError

FILE_OF = re.compile(r"<file:([a-z0-9.-]+)>")
DATA = "<data>"


def names_in(words: Iterable[str]) -> list[str]:
    """The files that settings or commands name, each once."""
    return list(dict.fromkeys(name for word in words for name in FILE_OF.findall(word)))


class Files:
    """The files of a plan: name → the words of the command that writes it to ``<out>``.

    The name of a file includes its suffix; its words may name other files. ``data``: the folder that ``<data>`` means.
    """

    def __init__(self, declared: Mapping[str, Sequence[str]], steps: Steps, data: Path | None):
        self.declared, self.steps, self.data = declared, steps, data

    def filled(self, word: str) -> str:
        """A setting or word with the places of the files that it names; missing ones are written first."""
        return FILE_OF.sub(lambda found: str(self.find(found[1]).path), word)

    def find(self, name: str) -> Made:
        """The file, keyed by its words and by the contents of the data and files that they name."""
        words = self.declared[name]
        given = [with_data(word, self.data, name) for word in words]
        read = [contents(Path(word)) for word, before in zip(given, words, strict=True) if DATA in before]
        inputs = {other: self.find(other) for other in names_in(words)}
        key = digest(words, read, [str(one.path.relative_to(self.steps.folder)) for one in inputs.values()])
        out = self.steps.folder / "files" / key / name
        line = [self.filled(word).replace("<out>", str(out)) for word in given]
        seconds = self.steps.once("file", key, line, name, out)
        return Made(out, seconds + sum(one.seconds for one in inputs.values()))

    def seconds(self, words: Iterable[str]) -> float:
        """CPU seconds of the files that settings or words name, each once."""
        return sum(self.find(name).seconds for name in names_in(words))


def with_data(word: str, data: Path | None, place: str) -> str:
    """A word with the data folder put in. Raises InputError without one."""
    if DATA in word and data is None:
        raise InputError(place, "reads the data folder", hint="--data DIR (STS_DINO_DATA)")
    return word.replace(DATA, str(data))


def contents(path: Path) -> list[tuple[str, str]]:
    """Name and SHA-256 of a file, of all files of a folder, or of those with that ending (``SNLI/dev``)."""
    found = path.rglob("*") if path.is_dir() else path.parent.glob(f"*{path.name}")
    return [(one.name, sha256_file(one)) for one in sorted(found) if one.is_file()]


def source_of(place: str) -> str | None:
    """SHA-256 of the source file of ``python:MODULE:FUNCTION``; None for any other encoder."""
    module = place.removeprefix("python:").split(":")[0]
    try:
        found = find_spec(module) if place.startswith("python:") else None
    except ModuleNotFoundError:  # the step itself reports it
        return None
    return sha256_file(Path(found.origin)) if found and found.origin else None

"""Files and models that experiments share, each made once by a module's command: documents, a small base."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.better_pairs.steps import Steps, digest
from benchmarks.papers.plan import MADE, made_named
from benchmarks.papers.source import source_of
from hub.errors import InputError

OUT = "<out>"  # in a command: the place to write; a suffix may follow it


@dataclass(frozen=True)
class Made:
    """Where it is, and the CPU seconds that it took, with all that it was made from."""

    path: Path
    seconds: float


class MadeOnce:
    """What is made by ``commands`` (name → the words of a module), each when it is first asked for."""

    def __init__(self, commands: Mapping[str, Sequence[str]], steps: Steps, data: Path | None):
        self.commands, self.steps, self.data = commands, steps, data

    def find(self, name: str) -> Made:
        """The thing of that name; made now if it is not yet."""
        words = self.commands[name]
        before = {other: self.find(other) for other in made_named(words)}
        key = digest(list(words), source_of(words[0]), {other: one.path.name for other, one in before.items()})
        suffix = next(word for word in words if word.startswith(OUT)).removeprefix(OUT)
        out = self.steps.folder / "made" / f"{name}-{key}{suffix}"
        line = [self._filled(word, out.with_suffix("") if suffix else out) for word in words]
        step = self.steps.once("made", key, line, name, out)
        return Made(out, step.seconds + sum(one.seconds for one in before.values()))

    def fill(self, setting: str) -> str:
        """A setting with the places of what it names."""
        return MADE.sub(lambda found: str(self.find(found[1]).path), setting)

    def seconds(self, settings: Sequence[str]) -> dict[str, float]:
        """What the settings name → the CPU seconds that it took."""
        return {name: self.find(name).seconds for name in made_named(settings)}

    def _filled(self, word: str, out: Path) -> str:
        if "<data>" in word and self.data is None:
            raise InputError(word, "is read in the data folder", hint="--data DIR (STS_DINO_DATA)")
        return self.fill(word).replace("<data>", str(self.data)).replace(OUT, str(out))

    def commands_of(self, settings: Sequence[str]) -> list[str]:
        """The commands that make what the settings name, as a user types them, in the order they run."""
        found = list[str]()
        for name in made_named(settings):
            words = [word.replace(OUT, f"<made:{name}>") for word in self.commands[name]]
            found += [*self.commands_of(self.commands[name]), f"python -m {shlex.join(words)}"]
        return list(dict.fromkeys(found))

"""Which functions of the project a command calls, and which of them while a phase runs."""

import logging
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_OURS = (".venv", "tests")


@dataclass
class Walk:
    """Counted calls by (file, qualified name): all, and those while a phase's function runs."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    within_phase: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def files(self) -> set[str]:
        """The files whose functions are called."""
        return {path for path, _ in self.calls}

    def count_by_name(self, names: tuple[str, ...]) -> dict[str, int]:
        """Return name → number of calls, in whichever file the function is."""
        counts = dict.fromkeys(names, 0)
        for (_, name), count in self.calls.items():
            if name in counts:
                counts[name] += count
        return counts


def find_own_file(filename: str) -> str | None:
    """Return a source file's path in the clone; None for a library's, a test's and no file."""
    path = Path(filename)
    if not path.is_relative_to(ROOT) or path.suffix != ".py":
        return None
    path = path.resolve().relative_to(ROOT)  # sts_dino/hub is a link to hub
    return None if path.parts[0] in NOT_OURS else str(path)


@contextmanager
def record_walk(*phases: str) -> Iterator[Walk]:
    """Count the calls of the project's named functions; ``phases``: names of functions."""
    walk = Walk()
    depth = 0

    def note(frame, event, _) -> None:
        nonlocal depth
        code = frame.f_code
        if event not in ("call", "return") or "<" in code.co_name:
            return
        path = find_own_file(code.co_filename)
        if path is None:
            return
        if event == "call":
            walk.calls[path, code.co_qualname] += 1
            if depth:
                walk.within_phase[path, code.co_qualname] += 1
        if code.co_name in phases:
            depth += 1 if event == "call" else -1

    profiler = sys.getprofile()
    logging.disable()  # a handler that an earlier test left would be walked, too
    sys.setprofile(note)
    try:
        yield walk
    finally:
        sys.setprofile(profiler)
        logging.disable(logging.NOTSET)

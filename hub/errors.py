"""One error family for the whole project, so that every command fails the same way.

``InputError`` means "change what you gave" (exit code 2); ``RunError`` means "the world failed" (exit code 1).
Both print as one message that names the place, what was found, what is allowed and what to do next.
"""

import difflib
import re
from collections.abc import Iterable


class StsDinoError(Exception):
    """Base class; ``exit_code`` is what a command line returns when the error reaches it."""

    exit_code = 1

    def __init__(self, place: object, problem: str = "", *, allowed: object = None, hint: str | None = None):
        """Without ``problem``, ``place`` is the whole message: a worker process's error is rebuilt from that."""
        parts = [f"{place}: {problem}" if problem else str(place)]
        if allowed is not None:
            parts.append(f"allowed: {allowed}")
        if hint:
            parts.append(hint)
        self.place = str(place)
        super().__init__(without_passwords("; ".join(parts)))


class InputError(StsDinoError):
    """What the user gave cannot be used: a recipe, an option, an input file."""

    exit_code = 2


class RunError(StsDinoError):
    """The run failed although its input is good: no disk, no Hub, no permission, a lock held by another process."""

    exit_code = 1


class OutOfMemory(RunError):
    """Memory ran out, a machine's or a GPU's. On a cluster this says that a node has one worker too many."""


def without_passwords(text: str) -> str:
    """``text`` without the users and passwords of its URLs."""
    return re.sub(r"(?<=://)[^\s/]*@", "", text)


def did_you_mean(word: str, choices: Iterable[str]) -> str | None:
    """The hint that names the choice most like ``word``; None when none is similar (difflib ratio below 0.6)."""
    by_case = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(word.lower(), list(by_case), n=1)
    return f"did you mean {by_case[found[0]]!r}?" if found else None

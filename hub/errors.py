"""The errors of the whole project, so that all commands fail in the same way.

``InputError``: the user's input is wrong (exit code 2). ``RunError``: the input is right, and a
disk, a Hub or memory failed (exit code 1). The message of both is one line: the place, the problem,
the allowed values and a hint.
"""

import difflib
import errno
import re
from collections.abc import Iterable

_NO_SPACE = "no space left on the disk; free some and run the same command again"
_NO_ACCESS = "cannot be written or read here; choose another folder, or change its permissions"
_TOO_LARGE = (
    "would be larger than files may be here (ulimit -f); "
    "raise that limit and run the same command again"
)
# The problem and the hint, by the number of the system's error over a file
DISK_PROBLEMS = {
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: "the disk quota is used up; free some space and run the same command again",
    errno.EACCES: _NO_ACCESS,
    errno.EPERM: _NO_ACCESS,
    errno.EROFS: "lies on a disk that is read-only; choose another folder",
    errno.ENOTDIR: "a file stands where a folder has to be; remove it, or choose another folder",
    errno.EISDIR: "is a folder; a file is needed here: remove it, or choose another name",
    errno.EEXIST: "exists already; remove it, or choose another name",
    errno.ENOTEMPTY: "is a folder that is not empty; remove it, or choose another name",
    errno.ENOENT: "no such file or folder; make it first, or choose another folder",
    errno.ENAMETOOLONG: "is too long a name for this disk; shorten it, or choose another folder",
    errno.ELOOP: "is a symbolic link in a circle; remove it, or choose another folder",
    errno.EMFILE: "too many open files; raise their limit (ulimit -n) and run this again",
    errno.ENFILE: "the machine has too many open files; close some programs",
    errno.EIO: "the disk reports an error; check the disk, or choose another folder",
    errno.EFBIG: _TOO_LARGE,
}


class StsDinoError(Exception):
    """Base class of the project's errors; ``exit_code`` is the exit code of a failed command."""

    exit_code = 1

    def __init__(
        self, place: object, problem: str = "", *, allowed: object = None, hint: str | None = None
    ):
        """Build the message ``PLACE: PROBLEM; allowed: ALLOWED; HINT`` without URLs' passwords.

        pickle rebuilds an error of a worker process from its message alone, so without ``problem``
        the argument ``place`` is the whole message.

        Args:
            place: the file, line, key, option or command that the error is about.
            problem: the problem, with the value that was found.
            allowed: the allowed values.
            hint: the next step.
        """
        parts = [f"{place}: {problem}" if problem else str(place)]
        if allowed is not None:
            parts.append(f"allowed: {allowed}")
        if hint:
            parts.append(hint)
        self.place = str(place)
        super().__init__(remove_passwords("; ".join(parts)))


class InputError(StsDinoError):
    """A recipe, an option or an input file of the user that cannot be used."""

    exit_code = 2


class RunError(StsDinoError):
    """A failure with correct input: a full disk, an absent Hub, a permission, a locked file."""


class OutOfMemory(RunError):
    """The memory of a machine or a GPU ran out."""


def remove_passwords(text: str) -> str:
    """Return ``text`` without the users and passwords of its URLs (``://USER:PASSWORD@``).

    They end at the last ``@`` before a slash or blank, because a password may have an ``@``, too.
    """
    return re.sub(r"(?<=://)[^\s/]*@", "", text)


def suggest_choice(word: str, choices: Iterable[str]) -> str | None:
    """Return ``did you mean CHOICE?`` with the choice that is most similar to ``word``.

    Return None when the difflib ratio of every choice is below 0.6. Case does not count.
    """
    by_lower_case = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(word.lower(), list(by_lower_case), n=1)
    return f"did you mean {by_lower_case[matches[0]]!r}?" if matches else None

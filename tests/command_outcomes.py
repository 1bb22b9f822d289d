"""A command line run in this process as a person would run it: its exit code and what it told, never a traceback."""

import io
import sys
from dataclasses import dataclass

from hub import cli


@dataclass(frozen=True)
class Outcome:
    """``code`` is the exit code; ``told`` what stood on stderr, ``printed`` on stdout."""

    code: int
    told: str
    printed: str

    @property
    def error(self) -> str:
        """The one line of its error. Fails when there is none, or more than one."""
        lines = [line for line in self.told.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.told
        assert "Traceback" not in self.told
        return lines[0]


def outcome_of(module, *words: object, answers: str = "y\n" * 20) -> Outcome:
    """Run ``python -m module words``; whatever it asks on stdin, it hears ``answers``. An exception passes through."""
    streams = sys.stdin, sys.stdout, sys.stderr
    told, printed, code = io.StringIO(), io.StringIO(), 0
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(answers), printed, told
    try:
        cli.run(lambda: module.app([str(word) for word in words]))
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
    return Outcome(code, told.getvalue(), printed.getvalue())

"""A command line run in this process as a person would run it: exit code and streams, never a
traceback.
"""

import io
import sys
from dataclasses import dataclass

from sts_dino.hub import cli


@dataclass(frozen=True)
class Outcome:
    """The exit code and what the command printed."""

    code: int
    stderr: str
    printed: str

    @property
    def error(self) -> str:
        """The one line of its error. Fails when there is none, or more than one."""
        lines = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1 and "Traceback" not in self.stderr, self.stderr
        return lines[0]


def outcome_of(module, *words: object) -> Outcome:
    """Run the typer app of ``module`` with ``words``; every question is answered yes. A fault of
    ours is raised.
    """
    streams = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = io.StringIO("y\n" * 20), io.StringIO(), io.StringIO()
    code, printed, stderr = 0, sys.stdout, sys.stderr
    try:
        cli.run_app(lambda: module.app([str(word) for word in words]))
    except SystemExit as end:
        if cli.HINT_DEBUG in stderr.getvalue() and end.__context__:
            raise end.__context__ from None
        code = end.code or 0
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
    return Outcome(code, stderr.getvalue(), printed.getvalue())

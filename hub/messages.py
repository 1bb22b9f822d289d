"""Messages of the library: records of the logger ``sts_dino``, their format, and a handler.

Outside the command line Python's own rules hold: warnings reach stderr, and users configure
``logging.getLogger("sts_dino")``. Long work shows its progress as a bar in a terminal, and as a
message every 5 % in a log file or a pipe.
"""

import io
import logging
import sys
from typing import Any

from tqdm import tqdm

from sts_dino.hub.errors import remove_passwords
from sts_dino.hub.untrusted import strip_controls

logger = logging.getLogger(__name__)

LIBRARY_LOGGER = "sts_dino"  # the parent of the loggers of all modules
PERCENT_BETWEEN_LINES = 5
SECONDS_BETWEEN_LINES = 60  # where the total is unknown
LINE_FORMAT = "{desc}: {n_fmt} of {total_fmt} {unit}s, {remaining} left"
LINE_FORMAT_WITHOUT_TOTAL = "{desc}: {n_fmt} {unit}s"


class MessageFormatter(logging.Formatter):
    """Formats log records without control characters and without passwords of URLs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's message; above INFO, with the level's name as prefix."""
        prefix = f"{record.levelname.lower()}: " if record.levelno > logging.INFO else ""
        return remove_passwords(strip_controls(prefix + record.getMessage()))


class MessageList(logging.Handler):
    """Handler that collects messages in a list, for workers without a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(MessageFormatter())
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record's message."""
        self.messages.append(self.format(record))


def route_messages(handler: logging.Handler) -> None:
    """Send the library's records of level INFO and above to ``handler`` alone.

    Other handlers of the library's logger are removed, and its records do not reach the root
    logger.
    """
    library = logging.getLogger(LIBRARY_LOGGER)
    library.handlers = [handler]
    library.setLevel(logging.INFO)
    library.propagate = False


class ProgressBar(tqdm):
    """A bar of tqdm on stderr; where stderr is no terminal, log messages instead of the bar.

    A message comes every ``PERCENT_BETWEEN_LINES`` percent of the total, or, where the total is
    unknown, every ``SECONDS_BETWEEN_LINES`` seconds.

    Args:
        iterable: the items that are counted while a loop reads them; None: the caller counts by
            ``update``.
        line_format: the message, with the fields of tqdm's ``bar_format``; None: ``LINE_FORMAT``,
            or ``LINE_FORMAT_WITHOUT_TOTAL``.
        options: other keyword arguments of tqdm; ``file`` is replaced.
    """

    def __init__(self, iterable: Any = None, line_format: str | None = None, **options: Any):
        self._is_terminal = sys.stderr.isatty()
        self._reported_steps: int | None = None  # None: the bar is being made
        options["file"] = sys.stderr
        if not self._is_terminal:
            options["file"] = io.StringIO()
            total = options.get("total")
            if total is None:
                total = len(iterable) if hasattr(iterable, "__len__") else None
            default_format = LINE_FORMAT if total else LINE_FORMAT_WITHOUT_TOTAL
            options["bar_format"] = line_format or default_format
            options["unit"] = options.get("unit", "item").strip()
        super().__init__(iterable, **options)
        self._reported_steps = self._count_steps()

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Draw the bar, or log a message if it is due. tqdm calls this method."""
        if self._is_terminal:
            super().display(msg, pos)
            return
        steps = self._count_steps()
        # None while tqdm's __init__ runs, which calls this method, too
        if self._reported_steps is not None and steps > self._reported_steps:
            self._reported_steps = steps
            logger.info(str(self))

    def _count_steps(self) -> int:
        """Return how many messages are due until now: by items, or by time without a total."""
        if self.total:
            percent = 100 * min(self.n, self.total) / self.total
            return int(percent / PERCENT_BETWEEN_LINES)
        return int(self.format_dict["elapsed"] / SECONDS_BETWEEN_LINES)

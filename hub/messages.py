"""Messages of the library: records of the logger ``sts_dino``, their format, and a handler.

Outside the command line Python's own rules hold: warnings reach stderr, and users configure
``logging.getLogger("sts_dino")``.
"""

import logging

from sts_dino.hub.errors import remove_passwords
from sts_dino.hub.untrusted import strip_controls

LIBRARY_LOGGER = "sts_dino"  # the parent of the loggers of all modules


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

    Existing handlers of the logger are removed, and the root logger gets none of its records.
    """
    library = logging.getLogger(LIBRARY_LOGGER)
    library.handlers = [handler]
    library.setLevel(logging.INFO)
    library.propagate = False

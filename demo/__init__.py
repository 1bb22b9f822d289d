"""The whole chain at demo size: every stage by its own command, against the embedded Hub."""

import hub  # noqa: F401 - a command of this package ends with one line on Ctrl-C, from its first import on

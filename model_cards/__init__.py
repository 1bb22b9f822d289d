"""Cards: the README.md of a published dataset or model, written from what earlier stages recorded."""

import hub  # noqa: F401 - a command of this package ends with one line on Ctrl-C, from its first import on

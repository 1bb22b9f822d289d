"""Measurements of speed, memory and quality; every result file names its hardware."""

import hub  # noqa: F401 - a command of this package ends with one line on Ctrl-C, from its first import on

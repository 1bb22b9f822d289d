"""Scores of sentence encoders, each with its interval; this package never trains an encoder.

Import from the modules (``from eval.scoring.sts import ...``); importing the package by its bare name hides the
builtin.
"""

import hub  # noqa: F401 - a command of this package ends with one line on Ctrl-C, from its first import on

"""Sentence encoders trained from a recipe with sentence-transformers, in plain modules any reader can load."""

import hub  # noqa: F401 - a command of this package ends with one line on Ctrl-C, from its first import on

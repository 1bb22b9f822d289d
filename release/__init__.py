"""Releases: a recipe to a published artefact in one command. The one package that may call every stage."""

import hub  # noqa: F401 - a command of this package ends with one line on Ctrl-C, from its first import on

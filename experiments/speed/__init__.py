"""Measurements of speed, memory and quality; every result file names its hardware."""

# A command of this package ends with one line on Ctrl-C, from its first import on.
import sts_dino.hub  # noqa: F401

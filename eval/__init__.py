"""Scores of sentence encoders, each with its interval; this package never trains an encoder.

Import from the modules (``from sts_dino.eval.scoring.cosines import ...``); importing the package
by its bare name hides the builtin.
"""

"""Measurements of sentence encoders and of datasets, most with a 95 % interval.

This package never trains an encoder. Import from the modules (``from
sts_dino.eval.scoring.cosines import ...``): ``from sts_dino import eval`` hides the builtin.
"""

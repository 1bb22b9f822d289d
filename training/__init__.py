"""Sentence encoders trained from a recipe with sentence-transformers, in plain modules any reader
can load.
"""

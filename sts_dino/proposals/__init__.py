"""Recipes proposed for a corpus: its statistics, a generator for its pairs, and an encoder."""

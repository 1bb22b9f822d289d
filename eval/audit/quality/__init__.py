"""Measures of a dataset: texts, pairs, agreement with an NLI model."""

"""Evaluation sentences in a dataset: exact, normalised and near duplicates."""

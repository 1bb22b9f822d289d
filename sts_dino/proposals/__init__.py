"""Recipes proposed for a corpus: what it is like, what to write for it and by which model, what to train on that."""

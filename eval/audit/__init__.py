"""Datasets under test: rows and where they come from."""

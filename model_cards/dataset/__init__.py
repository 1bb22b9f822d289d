"""The card of a dataset."""

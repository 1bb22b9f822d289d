"""DINO's own measurements: written texts by label, judged."""

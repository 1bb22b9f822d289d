"""Experiments: plans as YAML, one runner (``sts-dino experiment``), results as data, pages written from the results."""

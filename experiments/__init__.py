"""Experiments: plans as YAML, one runner (``sts-dino experiment``), and pages of their results."""

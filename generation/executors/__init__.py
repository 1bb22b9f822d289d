"""Executors of a run on several workers: options, Ray workers and nodes, scheduling, results."""

"""Evaluation tasks by name, their data and averages."""

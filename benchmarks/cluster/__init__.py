"""Measurements of runs on many workers."""

"""Measurements of speed, memory and quality; every result file names its hardware."""

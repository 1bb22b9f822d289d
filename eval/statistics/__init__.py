"""Intervals and tests: bootstrap, jackknife, paired tests, verdicts."""

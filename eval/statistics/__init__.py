"""Bootstrap intervals, paired tests, verdicts."""

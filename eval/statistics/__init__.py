"""Bootstrap intervals, paired tests and verdicts."""

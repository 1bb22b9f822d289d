"""Training rows: pinned datasets, streams, checks, DeCLUTR spans."""

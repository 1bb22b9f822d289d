"""One dataset run: source sentences, tasks, the worker, the run directory, the finish."""

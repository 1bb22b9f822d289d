"""One dataset run: first texts, tasks, a worker, an executor, the finish."""

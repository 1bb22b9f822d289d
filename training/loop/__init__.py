"""The training run: trainer, batches, checkpoints, validation, reports, finish."""

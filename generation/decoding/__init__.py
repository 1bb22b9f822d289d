"""Self-debiased decoding on a causal language model: engine, batches, attention, sampling."""

"""Text pairs from a causal language model, by self-debiased decoding."""

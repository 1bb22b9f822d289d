"""The encoder before training: base, pooling, prompts, adapters."""

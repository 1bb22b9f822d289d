"""Language-model backends: a causal LM in this process with self-debiasing, and OpenAI-compatible servers."""

"""Language-model backends: a causal LM in this process with self-debiasing, and servers."""

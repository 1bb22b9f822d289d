"""How the built-in language model was trained: corpus, rules, training pairs and the training loop."""

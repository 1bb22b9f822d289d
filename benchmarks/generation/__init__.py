"""Measurements of decoding: speed, memory, estimates, the built-in language model."""

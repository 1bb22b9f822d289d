"""Sentence encoders: loading, embeddings, their cache."""

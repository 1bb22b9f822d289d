"""Embeddings to scores: STS, transfer, relatedness."""

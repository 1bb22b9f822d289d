"""Scores of embeddings: STS, search, transfer, relatedness."""

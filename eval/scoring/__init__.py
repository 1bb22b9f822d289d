"""Scores of embeddings (STS, search, transfer, relatedness), their intervals and differences."""

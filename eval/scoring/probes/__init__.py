"""Logistic regression on frozen embeddings, under SentEval's protocols."""

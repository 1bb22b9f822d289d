"""The papers' experiments in miniature, each run by one command."""

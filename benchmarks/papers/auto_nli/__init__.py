"""Measurements for Auto-NLI's tables and figures."""

"""Measurements of publication."""

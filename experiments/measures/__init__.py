"""Measurements of experiments that are not tables of encoders, and files that encoders read."""

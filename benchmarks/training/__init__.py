"""Measurements of training: speed and memory."""

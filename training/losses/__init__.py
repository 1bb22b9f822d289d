"""Losses by name, and DeCLUTR's objective."""

"""Evaluation data: the forms that tasks read, and where they come from. Always whole and checked, or an error."""

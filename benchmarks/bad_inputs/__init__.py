"""What users get wrong, as a table of cases, and how each command refuses it."""

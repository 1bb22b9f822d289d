"""Several evaluations side by side: tables, formats, plots."""

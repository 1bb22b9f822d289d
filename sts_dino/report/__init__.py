"""The report: one self-contained HTML file about what was written, trained and scored."""

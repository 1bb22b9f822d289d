"""The report: one self-contained HTML file about generated, trained and scored runs."""

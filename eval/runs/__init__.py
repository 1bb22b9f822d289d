"""One evaluation: job, records, summary, tables."""

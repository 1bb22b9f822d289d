"""From decoded texts to published rows: attempts, filters, pairs, finishing, counts. Pure."""

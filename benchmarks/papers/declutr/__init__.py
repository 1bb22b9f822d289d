"""What DeCLUTR's experiments are made of and measure: documents, a small base, spans, SentEval's table."""

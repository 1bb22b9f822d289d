"""What both kinds of card need: front matter, citations, attribution, plots, escaping."""

"""Contents of pages: a card's metadata, a card as safe HTML, rows; and their templates."""

"""What pages show of a repo: its card's metadata, the card as safe HTML, its rows; and the templates that show them."""

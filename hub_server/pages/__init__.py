"""What pages show of a repo's content: its card's metadata, the card as safe HTML, first rows."""

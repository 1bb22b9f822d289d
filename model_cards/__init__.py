"""Cards: the README.md of a published dataset or model, written from what earlier stages recorded."""

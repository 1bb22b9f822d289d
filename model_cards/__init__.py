"""Cards: the README.md of a published dataset or model, from the facts of earlier stages."""

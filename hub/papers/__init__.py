"""The papers' result tables as data, and their reader."""

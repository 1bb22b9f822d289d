"""Measurements of datasets: decontamination, quality, label agreement, human labels."""

"""Measurements of evaluation: cost, batched probes, false verdicts, decontamination."""

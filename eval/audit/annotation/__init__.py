"""People label a dataset, blind: sample, page, answers, agreement."""

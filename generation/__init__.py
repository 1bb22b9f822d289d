"""Text pairs from a causal language model, by self-debiased decoding."""

import hub  # noqa: F401 - a command of this package ends with one line on Ctrl-C, from its first import on

"""Characters that no text of a dataset needs: what is left of broken files, and what hides or turns what is shown."""

import re

# Control characters but the tab; half a surrogate pair; embeddings, overrides and isolates of writing direction, with
# which a text reads other than it is stored; the replacement character, which stands where something could not be read.
_UNWANTED = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffd]")


def has_control_characters(text: str) -> bool:
    """Whether a text has a control character other than a tab, a directional override, or U+FFFD."""
    return _UNWANTED.search(text) is not None

"""A card, which anybody may have written, as HTML that is safe to show; ``card_markdown`` renders it in a child."""

from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ValidationError

from hub_server.pages import child

_FAILED = f"The card took more than {child.SECONDS} s or too much memory to show."


class Card(BaseModel):
    """A card as HTML that is safe to show, or why there is none."""

    html: str = ""
    problem: str = ""


class CardRequest(BaseModel):
    """A stored README, and the address below which its relative ones lie."""

    readme: str
    base: str


def card(readme: Path, base: str) -> Card:
    """A stored README rendered, with relative addresses below ``base``."""
    try:
        return _card(readme, base)
    except (child.ChildFailed, ValidationError):
        return Card(problem=_FAILED)


@lru_cache(maxsize=256)
def _card(readme: Path, base: str) -> Card:
    # Contents never change under their address, so an answer holds; failures raise and are not kept.
    request = CardRequest(readme=str(readme), base=base).model_dump_json().encode()
    return Card.model_validate_json(child.answer_of("hub_server.pages.card_markdown", request))

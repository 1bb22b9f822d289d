"""Limits of a loaded model: the rows of its embedding, and the positions that a text can take."""

from collections.abc import Iterable
from typing import Any

from hub.errors import InputError


def require_ids(tokenizer: Any, rows: int, place: object, used: Iterable[int | None]) -> None:
    """Raise InputError for a token that a text may have and whose id is beyond the ``rows`` of an embedding.

    Of special tokens only those that are ``used`` count: Gemma's tokenizer has one for images, beyond its embedding.
    """
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    wanted = {*tokenizer.get_vocab().values()} - special | {token for token in used if token is not None}
    if beyond := sorted(token for token in wanted if token >= rows):
        shown = tokenizer.convert_ids_to_tokens(beyond[:3])
        problem = f"its tokenizer gives ids beyond the {rows} rows of its embedding: {beyond[0]} ({', '.join(shown)})"
        hint = "resize the embedding (resize_token_embeddings) and save the model again, or remove the added tokens"
        raise InputError(place, problem, allowed=f"ids below {rows}", hint=hint)


def usable_positions(transformer: Any) -> int | None:
    """Positions of a transformer's learned table that a text can take, None without one.

    RoBERTa's begin behind that of padding.
    """
    layers = getattr(transformer, "embeddings", transformer)
    table: Any = getattr(layers, "position_embeddings", None) or getattr(layers, "wpe", None)
    if not hasattr(table, "num_embeddings"):
        return None
    return int(table.num_embeddings) - (0 if table.padding_idx is None else table.padding_idx + 1)

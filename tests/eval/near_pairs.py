"""Light edits of sentences, and all near pairs by a sparse product: the slow reference of the near-pair index."""

import random
from collections.abc import Sequence

import numpy as np

from eval.audit.evaluation_sentences import grams

EDITS = ("change", "add", "remove", "case", "punctuation")


def edited(text: str, words: Sequence[str], draw: random.Random) -> str:
    """One word changed, added or removed, or other case or punctuation."""
    tokens, kind = text.split(), draw.choice(EDITS)
    place = draw.randrange(len(tokens))
    if kind == "change":
        tokens[place] = draw.choice([word for word in words if word != tokens[place]])
    elif kind == "add":
        tokens.insert(place, draw.choice(words))
    elif kind == "remove":
        del tokens[place]
    elif kind == "case":
        tokens = [token.swapcase() for token in tokens]
    else:
        tokens[place] += draw.choice(",;!")
    return " ".join(tokens)


def near_pairs(forms: Sequence[str], others: Sequence[str], threshold: float) -> dict[tuple[int, int], float]:
    """(number of the other text, number of the form) → similarity, of every pair from ``threshold`` on."""
    from scipy import sparse

    gathered = [grams(text, 3) for text in (*others, *forms)]
    column = {gram: number for number, gram in enumerate(sorted(set().union(*gathered)))}
    cells = np.array([column[gram] for one in gathered for gram in sorted(one)])
    starts = np.cumsum([0, *map(len, gathered)])
    counted = sparse.csr_matrix((np.ones(len(cells), dtype=np.int32), cells, starts), (len(gathered), len(column)))
    first, second = counted[: len(others)], counted[len(others) :]
    both = (first @ second.T).tocoo()
    sizes = [np.diff(one.indptr) for one in (first, second)]
    similarity = both.data / (sizes[0][both.row] + sizes[1][both.col] - both.data)
    kept = similarity >= threshold
    return dict(zip(zip(both.row[kept].tolist(), both.col[kept].tolist(), strict=True), similarity[kept], strict=True))

"""Documents to cut spans from (DeCLUTR): a file, or any dataset with a column ``text``, which the checks ask for."""

from pathlib import Path

from hub.errors import InputError
from hub.recipe import Spans
from hub.shards import sha256_file
from training.origins import Origin, load_files
from training.row_checks import Spread

FILES = {".txt": "text", ".jsonl": "json", ".parquet": "parquet"}  # ending → reader of ``datasets``; .txt: a line each
CONFIG, SPLIT = "default", "train"  # what a file has of them


def is_file(path: str) -> bool:
    """Whether ``path`` names a file of documents rather than a run directory."""
    return Path(path).is_file() or Path(path).suffix in FILES


def from_file(path: Path, config: str, split: str, streaming: bool, place: str) -> Origin:
    """The documents of a file, as its one split. Raises InputError when it is not there or not of a known kind."""
    if path.suffix not in FILES:
        raise InputError(place, f"has the ending {path.suffix!r}", allowed=list(FILES))
    if not path.is_file():
        raise InputError(place, "no such file", allowed=f"a run directory, or a file ending in {', '.join(FILES)}")
    if (config, split) != (CONFIG, SPLIT):
        raise InputError(place, f"is one file, without config {config!r} and split {split!r}", allowed=(CONFIG, SPLIT))
    if path.stat().st_size == 0:
        raise InputError(place, "is empty", allowed="at least one document")
    loaded = load_files(FILES[path.suffix], {SPLIT: [str(path.resolve())]}, streaming, place)
    return Origin(loaded, None, sha256_file(path), None)


def require_long_enough(spread: Spread, spans: Spans, place: str) -> None:
    """Raise InputError when every document is certainly too short, for a token is at least one byte.

    Whether they are long enough in tokens is known when the tokenizer has read them: ``training.span_rows`` counts
    those it passes over, and raises InputError when none is left.
    """
    if spread.high < spans.min_document:
        found = f"the longest of {spread.rows:,} documents has {int(spread.high):,} bytes, so fewer tokens than "
        hint = "lower spans.min_document and spans.max_length, or take longer documents"
        raise InputError(place, f"{found}spans.min_document {spans.min_document:,}", hint=hint)

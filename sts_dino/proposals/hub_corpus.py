"""A corpus on a Hub: pinned at a commit, and described by the first rows of one split, which are streamed."""

from itertools import chain, islice
from typing import Any

from generation.inputs.file_rows import as_texts
from hub.cli import say
from hub.client.dataset_reader import hub_dataset, require_known
from hub.client.failures import reading
from hub.contract import licences
from hub.errors import InputError
from hub.printable import one_line
from hub.row_errors import reading_rows
from sts_dino.proposals.corpus import Corpus, column_of, described


def hub_corpus(
    place: str,
    config: str | None = None,
    split: str | None = None,
    column: str | None = None,
    language: str | None = None,
) -> Corpus:
    """Look at ``ORG/NAME[@REVISION]``: its card's licence, its configs and splits, and the first rows of one split.

    What a branch or tag stands for now is said, and so is a licence that cannot be judged.

    Raises InputError when there is no such repository, revision, config, split or column, or no text is usable;
    RunError when the Hub cannot be read.
    """
    repo_id, _, asked = place.partition("@")
    found = hub_dataset(repo_id, asked or None, place)
    chosen = require_known(config, found.configs(), place, "config") if config else found.default_config()
    if chosen is None:
        raise InputError(place, "has several configs", allowed=", ".join(found.configs()), hint="name one: --config")
    splits = found.splits(chosen)
    part = require_known(split or (splits[0] if len(splits) == 1 else "train"), splits, f"{place} ({chosen})", "split")
    with reading(repo_id, found.commit), reading_rows(place, hint=None):
        rows: Any = iter(found.load(chosen, split=part, streaming=True))
        first = list(islice(rows, 1))
        if not first:
            raise InputError(f"{place} ({chosen}, {part})", "has no row", allowed="at least one text")
        name = column_of(place, first[0], column)
        cells = (as_texts([row[name]], (name,), place)[0] for row in chain(first, rows))
        profile = described(place, name, cells, language)
    if asked != found.commit:
        say(f"{repo_id}: {asked or 'its main branch'} is {found.commit} now; the recipe pins that")
    source = {"kind": "hub", "repo_id": repo_id, "revision": found.commit, "config": chosen, "splits": [part]}
    return Corpus(repo_id, source, profile, _judged(repo_id, found.license))


def _judged(repo_id: str, license_id: str | None) -> str | None:
    """The licence that a card names, if it is one that can be judged."""
    if license_id in licences.table():
        return license_id
    named = f"the licence {one_line(license_id)!r}, which cannot be judged" if license_id else "no licence"
    say(f"{repo_id}: its card names {named}, so its texts are taken as unlicensed; where you know better: --license")
    return None

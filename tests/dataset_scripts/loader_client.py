"""What one version of datasets loads: python loader_client.py REPO[@TAG]...

Prints one JSON object: repository → branch (script, main) → way (whole, streaming) → config → split
→ features, number of rows and a SHA-256 over them; ``default`` and ``pinned`` (the tag) are loads
without a config. Where the library refuses, its error stands in place of what it would have given.
The branch ``script`` goes first: from version 4 on, a load that fails is answered from the cache of
an earlier one. Any version from 2.14 on; nothing of ours.
"""

import argparse
import contextlib
import hashlib
import json
import os
import sys
from unittest import mock

import datasets

VERSION = tuple(int(part) for part in datasets.__version__.split(".")[:2])
TRUST = {"trust_remote_code": True} if (2, 16) <= VERSION < (4, 0) else {}
REFUSALS = (RuntimeError, ValueError, FileNotFoundError)


def dataset(repo, tag):
    """Both branches of a repository, and its tag."""
    found = {"script": branch(repo, revision="script", **TRUST), "main": branch(repo)}
    return {**found, "pinned": load(repo, revision=tag)} if tag else found


def branch(repo, **options):
    """One branch of a repository: its configs as the library lists them, what each gives, and the
    default.
    """
    try:
        configs = datasets.get_dataset_config_names(repo, **options)
    except REFUSALS as error:
        return {"error": said(error)}
    found = {"default": load(repo, **options)}
    # 2.21 asks the viewer of huggingface.co for a copy of the files, and waits for seconds where
    # there is none
    with mock.patch.object(datasets.config, "USE_PARQUET_EXPORT", False, create=True):
        for way in ("whole", "streaming"):
            found[way] = {
                config: load(repo, config, streaming=way == "streaming", **options)
                for config in configs
            }
    return found


def load(*what, **how):
    """What load_dataset gives: split → features, rows, digest."""
    try:
        splits = datasets.load_dataset(*what, **how)
        return {split: content(rows) for split, rows in splits.items()}
    except REFUSALS as error:
        return {"error": said(error)}


def content(rows):
    """Features, number and digest of the rows of one split."""
    digest, number = hashlib.sha256(), 0
    for row in rows:
        digest.update(json.dumps(row).encode() + b"\n")
        number += 1
    features = [
        [name, getattr(found, "names", None) or found.dtype]
        for name, found in rows.features.items()
    ]
    return {"features": features, "rows": number, "sha256": digest.hexdigest()}


def said(error):
    """An error in one line."""
    return f"{type(error).__name__}: {error}"


def answer():
    """Everything that was asked for on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("repos", nargs="*")
    asked = parser.parse_args()
    repos = {name.partition("@")[0]: dataset(*name.partition("@")[::2]) for name in asked.repos}
    return {"version": datasets.__version__, "repos": repos}


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        found = answer()
    print(json.dumps(found), flush=True)
    os._exit(0)  # the event loop of fsspec can wait for ever when old versions exit

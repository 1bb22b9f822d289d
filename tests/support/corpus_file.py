"""The fixture ``corpus``: a file of a test module's ``SENTENCES``, where its commands run."""

from pathlib import Path

import pytest


@pytest.fixture
def corpus(request, tmp_path, monkeypatch) -> Path:
    """The corpus file, one sentence a line, in the working directory of the test."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(request.module.SENTENCES) + "\n")
    return path

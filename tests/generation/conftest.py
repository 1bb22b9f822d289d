"""What most tests of the generation stage share."""

from pathlib import Path

import pytest
from tiny_lm import make_lm


@pytest.fixture(scope="session")
def lm(tmp_path_factory) -> Path:
    """A tiny random Llama; tests read it and change nothing in it."""
    return make_lm(tmp_path_factory.mktemp("lm") / "lm")

"""The notebooks of docs/: their calls fit the functions, and what they show is what comes of
running them.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sts_dino import api

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shown(notebook):
    """Of every code cell, the kinds of its outputs; and its lines, without numbers."""
    kinds, lines = [], []
    for cell in cells(notebook):
        kinds.append([(one["output_type"], sorted(one.get("data", ()))) for one in cell["outputs"]])
        texts = ["".join(one.get("text") or one["data"]["text/plain"]) for one in cell["outputs"]]
        lines.append(
            [
                re.sub(r"[-+]?[\d.,]+|not significant|better|worse|[ .]+", " ", text)
                for text in texts
            ]
        )
    return kinds, lines


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_whole_and_names_no_place_of_a_machine(path):
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert [cell["execution_count"] for cell in cells(notebook)] == [
        *range(1, len(cells(notebook)) + 1)
    ]
    called = {
        name
        for cell in cells(notebook)
        for name in re.findall(r"\bapi\.(\w+)\(", "".join(cell["source"]))
    }
    assert len(called) >= 5 and all(callable(getattr(api, name)) for name in called)
    assert not re.search(r"/(home|root|tmp|work|Users)/|127\.0\.0\.1|Traceback", text)
    assert all((path.parent / place).is_file() for place in re.findall(r"\]\((\.\.[\w./]+)", text))


@pytest.mark.slow("writes pairs, trains and scores")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_running_a_notebook_shows_what_it_keeps(path, tmp_path):
    kept = json.loads(path.read_text(encoding="utf-8"))
    left_out = ("HF_", "STS_DINO")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(left_out)
    }
    environment |= {
        "PYTHONPATH": str(ROOT),
        "HF_HOME": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(Path(__file__).with_name("notebook_cells.py")), str(path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert [cell["source"] for cell in found["cells"]] == [cell["source"] for cell in kept["cells"]]
    assert shown(found) == shown(kept)
    assert (tmp_path / "artifacts/models/first-encoder/model.safetensors").is_file()

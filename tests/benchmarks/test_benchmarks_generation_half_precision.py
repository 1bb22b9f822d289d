import json

import pytest
from typer.testing import CliRunner

from benchmarks.generation import half_precision
from benchmarks.generation.throughput import worker
from hub.errors import InputError


def test_every_way_reads_the_same_tokens(tmp_path):
    folder = tmp_path / "gpt2-tiny"
    worker.make_model("gpt2-tiny", folder, [3, 5])
    done = CliRunner().invoke(half_precision.app, [str(folder), "--first-texts", "2"])
    found = json.loads(done.stdout)
    assert set(found) == {"generate() in bfloat16", "engine in bfloat16", "float32 output layer"}
    assert len({way["tokens"] for way in found.values()}) == 1
    assert all(way["tokens"] > 10 and 0 <= way["alpha_changed"] <= 1 for way in found.values())


def test_a_folder_without_a_model_is_refused(tmp_path):
    refused = CliRunner().invoke(half_precision.app, [str(tmp_path)])
    assert isinstance(refused.exception, InputError)
    with pytest.raises(InputError, match="make lm"):
        raise refused.exception

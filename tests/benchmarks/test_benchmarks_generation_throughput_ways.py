"""llama.cpp's server as a way of the throughput benchmark, with a tiny random model."""

import pytest
from tiny_lm import make_lm

pytest.importorskip("generation.backends.dialects", reason="recipes know no dialect llamacpp")
pytest.importorskip("openai", reason='the extra openai is not installed: pip install -e ".[openai]"')
pytest.importorskip("xllamacpp", reason="llama.cpp's server is not installed: pip install xllamacpp")

from tiny_gguf import make_gguf

from benchmarks.generation.throughput import worker


def test_the_servers_cost_is_told_apart_from_the_clients(tmp_path):
    folder = make_lm(tmp_path / "lm", max_position_embeddings=1024)
    file = make_gguf(folder, tmp_path / "tiny.gguf")
    trial = worker.Trial(
        "sts-x2-no-counters", str(folder), False, "llama.cpp", "q4_k_m", "cpu", 4, 2, 0, gguf=str(file)
    )
    result = worker.measure(trial)
    assert (result.asked, result.rows, len(result.texts)) == (12, 4, 12)
    assert result.tokens > 0 and any(result.texts)
    assert result.cpu_s > 0 and result.client_cpu_s is not None and 0 < result.client_cpu_s < result.cpu_s + 5
    assert 0 < result.loaded_rss_mb <= result.peak_rss_mb

import json
from pathlib import Path

import pytest
import torch
from reference_decoding import reference
from tiny_lm import make_lm
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from benchmarks.generation import engine_throughput
from benchmarks.generation.throughput import models, report, worker, workloads
from benchmarks.generation.throughput.baselines import Generator
from generation.decoding.protocol import Request
from hub.contract.recipe import DecodingParameters
from hub.errors import InputError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A model whose texts end after 3, 5 or 9 tokens, or not within the budget of 40."""
    folder = tmp_path_factory.mktemp("models") / "gpt2-tiny"
    worker.make_model("gpt2-tiny", folder, [3] * 25 + [5] * 25 + [9] * 25 + [41] * 25)
    return folder


def trial(model: Path, variant: str, count: int = 8, work: str = "sts-x2") -> worker.Trial:
    return worker.Trial(work, str(model), True, variant, "float32", "cpu", 24, count, 0)


def test_hazards_are_the_shares_that_close_among_those_that_got_so_far():
    assert models.hazards([2, 2, 3, 41], 4) == [0.0, 0.5, 0.5, 0.0]


def test_random_models_stop_as_told(tiny):
    result = worker.measure(trial(tiny, "engine", 32))
    lengths = [len(text.split()) for text in result.texts]
    for length, share in ((3, 0.25), (5, 0.25), (9, 0.25), (40, 0.25)):
        assert lengths.count(length) / len(lengths) == pytest.approx(share, abs=0.15)
    assert set(lengths) == {3, 5, 9, 40}
    assert result.accepted == sum(length < 40 for length in lengths)
    assert len(set(result.texts)) > 0.8 * len(result.texts)


@pytest.mark.slow("runs a benchmark")
def test_all_ways_write_the_same_texts(tiny):
    engine, batched, original = (worker.measure(trial(tiny, way, 3)) for way in ("engine", "batched", "original"))
    assert engine.texts == batched.texts == original.texts
    assert engine.accepted == batched.accepted == original.accepted
    assert engine.useful_gflop == pytest.approx(original.useful_gflop)


def test_the_baselines_are_the_reference_of_the_engine(tmp_path):
    folder = make_lm(tmp_path / "lm", "gpt2")
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    settings = DecodingParameters(max_new_tokens=12)
    asked = [
        Request(f'A man {n}: "', tuple(f'Other {k} of {n}: "' for k in range(n % 3)), seed)
        for n in range(4)
        for seed in (7 * n, 7 * n + 1)
    ]
    expected = [reference(model, tokenizer, request, settings) for request in asked]
    generator = Generator(model, tokenizer)
    assert [c.text for c in generator.batched(asked, settings, 6)] == expected
    assert [c.text for c in generator.one_by_one(asked, settings)] == expected


def test_few_shot_work_shares_its_beginnings():
    work = workloads.few_shot_work(2)
    assert len(work.requests) == 4
    assert all(request.prompt.startswith(work.prefixes) for request in work.requests)
    assert len({request.prompt for request in work.requests}) == 4
    assert min(len(prefix.split()) for prefix in work.prefixes) > 400


def test_first_texts_differ_and_slow_variants_get_the_first_of_the_fast():
    texts = workloads.first_texts(2500)
    assert len(set(texts)) == 2500
    assert texts[100:110] == workloads.first_texts(10, start=100)


def test_useful_work_counts_shared_things_once(tiny):
    work = workloads.sts_work(1)
    model = worker._shape(tiny)
    nothing = [worker.Completion("", "empty", None, None)] * len(work.requests)
    some = [worker.Completion("w1 w2", None, None, None)] * len(work.requests)
    layers, head = 2 * 12 * 64 * 64, 8000 * 64

    def count(text: str) -> int:
        return len(text.split())

    prompts = {p for r in work.requests for p in (r.prompt, *r.counter_prompts)}
    assert len(prompts) == 3
    read = sum(map(count, prompts))  # beginnings are counted once, the rest of each prompt once
    found = workloads.useful_flops(work, nothing, model, count, count)
    assert found == 2 * (read * layers + 3 * head)
    assert workloads.useful_flops(work, some, model, count, count) - found == 2 * 2 * 2 * (1 + 2 + 3) * (layers + head)


def test_the_summary_has_medians_spreads_and_ratios_of_equal_rounds():
    def rounds(*rates: float) -> list[dict]:
        return [
            {"accepted": 10 * r, "cpu_s": 10.0, "wall_s": 20.0, "useful_gflop": 5 * r, "peak_rss_mb": r,
             "peak_gpu_mb": None, "texts": ["a", "b"]}
            for r in rates
        ]  # fmt: skip

    runs = {"original float32": rounds(1, 2, 3), "engine float32": rounds(20, 30, 90)}
    found = report.summary({"runs": runs}, {"float32": 30.0}, on_cpu=True)
    engine = found["variants"]["engine float32"]
    assert (engine["rate"], engine["spread"]) == (30, [20, 90])
    assert engine["roofline_fraction"] == 0.5
    assert engine["peak_rss_mb"] == 90
    assert engine["same_texts"] == 1.0
    assert found["ratios"] == {"engine float32 / original float32": 20}
    assert report.summary({"runs": runs}, {"float32": 30.0}, on_cpu=False)["variants"]["engine float32"]["rate"] == 15


@pytest.mark.slow("runs a benchmark")
def test_the_command_measures_every_variant_and_writes_json(tmp_path):
    out = tmp_path / "results.json"
    options = ["--quick", "--only", "sts-x2", "--out", str(out)]
    result = CliRunner().invoke(engine_throughput.app, options, catch_exceptions=False)
    assert result.exit_code == 0
    found = json.loads(out.read_text())
    variants = found["cases"]["sts-x2, gpt2-tiny"]["variants"]
    assert set(variants) == {"original float32", "batched float32", "engine float32", "engine bfloat16"}
    assert variants["engine float32"]["same_texts"] == 1.0
    assert all(row["rate"] > 0 and row["peak_rss_mb"] > 100 for row in variants.values())
    assert found["roofline"]["best"]["float32"] > 0
    assert "| sts-x2, gpt2-tiny | engine float32 |" in result.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_gpu_preset_says_that_there_is_no_gpu():
    result = CliRunner().invoke(engine_throughput.app, ["--preset", "h200"])
    assert isinstance(result.exception, InputError)
    assert "no CUDA GPU" in str(result.exception)
    unknown = CliRunner().invoke(engine_throughput.app, ["--preset", "tpu"])
    assert "allowed: cpu, trial, quick, h200" in str(unknown.exception)

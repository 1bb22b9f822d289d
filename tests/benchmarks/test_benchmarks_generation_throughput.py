import json
import mmap
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from reference_decoding import reference
from tiny_lm import make_lm
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from benchmarks.generation import engine_throughput
from benchmarks.generation.throughput import cases, models, report, worker, workloads
from benchmarks.generation.throughput.baselines import Generator
from benchmarks.generation.throughput.process_cost import ProcessCost
from generation.backends.protocol import Completion, Request
from hub.contract.recipe import DecodingParameters
from hub.errors import InputError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A model whose texts end after 3, 5 or 9 tokens, or not within the budget of 40."""
    folder = tmp_path_factory.mktemp("models") / "gpt2-tiny"
    worker.make_model("gpt2-tiny", folder, [3] * 25 + [5] * 25 + [9] * 25 + [41] * 25)
    return folder


def trial(model: Path, way: str, count: int = 8, work: str = "sts-x2", rows: int | None = 24) -> worker.Trial:
    return worker.Trial(work, str(model), True, way, "float32", "cpu", rows, count, 0)


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
    ways = ("engine", "batched", "original", "own-rows")
    engine, batched, original, own_rows = (worker.measure(trial(tiny, way, 3)) for way in ways)
    assert engine.texts == batched.texts == original.texts == own_rows.texts
    assert (engine.rows, batched.rows, original.rows) == (24, 18, 6)  # 6 texts of 3 rows are one call of 18
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
    lean = Generator(model, tokenizer, warp_copies=False)
    assert [c.text for c in lean.batched(asked, settings, 6)] == expected


def test_few_shot_work_shares_its_beginnings():
    work = workloads.few_shot_work(2)
    assert len(work.requests) == 4
    assert all(request.prompt.startswith(work.prefixes) for request in work.requests)
    assert len({request.prompt for request in work.requests}) == 4
    assert min(len(prefix.split()) for prefix in work.prefixes) > 400


def test_examples_of_a_label_stand_before_its_prompts_and_before_it_as_a_counter_prompt():
    plain, work = workloads.KINDS["sts-x2"](1, 5), workloads.KINDS["sts-x2-8shot"](1, 5)
    assert [len(request.counter_prompts) for request in work.requests] == [0, 0, 1, 1, 2, 2]
    assert work.labels == ("1", "1", "0.5", "0.5", "0", "0")
    assert work.requests[4].counter_prompts == (work.requests[0].prompt, work.requests[2].prompt)
    for ours, without in zip(work.requests, plain.requests, strict=True):
        assert ours.prompt.endswith(without.prompt) and ours.prompt.count("Task: ") == 9
        assert ours.prompt.startswith(work.prefixes)
    bare = workloads.KINDS["sts-x2-no-counters"](1, 5).requests
    assert [(r.prompt, r.counter_prompts) for r in bare] == [(r.prompt, ()) for r in plain.requests]


def test_every_kind_of_work_of_the_cases_is_there_and_names_differ():
    for preset in cases.PRESETS.values():
        for case in preset.cases:
            assert case.work in workloads.KINDS
            names = [variant.name for variant in case.variants]
            assert len(set(names)) == len(names), names


def test_a_switch_of_the_engine_is_part_of_a_variants_name():
    variant = cases.Variant("engine", "float32", 4, 96, keys=(("threads", 1),))
    assert variant.name == "engine float32 96 rows threads=1"


def test_a_comparison_of_texts_gives_all_float32_ways_enough_first_texts():
    case = cases.for_equality(cases.PRESETS["lm"].cases[0], 300)
    assert {variant.count for variant in case.variants} == {50}
    assert {(variant.way, variant.dtype) for variant in case.variants} == {
        ("batched", "float32"),
        ("engine", "float32"),
    }
    assert {variant.count for variant in cases.scaled(case, 0.001).variants} == {1}


def test_ways_take_turns_and_rounds_share_no_first_text(tmp_path):
    trials = list[worker.Trial]()

    def alone(function: object, *arguments: object) -> object:
        if function is not worker.measure:
            return {}
        trials.append(arguments[0])
        nothing = dict.fromkeys(worker.Result.__dataclass_fields__, 1.0) | {"facts": {}, "texts": []}
        return worker.Result(**nothing)

    variants = (cases.Variant("batched", "float32", 4), cases.Variant("engine", "float32", 9))
    variants += (cases.Variant("engine", "float32", 4, 96, rounds=1, keys=(("threads", 1),)),)
    case = cases.Case("sts-x2", "lm", variants)
    places = engine_throughput.Places(tmp_path / "gemma", tmp_path / "gemma.gguf", tmp_path)
    found = engine_throughput._measure(alone, case, cases.PRESETS["lm"], 3, places)
    assert [(trial.way, trial.count, trial.start, trial.rows) for trial in trials] == [
        ("batched", 4, 0, None),
        ("engine", 9, 0, None),
        ("engine", 4, 0, 96),
        ("engine", 9, 9, None),
        ("batched", 4, 9, None),
        ("batched", 4, 18, None),
        ("engine", 9, 18, None),
    ]
    assert {trial.model for trial in trials} == {str(tmp_path / "gemma")}
    assert trials[2].keys == (("threads", 1),)
    assert [len(rounds) for rounds in found["runs"].values()] == [3, 3, 1]


def test_a_switch_reaches_the_engine_and_an_unknown_one_is_refused(tiny):
    result = worker.measure(replace(trial(tiny, "engine", 1), keys=(("chat_template", False),)))
    assert result.asked == 6
    with pytest.raises(ValidationError, match="unknown_switch"):
        worker.measure(replace(trial(tiny, "engine", 1), keys=(("unknown_switch", True),)))


def test_a_case_whose_model_is_missing_is_left_out_with_the_command_that_makes_it(tmp_path):
    lm = list(cases.PRESETS["lm"].cases)
    kept, skipped = engine_throughput.at_hand(lm, tmp_path, tmp_path / "no.gguf")
    assert not kept and all("make lm" in skipped[case.name] for case in lm)
    (tmp_path / "config.json").write_text("{}")
    kept, skipped = engine_throughput.at_hand(lm, tmp_path, tmp_path / "no.gguf")
    assert [case.name for case in kept] == [case.name for case in lm]
    assert list(skipped) == ["sts-x2-no-counters, lm, llama.cpp"]
    assert {variant.way for variant in kept[2].variants} == {"engine"}
    nothing = CliRunner().invoke(engine_throughput.app, ["--preset", "lm", "--lm", str(tmp_path / "none")])
    assert isinstance(nothing.exception, InputError) and "make lm" in str(nothing.exception)


def test_two_tokens_of_another_text_come_before_the_clock_and_no_shared_beginning(tiny):
    job = workloads.KINDS["sts-x2-8shot"](8, 0)
    first = worker._first_words(trial(tiny, "engine", 8, "sts-x2-8shot"))
    assert job.prefixes and not first.prefixes  # reading them belongs to the work
    assert len(first.requests) == 1 and first.settings.max_new_tokens == 2
    assert first.requests[0].prompt not in {request.prompt for request in job.requests}


def test_the_peak_of_a_process_begins_anew():
    cost = ProcessCost()
    with mmap.mmap(-1, 40 << 20) as held:  # the system's own, which goes back to it at once
        held.write(b"x" * len(held))
        before = cost.peak_mb()
    if not cost.forget_peak():
        pytest.skip("this system cannot let a peak begin anew")
    assert cost.peak_mb() < before - 20
    assert cost.rss_mb() <= cost.peak_mb() + 1
    assert ProcessCost((os.getpid(),)).peak_mb() == pytest.approx(cost.peak_mb(), rel=0.1)


def test_first_texts_differ_and_slow_variants_get_the_first_of_the_fast():
    texts = workloads.first_texts(2500)
    assert len(set(texts)) == 2500
    assert texts[100:110] == workloads.first_texts(10, start=100)


def test_useful_work_counts_shared_things_once(tiny):
    work = workloads.sts_work(1)
    model = worker._shape(tiny)
    nothing = [Completion("", "empty", None, None)] * len(work.requests)
    some = [Completion("w1 w2", None, None, None)] * len(work.requests)
    layers, head = 2 * 12 * 64 * 64, 8000 * 64

    def count(text: str) -> int:
        return len(text.split())

    prompts = {p for r in work.requests for p in (r.prompt, *r.counter_prompts)}
    assert len(prompts) == 3
    read = sum(map(count, prompts))  # beginnings are counted once, the rest of each prompt once
    found = workloads.useful_flops(work, nothing, model, count, count)
    assert found == 2 * (read * layers + 3 * head)
    assert workloads.useful_flops(work, some, model, count, count) - found == 2 * 2 * 2 * (1 + 2 + 3) * (layers + head)


def rounds_of(*rates: float, rows: int = 96, texts: tuple[str, ...] = ("a", "b")) -> list[dict]:
    same = {"wall_s": 20.0, "cpu_s": 10.0, "client_cpu_s": None, "tokens": 40, "rows": rows, "peak_gpu_mb": None}
    memory = {"loading_peak_mb": 5.0, "loaded_rss_mb": 100.0}
    return [
        same
        | memory
        | {"asked": 10 * r, "accepted": 5 * r, "useful_gflop": 5.0 * r, "peak_rss_mb": 100.0 + r}
        | {"facts": {}, "texts": list(texts)}
        for r in rates
    ]


def summarised(runs: dict, counted: str = "asked", on_cpu: bool = True) -> dict:
    return report.summary({"runs": runs, "counted": counted}, {"float32": 30.0, "bfloat16": 60.0}, on_cpu)


def test_the_summary_has_medians_spreads_and_ratios_of_equal_rounds():
    runs = {"original float32": rounds_of(1, 2, 3), "engine float32": rounds_of(20, 30, 90)}
    found = summarised(runs)
    engine = found["variants"]["engine float32"]
    assert (engine["rate"], engine["spread"]) == (30, [20, 90])
    assert engine["roofline_fraction"] == 0.5
    assert (engine["peak_rss_mb"], engine["loaded_rss_mb"], engine["writing_mb"]) == (190, 100, 90)
    assert (engine["same_texts"], engine["texts_compared"]) == (1.0, 6)
    assert (engine["accepted_share"], engine["tokens_per_text"]) == (0.5, round(120 / 1400, 2))
    assert found["ratios"] == {"engine float32 / original float32": {"median": 20, "low": 15, "high": 30}}
    assert summarised(runs, "accepted")["variants"]["engine float32"]["rate"] == 15
    assert summarised(runs, on_cpu=False)["variants"]["engine float32"]["rate"] == 15


def test_texts_are_compared_with_batched_float32_and_memory_at_equal_rows_and_dtype():
    runs = {
        "engine bfloat16": rounds_of(10, texts=("a", "x", "y")),
        "batched bfloat16": rounds_of(20),
        "batched float32": rounds_of(50, 50),
        "engine float32": rounds_of(40, 40, rows=512),
        "llama.cpp q4_k_m": rounds_of(4, texts=("?",)),
    }
    found = summarised(runs)
    assert found["variants"]["engine bfloat16"]["same_texts"] == 0.5
    assert found["variants"]["batched float32"]["same_texts"] is None
    assert found["memory_ratios"] == {"engine bfloat16 / batched bfloat16": {"peak": 0.9167, "writing": 0.5}}
    assert found["variants"]["llama.cpp q4_k_m"]["roofline_fraction"] is None
    rows = report.table({"cases": {"work, lm": found}, "skipped": {"other": "no model"}}).splitlines()
    bfloat16 = next(row for row in rows if row.startswith("| work, lm | engine bfloat16 |")).split(" | ")
    assert bfloat16[-5:-3] == ["0.5x", "0.2x"]  # over the same dtype, over float32
    assert "| 2.5x |" in rows[2] and rows[2].endswith("| 2.5x |")  # over llama.cpp
    assert rows[-1] == "left out: other: no model"


@pytest.mark.slow("runs a benchmark")
def test_the_command_measures_every_variant_and_writes_json(tmp_path):
    out = tmp_path / "results.json"
    options = ["--quick", "--only", "sts-x2, ", "--out", str(out)]
    result = CliRunner().invoke(engine_throughput.app, options, catch_exceptions=False)
    assert result.exit_code == 0
    found = json.loads(out.read_text())
    variants = found["cases"]["sts-x2, gpt2-tiny"]["variants"]
    assert set(variants) == {"original float32", "batched float32", "engine float32", "engine bfloat16"}
    assert variants["engine float32"]["same_texts"] == 1.0
    assert all(row["rate"] > 0 and row["peak_rss_mb"] >= row["loaded_rss_mb"] > 100 for row in variants.values())
    assert found["roofline"]["best"]["float32"] > 0
    assert "| sts-x2, gpt2-tiny | engine float32 |" in result.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_gpu_preset_says_that_there_is_no_gpu():
    result = CliRunner().invoke(engine_throughput.app, ["--preset", "h200"])
    assert isinstance(result.exception, InputError)
    assert "no CUDA GPU" in str(result.exception)
    unknown = CliRunner().invoke(engine_throughput.app, ["--preset", "tpu"])
    assert "allowed: cpu, lm, trial, quick, h200" in str(unknown.exception)

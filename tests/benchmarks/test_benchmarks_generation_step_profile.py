from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from benchmarks.generation import step_profile
from benchmarks.generation.step_profile import ATTENTION, BODY, PARTS
from benchmarks.generation.throughput import worker
from hub.errors import InputError, RunError


def event(name: str, own: float, caller: SimpleNamespace | None = None) -> SimpleNamespace:
    return SimpleNamespace(name=name, self_cpu_time_total=own, cpu_parent=caller)


def test_every_microsecond_goes_to_the_part_of_its_callers():
    body = event(BODY, 1)
    attention = event(ATTENTION, 2, body)
    linear = event("aten::linear", 4, body)
    events = [
        body,
        attention,
        event("aten::bmm", 8, attention),
        linear,
        event("aten::t", 16, linear),
        event("aten::mul", 32, body),
        event("aten::scaled_dot_product_attention", 64, body),
        event("mkldnn::_linear_pointwise", 128),
        event("aten::logsumexp", 256),
    ]
    assert step_profile.parts(events) == {
        PARTS[0]: 20,
        PARTS[1]: 74,
        PARTS[2]: 33,
        PARTS[3]: 128,
        PARTS[4]: 256,
        PARTS[5]: 0,
    }


def test_steps_begin_when_prompts_are_read_and_end_after_their_number():
    told = []
    steps = step_profile.Steps(2, 32, lambda: told.append("begin"), lambda: told.append("end"))
    for tokens in (90, 60, 32, 31, 20, 10):
        steps(None, (), {"input_ids": SimpleNamespace(numel=lambda n=tokens: n)})
    assert (told, steps.rows) == (["begin", "end"], [32, 31])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "gpt2-tiny"
    worker.make_model("gpt2-tiny", folder, [12])
    return folder


def test_a_step_of_a_tiny_model_is_divided_into_all_parts(tiny):
    result = CliRunner().invoke(step_profile.app, [str(tiny), "--rows", "24", "--steps", "2"], catch_exceptions=False)
    assert result.exit_code == 0
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines() if line[:1] == "|"]
    shares = {row[0]: float(row[1]) for row in table[2:]}
    whole = shares.pop("**a step**")
    assert tuple(shares) == PARTS and all(value > 0 for value in shares.values())
    assert sum(shares.values()) == pytest.approx(whole, abs=0.5)


def test_texts_that_end_too_early_and_a_folder_without_a_model_are_one_clear_line(tiny, tmp_path):
    early = CliRunner().invoke(step_profile.app, [str(tiny), "--rows", "24", "--steps", "30"])
    assert isinstance(early.exception, RunError) and "lower --steps" in str(early.exception)
    missing = CliRunner().invoke(step_profile.app, [str(tmp_path)])
    assert isinstance(missing.exception, InputError)

"""The table of bad inputs (``benchmarks.bad_inputs``): what needs no process of its own is refused here as it says."""

import shlex
import sys
from types import SimpleNamespace

import pytest
from command_outcomes import outcome_of

import sts_dino.cli
from benchmarks.bad_inputs.case import LM, Box, make_world
from benchmarks.bad_inputs.cases import CASES
from benchmarks.bad_inputs.page import page
from benchmarks.bad_inputs.run import Refusal, faults

HERE = [case for case in CASES if not case.own_process]


def refusal(words):
    """``sts-dino`` with these words, in this process; its seconds are not measured."""
    app = sts_dino.cli.new_app()
    found = outcome_of(SimpleNamespace(app=lambda given: app(given, prog_name="sts-dino")), *words)
    return Refusal(found.code, found.told, found.printed, cpu_s=0, wall_s=0)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    place = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.syspath_prepend(place)
        make_world(place, lambda words: pytest.fail(found.told) if (found := refusal(words)).code else None)
        yield place
    sys.modules.pop("letters", None)


@pytest.mark.parametrize("case", HERE, ids=lambda case: case.did)
def test_it_is_refused_in_one_line_that_says_what_to_do(case, world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    box = Box(tmp_path, world)
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    case.make(box)
    with case.during(box) as given:
        found = refusal(shlex.split(case.words.format(lm=LM, **given)))
    assert faults(case, found) == []


def test_every_command_has_its_cases_and_each_its_own_words():
    assert len({case.did for case in CASES}) == len(CASES)
    assert all(case.said and all(case.said) for case in CASES)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"code": 0}, "exit code 0, not 2"),
        ({"told": ""}, "0 lines of error"),
        ({"told": "error: a\nerror: b\n"}, "2 lines of error"),
        ({"told": "error: something else\n"}, "does not say"),
        ({"told": "error: x\nTraceback (most recent call last):\n"}, "a traceback"),
        ({"cpu_s": 2.5}, "2.5 CPU-seconds"),
    ],
)
def test_a_refusal_that_is_not_as_it_should_be_is_a_fault(changes, fault):
    case = next(case for case in CASES if case.did == "a misspelt recipe")
    good = {"code": 2, "told": f"error: {'; '.join(case.said)}\n", "printed": "", "cpu_s": 0.1, "wall_s": 0.1}
    assert faults(case, Refusal(**good)) == []
    assert any(fault in one for one in faults(case, Refusal(**good | changes)))


def test_a_message_is_quoted_on_the_page_as_it_is():
    row = {
        "did": "a bar",
        "command": "sts-dino new x",
        "message": "a `b` | <c>",
        "code": 2,
        "cpu_s": 0.5,
        "wall_s": 1,
    }
    text = page([row])
    assert "1 cases" in text and "## sts-dino new" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 3 and "&#60;c&#62;" in lines[2] and "<c>" not in lines[2] and "| 2 | 0.5 | 1.0 |" in lines[2]

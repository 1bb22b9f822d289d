"""Untrusted chat templates: rendered as by the library, within limits; a failure is one line."""

import os
import signal

import psutil
import pytest
from tiny_lm import make_tokenizer

from generation.inputs import chat_template
from generation.inputs.chat_template import ChatTemplate
from hub.errors import InputError, RunError

TURNS = "{{ bos_token }}{% for m in messages %}<user>{{ m.content | trim }}</user>\n{% endfor %}"
TURNS += "{% if add_generation_prompt %}<bot>{% endif %}"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLES = "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}"
BOMBS = {
    "loops": (LOOPS, "too much time or memory"),
    "power": ("{{ 9 ** (9 ** 9) }}", "too much time or memory"),
    "doubling": (DOUBLES, "[Mm]emory"),
    "long": ("{{ 'x' * 10**6 }}", r"adds \d+ characters"),
    "depth": ("{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}", "raises|too much"),
    "refuses": ("{{ raise_exception('no system turn\\x1b[31m') }}", r"raises 'TemplateError: no .*\\x1b\[31m'"),
    "syntax": ("{% for %}", "raises .TemplateSyntaxError"),
    "reaches out": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "raises .SecurityError"),
}


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    tokenizer = make_tokenizer()
    tokenizer.bos_token = "<|end|>"
    return ChatTemplate(tokenizer, seconds=1.0)


def test_a_turn_is_the_librarys(template):
    template._tokenizer.chat_template = TURNS
    for text in ("Two dogs.", '  naïve – 二\u2028\n"quoted" {{ 7 * 7 }} ', "x" * 100_000):
        turn = [{"role": "user", "content": text}]
        wanted = template._tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        assert template.turn(text) == wanted


@pytest.mark.parametrize("name", BOMBS)
def test_a_template_that_fails_or_takes_too_much_is_one_line(name, template):
    template._tokenizer.chat_template, words = BOMBS[name]
    with pytest.raises(InputError, match=rf"^model\.chat_template: .*({words})") as caught:
        template.turn("Two dogs.")
    assert len(str(caught.value)) < 500 and "\x1b" not in str(caught.value) and "\n" not in str(caught.value)
    template._tokenizer.chat_template = TURNS
    assert template.turn("Two dogs.").endswith("<bot>"), "the next turn has a process again"


def test_a_model_without_a_template_says_so(template):
    template._tokenizer.chat_template = None
    with pytest.raises(InputError, match=r"model\.chat_template: the model has none; --set"):
        template.turn("Two dogs.")


def test_the_process_has_no_secret_and_ends_with_its_template(monkeypatch):
    seen, start = [], chat_template.subprocess.Popen

    def noted(words, env, **options):
        seen.append((env, start(words, env=env, **options)))
        return seen[-1][1]

    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    monkeypatch.setattr(chat_template.subprocess, "Popen", noted)
    template = ChatTemplate(make_tokenizer())
    template._tokenizer.chat_template = TURNS
    template.turn("A dog.")
    del template
    ((env, process),) = seen
    assert "hf_planted" not in env.values() and process.returncode is not None


def test_a_process_that_ends_for_another_reason_is_no_fault_of_the_template(tmp_path, monkeypatch):
    """Killed for want of memory, say, or without transformers; and nothing of it is left."""
    template = ChatTemplate(make_tokenizer())
    template._tokenizer.chat_template = TURNS
    template.turn("A dog.")
    process = template._process
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(RunError, match=r"^model\.chat_template: .* exit code -9; is there memory left") as caught:
        template.turn("A dog.")
    assert not isinstance(caught.value, InputError) and not psutil.pid_exists(process.pid)
    (tmp_path / "transformers.py").write_text("raise SystemExit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # where its modules are looked for as well
    with pytest.raises(RunError, match=r"exit code 7; .* can transformers be imported\?"):
        template.turn("A dog.")

"""Untrusted chat templates: rendered as by the library, within limits; a failure is one line."""

import os
import signal
import subprocess
import sys
from multiprocessing import get_context
from types import SimpleNamespace

import psutil
import pytest
from tiny_lm import make_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig

from sts_dino.generation.inputs import chat_template
from sts_dino.generation.inputs.chat_process import TIME
from sts_dino.generation.inputs.chat_template import ChatTemplate, PromptEncoder
from sts_dino.hub.errors import InputError, RunError

TURNS = "{{ bos_token }}{% for m in messages %}<user>{{ m.content | trim }}</user>\n{% endfor %}"
TURNS += "{% if add_generation_prompt %}<bot>{% endif %}"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLES = (
    "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}"
)
BOMBS = {
    "loops": (LOOPS, "too much time or memory"),
    "power": ("{{ 9 ** (9 ** 9) }}", "too much time or memory"),
    "doubling": (DOUBLES, "[Mm]emory"),
    "long": ("{{ 'x' * 10**6 }}", r"adds \d+ characters"),
    "depth": ("{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}", "raises|too much"),
    "refuses": (
        "{{ raise_exception('no system turn\\x1b[31m') }}",
        r"raises 'TemplateError: no .*\\x1b\[31m'",
    ),
    "drops": ("<user>hello<bot>", "drops, cuts or changes the message 'Two dogs"),
    "cuts": ("{{ messages[0].content[:8] }}", "drops, cuts or changes"),
    "upper case": ("{{ messages[0].content | upper }}", "drops, cuts or changes"),
    "doubles": ("{{ messages[0].content }}{{ messages[0].content }}", "repeats the message"),
    "random": ("{{ range(99999) | random }}{{ messages[0].content }}", "in two ways"),
    "system": (
        "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ messages[-1].content }}",
        "needs a system turn, which no prompt has; --set model.chat_template=false",
    ),
    "tools": (
        "{% if not tools %}{{ raise_exception('no tools') }}{% endif %}"
        "{{ tools[0].function.name }}{{ messages[-1].content }}",
        "needs tools, which no prompt has; --set model.chat_template=false",
    ),
    "syntax": ("{% for %}", "raises .TemplateSyntaxError"),
    "reaches out": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "raises .SecurityError"),
}


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    tokenizer = make_tokenizer()
    tokenizer.bos_token = "<|end|>"
    return ChatTemplate(tokenizer, seconds=1.0)


def use(template: ChatTemplate, text: str | None) -> None:
    """Give the tokenizer another template, as if it had been loaded with it."""
    template._tokenizer.chat_template = text
    vars(template).pop("_template", None)


def test_a_turn_is_the_librarys(template):
    use(template, TURNS)
    for text in ("Two dogs.", '  naïve – 二\u2028\n"quoted" {{ 7 * 7 }} ', "x" * 100_000):
        turn = [{"role": "user", "content": text}]
        wanted = template._tokenizer.apply_chat_template(
            turn, tokenize=False, add_generation_prompt=True
        )
        assert template.render_turn(text) == wanted


@pytest.mark.parametrize("name", BOMBS)
def test_a_template_that_fails_or_takes_too_much_is_one_line(name, template):
    text, words = BOMBS[name]
    use(template, text)
    with pytest.raises(InputError, match=rf"^model\.chat_template: .*({words})") as caught:
        template.render_turn("Two dogs.")
    assert (
        len(str(caught.value)) < 500
        and "\x1b" not in str(caught.value)
        and "\n" not in str(caught.value)
    )
    use(template, TURNS)
    assert template.render_turn("Two dogs.").endswith("<bot>"), "the next turn has a process again"


def test_the_time_of_a_template_is_pinned_and_recorded(template):
    use(template, "{{ strftime_now('%d %b %Y %H:%M') }} {{ messages[0].content }}")
    assert template.render_turn("Two dogs.") == "01 Jan 2026 12:00 Two dogs."
    assert template.describe() == {"chat_template_time": TIME}
    use(template, TURNS)
    assert template.describe() == {}


def test_an_end_that_the_tokenizer_adds_is_left_off_and_a_start_stays():
    plain = make_tokenizer()
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    ids = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("<s>", "</s>")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        "<s> $A </s>", special_tokens=ids
    )
    seen = PromptEncoder(tokenizer, LlamaConfig(vocab_size=len(tokenizer)), chat=False)
    prompt = 'Sentence 1: "A dog."\nSentence 2: "'
    assert tokenizer(prompt).input_ids[-1] == ids[1][1]
    assert (
        seen.encode(prompt) == seen.encode_prefix(prompt) == (ids[0][1], *plain(prompt).input_ids)
    )
    assert seen.format_tokens('A "') == "<s> 'A' ' \"'"
    assert [seen.is_control(text) for text in ("a </s> b", "a <|end|> b", "a <b> c")] == [
        True,
        True,
        False,
    ]
    small = PromptEncoder(tokenizer, LlamaConfig(vocab_size=len(plain)), chat=False)
    with pytest.raises(InputError, match=r"gets the token <s> of id 330, beyond the 330 rows"):
        small.encode(prompt)


def test_a_model_without_a_template_says_so(template):
    use(template, None)
    with pytest.raises(InputError, match=r"model\.chat_template: the model has none; --set"):
        template.render_turn("Two dogs.")


def test_the_process_has_no_secret_and_ends_with_its_template(monkeypatch):
    seen, start = [], chat_template.subprocess.Popen

    def noted(words, env, **options):
        seen.append((env, start(words, env=env, **options)))
        return seen[-1][1]

    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    monkeypatch.setattr(chat_template.subprocess, "Popen", noted)
    template = ChatTemplate(make_tokenizer())
    template._tokenizer.chat_template = TURNS
    template.render_turn("A dog.")
    del template
    ((env, process),) = seen
    assert "hf_planted" not in env.values() and process.returncode is not None


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux alone")
@pytest.mark.parametrize("hard_limit", ["limit", "resource.RLIM_INFINITY"])
def test_a_lower_limit_of_the_machine_stays(hard_limit):
    code = (
        "import resource, runpy, sys\n"
        "limit = 1 << 30\n"  # less than the process has and may take more
        f"resource.setrlimit(resource.RLIMIT_AS, (limit, {hard_limit}))\n"
        "runpy.run_path(sys.argv[1])['cap_memory']()\n"
        "assert resource.getrlimit(resource.RLIMIT_AS) == (limit, limit)\n"
    )
    command = [sys.executable, "-c", code, chat_template.chat_process.__file__]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_an_interrupted_question_leaves_its_answer_to_nobody(monkeypatch):
    template = ChatTemplate(make_tokenizer())
    template._tokenizer.chat_template = TURNS
    template.render_turn("A dog.")
    process = template._process

    def interrupt() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "stdout", SimpleNamespace(readline=interrupt))
    with pytest.raises(KeyboardInterrupt):
        template.render_turn("A cat.")
    monkeypatch.undo()
    assert "A bird." in template.render_turn("A bird.")


def test_a_forked_process_leaves_the_rendering_process_to_the_original():
    template = ChatTemplate(make_tokenizer())
    template._tokenizer.chat_template = TURNS
    turn = template.render_turn("A dog.")
    process = template._process
    # the call that garbage collection makes; it must not wait for the end of the original's process
    arguments = (process, os.getpid())
    copy = get_context("fork").Process(target=chat_template._stop_process, args=arguments)
    copy.start()
    copy.join(20)
    exit_code = copy.exitcode  # None: it still waits
    copy.kill()
    copy.join()
    assert exit_code == 0
    assert template._process is process and template.render_turn("A dog.") == turn


def test_a_process_that_ends_for_another_reason_is_no_fault_of_the_template(tmp_path, monkeypatch):
    """Killed for want of memory, say, or without transformers; and nothing of it is left."""
    template = ChatTemplate(make_tokenizer())
    template._tokenizer.chat_template = TURNS
    template.render_turn("A dog.")
    process = template._process
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(
        RunError, match=r"^model\.chat_template: .* exit code -9; is there memory left"
    ) as caught:
        template.render_turn("A dog.")
    assert not isinstance(caught.value, InputError) and not psutil.pid_exists(process.pid)
    (tmp_path / "transformers.py").write_text("raise SystemExit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # where its modules are looked for as well
    with pytest.raises(RunError, match=r"exit code 7; .* can transformers be imported\?"):
        template.render_turn("A dog.")

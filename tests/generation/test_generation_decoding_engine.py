import shutil
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from decoding_requests import prompt, requests
from reference_decoding import reference
from tiny_lm import load_engine, make_lm
from transformers import AutoModelForCausalLM

from generation.backends import batch as live_batch
from generation.backends.engine import Engine
from generation.backends.protocol import Request, complete
from hub.contract.recipe import DecodingParameters
from hub.errors import InputError, RunError

OTHERS = pytest.mark.slow("the architectures beside the built-in model's")
KINDS = ("llama", *(pytest.param(kind, marks=OTHERS) for kind in ("gpt2", "opt", "qwen3")))


@pytest.fixture(scope="module", params=KINDS)
def directory(request, tmp_path_factory) -> Path:
    return make_lm(tmp_path_factory.mktemp("lm") / request.param, request.param)


@pytest.fixture(scope="module")
def loaded(directory) -> Engine:
    engine = load_engine(directory)
    assert engine.attention.shared, "the fast path must take this architecture"
    return engine


@pytest.fixture
def engine(loaded, monkeypatch) -> Engine:
    """With all its rows, whatever memory an earlier test left it."""
    monkeypatch.setattr(loaded, "_most_rows", None)
    return loaded


@pytest.fixture(scope="module")
def original(directory):
    """The model as transformers loads it, for the reference."""
    return AutoModelForCausalLM.from_pretrained(directory).eval()


@pytest.mark.parametrize(
    "settings",
    [
        DecodingParameters(max_new_tokens=12),
        DecodingParameters(decay_constant=0.0, max_new_tokens=12),
        DecodingParameters(top_k=0, max_new_tokens=12),
        DecodingParameters(top_p=1.0, max_new_tokens=12),
        DecodingParameters(max_new_tokens=1),
        DecodingParameters(max_new_tokens=12, text_end="line"),
    ],
    ids=["paper", "no-debiasing", "no-top-k", "no-top-p", "one-token", "line"],
)
def test_texts_equal_the_reference(engine, original, settings):
    asked = requests(12)
    ours = [completion.text for completion in complete(engine, asked, settings, 8)]
    assert ours == [reference(original, engine.tokenizer, request, settings) for request in asked]
    assert len(set(ours)) >= 3


PREFIXES = tuple(prompt(number, "").rsplit('"', 3)[0] + '"' for number in range(3))


@pytest.mark.slow("writes texts in all orders and batches, to the same bytes")
@pytest.mark.parametrize("top_k", [5, 0], ids=["top-k", "no-top-k"])
def test_nothing_depends_on_batch_size_order_or_history(engine, top_k):
    """Texts, and log-probabilities and margins to the last bit: rows leave and enter, blocks of 32 tokens fill up."""
    settings, asked = DecodingParameters(top_k=top_k, top_p=0.95, max_new_tokens=45), requests(40)
    whole = complete(engine, asked, settings, 96, PREFIXES)
    assert max(len(engine.tokenizer(done.text).input_ids) for done in whole) > 40
    assert complete(engine, asked[:6], settings, 1, PREFIXES) == whole[:6]
    assert complete(engine, asked, settings, 7, PREFIXES) == whole
    assert complete(engine, asked[::-1], settings, 20, PREFIXES)[::-1] == whole
    assert complete(engine, asked[9:], settings, 33, PREFIXES) == whole[9:]


def test_shared_beginnings_change_no_text(engine):
    settings, asked = DecodingParameters(max_new_tokens=20), requests(24)
    apart, shared = (complete(engine, asked, settings, 50, prefixes) for prefixes in ((), PREFIXES))
    assert [done.text for done in apart] == [done.text for done in shared]
    assert [done.log_prob for done in apart] == pytest.approx([done.log_prob for done in shared], abs=1e-4)


def test_requests_added_while_it_runs_are_written(engine):
    settings, asked = DecodingParameters(max_new_tokens=12), requests(12)
    queue, written = deque(asked[:6]), {}
    for request, done in engine.stream(queue, settings, 8, PREFIXES):
        written[request] = done
        if len(written) <= 6:
            queue.appendleft(asked[5 + len(written)])
    assert [written[request] for request in asked] == complete(engine, asked, settings, 96, PREFIXES)


def test_out_of_memory_halves_the_rows_and_loses_nothing(engine, monkeypatch, capsys):
    settings, asked = DecodingParameters(max_new_tokens=12), requests(18)
    wanted, plain = complete(engine, asked, settings, 64), live_batch.LiveBatch.next_pass

    def narrow(batch):
        if batch.rows > 9:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(batch)

    monkeypatch.setattr(live_batch.LiveBatch, "next_pass", narrow)
    assert complete(engine, asked, settings, 64) == wanted
    assert "out of memory with 64 rows: going on with 32" in capsys.readouterr().err
    for batch_size in (64, None):  # the next shards begin with what there was memory for
        assert complete(engine, asked, settings, batch_size) == wanted
    assert "out of memory" not in capsys.readouterr().err


def test_memory_that_runs_out_when_texts_end_loses_none(engine, monkeypatch):
    settings, asked = DecodingParameters(max_new_tokens=12), requests(9)
    wanted, finish, failures = complete(engine, asked, settings, 64), engine._finish, [MemoryError()]

    def fails_once(*written):
        if failures:
            raise failures.pop()
        return finish(*written)

    monkeypatch.setattr(engine, "_finish", fails_once)
    assert complete(engine, asked, settings, 64) == wanted and not failures


def test_the_plain_loop_remembers_the_rows_that_fit(engine, original, monkeypatch, capsys):
    settings, asked = DecodingParameters(max_new_tokens=12), requests(9)
    engine = Engine(original, engine.tokenizer, shared=False)
    wanted, plain = complete(engine, asked, settings, 64), engine._plain.complete

    def narrow(prompts, *more):
        if sum(len(rows) for rows in prompts) > 9:
            raise MemoryError("Unable to allocate 9 GiB")  # numpy's
        return plain(prompts, *more)

    monkeypatch.setattr(engine._plain, "complete", narrow)
    for _ in range(2):
        assert complete(engine, asked, settings, 64) == wanted
    assert capsys.readouterr().err.count("out of memory with 64 rows") == 1


def test_out_of_memory_while_making_room_loses_nothing(directory, monkeypatch):
    settings, asked = DecodingParameters(max_new_tokens=12), requests(18)
    wanted = complete(load_engine(directory), asked, settings, 64, PREFIXES)
    engine, plain, calls = load_engine(directory), live_batch.KVCache.grow, []

    def once(store, *room):
        calls.append(room)
        if len(calls) in (2, 6, 9):  # while beginnings are read, while a text is let in, while a row gets its blocks
            raise torch.OutOfMemoryError("CUDA out of memory")
        plain(store, *room)

    monkeypatch.setattr(live_batch.KVCache, "grow", once)
    assert complete(engine, asked, settings, 64, PREFIXES) == wanted
    assert len(calls) > 9


def test_memory_for_not_even_one_text_is_an_error(engine, monkeypatch):
    def none(batch):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(live_batch.LiveBatch, "next_pass", none)
    with pytest.raises(RunError, match="too small for one text at a time"):
        complete(engine, requests(2), DecodingParameters(max_new_tokens=12), 4)


def test_debiasing_changes_texts_only_where_there_are_counter_prompts(engine):
    asked = requests(24)
    on = complete(engine, asked, DecodingParameters(top_k=0, top_p=1.0, max_new_tokens=20), 96)
    off = complete(engine, asked, DecodingParameters(decay_constant=0.0, top_k=0, top_p=1.0, max_new_tokens=20), 96)
    changed = [a.text != b.text for a, b in zip(on, off, strict=True)]
    assert not any(change for change, request in zip(changed, asked, strict=True) if not request.counter_prompts)
    assert any(changed)


@pytest.mark.slow("writes texts in all orders and batches, to the same bytes")
def test_the_end_of_text_is_never_drawn_where_a_quotation_mark_ends_a_text(engine, monkeypatch):
    """The original DINO code bans it before debiasing; where a line ends a text, it may be drawn, and ends the text."""
    end = engine.tokenizer.eos_token_id
    monkeypatch.setattr(engine, "_finish", lambda tokens, sums, settings: list(tokens))
    quoted, lines = (
        list(complete(engine, requests(60), DecodingParameters(top_k=0, top_p=1.0, text_end=text_end), 96))
        for text_end in ("quotation_mark", "line")
    )
    assert not any(end in tokens for tokens in quoted)
    assert not any(end in tokens[:-1] for tokens in lines) and any(tokens[-1] == end for tokens in lines)
    assert any('"' in engine.tokenizer.decode(tokens[:-1]) for tokens in lines)


def test_the_ends_of_turns_count_as_ends(engine, monkeypatch):
    """Chat models list several ends in their generation settings; generate() stops at each."""
    monkeypatch.setattr(engine.model.generation_config, "eos_token_id", [0, 7])
    assert engine._end_tokens() == [0, 7]
    monkeypatch.setattr(engine.model.generation_config, "eos_token_id", None)
    assert engine._end_tokens() == [0]


def test_statistics_and_problems(engine):
    for request, done in zip(
        requests(30),
        complete(engine, requests(30), DecodingParameters(top_k=0, top_p=1.0, max_new_tokens=9), 7),
        strict=True,
    ):
        assert done.log_prob < 0 and (done.margin is None) == (not request.counter_prompts)
        assert done.problem in (None, "not_closed", "line_break", "empty")
        assert '"' not in done.text and "\n" not in done.text


def test_a_prompt_at_the_limit_of_the_context_is_written(engine, original):
    settings, full = DecodingParameters(max_new_tokens=10), prompt(0, "A man " + "sings and " * 80)
    ids = engine.tokenizer(full).input_ids[: engine.context - settings.max_new_tokens]
    asked = Request(engine.tokenizer.decode(ids), (), 5)
    assert len(engine.encode(asked.prompt)) == engine.context - settings.max_new_tokens
    assert complete(engine, [asked], settings)[0].text == reference(original, engine.tokenizer, asked, settings)
    longer = Request(engine.tokenizer.decode(ids) + " and", (), 5)
    with pytest.raises(InputError, match="exceed the model's context"):
        complete(engine, [longer], settings)


def test_a_prompt_beyond_the_context_is_an_input_error(engine):
    with pytest.raises(InputError, match="exceed the model's context of 256"):
        complete(engine, [Request("word " * 300 + '"', (), 1)], DecodingParameters(), 4)


def test_a_folder_without_a_model_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="tokenizer cannot be loaded"):
        load_engine(tmp_path)


@pytest.mark.parametrize(
    ("written", "text", "problem"),
    [
        (["A dog", '."', ""], "A dog.", None),
        (["A dog", ".\n"], "A dog.", "line_break"),
        (["A\ndog", '"'], "A", "line_break"),
        (["A dog", "<|end|>"], "A dog", "not_closed"),
        (["A dog"], "A dog", "not_closed"),
        ([" ", '"'], "", "empty"),
    ],
)
def test_why_a_text_ends(engine, written, text, problem):
    tokens = [token for part in written for token in engine.tokenizer(part, add_special_tokens=False).input_ids]
    done = engine._finish(tokens, np.array([-6.0, -8.0]), DecodingParameters(max_new_tokens=12))
    assert (done.text, done.problem) == (text, problem)
    assert done.log_prob == -6.0 / len(tokens) and done.margin == pytest.approx(2.0 / len(tokens))


@pytest.mark.parametrize("kind", ["bloom", "gpt_neo", "gemma2"])
def test_architectures_with_an_attention_of_their_own_take_the_plain_loop(kind, tmp_path, capsys):
    directory = make_lm(tmp_path, kind)
    engine, original = (
        load_engine(directory),
        AutoModelForCausalLM.from_pretrained(directory),
    )
    assert not engine.attention.shared and "the plain, slower loop" in capsys.readouterr().err
    settings, asked = DecodingParameters(max_new_tokens=12), requests(12)
    wanted = [reference(original.eval(), engine.tokenizer, request, settings) for request in asked]
    for rows in (6, 96):
        assert [done.text for done in complete(engine, asked, settings, rows)] == wanted


def test_the_plain_loop_writes_beyond_a_sliding_window(tmp_path):
    engine = load_engine(make_lm(tmp_path, "mistral", sliding_window=32))
    assert not engine.attention.shared and engine.context == 256
    assert complete(engine, [requests(1)[0]], DecodingParameters(max_new_tokens=12))[0].log_prob < 0


def test_a_model_with_fewer_key_heads_than_heads(tmp_path):
    directory = make_lm(tmp_path, "mistral", num_attention_heads=4, num_key_value_heads=2)
    engine, original = (
        load_engine(directory),
        AutoModelForCausalLM.from_pretrained(directory),
    )
    settings, asked = DecodingParameters(max_new_tokens=12), requests(12)
    assert engine.attention.shared
    assert [done.text for done in complete(engine, asked, settings, 40, PREFIXES)] == [
        reference(original.eval(), engine.tokenizer, request, settings) for request in asked
    ]


def test_bfloat16_writes_texts_and_the_same_again(directory):
    engine = load_engine(directory, dtype="bfloat16")
    assert engine.attention.shared
    settings, asked = DecodingParameters(max_new_tokens=12), requests(12)
    assert complete(engine, asked, settings, 40) == complete(engine, asked, settings, 40)


CHAT = "{% for m in messages %}<user>{{ m.content }}</user>{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"


def test_a_chat_template_holds_the_prompt_and_the_answer_is_opened(directory, tmp_path):
    engine = load_engine(directory, chat_template=True)
    engine.tokenizer.chat_template = CHAT
    asked = prompt(0, "Two dogs.")
    assert engine.tokenizer.decode(engine.encode(asked)) == f"<user>{asked[:-1]}</user><bot>" + '"'
    settings = DecodingParameters(max_new_tokens=12)
    raw = load_engine(directory)
    rendered = [Request(f"<user>{request.prompt[:-1]}</user><bot>" + '"', (), request.seed) for request in requests(9)]
    plain = [Request(request.prompt, (), request.seed) for request in requests(9)]
    texts = [
        [done.text for done in complete(*pair, settings, 20, PREFIXES)] for pair in ((engine, plain), (raw, rendered))
    ]
    assert texts[0] == texts[1] and engine._prefix_ids


def test_a_tokenizer_that_cannot_serve_is_an_input_error(directory, tmp_path):
    folder = tmp_path / "lm"
    shutil.copytree(directory, folder)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match="its tokenizer"):
        load_engine(folder)


def test_an_unknown_device_and_a_gpu_that_is_not_there_are_input_errors(directory):
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        load_engine(directory, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no CUDA device"):
            load_engine(directory, device="cuda")

"""The engine: the texts of the slow reference for every family, setting and kind of request,
whatever the batch.

A request may be debiased, guided, scored under further prompts, and have its own λ and γ; a batch
mixes all of them.
"""

import threading
from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from reference_decoding import decode, prompt, reference, requests
from tiny_lm import FAMILIES, MODELS, PATHS, load_engine, make_family, make_lm
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from sts_dino.generation.backends import batch as live_batch
from sts_dino.generation.backends import engine as engine_module
from sts_dino.generation.backends import load_model, output_layer, shared_attention
from sts_dino.generation.backends.batch import PlainBatch
from sts_dino.generation.backends.engine import Engine
from sts_dino.generation.backends.protocol import Request, complete
from sts_dino.hub.contract.recipe import DecodingParameters
from sts_dino.hub.errors import InputError, RunError

PLAIN_PROMPT = 'Sentence 2: "'
# λ, γ of a request
OWN = [(None, None), (0.0, 0.0), (5.0, None), (None, 1.5), (1e4, 0.0), (30.0, 0.2), (0.0, 0.8)]
PREFIXES = tuple(prompt(number, "").rsplit('"', 3)[0] + '"' for number in range(3))
SETTINGS = DecodingParameters(max_new_tokens=12)
GUIDED = DecodingParameters(max_new_tokens=12, guidance=0.5)
SLOW = pytest.mark.slow("the families beside those with most of the oddities")
# windows and one key head; padded vocabulary; soft caps: the plain loop; states: the plain loop
EVERYDAY = ("gemma3", "qwen2.5", "gemma2", "qwen3.5")
# soft caps, ALiBi, sinks, local attention, states: what the shared path does not know
PLAIN = {name for name, path in PATHS.items() if path == "plain"}
# logits that are no product of hidden states and a matrix
CAPPED = {"gemma4", "gemma4-sounds"}
# layers that carry a state: no batch may change a bit of a text
STATES = ["qwen3.5", *(pytest.param(name, marks=SLOW) for name in ("mamba2", "lfm2", "granite4-h"))]
NAMES = [name if name in EVERYDAY else pytest.param(name, marks=SLOW) for name in FAMILIES]
STATISTICS = [
    (n, GUIDED) if n in EVERYDAY else pytest.param(n, GUIDED, marks=SLOW) for n in FAMILIES
]


def made(folder: Path, name: str, **changes: object) -> Path:
    return (
        make_family(folder, name, **changes)
        if name in FAMILIES
        else make_lm(folder, name, **changes)
    )


@pytest.fixture(params=["in pieces", "whole"])
def logits(request, monkeypatch):
    """The tiny vocabularies are read as large ones are, or as a whole."""
    monkeypatch.setattr(
        output_layer, "SMALLEST_VOCABULARY", 1 if request.param == "in pieces" else 16_384
    )
    return request.param


@pytest.fixture(scope="module")
def loaded(lm) -> Engine:
    return load_engine(lm)


@pytest.fixture
def engine(loaded, monkeypatch) -> Engine:
    """With all its rows, whatever memory an earlier test left it."""
    monkeypatch.setattr(loaded, "_most_rows", None)
    return loaded


def original_of(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def guided(count: int) -> list[Request]:
    return [replace(one, plain_prompt=PLAIN_PROMPT) for one in requests(count)]


def mixed(count: int, settings: DecodingParameters) -> list[Request]:
    """Requests with all the pairs in ``OWN``, every second one scored; without γ there is no plain
    prompt.
    """
    found = []
    for number, one in enumerate(requests(count)):
        decay, guidance = OWN[number // 3 % len(OWN)]
        own = replace(one, decay_constant=decay, guidance=guidance, plain_prompt=PLAIN_PROMPT)
        if number % 2:
            own = replace(
                own,
                scored_prompts=tuple(prompt(place, one.prompt.split('"')[1]) for place in range(3)),
            )
        found.append(own if own.get_guidance(settings) else replace(own, plain_prompt=None))
    return found


def settings_of(request: Request, settings: DecodingParameters) -> DecodingParameters:
    own = {
        "decay_constant": request.get_decay_constant(settings),
        "guidance": request.get_guidance(settings),
    }
    return settings.model_copy(update=own)


def bare(request: Request) -> Request:
    return replace(request, decay_constant=None, guidance=None)


def expected(
    folder: Path, engine: Engine, asked: list[Request], settings: DecodingParameters
) -> list[str]:
    original = original_of(folder)
    return [reference(original, engine.tokenizer, one, settings_of(one, settings)) for one in asked]


@pytest.fixture
def tokens_of(monkeypatch):
    """The drawn tokens of each text, by its log_prob."""
    found, finish = {}, Engine._finish

    def noted(self, text, settings):
        done = finish(self, text, settings)
        found[done.log_prob] = list(text.tokens)
        return done

    monkeypatch.setattr(Engine, "_finish", noted)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_family_gives_tokens_and_log_probabilities_of_generate(
    name, tmp_path, capsys, monkeypatch, tokens_of
):
    """Whatever the batch, against one prompt in a batch of its own."""
    monkeypatch.setattr(output_layer, "SMALLEST_VOCABULARY", 1)
    engine, asked = load_engine(made(tmp_path, name)), mixed(21, GUIDED)
    assert engine.attention.shared == (name not in PLAIN), engine.attention.reason
    assert (engine._output is not None) == (engine.attention.shared and name not in CAPPED)
    assert ("the plain loop writes" in capsys.readouterr().err) == (name in PLAIN)
    original = original_of(tmp_path)
    wanted = [decode(original, engine.tokenizer, one, settings_of(one, GUIDED)) for one in asked]
    assert len({one.text for one in wanted}) >= 3
    for rows in (7, None):  # None: as many as the memory holds
        done = complete(engine, asked, GUIDED, rows)
        assert [tokens_of[one.log_prob] for one in done] == [one.tokens for one in wanted]
        assert [one.text for one in done] == [one.text for one in wanted]
        for found, one in zip(done, wanted, strict=True):
            assert found.log_prob == pytest.approx(one.log_prob, abs=2e-4)
            assert found.margin == (one.margin and pytest.approx(one.margin, abs=4e-4))


TABLE = Path("docs/engine.md")


def list_paths() -> str:
    """The table of families in docs/engine.md, made of those that the test above holds."""
    lines = ["| models | transformers' class | path |", "| --- | --- | --- |"]
    for path in ("shared", "plain"):
        models: dict[str, list[str]] = {}
        for name, family in FAMILIES.items():
            if PATHS[name] == path:
                class_name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family["kind"]]
                models.setdefault(class_name, []).append(MODELS[name])
        lines += [f"| {', '.join(names)} | `{kind}` | {path} |" for kind, names in models.items()]
    return "\n".join(lines)


def test_the_table_of_the_docs_has_the_tested_families():
    assert list_paths() in TABLE.read_text(encoding="utf-8"), list_paths()


@pytest.mark.parametrize("name", STATES)
def test_padding_never_reaches_a_state(name, tmp_path, monkeypatch):
    """Prompts of unequal lengths are read in passes of equal ones, and their states are copied."""
    engine, asked = load_engine(made(tmp_path, name)), mixed(21, GUIDED)
    assert "states" in engine.attention.reason and engine.model.state_bytes > 0
    masks = []

    def spy(model, given, kwargs):
        if kwargs["input_ids"].shape[1] > 1:
            masks.append(kwargs["attention_mask"])

    engine.model.register_forward_pre_hook(spy, with_kwargs=True)
    batch = complete(engine, asked, GUIDED, 96)
    assert len(masks) > 3 and all(mask is None or mask.all() for mask in masks)
    for one, request in zip(batch, asked, strict=True):
        alone = complete(engine, [request], GUIDED, 1)[0]
        assert alone.text == one.text
        assert alone.log_prob == pytest.approx(one.log_prob, abs=1e-5)


@torch.inference_mode()
def test_states_and_windows_of_prompts_of_all_lengths_are_joined(tmp_path):
    """A convolution and a window of 24 tokens, for prompts below, at and beyond it."""
    settings = {"head_dim": 16, "num_key_value_heads": 2, "sliding_window": 24}
    make_lm(tmp_path, "lfm3", layer_types=["conv", "sliding_attention"], **settings)
    model, numbers = original_of(tmp_path), np.random.default_rng(0)
    texts = [numbers.integers(5, 330, length).tolist() for length in (10, 20, 60, 23, 24, 25, 60)]
    batch, rows = PlainBatch(model, texts), [6, 0, 1, 2, 3, 4, 5, 5]
    texts = [texts[row] for row in rows]
    for _ in range(20):
        newest = numbers.integers(5, 330, len(texts)).tolist()
        texts = [[*text, token] for text, token in zip(texts, newest, strict=True)]
        batch.read_tokens(rows, newest)
        rows = list(range(len(texts)))
        for text, logits in zip(texts, batch.logits, strict=True):
            wanted = model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
            assert (logits - wanted).abs().max() < 1e-5


def test_states_take_memory_and_a_model_without_attention_has_no_keys(tmp_path, monkeypatch):
    """The number of rows is chosen for them, too."""
    engine = load_engine(made(tmp_path, "mamba2"))
    monkeypatch.setattr(load_model.psutil, "virtual_memory", lambda: Mock(available=2 * 10**7))
    with_states = engine.count_rows(SETTINGS)
    # 2 layers: 8 heads of 8 states of 8 numbers, and 4 tokens of the convolution's 96 channels
    assert engine.model.state_bytes == 2 * 4 * (8 * 8 * 8 + 4 * 96)
    engine.model.state_bytes = 0
    assert 16 < with_states < engine.count_rows(SETTINGS)


def test_the_context_of_long_rope_ends_with_its_first_range(tmp_path):
    """A longer text would change the positions of every row of its batch."""
    engine = load_engine(made(tmp_path, "phi4-mini"))
    assert engine.context == 128 and engine.model.config.max_position_embeddings == 256
    long = Request(prompt(0, "A man " + "sings and " * 22), (), 5)
    assert 116 < len(engine.encode(long.prompt)) < 240
    with pytest.raises(InputError, match="exceed the model's context of 128"):
        complete(engine, [*requests(2), long], SETTINGS)


VARIED = {
    "paper": {},
    "no debiasing": {"decay_constant": 0.0},
    "no top-k": {"top_k": 0},
    "no top-p": {"top_p": 1.0},
    "one token": {"max_new_tokens": 1},
    "line": {"text_end": "line"},
    "guided": {"guidance": 3.0},
    "guided, no debiasing": {"guidance": 1.5, "decay_constant": 0.0},
    "guided, no top-k": {"guidance": 0.5, "top_k": 0},
    "guided, line": {"guidance": 0.5, "text_end": "line"},
}


@pytest.mark.parametrize("varied", VARIED)
def test_every_setting_gives_the_texts_of_the_reference(varied, logits, tmp_path):
    settings = SETTINGS.model_copy(update=VARIED[varied])
    engine, asked = load_engine(make_family(tmp_path, "gemma3")), guided(12)
    assert (engine._output is not None) == (logits == "in pieces")
    texts = [done.text for done in complete(engine, asked, settings, 30, PREFIXES)]
    assert texts == expected(tmp_path, engine, asked, settings) and len(set(texts)) >= 3


@pytest.mark.parametrize(
    "name", ["gemma3", *(pytest.param(name, marks=SLOW) for name in ("qwen2.5", "llama"))]
)
def test_nothing_depends_on_batch_size_order_or_history(name, logits, tmp_path):
    """Texts and statistics to the last bit: rows enter and leave, pages fill up, two rows or sixty
    share a prompt.
    """
    top_k = 5 if logits == "in pieces" else 0
    # three pages
    settings = DecodingParameters(top_k=top_k, top_p=0.95, max_new_tokens=36, guidance=0.5)
    folder = made(tmp_path, name)
    engine, asked, three = load_engine(folder), mixed(42, settings), load_engine(folder, workers=3)
    whole = complete(engine, asked, settings, 400, PREFIXES)
    assert complete(three, asked, settings, 90, PREFIXES) == whole
    assert min(one.passes for one in three._workers) > 0
    assert complete(engine, asked[::-1], settings, 20, PREFIXES)[::-1] == whole
    assert complete(engine, asked[:4], settings, 1, PREFIXES) == whole[:4]
    assert complete(engine, asked[9:], settings, 33, PREFIXES) == whole[9:]
    alone = [
        complete(engine, [bare(one)], settings_of(one, settings), 8, PREFIXES)[0]
        for one in asked[:14]
    ]
    assert alone == whole[:14]
    unscored = [replace(one, scored_prompts=()) for one in asked]
    assert complete(engine, unscored, settings, 90, PREFIXES) == [
        replace(done, log_likelihoods=()) for done in whole
    ]
    without = complete(engine, [bare(one) for one in asked], settings, 400, PREFIXES)
    assert sum(ours.text != theirs.text for ours, theirs in zip(whole, without, strict=True)) >= 5


@pytest.mark.parametrize("workers", [1, 2])
def test_requests_may_be_added_while_it_runs(workers, lm):
    engine, asked, written = load_engine(lm, workers), requests(12), {}
    queue = deque(asked[:6])
    for request, done in engine.stream(queue, SETTINGS, 8, PREFIXES):
        written[request] = done
        if len(written) <= 6:
            queue.appendleft(asked[5 + len(written)])
    assert [written[request] for request in asked] == complete(
        engine, asked, SETTINGS, 96, PREFIXES
    )


def test_prompts_that_are_read_are_progress_before_the_first_text_is_done(engine, monkeypatch):
    seen, run_pass = [], engine_module.run_pass
    monkeypatch.setattr(
        engine_module,
        "run_pass",
        lambda *given: seen.append(engine.measure_texts_in_progress()) or run_pass(*given),
    )
    stream = engine.stream(deque(requests(12)), SETTINGS, 12, PREFIXES)
    next(stream)
    assert seen[0] == 0.0 < seen[-1] < 12 and seen == sorted(seen)
    assert len([*stream]) == 11 and engine.measure_texts_in_progress() == 0.0


@pytest.mark.parametrize(
    ("name", "settings"),
    [*STATISTICS, ("gemma3", DecodingParameters(max_new_tokens=12, text_end="line", top_k=0))],
)
def test_statistics_are_those_of_a_forward_pass_of_the_model(
    name, settings, tmp_path, tokens_of, monkeypatch
):
    """log_prob, margin and likelihoods: before guidance and debiasing, over the tokens that can be
    drawn.
    """
    monkeypatch.setattr(output_layer, "SMALLEST_VOCABULARY", 1)
    engine, asked = load_engine(make_family(tmp_path, name)), mixed(14, settings)
    original, done = original_of(tmp_path), complete(engine, asked, settings, 60, PREFIXES)
    for request, one in zip(asked, done, strict=True):
        tokens, sums = tokens_of[one.log_prob], {}
        for text in request.reported_prompts:
            with torch.inference_mode():
                ids = torch.tensor([[*engine.encode(text), *tokens]])
                found = original(input_ids=ids).logits[0, -len(tokens) - 1 : -1].double()
                found[:, engine.list_banned(settings)] = -torch.inf
            sums[text] = float(found.log_softmax(-1)[range(len(tokens)), tokens].sum())
        assert one.log_likelihoods == pytest.approx(
            [sums[text] for text in request.scored_prompts], abs=2e-3
        )
        assert one.log_prob == pytest.approx(sums[request.prompt] / len(tokens), abs=2e-4)
        assert (one.margin is None) == (not request.counter_prompts)
        if request.counter_prompts:
            best = max(sums[text] for text in request.counter_prompts)
            assert one.margin == pytest.approx(
                (sums[request.prompt] - best) / len(tokens), abs=4e-4
            )
    assert {one.problem for one in done} <= {None, "not_closed", "line_break", "empty"}


@pytest.mark.parametrize("name", ["gemma3", pytest.param("phi3", marks=SLOW)])
def test_texts_beyond_the_window_stand_among_others(name, tmp_path, capsys):
    """Bits do not depend on the other texts, on either side of the window; said once."""
    folder = make_family(tmp_path, name, sliding_window=45)
    engine, asked = load_engine(folder), mixed(24, GUIDED)
    lengths = [
        max(len(engine.encode(p)) for p in (one.prompt, *one.counter_prompts)) + 12 for one in asked
    ]
    assert (
        engine.attention.window == 45
        and engine.context == 256
        and 4 <= sum(n > 45 for n in lengths) <= 20
    )
    done = complete(engine, asked, GUIDED, 96)
    assert capsys.readouterr().err.count("beyond the model's window of 45 tokens") == 1
    assert [one.text for one in done] == expected(tmp_path, engine, asked, GUIDED)
    assert complete(engine, asked[::-1], GUIDED, 7)[::-1] == done
    assert [complete(engine, [request], GUIDED)[0] for request in asked[:9]] == done[:9]
    assert "window" not in capsys.readouterr().err
    assert complete(load_engine(folder, workers=3), asked, GUIDED, 96) == done
    assert capsys.readouterr().err.count("beyond the model's window of 45 tokens") == 1


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_takes_the_same_path_and_repeats_its_texts(name, tmp_path):
    engine = load_engine(make_family(tmp_path, name), dtype="bfloat16")
    assert engine.attention.shared == (name not in PLAIN), engine.attention.reason
    done = complete(engine, mixed(9, GUIDED), GUIDED, 60)
    assert all(one.log_prob < 0 and np.isfinite(one.log_likelihoods).all() for one in done)
    assert complete(engine, mixed(9, GUIDED), GUIDED, 60) == done


def test_fused_attention_gives_what_the_products_of_each_level_give(tmp_path, monkeypatch):
    """bfloat16 on a CPU, against the path of float32: shared prefixes, prompts, several pages,
    prefill.
    """
    fused, errors = shared_attention.read_fused, []

    def both(queries, levels, layer, scaling):
        found = fused(queries, levels, layer, scaling)
        wanted = shared_attention.read_levels(
            queries.float() * (scaling * shared_attention.LOG2_E), levels, layer
        )
        errors.append(float((found - wanted).abs().max() / wanted.abs().max()))
        return found

    monkeypatch.setattr(shared_attention, "read_fused", both)
    asked, engine = mixed(24, GUIDED), load_engine(make_family(tmp_path, "qwen2"), dtype="bfloat16")
    complete(engine, asked, GUIDED, 96, PREFIXES)
    assert len(errors) > 40 and max(errors) < 0.02


@pytest.mark.parametrize("shared", [True, False], ids=["shared attention", "plain loop"])
def test_out_of_memory_halves_the_rows_loses_nothing_and_is_remembered(
    shared, lm, engine, monkeypatch, capsys
):
    asked, engine = (
        requests(18),
        engine if shared else Engine(original_of(lm), engine.tokenizer, shared=False),
    )
    owner, name = (
        (live_batch.LiveBatch, "make_next_pass") if shared else (PlainBatch, "_compute_logits")
    )
    real, error = (
        getattr(owner, name),
        torch.OutOfMemoryError("CUDA out of memory") if shared else MemoryError("no GiB"),
    )
    wanted = [done.text for done in complete(engine, asked, SETTINGS, 64)]

    def narrow(*given):
        if (given[0].rows if shared else len(given[1])) > 9:
            raise error
        return real(*given)

    monkeypatch.setattr(owner, name, narrow)
    for batch_size in (64, 64, None):  # the next shards begin with the rows that fit
        assert [done.text for done in complete(engine, asked, SETTINGS, batch_size)] == wanted
    assert capsys.readouterr().err.count("out of memory with 64 rows: retrying with 32") == 1


@pytest.mark.parametrize(
    ("owner", "name", "failing"),
    [
        # while prefixes are read, a text is admitted, a row gets its pages
        (live_batch.KVCache, "grow", (2, 6, 9)),
        (Engine, "_finish", (1,)),  # when a text ends
    ],
    ids=["making room", "a text ends"],
)
def test_out_of_memory_at_any_step_loses_nothing(owner, name, failing, lm, monkeypatch):
    asked, engine, real, calls = requests(18), load_engine(lm), getattr(owner, name), []
    wanted = complete(load_engine(lm), asked, SETTINGS, 64, PREFIXES)

    def fails(*given):
        calls.append(given)
        if len(calls) in failing:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*given)

    monkeypatch.setattr(owner, name, fails)
    assert complete(engine, asked, SETTINGS, 64, PREFIXES) == wanted
    assert len(calls) > max(failing)


def test_prefixes_that_an_error_interrupted_are_read_again(lm, monkeypatch):
    asked, engine = requests(18), load_engine(lm)
    wanted = complete(load_engine(lm), asked, SETTINGS, 64, PREFIXES)
    with monkeypatch.context() as patch, pytest.raises(ArithmeticError, match="interrupted"):
        patch.setattr(Engine, "_read_chunk", Mock(side_effect=ArithmeticError("interrupted")))
        complete(engine, asked, SETTINGS, 64, PREFIXES)
    assert complete(engine, asked, SETTINGS, 64, PREFIXES) == wanted


def test_several_workers_read_a_prompt_once_and_halve_their_own_rows(lm, monkeypatch, capsys):
    asked, one, two = requests(60), load_engine(lm), load_engine(lm, 2)
    wanted, real = complete(one, asked, SETTINGS, 64), live_batch.LiveBatch.make_next_pass
    assert complete(two, asked, SETTINGS, 128) == wanted
    assert sum(worker.tokens_computed for worker in two._workers) < 1.05 * one.tokens_computed
    assert {worker.measure_texts_in_progress() for worker in two._workers} == {0.0}

    def narrow(batch):
        if batch.rows > 20:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(batch)

    monkeypatch.setattr(live_batch.LiveBatch, "make_next_pass", narrow)
    assert complete(two, asked, SETTINGS, 128) == wanted
    assert capsys.readouterr().err.count("out of memory with 64 rows: retrying with 32") == 2
    assert two.count_rows(SETTINGS) == 32


@pytest.mark.parametrize("failing", [True, False], ids=["a worker fails", "the caller stops"])
def test_workers_end_with_an_error_of_one_of_them_and_with_their_caller(failing, lm, monkeypatch):
    before, engine, started = threading.active_count(), load_engine(lm, 3), []
    if failing:
        monkeypatch.setattr(
            engine._workers[1], "_finish", Mock(side_effect=InputError("prompt", "is odd"))
        )
    with pytest.raises(InputError, match="is odd") if failing else nullcontext():
        for _ in engine.stream(deque(requests(60)), SETTINGS, 60):
            started.append(threading.active_count())
            if not failing and len(started) == 5:
                break
    assert (failing or set(started) == {before + 3}) and threading.active_count() == before


def test_too_little_memory_for_a_full_batch_is_fewer_rows_and_said_once(lm, monkeypatch, capsys):
    engine = load_engine(lm)
    assert engine.count_rows(SETTINGS) == 512
    monkeypatch.setattr(load_model.psutil, "virtual_memory", lambda: Mock(available=10**7))
    rows = engine.count_rows(SETTINGS)
    assert 16 < rows < 512 and engine.count_rows(SETTINGS) == rows
    assert (
        capsys.readouterr().err.count(
            f"0.0 GB are free, so {rows} rows are decoded together, not 512"
        )
        == 1
    )


def test_memory_for_not_even_one_text_is_an_error(engine, monkeypatch):
    def none(batch):
        raise RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 9 bytes"
        )

    monkeypatch.setattr(live_batch.LiveBatch, "make_next_pass", none)
    with pytest.raises(RunError, match="too small for one text at a time"):
        complete(engine, requests(2), SETTINGS, 4)


def test_the_end_of_text_is_never_drawn_where_a_quotation_mark_ends_a_text(engine, monkeypatch):
    """The original DINO code bans it before debiasing; where a line ends a text, it may be drawn,
    and ends the text.
    """
    end = engine.tokenizer.eos_token_id
    monkeypatch.setattr(engine, "_finish", lambda text, settings: list(text.tokens))
    quoted, lines = (
        complete(
            engine, requests(60), DecodingParameters(top_k=0, top_p=1.0, text_end=text_end), 96
        )
        for text_end in ("quotation_mark", "line")
    )
    assert not any(end in tokens for tokens in quoted)
    assert not any(end in tokens[:-1] for tokens in lines) and any(
        tokens[-1] == end for tokens in lines
    )
    assert any('"' in engine.tokenizer.decode(tokens[:-1]) for tokens in lines)


def test_ids_without_a_token_are_never_drawn(tmp_path, monkeypatch):
    engine = load_engine(make_family(tmp_path, "qwen2.5"))
    assert (
        engine.unused_ids == [*range(len(engine.tokenizer), engine.vocabulary)]
        and len(engine.unused_ids) > 60
    )
    monkeypatch.setattr(engine, "_finish", lambda text, settings: list(text.tokens))
    settings = DecodingParameters(max_new_tokens=12, top_k=0, top_p=1.0, text_end="line")

    def drawn():
        return {
            token for tokens in complete(engine, requests(24), settings, 96) for token in tokens
        }

    assert max(drawn()) < len(engine.tokenizer)
    monkeypatch.setattr(engine, "unused_ids", [])
    assert max(drawn()) >= len(engine.tokenizer)
    # a chat model lists several ends; generate() stops at each
    for listed, ends in (([0, 7], [0, 7]), (None, [0])):
        monkeypatch.setattr(engine.model.generation_config, "eos_token_id", listed)
        assert engine._list_end_tokens() == ends


def test_a_prompt_may_fill_the_context_and_not_exceed_it(engine, lm):
    settings, full = DecodingParameters(max_new_tokens=10), prompt(0, "A man " + "sings and " * 80)
    ids = engine.tokenizer(full).input_ids[: engine.context - settings.max_new_tokens]
    asked = Request(engine.tokenizer.decode(ids), (), 5)
    assert len(engine.encode(asked.prompt)) == engine.context - settings.max_new_tokens
    wanted = reference(original_of(lm), engine.tokenizer, asked, settings)
    assert complete(engine, [asked], settings)[0].text == wanted
    with pytest.raises(InputError, match="exceed the model's context of 256"):
        complete(engine, [Request(engine.tokenizer.decode(ids) + " and", (), 5)], settings)


CHAT = (
    "{% for m in messages %}<user>{{ m.content }}</user>{% endfor %}"
    "{% if add_generation_prompt %}<bot>{% endif %}"
)


def test_a_chat_template_holds_the_prompt_and_the_answer_is_opened(lm):
    chat, raw = load_engine(lm, chat_template=True), load_engine(lm)
    chat.tokenizer.chat_template = CHAT
    rendered = [
        Request(f"<user>{one.prompt[:-1]}</user><bot>" + '"', (), one.seed) for one in requests(9)
    ]
    turns = [Request(one.prompt, (), one.seed) for one in requests(9)]
    found, wanted = (
        complete(*pair, SETTINGS, 20, PREFIXES) for pair in ((chat, turns), (raw, rendered))
    )
    assert [done.text for done in found] == [done.text for done in wanted] and chat.prefix_ids

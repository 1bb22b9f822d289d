"""Encoders: folders, Hub ids, functions; each sentence is encoded once, the same bits come from
disk after a kill.
"""

import multiprocessing
import resource
import shutil
import sqlite3
import time
import tracemalloc
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import encoder_functions
import numpy as np
import pytest
import torch
from planted_models import edit
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
from tiny_bases import make_mlm
from tiny_lm import make_tokenizer
from transformers import AutoTokenizer

from sts_dino.eval.encoders import embeddings as module
from sts_dino.eval.encoders import load
from sts_dino.eval.encoders.embeddings import Embeddings, compute_text_cosines, hash_text
from sts_dino.eval.encoders.load import hash_model_folder, load_encoder, wrap
from sts_dino.hub.contract.run_dir import ARTIFACTS, Manifest, write_manifest
from sts_dino.hub.errors import InputError, RunError
from sts_dino.hub.untrusted import warn_of_cut_texts

pytest_plugins = ["local_hub", "hub_here"]
CONFIG = "config_sentence_transformers.json"
UNFINISHED = Manifest(kind="model", name="tiny", version="0.1.0", fingerprint="abc", complete=False)
FEW_TEXTS = ["A man plays.", "A", "", "Two dogs run on the beach.\n"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny RoBERTa under mean pooling."""
    folder = tmp_path_factory.mktemp("saved")
    transformer = Transformer(str(make_mlm(folder / "base")))
    pooling = Pooling(transformer.get_embedding_dimension(), "mean")
    SentenceTransformer(modules=[transformer, pooling]).save_pretrained(
        str(folder / "model"), create_model_card=False
    )
    return folder / "model"


@pytest.fixture
def model(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def move_weights(folder, by):
    weights = load_file(folder / "model.safetensors")
    save_file(
        {key: value + by for key, value in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )


@pytest.mark.parametrize(
    ("name", "prompts", "warns"),
    [("e5-s", {}, True), ("e5", {"query": "q: "}, False), ("m", {}, False)],
)
def test_an_e5_encoder_without_prompts_is_reported(model, tmp_path, capsys, name, prompts, warns):
    edit(model / CONFIG, prompts=prompts)
    load_encoder(str(model.rename(tmp_path / name)))
    assert ("e5 encoders need 'query: '" in capsys.readouterr().err) == warns


def test_a_folder_gives_what_sentence_transformers_gives(saved):
    encoder = load_encoder(str(saved))
    assert (encoder.name, encoder.dimension) == (f"{saved.parent.name}/model", 32)
    assert encoder.fingerprint is None and encoder.pinned
    assert np.array_equal(
        encoder.embed(FEW_TEXTS), SentenceTransformer(str(saved)).encode(FEW_TEXTS)
    )
    half = load_encoder(str(saved), dtype="bfloat16")
    assert half.revision == encoder.revision and half.key != encoder.key
    assert 0 < np.abs(half.embed(FEW_TEXTS) - encoder.embed(FEW_TEXTS)).max() < 0.1


def test_a_revision_is_that_of_the_files_that_decide(saved, model, monkeypatch):
    before = load_encoder(str(saved))
    for name in (
        "README.md",
        "results.json",
        "recipe.yaml",
        ".eval_results/x.yaml",
        "assets/plot.png",
        "onnx/m.onnx",
    ):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text("reported")
    (model / "pytorch_model.bin").write_bytes(b"never read: safetensors lie beside it")
    renamed = model.rename(model.with_name("other"))
    monkeypatch.chdir(renamed)
    here = load_encoder(".")
    assert here.name == f"{renamed.parent.name}/other"
    (renamed / "pytorch_model.bin").unlink()
    assert load_encoder(".").revision == before.revision
    assert load_encoder(".").key == before.key
    (renamed / "1_Pooling" / "unknown").write_text("may decide")
    assert load_encoder(".").revision != before.revision
    (renamed / "1_Pooling" / "unknown").unlink()
    move_weights(renamed, 1e-3)
    assert load_encoder(".").revision != before.revision


def test_an_evaluation_in_the_current_folder_leaves_the_revision(model, monkeypatch):
    revision = hash_model_folder(model)
    monkeypatch.chdir(model)
    record = ARTIFACTS / "evaluations" / "model" / "results.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    assert hash_model_folder(Path()) == revision


def test_an_encoder_that_is_not_installed_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(load, "find_packaged_encoder", lambda name: None)
    with pytest.raises(InputError, match="not on this machine; sts-dino lm multilingual-e5-small"):
        load.require_model("multilingual-e5-small")
    with pytest.raises(InputError, match=r"no such model folder; .* a Hub model is ORG/NAME"):
        load.require_model("no-such-encoder")


def test_a_length_beyond_the_positions_is_cut_and_said(offline, tmp_path, capsys):
    transformer = Transformer(str(make_mlm(tmp_path / "base")), max_seq_length=514)
    SentenceTransformer(modules=[transformer, Pooling(32)]).save_pretrained(str(tmp_path / "model"))
    encoder = load_encoder(str(tmp_path / "model"))
    assert encoder.embed(["dog " * 900]).shape == (1, 32)
    assert (
        "longer texts are cut at its 512 positions, not at max_seq_length 514"
        in capsys.readouterr().err
    )


def with_added_tokens(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["ferry"])
    tokenizer.save_pretrained(folder)


def to_pickle(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def to_pickled_module(folder):
    (folder / "2_Dense").mkdir()
    torch.save({}, folder / "2_Dense" / "pytorch_model.bin")


def without_a_weight(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def with_nan(folder):
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"].fill_(float("nan"))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (to_pickled_module, r"its weights are a pickle \(2_Dense/pytorch_model.bin\)"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no weights in safetensors"),
        (without_a_weight, r"its weights lack encoder.layer.1.output.dense.weight \(1 in all\)"),
        (with_added_tokens, r"ids beyond the \d+ rows of its embedding: \d+ \(ferry\)"),
        (lambda folder: write_manifest(folder, UNFINISHED), "the run is not finished"),
        (
            lambda folder: (folder / "modules.json").unlink(),
            r"is not a SentenceTransformer model \(no modules.json\)",
        ),
        (
            lambda folder: edit(folder / CONFIG, model_type="CrossEncoder"),
            "is a cross-encoder: it scores pairs",
        ),
        (
            lambda folder: edit(folder / CONFIG, model_type="SparseEncoder"),
            "is a SparseEncoder; allowed: a Sentence",
        ),
        (lambda folder: (folder / CONFIG).write_text("[]"), "is a list; allowed: a JSON"),
        (
            with_nan,
            r"gives nan as number 1 of the vector for 'A sentence.'; allowed: finite float32 "
            "numbers",
        ),
    ],
)
def test_a_bad_folder_is_refused_in_one_line(model, spoil, problem):
    spoil(model)
    with pytest.raises(InputError, match=problem) as refused:
        load_encoder(str(model))
    assert str(refused.value).startswith(str(model)) and "\n" not in str(refused.value)


def test_an_adapter_counts_with_its_base(model, tmp_path):
    from peft import LoraConfig

    student = SentenceTransformer(str(model))
    student.add_adapter(LoraConfig(task_type="FEATURE_EXTRACTION", r=2, target_modules=["query"]))
    student.save_pretrained(str(tmp_path / "adapter"), create_model_card=False)
    config = tmp_path / "adapter" / "adapter_config.json"
    edit(config, base_model_name_or_path=str(model))
    first = load_encoder(str(tmp_path / "adapter"))
    move_weights(model, 1e-2)
    second = load_encoder(str(tmp_path / "adapter"))
    assert first.revision != second.revision
    assert not np.array_equal(first.embed(FEW_TEXTS), second.embed(FEW_TEXTS))
    edit(config, base_model_name_or_path=str(tmp_path / "gone"))
    with pytest.raises(
        InputError, match=r"is an adapter for '.*gone', which is not here and not on the Hub"
    ):
        load_encoder(str(tmp_path / "adapter"))


def test_models_come_from_the_hub_at_a_commit_and_offline(tmp_path, hub_api, hub_here):
    torch.manual_seed(0)
    words = SentenceTransformer(modules=[StaticEmbedding(make_tokenizer(), embedding_dim=8)])
    words.save_pretrained(str(tmp_path / "words"), create_model_card=False)
    good, bad = (hub_api.create_repo(f"acme/encoders-{name}").repo_id for name in ("good", "bad"))
    (tmp_path / "words" / "tf_model.h5").write_bytes(b"other weights")
    commit = hub_api.upload_folder(repo_id=good, folder_path=tmp_path / "words").oid
    hub_api.create_tag(good, tag="v1")
    hub_api.upload_file(repo_id=good, path_in_repo="more.json", path_or_fileobj=b"{}")
    to_pickle(tmp_path / "words")
    hub_api.upload_folder(repo_id=bad, folder_path=tmp_path / "words")
    encoder = load_encoder(f"{good}@v1")
    assert (encoder.name, encoder.revision) == (f"{good}@{commit}", commit)
    assert np.allclose(encoder.embed(["A man"]), words.encode(["A man"]))
    assert load_encoder(good).revision != commit
    assert not list(tmp_path.rglob("cache/**/tf_model.h5"))
    with pytest.raises(InputError, match=f"{bad}: has no weights in safetensors"):
        load_encoder(bad)
    with pytest.raises(InputError, match="no such repository"):
        load_encoder("demo/absent")
    with pytest.raises(InputError, match="has no revision 'v9'"):
        load_encoder(f"{good}@v9")
    hub_here()
    assert load_encoder(f"{good}@{commit}").name == encoder.name
    assert load_encoder(good).revision != commit, "found again without its revision"
    with pytest.raises(RunError, match="is not downloaded, and HF_HUB_OFFLINE is set"):
        load_encoder("demo/absent")


def test_a_function_is_an_encoder(capsys):
    declared = load_encoder("python:encoder_functions:pinned")
    assert (declared.name, declared.revision) == ("python:encoder_functions:pinned", "v1")
    assert (declared.dimension, declared.pinned, declared.model) == (
        encoder_functions.DIMENSION,
        True,
        None,
    )
    assert capsys.readouterr().err == ""
    plain = load_encoder("python:encoder_functions:letters")
    assert (
        not plain.pinned
        and "letters: declares no revision, so its embeddings are" in capsys.readouterr().err
    )
    given = wrap(encoder_functions.letters, "mine", revision="3")
    assert (given.name, given.revision, given.pinned) == ("mine", "3", True)
    assert (
        wrap(encoder_functions.as_tensor, "tensors", "1").dimension == encoder_functions.DIMENSION
    )


FORKED = multiprocessing.get_context("fork")  # the child has the libraries imported
WORDS = ("a", "dog", "runs", "on", "the", "beach", "naïve", "\U0001f600", "flute.", "“quoted”")
TEXTS = [" ".join(WORDS[(7 * i + j) % 10] for j in range(i % 23)) + f" {i}" for i in range(100)]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks of 8 sentences."""
    monkeypatch.setattr("sts_dino.eval.encoders.embeddings.BLOCK_TEXTS", 8)
    monkeypatch.setattr("sts_dino.eval.encoders.embeddings.PROGRESS_DELAY_SECONDS", 0)


class Seen:
    """Counts what a function is asked for."""

    revision = "seen"

    def __init__(self, function=encoder_functions.pinned):
        self.calls, self.function = [], function

    def __call__(self, texts):
        self.calls.append(list(texts))
        return self.function(texts)

    @property
    def asked(self):
        # the first call asks for the dimension
        return Counter(text for call in self.calls[1:] for text in call)


def test_embeddings_are_those_of_encode_and_the_same_bits_from_disk(saved, tmp_path):
    encoder = load_encoder(str(saved))
    wanted = [*TEXTS, "", " ", *TEXTS[:20], "\u0000", "line\nbreak"]
    fresh = Embeddings(encoder, tmp_path)
    fresh.declare(wanted)
    fresh.encode_declared()
    rows = fresh.embed(wanted)
    assert rows.dtype == np.float32
    assert np.abs(rows - SentenceTransformer(str(saved)).encode(wanted)).max() <= 1e-6
    assert fresh.encoded == 104 and fresh.seconds > 0
    again = Embeddings(encoder, tmp_path)
    assert again.embed(wanted[::-1]).tobytes() == rows[::-1].tobytes()
    assert (again.encoded, again.seconds) == (0, 0.0)


def test_each_distinct_sentence_is_encoded_once_longest_first_in_small_calls(tmp_path, capsys):
    seen = Seen()
    embeddings = Embeddings(wrap(seen, "counted"), tmp_path)
    for task in (TEXTS[:60], TEXTS[30:] * 2):
        embeddings.declare(task)
    embeddings.encode_declared()
    assert seen.asked == Counter(TEXTS)
    lengths = [len(text) for call in seen.calls[1:] for text in call]
    assert lengths == sorted(lengths, reverse=True)
    assert max(map(len, seen.calls)) == 8
    assert np.array_equal(
        embeddings.embed(TEXTS[50:] + TEXTS[:9]), encoder_functions.pinned(TEXTS[50:] + TEXTS[:9])
    )
    assert embeddings.embed(["new", "new"]).shape == (2, encoder_functions.DIMENSION)
    assert seen.asked == Counter([*TEXTS, "new"])
    assert embeddings.embed([]).shape == (0, encoder_functions.DIMENSION)
    said = capsys.readouterr().err
    assert (
        "100 sentences encoded in" in said
        and f"MiB in {embeddings.path}, which may be deleted" in said
    )
    assert ": 100 of 100 sentences, 00:00 left" in said
    embeddings.path.unlink()
    assert Embeddings(wrap(seen, "counted"), tmp_path).embed(TEXTS).shape == (
        100,
        encoder_functions.DIMENSION,
    )


def test_memory_does_not_hold_the_embeddings(tmp_path, monkeypatch):
    monkeypatch.setattr("sts_dino.eval.encoders.embeddings.BLOCK_TEXTS", 64)
    rows = np.random.default_rng(0).normal(size=(64, 512)).astype(np.float32)
    texts = [f"sentence {number}" for number in range(4096)]  # 8 MiB of embeddings
    embeddings = Embeddings(wrap(lambda found: rows[: len(found)], "m", "1"), tmp_path)
    tracemalloc.start()
    embeddings.declare(texts)
    embeddings.encode_declared()
    embeddings.embed(texts[:10])
    again = Embeddings(embeddings.encoder, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert again.embed(texts[-1:]).shape == (1, 512)
    assert peak < 3 << 20


def test_embeddings_are_shared_by_revision_and_prompt_not_by_name(saved, tmp_path):
    cache = tmp_path / "cache"
    Embeddings(load_encoder(str(saved)), cache).embed(TEXTS)
    twin = shutil.copytree(saved, tmp_path / "twin")
    shared = Embeddings(load_encoder(str(twin)), cache)
    shared.embed(TEXTS)
    assert shared.encoded == 0
    edit(twin / CONFIG, prompts={"query": "query: "}, default_prompt_name="query")
    prompted = Embeddings(load_encoder(str(twin)), cache)
    theirs = SentenceTransformer(str(twin)).encode(TEXTS)
    assert np.abs(prompted.embed(TEXTS) - theirs).max() <= 1e-6
    assert prompted.encoded == 100


def test_without_a_cache_or_a_revision_nothing_is_kept(tmp_path):
    for encoder, cache in (
        (wrap(encoder_functions.pinned, "m"), None),
        (wrap(encoder_functions.letters, "m"), tmp_path),
    ):
        with Embeddings(encoder, cache) as embeddings:
            embeddings.embed(TEXTS)
            path = embeddings.path
            assert path.is_file() and tmp_path not in path.parents
        assert not path.parent.exists()
    assert not list(tmp_path.iterdir())


def slow_embeddings(cache, seconds=0.0):
    """What a function was asked for, and its embeddings; it takes so many seconds a call."""
    seen = Seen(lambda texts: time.sleep(seconds) or encoder_functions.pinned(texts))
    return seen, Embeddings(wrap(seen, "slow"), cache)


def encode_slowly(cache, seconds):
    slow_embeddings(cache, seconds)[1].embed(TEXTS)


def kept(folder):
    """The hashes of the texts whose embeddings the cache in a folder has."""
    for path in folder.glob("*.sqlite"):
        # it has no table yet
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path)) as table:
            return {text for (text,) in table.execute("SELECT text FROM embeddings")}
    return set()


def test_a_killed_run_keeps_what_it_finished(tmp_path):
    child = FORKED.Process(target=encode_slowly, args=(tmp_path, 0.02))
    child.start()
    while len(kept(tmp_path)) < 24:
        time.sleep(0.002)
    child.kill()
    child.join()
    assert child.exitcode == -9
    finished = len(kept(tmp_path))
    assert finished % 8 == 0 and 24 <= finished < 100
    seen, embeddings = slow_embeddings(tmp_path)
    assert np.array_equal(embeddings.embed(TEXTS), encoder_functions.pinned(TEXTS))
    assert embeddings.encoded == 100 - finished
    assert max(seen.asked.values()) == 1


def test_a_damaged_vector_is_encoded_again_and_a_damaged_file_is_refused(tmp_path):
    _, embeddings = slow_embeddings(tmp_path)
    embeddings.embed(TEXTS)
    with closing(sqlite3.connect(embeddings.path)) as table, table:
        table.execute(
            "UPDATE embeddings SET vector = zeroblob(32) WHERE text = ?", [hash_text(TEXTS[9])]
        )
    _, again = slow_embeddings(tmp_path)
    assert np.array_equal(again.embed(TEXTS), encoder_functions.pinned(TEXTS))
    assert again.encoded == 1
    again.path.write_bytes(b"no table " * 100)
    with pytest.raises(
        RunError, match=r"sqlite: cannot be read or written: file is not a database; .* delete it"
    ):
        slow_embeddings(tmp_path)


def test_two_processes_share_a_cache(tmp_path):
    child = FORKED.Process(target=encode_slowly, args=(tmp_path, 0.02))
    child.start()
    rows = slow_embeddings(tmp_path, 0.02)[1].embed(TEXTS)
    child.join()
    assert child.exitcode == 0 and np.array_equal(rows, encoder_functions.pinned(TEXTS))


def test_a_full_disk_is_told_before_and_during_the_work(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(module, "disk_usage", lambda folder: SimpleNamespace(free=100))
        with pytest.raises(
            RunError, match=r"0 MiB are needed for 100 embeddings, 0 MiB are free; free some, or"
        ):
            slow_embeddings(tmp_path)[1].embed(TEXTS)
    outcome = FORKED.Queue()

    def limited():
        found = slow_embeddings(tmp_path)[1]
        found.embed(TEXTS[:10])
        resource.setrlimit(resource.RLIMIT_FSIZE, (found.path.stat().st_size,) * 2)
        try:
            found.embed(TEXTS)
        except RunError as error:
            outcome.put(str(error))

    child = FORKED.Process(target=limited)
    child.start()
    child.join()
    assert "cannot be read or written: " in outcome.get(timeout=5)
    finished = len(kept(tmp_path))
    _, embeddings = slow_embeddings(tmp_path)
    assert np.array_equal(embeddings.embed(TEXTS), encoder_functions.pinned(TEXTS))
    assert 10 <= finished == 100 - embeddings.encoded


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("one_short", r"gives an array of shape \(7, 8\) for 8 texts, .* '.*…'; allowed: \(8, 8\)"),
        ("changing", r"gives an array of shape \(8, 8\) for 8 texts, .* '.*…'; allowed: \(8, 1\)"),
        (
            "not_a_number",
            r"gives nan as number 3 of the vector for 'bad\\n'; allowed: finite float32 numbers",
        ),
    ],
)
def test_a_bad_encoder_is_refused_by_name(tmp_path, function, problem):
    encoder = load_encoder(f"python:encoder_functions:{function}")
    for _ in range(2):  # what was stored before does not help
        with pytest.raises(InputError, match=problem) as refused:
            Embeddings(encoder, tmp_path).embed([*TEXTS, "bad\n"])
        assert str(refused.value).startswith(f"python:encoder_functions:{function}: ")


def test_functions_that_declare_the_same_revision_do_not_share(tmp_path):
    for name in ("pinned", "zero"):
        found = Embeddings(load_encoder(f"python:encoder_functions:{name}"), tmp_path).embed(
            ["", "A man"]
        )
        assert np.allclose(found, getattr(encoder_functions, name)(["", "A man"]))
    assert len(list(tmp_path.glob("*.sqlite"))) == 2


def test_a_revision_that_stayed_while_the_dimension_changed_is_refused(tmp_path):
    Embeddings(wrap(encoder_functions.pinned, "m"), tmp_path).embed(TEXTS)
    with pytest.raises(
        InputError,
        match="holds vectors of 8 numbers; now the encoder gives 9; give the changed encoder",
    ):
        Embeddings(wrap(encoder_functions.wider, "m"), tmp_path)


def test_an_unusual_encoder_is_called_so_in_one_line(model, saved, tmp_path, capsys):
    load_encoder(str(saved))
    assert "warning" not in capsys.readouterr().err
    edit(model / CONFIG, similarity_fn_name="dot")
    load_encoder(str(model))
    said = capsys.readouterr().err
    assert f"warning: {model}: declares the similarity dot; it is scored by cosine" in said


def test_an_embedding_that_changes_beside_a_longer_text_depends_on_padding(
    saved, monkeypatch, capsys
):
    batch = np.array([[1.0, 0.2], [0.0, 1.0]])
    assert load.depends_on_padding(np.array([1.0, 0.0]), batch)
    assert not load.depends_on_padding(np.array([1.0, 0.19]), batch)
    monkeypatch.setattr(load, "MAX_PADDING_CHANGE", -1.0)
    load.load_encoder(str(saved))
    said = capsys.readouterr().err
    assert f"warning: {saved}: the embedding of a text depends on the texts beside it; is" in said


def test_texts_beyond_the_encoders_length_are_counted(saved, capsys):
    encoder = SentenceTransformer(str(saved))
    encoder.max_seq_length = 16
    texts = ["A man plays."] * 2 + ["A man plays. " * 40] * 38
    warn_of_cut_texts(encoder, texts, "tiny", "documents")
    assert "warning: tiny: 38 of 40 documents are cut at 16 tokens" in capsys.readouterr().err
    warn_of_cut_texts(encoder, texts[:2], "tiny", "documents")
    assert not capsys.readouterr().err


def test_a_cache_that_cannot_be_opened_is_an_error_with_its_path(tmp_path):
    with Embeddings(wrap(encoder_functions.pinned, "m"), tmp_path) as embeddings:
        path = embeddings.path
    path.unlink()
    path.mkdir()
    with pytest.raises(RunError, match="sqlite: cannot be read or written: unable to open"):
        Embeddings(wrap(encoder_functions.pinned, "m"), tmp_path)


def test_cosines_of_texts_respect_the_largest_call_of_an_encoder():
    seen = Seen(encoder_functions.pinned)
    encoder = replace(wrap(seen, "small calls"), max_call_texts=8)
    assert compute_text_cosines(encoder, TEXTS[:20], TEXTS[:20]) == pytest.approx([1.0] * 20)
    assert [len(call) for call in seen.calls[1:]] == [8, 8, 4]


def test_a_folder_in_the_root_directory_is_named_without_the_root():
    assert load._name_folder(Path("/model")) == "model"
    assert load._name_folder(Path("/models/model")) == "models/model"

"""eval.encoders.embeddings: each sentence once, the same bits from disk; kills, rivals, full disks, bad encoders."""

import multiprocessing
import resource
import shutil
import time
import tracemalloc
from collections import Counter
from types import SimpleNamespace

import encoder_functions
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tiny_bases import make_mlm

from eval.encoders import embeddings as module
from eval.encoders.embeddings import Chunks, Embeddings, digests
from eval.encoders.load import load_encoder, wrap
from hub.errors import InputError, RunError

FORKED = multiprocessing.get_context("fork")  # the child has the libraries imported
WORDS = ("a", "dog", "runs", "on", "the", "beach", "naïve", "\U0001f600", "flute.", "“quoted”")
TEXTS = [" ".join(WORDS[(7 * i + j) % 10] for j in range(i % 23)) + f" {i}" for i in range(100)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    transformer = Transformer(str(make_mlm(folder / "base")))
    pooling = Pooling(transformer.get_embedding_dimension(), "mean")
    SentenceTransformer(modules=[transformer, pooling]).save_pretrained(str(folder / "model"), create_model_card=False)
    return folder / "model"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks of 8 sentences and a file a block."""
    monkeypatch.setattr("eval.encoders.embeddings.BLOCK", 8)
    monkeypatch.setattr("eval.encoders.embeddings.CHUNK_BYTES", 1)
    monkeypatch.setattr("eval.encoders.embeddings.BAR_SECONDS", 0)


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
        return Counter(text for call in self.calls[1:] for text in call)  # the first call asks for the dimension


def test_embeddings_are_those_of_encode_and_the_same_bits_from_disk(saved, tmp_path):
    encoder = load_encoder(str(saved))
    wanted = [*TEXTS, "", " ", *TEXTS[:20], "\u0000", "line\nbreak"]
    fresh = Embeddings(encoder, tmp_path)
    fresh.add(wanted)
    fresh.encode()
    rows = fresh.rows(wanted)
    assert rows.dtype == np.float32
    assert np.abs(rows - SentenceTransformer(str(saved)).encode(wanted)).max() <= 1e-6
    assert (fresh.encoded, fresh.reused) == (104, 0) and fresh.seconds > 0
    again = Embeddings(encoder, tmp_path)
    assert again.rows(wanted[::-1]).tobytes() == rows[::-1].tobytes()
    assert (again.encoded, again.reused, again.seconds) == (0, 104, 0.0)


def test_each_distinct_sentence_is_encoded_once_longest_first_in_small_calls(tmp_path, capsys):
    seen = Seen()
    embeddings = Embeddings(wrap(seen, "counted"), tmp_path)
    for task in (TEXTS[:60], TEXTS[30:] * 2):
        embeddings.add(task)
    embeddings.encode()
    assert seen.asked == Counter(TEXTS)
    lengths = [len(text) for call in seen.calls[1:] for text in call]
    assert lengths == sorted(lengths, reverse=True)
    assert max(map(len, seen.calls)) == 8
    assert np.array_equal(embeddings.rows(TEXTS[50:] + TEXTS[:9]), encoder_functions.pinned(TEXTS[50:] + TEXTS[:9]))
    assert embeddings.rows(["new", "new"]).shape == (2, encoder_functions.DIMENSION)
    assert seen.asked == Counter([*TEXTS, "new"])
    assert embeddings.rows([]).shape == (0, encoder_functions.DIMENSION)
    said = capsys.readouterr().err
    assert "100 sentences encoded in" in said and f"MiB in {embeddings.folder}, which may be deleted" in said
    assert " sentences/s" in said
    shutil.rmtree(embeddings.folder)
    assert Embeddings(wrap(seen, "counted"), tmp_path).rows(TEXTS).shape == (100, encoder_functions.DIMENSION)


def test_a_chunk_is_closed_when_it_is_large_or_old(tmp_path, monkeypatch):
    monkeypatch.setattr("eval.encoders.embeddings.CHUNK_BYTES", 32 * (16 + 4 * encoder_functions.DIMENSION))
    Embeddings(wrap(encoder_functions.pinned, "m"), tmp_path / "large").rows(TEXTS)
    assert len(list(tmp_path.glob("large/*/*.npy"))) == 4  # 32, 32, 32, 4
    monkeypatch.setattr("eval.encoders.embeddings.CHUNK_SECONDS", -1)
    Embeddings(wrap(encoder_functions.pinned, "m"), tmp_path / "old").rows(TEXTS)
    assert len(list(tmp_path.glob("old/*/*.npy"))) == 13


def test_memory_does_not_hold_the_embeddings(tmp_path, monkeypatch):
    monkeypatch.setattr("eval.encoders.embeddings.BLOCK", 64)
    rows = np.random.default_rng(0).normal(size=(64, 512)).astype(np.float32)
    texts = [f"sentence {number}" for number in range(4096)]  # 8 MiB of embeddings
    embeddings = Embeddings(wrap(lambda found: rows[: len(found)], "m", "1"), tmp_path)
    tracemalloc.start()
    embeddings.add(texts)
    embeddings.encode()
    embeddings.rows(texts[:10])
    again = Embeddings(embeddings.encoder, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert again.rows(texts[-1:]).shape == (1, 512)
    assert peak < 3 << 20


def test_embeddings_are_shared_by_revision_and_prompt_not_by_name(saved, tmp_path):
    cache = tmp_path / "cache"
    Embeddings(load_encoder(str(saved)), cache).rows(TEXTS)
    twin = shutil.copytree(saved, tmp_path / "twin")
    shared = Embeddings(load_encoder(str(twin)), cache)
    shared.rows(TEXTS)
    assert (shared.encoded, shared.reused) == (0, 100)
    torch.manual_seed(1)
    other = shutil.copytree(saved, tmp_path / "more" / "model")
    student = SentenceTransformer(str(other))
    student.prompts, student.default_prompt_name = {"query": "query: "}, "query"
    student.save_pretrained(str(other), create_model_card=False)
    prompted = Embeddings(load_encoder(str(other)), cache)
    assert np.abs(prompted.rows(TEXTS) - student.encode(TEXTS)).max() <= 1e-6
    assert prompted.encoded == 100


def test_functions_that_declare_the_same_revision_do_not_share(tmp_path):
    for name in ("pinned", "zero", "constant"):
        encoder = load_encoder(f"python:encoder_functions:{name}")
        found = Embeddings(encoder, tmp_path).rows(["", "A man"])
        assert np.allclose(found, getattr(encoder_functions, name)(["", "A man"]))
    assert len(list(tmp_path.iterdir())) == 3


def test_without_a_cache_or_a_revision_nothing_is_kept(tmp_path):
    for encoder, cache in (
        (wrap(encoder_functions.pinned, "m"), None),
        (wrap(encoder_functions.letters, "m"), tmp_path),
    ):
        with Embeddings(encoder, cache) as embeddings:
            embeddings.rows(TEXTS)
            folder = embeddings.folder
            assert list(folder.glob("*.npy")) and tmp_path not in folder.parents
        assert not folder.parent.exists()
    assert not list(tmp_path.iterdir())


def encode_slowly(cache, seconds):
    def slow(texts):
        time.sleep(seconds)
        return encoder_functions.pinned(texts)

    slow.revision = "slow"
    Embeddings(wrap(slow, "slow"), cache).rows(TEXTS)


def slow_embeddings(cache, function=None):
    seen = Seen(function or encoder_functions.pinned)
    seen.revision = "slow"
    return seen, Embeddings(wrap(seen, "slow"), cache)


def test_a_killed_run_keeps_what_it_finished(tmp_path):
    child = FORKED.Process(target=encode_slowly, args=(tmp_path, 0.02))
    child.start()
    while len(list(tmp_path.glob("*/*.npy"))) < 3:
        time.sleep(0.002)
    child.kill()
    child.join()
    assert child.exitcode == -9
    folder = next(tmp_path.iterdir())
    finished = list(folder.glob("*.npy"))
    assert 3 <= len(finished) < 13
    torn = folder / f"{'0' * 64}.npy"  # as a file system may leave it after a power cut
    torn.write_bytes(finished[0].read_bytes()[:200])
    (folder / ".left.npy.1.tmp").write_bytes(b"half")
    seen, embeddings = slow_embeddings(tmp_path)
    assert np.array_equal(embeddings.rows(TEXTS), encoder_functions.pinned(TEXTS))
    assert embeddings.encoded == 100 - 8 * len(finished)
    assert max(seen.asked.values()) == 1
    assert not torn.exists() and not list(folder.glob("*.tmp"))
    assert rows_on_disk(folder) == Counter(digests(TEXTS).tolist())


def rows_on_disk(folder):
    return Counter(text for path in folder.glob("*.npy") for text in np.load(path)["text"].tolist())


def test_a_damaged_chunk_is_encoded_again(tmp_path, capsys):
    _, embeddings = slow_embeddings(tmp_path)
    embeddings.rows(TEXTS)
    path = sorted(embeddings.folder.glob("*.npy"))[5]
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    _, again = slow_embeddings(tmp_path)
    assert np.array_equal(again.rows(TEXTS), encoder_functions.pinned(TEXTS))
    assert (again.encoded, again.reused) == (8, 92)
    assert f"{path}: is damaged; its sentences are encoded again" in capsys.readouterr().err
    assert slow_embeddings(tmp_path)[1].rows(TEXTS) is not None
    assert "is damaged" not in capsys.readouterr().err


def test_two_processes_share_the_work_and_double_nothing(tmp_path, capsys):
    child = FORKED.Process(target=encode_slowly, args=(tmp_path, 0.05))
    child.start()
    while not list(tmp_path.glob("*/*.npy")):
        time.sleep(0.002)
    seen, embeddings = slow_embeddings(tmp_path)
    rows = embeddings.rows([*TEXTS, "one more"])
    child.join()
    assert child.exitcode == 0
    assert np.array_equal(rows, encoder_functions.pinned([*TEXTS, "one more"]))
    assert seen.asked == Counter(["one more"])
    assert "waiting for another process" in capsys.readouterr().err
    assert rows_on_disk(embeddings.folder) == Counter(digests([*TEXTS, "one more"]).tolist())


def test_a_full_disk_is_told_before_and_during_the_work(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(module, "disk_usage", lambda folder: SimpleNamespace(free=100))
        with pytest.raises(RunError, match=r"0 MiB are needed for 100 embeddings, 0 MiB are free; free some, or"):
            slow_embeddings(tmp_path)[1].rows(TEXTS)
    monkeypatch.setattr(module, "CHUNK_BYTES", 64 * 48)
    outcome = FORKED.Queue()

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 48, 64 * 48))  # the second file is larger
        small_first = slow_embeddings(tmp_path)[1]
        small_first.rows(TEXTS[:10])
        try:
            small_first.rows(TEXTS)
        except OSError as error:
            outcome.put(str(error))

    child = FORKED.Process(target=limited)
    child.start()
    child.join()
    message = outcome.get(timeout=5)
    assert "File too large" in message and ".npy" in message
    assert len(list(tmp_path.glob("*/*.npy"))) == 1 and not list(tmp_path.glob("*/.*.tmp"))
    _, embeddings = slow_embeddings(tmp_path)
    embeddings.rows(TEXTS)
    assert (embeddings.encoded, embeddings.reused) == (90, 10)


def test_cached_embeddings_that_vanish_are_told(tmp_path):
    _, embeddings = slow_embeddings(tmp_path)
    embeddings.rows(TEXTS)
    next(embeddings.folder.glob("*.npy")).unlink()
    with pytest.raises(RunError, match="cached embeddings vanished while they were in use; nobody may delete"):
        embeddings.rows(TEXTS)


def test_a_revision_that_stayed_while_the_dimension_changed_is_refused(tmp_path):
    Embeddings(wrap(encoder_functions.pinned, "m"), tmp_path).rows(TEXTS)
    with pytest.raises(InputError, match="holds vectors of 8 numbers; now the encoder gives 9; give what has changed"):
        Embeddings(wrap(encoder_functions.wider, "m"), tmp_path)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("one_short", r"gives 7 rows for 8 texts, the first of which is '.*…'; allowed: one row a text"),
        ("changing", r"gives vectors of 8 numbers, after 1 before for 8 texts, the first of which is '.*…'"),
        ("not_a_number", r"gives nan as number 3 of the vector for 'bad\\n'; allowed: finite float32 numbers"),
        ("too_large", r"gives 1e\+300 as number 1 of the vector for 'bad\\n'"),
        ("constant", r"gives all 101 sentences the same embedding, e.g. '.* 0'; correlations are undefined"),
    ],
)
def test_a_bad_encoder_is_refused_by_name(tmp_path, function, problem):
    encoder = load_encoder(f"python:encoder_functions:{function}")
    for _ in range(2):  # what was stored before is no way round
        with pytest.raises(InputError, match=problem) as refused:
            Embeddings(encoder, tmp_path).rows([*TEXTS, "bad\n"])
        assert str(refused.value).startswith(f"python:encoder_functions:{function}: ")


def test_zero_vectors_are_allowed_and_counted(tmp_path, capsys):
    for _ in range(2):
        embeddings = Embeddings(wrap(encoder_functions.zero, "m"), tmp_path)
        assert not embeddings.rows(["", *TEXTS])[0].any()
        assert embeddings.zero_vectors == 1
    assert "1 sentences have the zero vector" in capsys.readouterr().err


def test_places_are_found_whatever_bytes_a_hash_has(tmp_path):
    """Hashes that end in zero bytes, and chunks that come in one after another."""
    hashes = np.array([bytes(15) + b"a", b"a" + bytes(15), bytes(16), b"\xff" * 16], dtype="S16")
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    chunks = Chunks(tmp_path, 2)
    for part in (slice(0, 1), slice(1, 4)):
        chunks.append(hashes[part], rows[part])
        chunks.refresh()
    assert np.array_equal(chunks.take(chunks.find(hashes[::-1])), rows[::-1])
    assert chunks.find(np.array([b"b"], dtype="S16")).tolist() == [-1]
    assert chunks.bytes() > 4 * chunks.row_bytes

"""training.model.word_vectors: the mean of a text file's vectors, over the words that the file has."""

import gzip

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from hub.contract.recipe import Encoder
from hub.errors import InputError
from training.model.bases import find_base
from training.model.encoder import build_encoder, save_encoder
from training.model.word_vectors import read_vectors

VECTORS = {"the": [1, 0, 0], "dog": [0, 1, 0], "a": [0, 0, 1], ".": [1, 1, 1], "'s": [9, 9, 9], "s": [2, 0, 0]}
GLOVE = "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in VECTORS.items())


def write(path, text=GLOVE):
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def make_encoder(path, **changes):
    spec = Encoder(path=str(path), license="pddl", modules="word-vectors", **changes)
    return build_encoder(spec, find_base(spec))


def mean(*words):
    return np.mean([VECTORS[word] for word in words], axis=0)


@pytest.mark.parametrize("name", ["glove.txt", "glove.vec", "glove.txt.gz", "glove.vec.gz"])
@pytest.mark.parametrize("header", ["", "6 3\n"])
def test_a_sentence_is_the_mean_of_its_words_vectors(tmp_path, name, header):
    encoder = make_encoder(write(tmp_path / name, header + GLOVE))
    assert encoder.get_embedding_dimension() == 3
    found = encoder.encode(["the dog", "The DOG.", "the dog the", "dog's\n\ta\u00a0dog"])
    wanted = [mean("the", "dog"), mean("the", "dog", "."), mean("the", "dog", "the"), mean("dog", "s", "a", "dog")]
    assert np.allclose(found, wanted)


def test_words_that_the_file_does_not_have_are_left_out_of_the_mean(tmp_path):
    encoder = make_encoder(write(tmp_path / "glove.txt"))
    sentences = ["the xyz dog", "thea dogs asa", "the, dog!", ""]
    assert np.allclose(encoder.encode(sentences), [mean("the", "dog"), [0, 0, 0], mean("the", "dog"), [0, 0, 0]])


def test_a_text_of_unknown_words_alone_is_the_zero_vector_and_its_cosine_is_0(tmp_path):
    encoder = make_encoder(write(tmp_path / "glove.txt"))
    for batch in (["xyz"], ["", "xyz"], ["xyz", "the dog"], ["the dog", "xyz"]):
        found = encoder.encode(batch)
        assert np.isfinite(found).all() and not found[batch.index("xyz")].any()
    similarities = encoder.similarity(encoder.encode(["xyz"]), encoder.encode(["the dog", "xyz"]))
    assert similarities.tolist() == [[0, 0]]


def test_a_mark_of_byte_order_is_no_part_of_the_first_word(tmp_path):
    words, _ = read_vectors(write(tmp_path / "glove.txt", b"\xef\xbb\xbfthe 1 2\ndog 3 4\n"))
    assert words == ["the", "dog"]


def test_capitals_count_where_the_file_has_them(tmp_path):
    encoder = make_encoder(write(tmp_path / "cased.txt", "the 1 0\nParis 0 1\n"))
    assert np.allclose(encoder.encode(["the Paris", "The paris"]), [[0.5, 0.5], [0, 0]])


def test_of_a_word_that_stands_twice_the_first_vector_counts(tmp_path):
    words, vectors = read_vectors(write(tmp_path / "glove.txt", "dog 1 2\ncat 3 4\ndog 5 6\n"))
    assert words == ["dog", "cat"] and vectors.tolist() == [[1, 2], [3, 4]] and vectors.dtype == np.float32


def test_a_word_may_hold_spaces_and_other_separators(tmp_path):
    words, _ = read_vectors(write(tmp_path / "glove.txt", "the 1 2\n. . . 3 4\nx\u2028y 5 6\nz\x85 7 8\r\n"))
    assert words == ["the", ". . .", "x\u2028y", "z\x85"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2\ndog 3\n", r":2: has 1 numbers; allowed: a word and 2 numbers"),
        ("the 1 2\ndog 3 x\n", r":2: .*could not convert"),
        ("the 1 2\ndog 3 4 five 6\n", r":2: has 4 numbers"),
        ("the 1 2\ndog 3 4 5\n", r":2: has 3 numbers; allowed: a word and 2 numbers"),
        ("the 1 2\n\ncat 3 4\n", r":2: has 0 numbers"),
        ("2 2\nthe 1 2\ndog 3 nan\n", r":3: a number is not finite"),
        ("the 1 2\ndog 3 1e39\n", r":2: a number is not finite"),
        ("the\n", r":1: has no numbers"),
        ("", r"glove.txt: holds no word vectors"),
        ("2 2\n", r"glove.txt: holds no word vectors"),
        (b"the 1 2\n\xff 3 4\n", r":2: is not UTF-8"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path, text, message):
    path = write(tmp_path / "glove.txt", text)
    with pytest.raises(InputError, match=message):
        read_vectors(path)


@pytest.mark.parametrize("damage", [lambda data: data[:-12], lambda data: b"plain " + data])
def test_a_damaged_archive_is_an_input_error(tmp_path, damage):
    path = write(tmp_path / "glove.txt.gz", GLOVE * 100)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"glove.txt.gz: cannot be unpacked"):
        read_vectors(path)


def test_saved_it_is_a_stock_module_that_is_cut_at_max_seq_length(tmp_path):
    encoder = make_encoder(write(tmp_path / "glove.txt"), max_seq_length=3)
    save_encoder(encoder, tmp_path / "saved")
    loaded = SentenceTransformer(str(tmp_path / "saved"))
    sentences = ["the dog a a a a", "Dog's xyz", "the dog xyz xyz a"]
    assert np.allclose(loaded.encode(sentences), [mean("the", "dog", "a"), mean("dog", "s"), mean("the", "dog", "a")])
    assert {path.name for path in (tmp_path / "saved").rglob("*.*")} >= {"model.safetensors", "tokenizer.json"}


def test_what_is_no_file_of_word_vectors_is_an_input_error(tmp_path):
    for path in (tmp_path, tmp_path / "none.txt", write(tmp_path / "glove.bin")):
        with pytest.raises(InputError, match=r"is not a file of word vectors; allowed: .txt, .vec"):
            make_encoder(path)

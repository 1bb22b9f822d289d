"""training.encoder.static: the mean of a text file's vectors, over the words that the file has."""

import gzip

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from hub.contract.recipe import Encoder
from hub.errors import InputError
from training.encoder.bases import find_base
from training.encoder.encoder import build_encoder, save_encoder
from training.encoder.static import read_vectors

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

"""Static encoders: a vocabulary cut to a corpus, and files of word vectors."""

import gzip
import json

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist
from sentence_transformers import SentenceTransformer
from tiny_bases import make_mlm_tokenizer
from tiny_lm import TEXTS
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from training_inputs import write_recipe

from hub.contract.recipe import Encoder, Vocabulary
from hub.contract.run_dir import require_complete
from hub.errors import InputError
from training.encoder.bases import find_base
from training.encoder.encoder import build_encoder, save_encoder
from training.encoder.static import cut, cut_tokenizer, principal_components, read_vectors
from training.run import main

CORPUS = ["Write two sentences that mean the same thing.", "A man is playing a flute.", "two dogs", "the same man"]
OTHERS = ["Zwölf Boxkämpfer 東京 🦜!", "a completely different topic on the beach", "\n\t 3.5 %", "q"]
BYTES = [f"<0x{number:02X}>" for number in range(256)]


def with_fallback() -> Tokenizer:
    """Byte pair encoding on characters, which falls back to bytes, as Gemma and Llama 2 have it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    specials = ["<pad>", "<unk>", "<table>", *BYTES]
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=480, special_tokens=specials))
    definition = json.loads(tokenizer.to_str())
    definition["added_tokens"] = definition["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(definition))


def tokens(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).tokens


@pytest.mark.parametrize("make", [with_fallback, lambda: make_mlm_tokenizer().backend_tokenizer])  # or on bytes
@pytest.mark.parametrize("size", [None, 12])
def test_texts_of_the_corpus_keep_their_tokens_and_all_others_have_some(make, size):
    whole = make()
    smaller, ids = cut_tokenizer(whole, CORPUS, size, "base")
    assert len(ids) == smaller.get_vocab_size() < whole.get_vocab_size() - 30
    assert all(whole.token_to_id(smaller.id_to_token(new)) == old for new, old in enumerate(ids))
    if size is None:
        assert [tokens(smaller, text) for text in CORPUS] == [tokens(whole, text) for text in CORPUS]
    for text in (*CORPUS, *OTHERS):
        found = smaller.encode(text, add_special_tokens=False)
        assert found.ids and "<unk>" not in found.tokens
        assert smaller.decode(found.ids, skip_special_tokens=False) == text
    assert smaller.encode("dogs").ids == smaller.encode("dogs", add_special_tokens=False).ids


def test_vectors_are_components_weighted_by_rarity():
    whole = with_fallback()
    weights = torch.randn(whole.get_vocab_size(), 6, generator=torch.Generator().manual_seed(1))
    texts = ["the man " * 30, "two dogs"]
    plain_tokenizer, plain = cut(whole, weights, texts, Vocabulary(path="c.txt"), "base")
    _, ids = cut_tokenizer(whole, texts, None, "base")
    assert torch.equal(plain, weights[ids])
    count = np.zeros(len(ids))
    for text in texts:
        np.add.at(count, plain_tokenizer.encode(text).ids, 1)
    p = count / count.sum()
    _, weighted = cut(whole, weights, texts, Vocabulary(path="c.txt", sif=0.01), "base")
    assert np.allclose(weighted.numpy(), plain.numpy() * (0.01 / (0.01 + p))[:, None], atol=1e-6)
    _, rotated = cut(whole, weights, texts, Vocabulary(path="c.txt", dimensions=6), "base")
    assert np.allclose(pdist(rotated), pdist(plain), atol=1e-5)  # nothing is lost
    assert np.allclose(p @ rotated.numpy(), 0, atol=1e-5)
    _, two = cut(whole, weights, texts, Vocabulary(path="c.txt", dimensions=2), "base")
    assert np.allclose(two, rotated[:, :2]) and two.shape == (len(ids), 2)
    spread = [p @ rotated[:, axis].numpy() ** 2 for axis in range(6)]
    assert spread == sorted(spread, reverse=True)
    assert np.isclose(sum(spread), p @ ((plain.numpy() - p @ plain.numpy()) ** 2).sum(1))
    line = np.outer(np.arange(4.0), [3.0, 4.0])
    assert np.allclose(np.abs(principal_components(line, np.full(4, 0.25), 1))[:, 0], [7.5, 2.5, 2.5, 7.5])


def recipe(folder, **vocabulary):
    (folder / "corpus.txt").write_text("\n".join(CORPUS) + "\n\n" + CORPUS[0] + "\n")
    base = {"path": str(folder / "lm"), "modules": "static", "license": "mit"}
    cut_to = {"path": str(folder / "corpus.txt"), **vocabulary}
    return write_recipe(folder, base=base | {"vocabulary": cut_to})


def test_a_small_encoder_is_trained_and_loads_as_any_other(tmp_path, capsys):
    path = recipe(tmp_path, size="40", dimensions="16", sif="1e-3")
    main(path, out=tmp_path / "out", dry_run=True)
    assert "static, mean pooling" in capsys.readouterr().out
    main(path, out=tmp_path / "out")
    manifest = require_complete(tmp_path / "out")
    loaded = SentenceTransformer(str(tmp_path / "out"))
    count = loaded[0].num_embeddings
    assert loaded.encode(OTHERS).shape == (4, 16) and 256 < count < 330
    assert manifest.counts["parameters"] == manifest.counts["trained_parameters"] == count * 16
    assert any(name.startswith("vocabulary:corpus.txt:") for name in manifest.inputs)
    assert manifest.provenance["base"]["vocabulary"]["path"] == "corpus.txt"
    assert SentenceTransformer(str(tmp_path / "out.base"))[0].num_embeddings == count


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


@pytest.mark.parametrize(("name", "header"), [("glove.txt", ""), ("glove.vec.gz", "6 3\n")])
def test_a_sentence_is_the_mean_of_its_known_words_vectors(tmp_path, name, header):
    encoder = make_encoder(write(tmp_path / name, header + GLOVE))
    assert encoder.get_embedding_dimension() == 3
    found = encoder.encode(["The DOG.", "the dog the xyz", "dog's\n\ta\u00a0dog", "thea dogs asa", ""])
    wanted = [mean("the", "dog", "."), mean("the", "dog", "the"), mean("dog", "s", "a", "dog"), [0, 0, 0], [0, 0, 0]]
    assert np.allclose(found, wanted)


def test_a_word_may_hold_spaces_and_other_separators(tmp_path):
    words, _ = read_vectors(write(tmp_path / "glove.txt", "the 1 2\n. . . 3 4\nx\u2028y 5 6\nz\x85 7 8\r\n"))
    assert words == ["the", ". . .", "x\u2028y", "z\x85"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2\ndog 3\n", r":2: has 1 numbers; allowed: a word and 2 numbers"),
        ("the 1 2\ndog 3 x\n", r":2: .*could not convert"),
        ("the 1 2\ndog 3 4 5\n", r":2: has 3 numbers; allowed: a word and 2 numbers"),
        ("2 2\nthe 1 2\ndog 3 1e39\n", r":3: a number is not finite"),
        ("", r"glove.txt: holds no word vectors"),
        (b"the 1 2\n\xff 3 4\n", r":2: is not UTF-8"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path, text, message):
    path = write(tmp_path / "glove.txt", text)
    with pytest.raises(InputError, match=message):
        read_vectors(path)


def test_saved_it_is_a_stock_module_that_is_cut_at_max_seq_length(tmp_path):
    encoder = make_encoder(write(tmp_path / "glove.txt"), max_seq_length=3)
    save_encoder(encoder, tmp_path / "saved")
    loaded = SentenceTransformer(str(tmp_path / "saved"))
    sentences = ["the dog a a a a", "Dog's xyz", "the dog xyz xyz a"]
    assert np.allclose(loaded.encode(sentences), [mean("the", "dog", "a"), mean("dog", "s"), mean("the", "dog", "a")])
    assert {path.name for path in (tmp_path / "saved").rglob("*.*")} >= {"model.safetensors", "tokenizer.json"}

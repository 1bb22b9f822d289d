"""training.models: the student is a stock SentenceTransformer that gives a sentence the same embedding in any batch."""

import subprocess
import sys

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tiny_lm import make_lm
from transformers import AutoModelForCausalLM, AutoTokenizer

from hub.errors import InputError
from hub.recipe import Encoder
from training.models import build_student, find_base, save_student

SENTENCES = ["A man is playing a flute.", "Dogs.", "Two young women cook red beans in an old blue car on the beach."]


def make_encoder(folder, **changes):
    return Encoder(path=str(folder), license="apache-2.0", **changes)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_an_embedding_does_not_depend_on_its_batch(tmp_path, kind, pooling):
    encoder = make_encoder(make_lm(tmp_path / "lm", kind), pooling=pooling)
    student = build_student(encoder, find_base(encoder)).eval()
    together = student.encode(SENTENCES)
    alone = np.concatenate([student.encode([sentence]) for sentence in SENTENCES])
    assert np.abs(together - alone).max() <= 1e-5


def test_a_static_student_is_the_mean_of_the_bases_token_embeddings(tmp_path):
    encoder = make_encoder(make_lm(tmp_path / "lm"), modules="static")
    student = build_student(encoder, find_base(encoder))
    save_student(student, tmp_path / "saved")
    loaded = SentenceTransformer(str(tmp_path / "saved"))
    lm = AutoModelForCausalLM.from_pretrained(tmp_path / "lm")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "lm")(SENTENCES[0], return_tensors="pt").input_ids
    mean = lm.get_input_embeddings()(tokens).mean(dim=1)[0].detach().numpy()
    assert np.abs(loaded.encode(SENTENCES)[0] - mean).max() <= 1e-5
    long = "dog " * 200
    assert np.array_equal(loaded.encode(long), loaded.encode(long + "beach"))  # cut at max_seq_length


def test_a_static_student_has_no_last_token(tmp_path):
    with pytest.raises(ValueError, match=r"pooling lasttoken does not fit"):
        make_encoder(tmp_path, modules="static", pooling="lasttoken")


def test_the_saved_student_loads_anywhere_without_our_code(tmp_path):
    encoder = make_encoder(make_lm(tmp_path / "lm"))
    student = build_student(encoder, find_base(encoder))
    save_student(student, tmp_path / "saved")
    names = {path.name for path in (tmp_path / "saved").rglob("*") if path.is_file()}
    assert {"model.safetensors", "modules.json", "tokenizer.json"} <= names
    assert not names & {"README.md", "pytorch_model.bin"}
    script = (
        "import sys, sentence_transformers as s; print(s.SentenceTransformer(sys.argv[1]).encode('Dogs.').tolist())"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "saved")]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert np.allclose(eval(printed), student.encode("Dogs."), atol=1e-6)


def test_a_tokenizer_without_padding_pads_with_its_end_token(tmp_path):
    folder = make_lm(tmp_path / "lm")
    config = folder / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"pad_token"', '"unused"'))
    encoder = make_encoder(folder)
    save_student(build_student(encoder, find_base(encoder)), tmp_path / "saved")
    loaded = SentenceTransformer(str(tmp_path / "saved"))
    assert loaded.tokenizer.pad_token == loaded.tokenizer.eos_token
    assert loaded.tokenizer.padding_side == "right"
    assert loaded.max_seq_length == 64


def test_the_hash_is_of_the_model_and_not_of_notes_beside_it(tmp_path):
    encoder = make_encoder(make_lm(tmp_path / "lm"))
    before = find_base(encoder).sha256
    (tmp_path / "lm" / "README.md").write_text("note")
    assert find_base(encoder).sha256 == before
    (tmp_path / "lm" / "config.json").write_text((tmp_path / "lm" / "config.json").read_text() + " ")
    assert find_base(encoder).sha256 != before


def test_a_base_that_is_absent_or_no_model(tmp_path):
    with pytest.raises(InputError, match=r"base: .*none: no such folder"):
        find_base(make_encoder(tmp_path / "none"))
    with pytest.raises(InputError, match=r"is not a transformers model"):
        find_base(make_encoder(tmp_path))


def test_a_damaged_base_is_an_input_error(tmp_path):
    folder = make_lm(tmp_path / "lm")
    (folder / "config.json").write_text('{"model_type": "nonesuch"}')
    encoder = make_encoder(folder)
    with pytest.raises(InputError, match=r"cannot be loaded"):
        build_student(encoder, find_base(encoder))

"""The encoder is a stock SentenceTransformer that gives a sentence the same embedding in any batch."""

import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny_bases import make_mlm
from tiny_lm import make_lm
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from hub.contract.recipe import Encoder, Lora
from hub.errors import InputError
from training.model.bases import find_base
from training.model.encoder import build_encoder, save_encoder

pytest_plugins = ["local_hub"]
SENTENCES = ["A man is playing a flute.", "Dogs.", "Two young women cook red beans in an old blue car on the beach."]


def make_spec(folder, **changes):
    return Encoder(path=str(folder), license="apache-2.0", **changes)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_an_embedding_does_not_depend_on_its_batch(tmp_path, kind, pooling):
    spec = make_spec(make_lm(tmp_path / "lm", kind), pooling=pooling)
    encoder = build_encoder(spec, find_base(spec)).eval()
    together = encoder.encode(SENTENCES)
    alone = np.concatenate([encoder.encode([sentence]) for sentence in SENTENCES])
    assert np.abs(together - alone).max() <= 1e-5


def test_a_static_student_is_the_mean_of_the_bases_token_embeddings(tmp_path):
    spec = make_spec(make_lm(tmp_path / "lm"), modules="static")
    encoder = build_encoder(spec, find_base(spec))
    save_encoder(encoder, tmp_path / "saved")
    loaded = SentenceTransformer(str(tmp_path / "saved"))
    lm = AutoModelForCausalLM.from_pretrained(tmp_path / "lm")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "lm")(SENTENCES[0], return_tensors="pt").input_ids
    mean = lm.get_input_embeddings()(tokens).mean(dim=1)[0].detach().numpy()
    assert np.abs(loaded.encode(SENTENCES)[0] - mean).max() <= 1e-5
    long = "dog " * 200
    assert np.array_equal(loaded.encode(long), loaded.encode(long + "beach"))  # cut at max_seq_length


def test_a_static_student_has_no_last_token(tmp_path):
    with pytest.raises(ValueError, match=r"pooling lasttoken does not fit"):
        make_spec(tmp_path, modules="static", pooling="lasttoken")


@pytest.mark.slow("a fresh process without our code, and a Hub")
def test_the_saved_student_loads_anywhere_without_our_code(tmp_path):
    spec = make_spec(make_lm(tmp_path / "lm"))
    encoder = build_encoder(spec, find_base(spec))
    save_encoder(encoder, tmp_path / "saved")
    names = {path.name for path in (tmp_path / "saved").rglob("*") if path.is_file()}
    assert {"model.safetensors", "modules.json", "tokenizer.json"} <= names
    assert not names & {"README.md", "pytorch_model.bin"}
    script = (
        "import sys, sentence_transformers as s; print(s.SentenceTransformer(sys.argv[1]).encode('Dogs.').tolist())"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "saved")]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert np.allclose(eval(printed), encoder.encode("Dogs."), atol=1e-6)


def test_a_tokenizer_without_padding_pads_with_its_end_token(tmp_path):
    folder = make_lm(tmp_path / "lm")
    config = folder / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"pad_token"', '"unused"'))
    spec = make_spec(folder)
    save_encoder(build_encoder(spec, find_base(spec)), tmp_path / "saved")
    loaded = SentenceTransformer(str(tmp_path / "saved"))
    assert loaded.tokenizer.pad_token == loaded.tokenizer.eos_token
    assert loaded.tokenizer.padding_side == "right"
    assert loaded.max_seq_length == 64


def test_the_hash_is_of_the_model_and_not_of_notes_beside_it(tmp_path):
    spec = make_spec(make_lm(tmp_path / "lm"))
    before = find_base(spec).sha256
    (tmp_path / "lm" / "README.md").write_text("note")
    assert find_base(spec).sha256 == before
    (tmp_path / "lm" / "config.json").write_text((tmp_path / "lm" / "config.json").read_text() + " ")
    assert find_base(spec).sha256 != before


def test_a_base_that_is_absent_or_no_model(tmp_path):
    with pytest.raises(InputError, match=r"base: .*none: no such folder"):
        find_base(make_spec(tmp_path / "none"))
    with pytest.raises(InputError, match=r"is not a transformers model"):
        find_base(make_spec(tmp_path))


def test_a_damaged_base_is_an_input_error(tmp_path):
    folder = make_lm(tmp_path / "lm")
    (folder / "config.json").write_text('{"model_type": "nonesuch"}')
    spec = make_spec(folder)
    with pytest.raises(InputError, match=r"cannot be loaded"):
        build_encoder(spec, find_base(spec))


def test_a_masked_language_model_loses_its_pooler_and_gets_none_at_random(tmp_path, caplog):
    spec = make_spec(make_mlm(tmp_path / "mlm"))
    encoder = build_encoder(spec, find_base(spec))
    assert encoder.transformers_model.pooler is None
    save_encoder(encoder, tmp_path / "saved")
    caplog.clear()
    loaded = SentenceTransformer(str(tmp_path / "saved"))
    assert "MISSING" not in caplog.text  # nothing of what is loaded is made up
    assert loaded.transformers_model.pooler is None
    assert np.array_equal(loaded.encode(SENTENCES), encoder.encode(SENTENCES))
    parameters = dict(encoder.named_parameters())
    assert all(torch.equal(value, parameters[name]) for name, value in loaded.named_parameters())


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_embedding_is_the_pooled_last_hidden_state_of_the_base(tmp_path, pooling):
    folder = make_mlm(tmp_path / "mlm")
    spec = make_spec(folder, pooling=pooling)
    encoder = build_encoder(spec, find_base(spec)).eval()
    tokens = AutoTokenizer.from_pretrained(folder)(SENTENCES[0], return_tensors="pt")
    with torch.no_grad():
        states = AutoModelForMaskedLM.from_pretrained(folder).roberta(**tokens).last_hidden_state[0]
    wanted = states.mean(0) if pooling == "mean" else states[0]
    assert np.abs(encoder.encode(SENTENCES)[0] - wanted.numpy()).max() <= 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_base_is_loaded_in_the_recipes_precision_whatever_it_was_published_in(tmp_path, dtype):
    spec = make_spec(make_lm(tmp_path / "lm", dtype="float16"), dtype=dtype)
    encoder = build_encoder(spec, find_base(spec))
    assert {str(parameter.dtype) for parameter in encoder.parameters()} == {f"torch.{dtype}"}


def test_the_first_token_of_a_causal_model_is_no_embedding(tmp_path):
    spec = make_spec(make_lm(tmp_path / "lm"), pooling="cls")
    with pytest.raises(InputError, match=r"pooling: cls, but LlamaForCausalLM .*allowed: lasttoken or mean"):
        build_encoder(spec, find_base(spec))


def test_more_tokens_than_the_base_has_positions_are_refused(tmp_path):
    spec = make_spec(make_lm(tmp_path / "lm"), max_seq_length=257)
    with pytest.raises(InputError, match=r"max_seq_length: .*257 is more than the 256 positions"):
        build_encoder(spec, find_base(spec))


def test_roberta_has_fewer_positions_than_its_config_says(tmp_path):
    folder = make_mlm(tmp_path / "mlm")  # 514, of which the first two stand for padding
    with pytest.raises(InputError, match=r"513 is more than the 512 positions"):
        build_encoder(spec := make_spec(folder, max_seq_length=513), find_base(spec))
    encoder = build_encoder(spec := make_spec(folder, max_seq_length=512), find_base(spec))
    assert np.isfinite(encoder.encode("dog " * 600)).all()


def test_a_quantization_that_is_not_installed_says_what_to_install(tmp_path):
    if find_spec("bitsandbytes"):
        pytest.skip("bitsandbytes is installed: see the test on a GPU")
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": "true", "bnb_4bit_quant_type": "nf4"}
    spec = make_spec(make_lm(tmp_path / "lm"), quantization=settings)
    with pytest.raises(InputError, match=r"cannot be loaded: .*bitsandbytes.*install what the quantization needs"):
        build_encoder(spec, find_base(spec), Lora(r=2, alpha=2))


@pytest.mark.parametrize("settings", [{"quant_method": "nonesuch"}, {"load_in_4bits": "true"}])
def test_an_unknown_quantization_is_an_input_error(tmp_path, settings):
    spec = make_spec(make_lm(tmp_path / "lm"), quantization=settings)
    with pytest.raises(InputError, match=r"base: .*lm: cannot be loaded: .*quant"):
        build_encoder(spec, find_base(spec), Lora(r=2, alpha=2))


def test_a_finished_encoder_is_taken_as_it_is(tmp_path):
    first = make_spec(make_mlm(tmp_path / "mlm"), pooling="cls", max_seq_length=32)
    encoder = build_encoder(first, find_base(first))
    save_encoder(encoder, tmp_path / "finished")
    spec = make_spec(tmp_path / "finished", modules="sentence-transformer", max_seq_length=16)
    found = build_encoder(spec, find_base(spec))
    assert np.abs(found.encode("Dogs.") - encoder.encode("Dogs.")).max() <= 1e-6
    assert found[1].pooling_mode == "cls" and found.max_seq_length == 16
    before = find_base(spec).sha256
    pooling = tmp_path / "finished" / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text().replace("cls", "mean"))
    assert find_base(spec).sha256 != before  # its modules are part of it


def test_what_is_no_finished_encoder_is_an_input_error(tmp_path):
    spec = make_spec(make_lm(tmp_path / "lm"), modules="sentence-transformer")
    with pytest.raises(InputError, match=r"is not a sentence-transformers model; allowed: a folder with modules.json"):
        find_base(spec)
    (tmp_path / "lm" / "modules.json").write_text(
        json.dumps([{"idx": 0, "name": "0", "path": "", "type": "my_code.Module"}])
    )
    with pytest.raises(InputError, match=r"base: .*lm: cannot be loaded"):
        build_encoder(spec, find_base(spec))


def test_a_base_that_is_cut_short_is_an_input_error(tmp_path):
    weights = make_lm(tmp_path / "lm") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-500])
    spec = make_spec(tmp_path / "lm")
    with pytest.raises(InputError, match=r"base: .*lm: cannot be loaded: .*incomplete"):
        build_encoder(spec, find_base(spec))


def test_layers_that_a_base_lacks_are_not_made_at_random(tmp_path):
    config = make_lm(tmp_path / "lm") / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 3}))
    spec = make_spec(tmp_path / "lm")
    with pytest.raises(InputError, match=r"base: .*lm: its weights lack layers.2.input_layernorm.weight"):
        build_encoder(spec, find_base(spec))


@pytest.mark.parametrize("modules", ["transformer", "sentence-transformer"])
def test_code_that_a_base_brings_is_not_run(tmp_path, modules):
    folder = make_lm(tmp_path / "lm")
    evidence = tmp_path / "ran"
    (folder / "modeling_own.py").write_text(f"open({str(evidence)!r}, 'w')\nclass Own: ...\n")
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "modeling_own.Own", "AutoModel": "modeling_own.Own"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": auto_map}))
    module = {"idx": 0, "name": "0", "path": "", "type": "modeling_own.Own"}
    (folder / "modules.json").write_text(json.dumps([module]))
    spec = make_spec(folder, modules=modules)
    with pytest.raises(InputError, match=r"cannot be loaded"):
        build_encoder(spec, find_base(spec))
    assert not evidence.exists()


def test_an_adapter_is_no_base_to_train(tmp_path):
    spec = make_spec(make_lm(tmp_path / "lm"))
    save_encoder(build_encoder(spec, find_base(spec), Lora(r=2, alpha=2)), tmp_path / "adapter")
    with pytest.raises(InputError, match=r"is an adapter; allowed: the model it is for, or its merged form"):
        find_base(make_spec(tmp_path / "adapter"))
    with pytest.raises(InputError, match=r"is an adapter for None, which is not on the Hub"):
        find_base(make_spec(tmp_path / "adapter", modules="sentence-transformer"))


HUB_BASES = """
import json, sys
from hub.contract.recipe import Encoder
from training.model.bases import find_base
from training.model.encoder import build_encoder
found = []
for changes in json.loads(sys.argv[1]):
    spec = Encoder(license="mit", **changes)
    base = find_base(spec)
    found.append([base.commit, build_encoder(spec, base).encode("the dog").tolist()])
print(json.dumps(found))
"""


@pytest.mark.slow("a fresh process without our code, and a Hub")
def test_bases_come_from_the_hub_at_their_pinned_revision(tmp_path, local_hub, hub_api):
    """A language model, word vectors, and a finished spec that is an adapter on another repository."""
    lm, words, adapter = (hub_api.create_repo(f"acme/models-{name}").repo_id for name in ("lm", "words", "adapter"))
    pinned = hub_api.upload_folder(repo_id=lm, folder_path=make_lm(tmp_path / "lm")).oid
    (tmp_path / "glove.txt").write_text("the 1 0\ndog 0 1\n")
    hub_api.upload_file(repo_id=words, path_in_repo="v/glove.txt", path_or_fileobj=tmp_path / "glove.txt")
    hub_api.create_tag(words, tag="v1")
    spec = make_spec(tmp_path / "lm")
    encoder = build_encoder(spec, find_base(spec), Lora(r=2, alpha=2))
    encoder.transformers_model.name_or_path = lm
    save_encoder(encoder, tmp_path / "adapter")
    made = hub_api.upload_folder(repo_id=adapter, folder_path=tmp_path / "adapter").oid
    bases = [
        {"repo_id": lm, "revision": pinned},
        {"repo_id": words, "revision": "v1", "file": "v/glove.txt", "modules": "word-vectors"},
        {"repo_id": adapter, "revision": made, "modules": "sentence-transformer"},
    ]
    command = [sys.executable, "-c", HUB_BASES, json.dumps(bases)]
    environment = local_hub.client_environment(tmp_path / "home")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (commit, plain), (_, vectors), (_, adapted) = json.loads(done.stdout.splitlines()[-1])
    assert commit == pinned and vectors == [0.5, 0.5]
    assert np.abs(encoder.encode("the dog") - plain).max() <= 1e-5  # a new adapter is the identity
    assert np.abs(encoder.encode("the dog") - adapted).max() <= 1e-5

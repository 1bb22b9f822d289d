"""The encoder is a stock SentenceTransformer that gives a sentence the same embedding in any batch; first layers."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny_bases import make_mlm
from tiny_lm import make_family, make_lm
from training_inputs import write_recipe
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from hub.contract.recipe import Encoder, Lora
from hub.contract.run_dir import require_complete
from hub.errors import InputError
from training.encoder.bases import find_base
from training.encoder.encoder import build_encoder, save_encoder
from training.run import main

pytest_plugins = ["local_hub"]
SENTENCES = ["A man is playing a flute.", "Dogs.", "Two young women cook red beans in an old blue car on the beach."]


def make_spec(folder, **changes):
    return Encoder(path=str(folder), license="apache-2.0", **changes)


def make_encoder(folder, lora=None, **changes):
    spec = make_spec(folder, **changes)
    return build_encoder(spec, find_base(spec), lora).eval()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_an_embedding_does_not_depend_on_its_batch(tmp_path, kind, pooling):
    encoder = make_encoder(make_lm(tmp_path / "lm", kind), pooling=pooling)
    together = encoder.encode(SENTENCES)
    alone = np.concatenate([encoder.encode([sentence]) for sentence in SENTENCES])
    assert np.abs(together - alone).max() <= 1e-5


def test_a_static_student_is_the_mean_of_the_bases_token_embeddings(tmp_path):
    save_encoder(make_encoder(make_lm(tmp_path / "lm"), modules="static"), tmp_path / "saved")
    loaded = SentenceTransformer(str(tmp_path / "saved"))
    lm = AutoModelForCausalLM.from_pretrained(tmp_path / "lm")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "lm")(SENTENCES[0], return_tensors="pt").input_ids
    mean = lm.get_input_embeddings()(tokens).mean(dim=1)[0].detach().numpy()
    assert np.abs(loaded.encode(SENTENCES)[0] - mean).max() <= 1e-5
    long = "dog " * 200
    assert np.array_equal(loaded.encode(long), loaded.encode(long + "beach"))  # cut at max_seq_length


def test_a_masked_language_model_loses_its_pooler_and_gets_none_at_random(tmp_path, caplog):
    encoder = make_encoder(make_mlm(tmp_path / "mlm"))
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
    encoder = make_encoder(folder, pooling=pooling)
    tokens = AutoTokenizer.from_pretrained(folder)(SENTENCES[0], return_tensors="pt")
    with torch.no_grad():
        states = AutoModelForMaskedLM.from_pretrained(folder).roberta(**tokens).last_hidden_state[0]
    wanted = states.mean(0) if pooling == "mean" else states[0]
    assert np.abs(encoder.encode(SENTENCES)[0] - wanted.numpy()).max() <= 1e-5


def test_a_finished_encoder_is_taken_as_it_is(tmp_path):
    encoder = make_encoder(make_mlm(tmp_path / "mlm"), pooling="cls", max_seq_length=32)
    save_encoder(encoder, tmp_path / "finished")
    spec = make_spec(tmp_path / "finished", modules="sentence-transformer", max_seq_length=16)
    found = build_encoder(spec, find_base(spec))
    assert np.abs(found.encode("Dogs.") - encoder.encode("Dogs.")).max() <= 1e-6
    assert found[1].pooling_mode == "cls" and found.max_seq_length == 16
    before = find_base(spec).sha256
    pooling = tmp_path / "finished" / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text().replace("cls", "mean"))
    assert find_base(spec).sha256 != before  # its modules are part of it


def test_layers_that_a_base_lacks_are_not_made_at_random(tmp_path):
    config = make_lm(tmp_path / "lm") / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 3}))
    with pytest.raises(InputError, match=r"base: .*lm: its weights lack layers.2.input_layernorm.weight"):
        make_encoder(tmp_path / "lm")


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
    with pytest.raises(InputError, match=r"cannot be loaded"):
        make_encoder(folder, modules=modules)
    assert not evidence.exists()


HUB_BASES = """
import json, sys
from hub.contract.recipe import Encoder
from training.encoder.bases import find_base
from training.encoder.encoder import build_encoder
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
    encoder = make_encoder(tmp_path / "lm", Lora(r=2, alpha=2))
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


@pytest.mark.parametrize("kind", ["gemma3", "smollm3", "gpt2", "mlm"])
def test_the_first_layers_give_what_they_give_inside_the_whole(tmp_path, kind):
    """Of decoders under their last norm, which stays."""
    base = make_mlm(tmp_path / "lm") if kind == "mlm" else make_family(tmp_path / "lm", kind)
    encoder = make_encoder(base, layers=1)
    assert encoder[0].model.config.num_hidden_layers == 1
    whole = AutoModel.from_pretrained(base).eval()
    features = encoder[0].preprocess(SENTENCES)
    inputs = {name: features[name] for name in ("input_ids", "attention_mask")}
    states = whole(**inputs, output_hidden_states=True).hidden_states[1]
    norm = getattr(whole, "norm", getattr(whole, "ln_f", torch.nn.Identity()))
    mask = inputs["attention_mask"][..., None]
    wanted = (norm(states) * mask).sum(1) / mask.sum(1)
    assert torch.allclose(encoder.encode(SENTENCES, convert_to_tensor=True), wanted, atol=1e-5)


def test_an_adapter_on_the_first_layers_is_trained_merged_and_saved_as_a_smaller_model(tmp_path, capsys):
    base = {"path": str(make_family(tmp_path / "lm", "gemma3")), "pooling": "lasttoken", "layers": "1"}
    lora = {"r": "2", "alpha": "4", "release": "merged"}
    recipe = write_recipe(tmp_path, base=base | {"prompt": 'This: "[X]" is:"', "license": "mit"}, lora=lora)
    main(recipe, out=tmp_path / "out", dry_run=True)
    assert "on 7 layers" in capsys.readouterr().out  # linear ones, of the one layer that is left
    main(recipe, out=tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["num_hidden_layers"] == len(config["layer_types"]) == 1
    loaded = SentenceTransformer(str(tmp_path / "out"))
    parameters = sum(parameter.numel() for parameter in loaded.parameters())
    assert parameters == require_complete(tmp_path / "out").counts["parameters"]
    assert loaded.encode(SENTENCES).shape[0] == len(SENTENCES)

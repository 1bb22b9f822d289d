"""The encoder is a stock SentenceTransformer that gives a sentence the same embedding in any batch; first layers."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny_bases import make_llama, make_mlm
from tiny_lm import make_family, make_lm
from training_inputs import write_recipe
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from hub.contract.recipe import Encoder, Lora
from hub.errors import InputError
from training.encoder.bases import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Base, find_base
from training.encoder.encoder import build_encoder, has_adapter, save_encoder, save_release
from training.loop.job import prepare

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


pytest_plugins = ["local_hub"]
LORA = Lora(r=4, alpha=8)
EOL = 'This sentence : "[X]" means in one word:"'
BASES = {"llama": make_llama, "gpt2": lambda folder: make_lm(folder, "gpt2"), "roberta": make_mlm}


PROMPTED = {"pooling": "lasttoken", "prompt": EOL}


def train_a_little(encoder):
    """Give the adapter values that training could have given it."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.05)
    return encoder


def distance(a, b):
    return float(np.abs(a - b).max())


@pytest.mark.parametrize("family", BASES)
def test_a_new_adapter_is_the_identity_and_only_it_is_trained(tmp_path, family):
    base = BASES[family](tmp_path / "base")
    plain, encoder = make_encoder(base, **PROMPTED), make_encoder(base, LORA, **PROMPTED)
    assert distance(plain.encode(SENTENCES), encoder.encode(SENTENCES)) == 0
    assert has_adapter(encoder) and not has_adapter(plain)
    trained = [name for name, parameter in encoder.named_parameters() if parameter.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    assert not any("pooler" in name or "embed" in name or "lm_head" in name for name in trained)


def test_only_the_adapter_is_saved_and_no_path_of_this_machine(tmp_path):
    base = make_llama(tmp_path / "base")
    save_encoder(train_a_little(make_encoder(base, LORA, **PROMPTED)), tmp_path / "saved")
    save_encoder(make_encoder(base, **PROMPTED), tmp_path / "whole")
    assert not [path for path in (tmp_path / "whole").rglob("*.json") if str(tmp_path) in path.read_text()]
    files = [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {ADAPTER_CONFIG, ADAPTER_WEIGHTS, "modules.json", "tokenizer.json"} <= names
    assert not names & {"README.md", "model.safetensors", "pytorch_model.bin"}
    assert not [path for path in files if str(tmp_path).encode() in path.read_bytes()]


@pytest.mark.parametrize("family", BASES)
def test_the_merged_form_is_a_plain_model_with_the_adapters_embeddings(tmp_path, family):
    base = BASES[family](tmp_path / "base")
    lora = LORA.model_copy(update={"release": "merged"})
    encoder = train_a_little(make_encoder(base, lora, **PROMPTED))
    spec = make_spec(base, **PROMPTED)
    save_release(encoder, tmp_path / "merged", spec, find_base(spec), lora)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "merged"]
    loaded = SentenceTransformer(str(tmp_path / "merged"))
    assert distance(make_encoder(base, **PROMPTED).encode(SENTENCES), encoder.encode(SENTENCES)) > 1e-2
    assert distance(loaded.encode(SENTENCES), encoder.encode(SENTENCES)) <= 1e-5
    assert not has_adapter(loaded)
    assert not (tmp_path / "merged" / ADAPTER_CONFIG).exists()


def test_a_recipe_whose_base_has_moved_is_refused_before_it_is_trained(tmp_path, hub_api, monkeypatch):
    repo = hub_api.create_repo("acme/moved-before-training").repo_id
    folder = make_llama(tmp_path / "llama")
    commit = hub_api.upload_folder(repo_id=repo, folder_path=folder).oid
    base = {"repo_id": repo, "revision": commit, "license": "mit"}
    recipe = write_recipe(tmp_path, base=base, lora={"r": "4", "alpha": "8"})
    monkeypatch.setattr("training.encoder.encoder.HfApi", lambda: hub_api)
    monkeypatch.setattr("training.loop.job.find_base", lambda spec: Base(folder, commit, "sha256"))
    prepare(recipe, tmp_path / "out", None, [])
    hub_api.upload_folder(repo_id=repo, folder_path=make_llama(tmp_path / "other", seed=9))
    with pytest.raises(InputError, match=r"base.revision.*main has another model.safetensors"):
        prepare(recipe, tmp_path / "out", None, [])
    prepare(recipe, tmp_path / "out", None, ["lora.release=merged"])

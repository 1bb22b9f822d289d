"""LoRA on a frozen base, saved as the adapter alone, loaded from a Hub with its base, merged."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny_bases import make_llama, make_mlm
from tiny_lm import make_lm
from training_inputs import write_recipe

from hub.contract.recipe import Encoder, Lora
from hub.errors import InputError
from training.encoder.bases import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Base, find_base
from training.encoder.encoder import build_encoder, has_adapter, save_encoder, save_release
from training.loop.job import prepare

pytest_plugins = ["local_hub"]
SENTENCES = [
    "A man is playing a flute.",
    "Dogs.",
    "Two young women cook red beans in an old blue car on the beach." * 4,
]
LORA = Lora(r=4, alpha=8)
EOL = 'This sentence : "[X]" means in one word:"'
BASES = {"llama": make_llama, "gpt2": lambda folder: make_lm(folder, "gpt2"), "roberta": make_mlm}


def make_spec(folder, **changes):
    return Encoder(**{"path": str(folder), "license": "apache-2.0", "pooling": "lasttoken", "prompt": EOL} | changes)


def make_encoder(spec, lora=LORA, seed=0):
    torch.manual_seed(seed)
    return build_encoder(spec, find_base(spec), lora).eval()


def train_a_little(encoder, seed=1):
    """Give the adapter values that training could have given it."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.05)
    return encoder


def distance(a, b):
    return float(np.abs(a - b).max())


@pytest.mark.parametrize("family", BASES)
def test_a_new_adapter_is_the_identity_and_only_it_is_trained(tmp_path, family):
    spec = make_spec(BASES[family](tmp_path / "base"))
    plain, encoder = make_encoder(spec, None), make_encoder(spec)
    assert distance(plain.encode(SENTENCES), encoder.encode(SENTENCES)) == 0
    assert has_adapter(encoder) and not has_adapter(plain)
    trained = [name for name, parameter in encoder.named_parameters() if parameter.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    assert not any("pooler" in name or "embed" in name or "lm_head" in name for name in trained)


@pytest.mark.parametrize("family", ["llama", "roberta"])
def test_gradient_checkpointing_gives_the_same_gradients(tmp_path, family):
    spec = make_spec(BASES[family](tmp_path / "base"), pooling="mean")
    found = []
    for checkpointing in (False, True):
        encoder = train_a_little(make_encoder(spec, Lora(r=4, alpha=8, dropout=0.1))).train()
        if checkpointing:
            encoder.gradient_checkpointing_enable()
            assert encoder.transformers_model.is_gradient_checkpointing
        torch.manual_seed(3)  # dropout
        encoder(encoder.preprocess(SENTENCES))["sentence_embedding"].pow(2).sum().backward()
        found.append({name: p.grad for name, p in encoder.named_parameters() if p.requires_grad})
    assert all(gradient.abs().max() > 0 for gradient in found[1].values())
    assert all(torch.allclose(found[0][name], found[1][name], atol=1e-6, rtol=1e-4) for name in found[0])


def test_only_the_adapter_is_saved_and_no_path_of_this_machine(tmp_path):
    spec = make_spec(make_llama(tmp_path / "base"))
    save_encoder(train_a_little(make_encoder(spec)), tmp_path / "saved")
    save_encoder(make_encoder(spec, None), tmp_path / "whole")
    assert not [path for path in (tmp_path / "whole").rglob("*.json") if str(tmp_path) in path.read_text()]
    files = [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {ADAPTER_CONFIG, ADAPTER_WEIGHTS, "modules.json", "tokenizer.json"} <= names
    assert not names & {"README.md", "model.safetensors", "pytorch_model.bin"}
    assert not [path for path in files if str(tmp_path).encode() in path.read_bytes()]


@pytest.mark.parametrize("family", BASES)
def test_the_merged_form_is_a_plain_model_with_the_adapters_embeddings(tmp_path, family):
    spec = make_spec(BASES[family](tmp_path / "base"))
    lora = LORA.model_copy(update={"release": "merged"})
    encoder = train_a_little(make_encoder(spec, lora))
    save_release(encoder, tmp_path / "merged", spec, find_base(spec), lora)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "merged"]
    loaded = SentenceTransformer(str(tmp_path / "merged"))
    assert distance(make_encoder(spec, None).encode(SENTENCES), encoder.encode(SENTENCES)) > 1e-2
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

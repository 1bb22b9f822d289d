"""A base's first layers (``base.layers``): what an encoder of them gives, how it is saved, and what it refuses."""

import json

import pytest
import torch
from pydantic import ValidationError
from sentence_transformers import SentenceTransformer
from tiny_bases import make_mlm
from tiny_lm import make_family
from training_inputs import write_recipe
from transformers import AutoModel

from hub.contract.recipe import Encoder
from hub.contract.run_dir import require_complete
from hub.errors import InputError
from training.encoder.bases import find_base
from training.encoder.encoder import build_encoder
from training.loop.job import prepare
from training.run import main

PROMPT = 'This: "[X]" is:"'
SENTENCES = ["A man is playing a flute.", "Dogs."]


def make_base(folder, kind):
    return make_mlm(folder / "lm") if kind == "mlm" else make_family(folder / "lm", kind)


@pytest.mark.parametrize("kind", ["gemma3", "smollm3", "gpt2", "mlm"])
def test_the_first_layers_give_what_they_give_inside_the_whole(tmp_path, kind):
    """Of decoders under their last norm, which stays."""
    base = make_base(tmp_path, kind)
    spec = Encoder(path=str(base), layers=1, license="mit")
    encoder = build_encoder(spec, find_base(spec)).eval()
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
    base = {"path": str(make_base(tmp_path, "gemma3")), "pooling": "lasttoken", "prompt": PROMPT, "layers": "1"}
    lora = {"r": "2", "alpha": "4", "release": "merged"}
    recipe = write_recipe(tmp_path, base=base | {"license": "mit"}, lora=lora)
    main(recipe, out=tmp_path / "out", dry_run=True)
    assert "on 7 layers" in capsys.readouterr().out  # linear ones, of the one layer that is left
    main(recipe, out=tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["num_hidden_layers"] == len(config["layer_types"]) == 1
    loaded = SentenceTransformer(str(tmp_path / "out"))
    parameters = sum(parameter.numel() for parameter in loaded.parameters())
    assert parameters == require_complete(tmp_path / "out").counts["parameters"]
    assert loaded.encode(SENTENCES).shape[0] == 2


def test_more_layers_than_there_are_and_what_has_none_are_refused(tmp_path):
    recipe = write_recipe(tmp_path)
    with pytest.raises(InputError, match=r"base: .*layers: 3 is more than the 2 that the base has; allowed: 1 to 2"):
        main(recipe, out=tmp_path / "out", settings=["base.layers=3"])
    place = {"path": "lm", "license": "mit", "layers": 1}
    with pytest.raises(ValidationError, match="layers are those of modules: transformer, not of static"):
        Encoder.model_validate(place | {"modules": "static"})
    hub = ["base={repo_id: o/lm, revision: v1, layers: 1, license: mit}", "lora={r: 2, alpha: 4}"]
    with pytest.raises(InputError, match="a released adapter is loaded on its whole base"):
        prepare(recipe, tmp_path / "out", None, hub)

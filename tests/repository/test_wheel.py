"""The wheel has one top-level name, and works in a folder with modules of the same names."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("setuptools", reason="builds the wheel without a network")
ROOT = Path(__file__).resolve().parents[2]
BUILD = (
    "import os, sys; from setuptools import build_meta; os.chdir(sys.argv[1]);"
    "print(build_meta.build_wheel(sys.argv[2]))"
)
OF_THE_USER = ("hub.py", "eval/__init__.py", "training/__init__.py", "generation/model.py")


def build_wheel(checkout: Path, folder: Path) -> Path:
    folder.mkdir()
    command = [sys.executable, "-W", "ignore", "-c", BUILD, str(checkout), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A checkout of the files as they are now, without symbolic links, as Windows makes it."""
    folder = tmp_path_factory.mktemp("checkout")
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in names:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.write_text(str(source.readlink()))
        elif source.is_file():
            target.write_bytes(source.read_bytes())
    return folder


class Installation(NamedTuple):
    """An environment with the wheel, and with the libraries of this one."""

    python: Path
    site: Path


@pytest.fixture(scope="module")
def installed(checkout, tmp_path_factory) -> Installation:
    """The wheel, unpacked into an environment of its own as an installation does."""
    folder = tmp_path_factory.mktemp("installed")
    prefix = folder / "environment"
    venv.create(prefix, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(prefix), "platbase": str(prefix)}))
    libraries = [sysconfig.get_path("purelib"), *site_folders()]
    (site / "libraries.pth").write_text("\n".join(libraries) + "\n")
    with zipfile.ZipFile(build_wheel(checkout, folder / "dist")) as wheel:
        wheel.extractall(site)
    (data,) = site.glob("sts_dino-*.data")
    shutil.copytree(data / "data", prefix, dirs_exist_ok=True)
    shutil.rmtree(data)
    return Installation(prefix / "bin" / "python", site)


def site_folders() -> list[str]:
    """The folders of libraries on this Python's path, none of them a checkout's."""
    return [path for path in sys.path if path.endswith("site-packages")]


def test_a_wheel_has_one_name_and_every_module(installed):
    names = {path.name for path in installed.site.iterdir()} - {"libraries.pth"}
    assert {name for name in names if not name.startswith("sts_dino-")} == {"sts_dino"}
    folders = ("hub", "generation", "training", "eval", "model_cards", "release")
    for folder in folders:
        modules = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py")}
        there = {
            path.relative_to(installed.site / "sts_dino")
            for path in (installed.site / "sts_dino" / folder).rglob("*.py")
        }
        assert there == modules
    assert not (installed.site / "sts_dino" / "experiments").exists()


def run_in_a_users_folder(
    folder: Path, python: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    for name in OF_THE_USER:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("raise RuntimeError('of the user')\n")
    environment = {**os.environ, "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1"}
    command = [str(python), "-m", "sts_dino", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_an_installation_works_beside_modules_of_the_same_names(installed, tmp_path):
    sentences = "\n".join(f"The ferry number {number} leaves at noon." for number in range(8))
    (tmp_path / "notes.txt").write_text(sentences, encoding="utf-8")
    for words in (
        ["new", "notes.txt", "--lm", "builtin"],
        ["write", "notes.yaml", "--limit", "3"],
    ):
        done = run_in_a_users_folder(tmp_path, installed.python, *words)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "artifacts/datasets/notes-pairs/manifest.json").is_file()


@pytest.mark.slow("adapts an encoder")
def test_adapt_works_beside_modules_of_the_same_names(installed, tmp_path):
    sentences = "\n".join(f"Ferry number {number} leaves the port at noon." for number in range(40))
    (tmp_path / "notes.txt").write_text(sentences, encoding="utf-8")
    words = ["adapt", "notes.txt", "--lm", "builtin", "--encoder", "static", "--out", "mine"]
    done = run_in_a_users_folder(tmp_path, installed.python, *words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine/report.html").is_file()


def test_a_checkout_without_symbolic_links_shows_its_help(installed, tmp_path):
    done = run_in_a_users_folder(tmp_path, installed.python, "--help")
    assert done.returncode == 0 and "adapt" in done.stdout and not done.stderr

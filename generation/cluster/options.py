"""Options of the command line that spread a run over workers, and the resources of a worker for a recipe."""

import os
from dataclasses import dataclass
from pathlib import Path

from generation.cluster.connect import require_ray
from generation.cluster.nodes import WorkerResources
from hub import cli
from hub.contract.recipe import DatasetRecipe
from hub.errors import InputError

PROCESS = 5 * 10**8  # bytes of a worker without its model
UNPACKED = 7  # bytes of float32 for a byte of a GGUF file, mostly of 4-bit weights
_SECRETS = ("OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@dataclass(frozen=True)
class ClusterOptions:
    """Ray options of a run. ``address``: None is this machine, ``auto`` its cluster, or ``HOST:PORT``.

    ``workers``: how many; on a cluster at most. ``cpus``, ``gpus``: of one worker.
    """

    address: str | None = None
    workers: int | None = None
    store: str | None = None
    cpus: float | None = None
    gpus: float | None = None

    @property
    def spread(self) -> bool:
        """Whether several workers are asked for at all."""
        return self.address is not None or self.workers is not None


def check(options: ClusterOptions, recipe: DatasetRecipe) -> None:
    """Raise InputError for options that do not go together, or not with the recipe."""
    given = {"--store": options.store, "--cpus-per-worker": options.cpus, "--gpus-per-worker": options.gpus}
    if not options.spread:
        alone = [name for name, value in given.items() if value is not None]
        if alone:
            raise InputError(", ".join(alone), "is for several workers", hint="add --workers N or --ray")
        return
    if options.gpus and options.gpus > 1 and not options.gpus.is_integer():
        raise InputError("--gpus-per-worker", f"is {options.gpus:g}", allowed="a whole number, or a part of one GPU")
    if not recipe.model.facts.local:
        hint = "raise model.server.concurrency: one process keeps a server busy"
        raise InputError("--ray, --workers", f"are not for backend {recipe.model.backend}", hint=hint)
    require_ray()


def warn_of_threads(recipe: DatasetRecipe) -> None:
    """Say that a recipe leaves the threads of a worker open, where they decide bytes."""
    model = recipe.model
    if model.facts.local and model.device == "cpu" and not model.threads:
        cli.say(
            "warning: the recipe does not fix model.threads, and sums depend on it: other workers or machines may "
            "write other texts; --set model.threads=1 writes the same everywhere"
        )


def worker_resources(recipe: DatasetRecipe, options: ClusterOptions) -> WorkerResources:
    """Resources of one worker: its threads' CPUs, the memory of a model on a CPU, the GPU of one on a GPU."""
    model = recipe.model
    on_gpu = model.device.startswith("cuda") or model.device_map is not None
    here = max(1, (os.cpu_count() or 1) // (options.workers or 1)) if options.address is None else 1
    weights = 0 if on_gpu or not model.path else _weights(Path(model.path), model.gguf_file)
    gpus = options.gpus or int(on_gpu)
    return WorkerResources(options.cpus or model.threads or here, gpus, weights + PROCESS if weights else 0)


def _weights(folder: Path, gguf_file: str | None) -> int:
    """Bytes of a local model's weights in memory."""
    if gguf_file:
        return UNPACKED * (folder / gguf_file).stat().st_size
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def withheld_secrets(recipe: DatasetRecipe, store: str | None) -> tuple[str, ...]:
    """Environment variables with tokens that local workers do not need: a model or a store on the Hub takes one."""
    of_the_hub = recipe.model.repo_id is not None or (store or "").startswith("hf://")
    return _SECRETS[:1] if of_the_hub else _SECRETS

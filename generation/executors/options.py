"""The command-line options that choose and shape a run's executor."""

from dataclasses import dataclass
from importlib.util import find_spec

from sts_dino.hub import cli
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.errors import InputError


@dataclass(frozen=True)
class ClusterOptions:
    """The options of the workers of a run.

    Args:
        address: ``HOST:PORT`` of a Ray cluster, ``auto`` for the cluster of this machine, or None
            for this machine alone.
        workers: number of workers, on a cluster at most; None: one, or all that a cluster has room
            for.
        store: path or URL where workers leave their results; None: they send them.
        cpus: CPUs of one worker.
        gpus: GPUs of one worker.
    """

    address: cli.RayOption = None
    workers: cli.WorkersOption = None
    store: cli.StoreOption = None
    cpus: cli.CpusOption = None
    gpus: cli.GpusOption = None

    @property
    def is_remote(self) -> bool:
        """Whether the workers' machines come and go, with versions and files of their own."""
        return self.address is not None

    def needs_ray(self, recipe: DatasetRecipe) -> bool:
        """Return whether processes on Ray generate the texts of this recipe.

        Otherwise threads of this process generate them, with one copy of the model on a CPU.
        """
        if self.is_remote:
            return True
        if self.workers is None:
            return False
        model = recipe.model
        if model.device != "cpu" or model.device_map:
            return True
        if self.store is not None or self.cpus or self.gpus:
            return True
        # Where a text depends on its batch, one thread generates each shard alone.
        return bool(recipe.decoding.batch_size) and model.dtype != "float32"


def check_options(options: ClusterOptions, recipe: DatasetRecipe) -> None:
    """Raise InputError for options that contradict each other or the recipe.

    Also raises InputError when the options need Ray and Ray is not installed.
    """
    if options.workers is None and not options.is_remote:
        values = {
            "--store": options.store,
            "--cpus-per-worker": options.cpus,
            "--gpus-per-worker": options.gpus,
        }
        names = [name for name, value in values.items() if value is not None]
        if names:
            hint = "add --workers N or --ray"
            raise InputError(", ".join(names), "is for several workers", hint=hint)
        return
    if options.gpus and options.gpus > 1 and not options.gpus.is_integer():
        allowed = "a whole number, or a part of one GPU"
        raise InputError("--gpus-per-worker", f"is {options.gpus:g}", allowed=allowed)
    if not recipe.model.facts.local:
        problem = f"are not for backend {recipe.model.backend}"
        hint = "raise model.server.concurrency: one process keeps a server busy"
        raise InputError("--ray, --workers", problem, hint=hint)
    # Ray is not imported here: its environment variables have to be set before that.
    if options.needs_ray(recipe) and find_spec("ray") is None:
        raise InputError("--ray, --workers", "Ray is not installed", hint="pip install .[ray]")

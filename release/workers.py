"""What the release stages hand on to the generator: who does the work, and where its files meet."""

from dataclasses import dataclass

from hub.errors import InputError
from hub.store_url import require_no_secret


@dataclass(frozen=True)
class Workers:
    """The options of ``python -m generation.run`` by those names. Without any, one process does everything."""

    ray: str | None = None
    workers: int | None = None
    store: str | None = None
    cpus_per_worker: float | None = None
    gpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        """Raise InputError for a store with a secret in its URL, before anything is printed."""
        if self.store is not None:
            require_no_secret(self.store)

    @property
    def options(self) -> list[str]:
        """The words of the command line."""
        given = {
            "--ray": self.ray,
            "--workers": self.workers,
            "--store": self.store,
            "--cpus-per-worker": self.cpus_per_worker,
            "--gpus-per-worker": self.gpus_per_worker,
        }
        return [word for name, value in given.items() if value is not None for word in (name, str(value))]

    def require_datasets(self, datasets: int) -> None:
        """Raise InputError when any option is given, and no recipe is a dataset's."""
        if self.options and not datasets:
            hint = "leave them out: training.run spreads a training with torchrun or accelerate (docs/training.md)"
            raise InputError(" ".join(self.options), "are for datasets, but no recipe is one's", hint=hint)

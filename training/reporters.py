"""Where the trainer's numbers are shown while it runs: TensorBoard by default, or any of transformers' reporters.

TensorBoard's event files lie beside the run directory, in ``NAME.logs``, and stay when the run is over. The other
reporters write where their own environment variables say; their tokens are theirs to read and never pass through here.
"""

from pathlib import Path

from transformers.integrations import TensorBoardCallback
from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)

from hub.errors import InputError

TENSORBOARD = "tensorboard"
NONE = "none"


def check_reporters(given: str | list[str] | None, place: str) -> list[str]:
    """The reporters that ``given`` names (a list, or one text with commas).

    Raises InputError for one that is unknown or not installed.
    """
    listed = given if isinstance(given, list) else (given or NONE).split(",")
    names = [name.strip() for name in listed]
    if names == [NONE]:
        return []
    installed = sorted(get_available_reporting_integrations())
    for name in names:
        if name not in installed:
            problem = "is not installed" if name in INTEGRATION_TO_CALLBACK else "is no reporter of the trainer"
            raise InputError(place, f"{name!r} {problem}", allowed=f"{', '.join(installed)}, or {NONE}")
    return list(dict.fromkeys(names))


def tensorboard(folder: Path, first_step: int) -> TensorBoardCallback:
    """The reporter that writes event files to ``folder``. Points after ``first_step``, which a killed run left there,
    are dropped by the viewer.
    """
    from torch.utils.tensorboard import SummaryWriter  # its import is slow, and only the main process writes

    return TensorBoardCallback(SummaryWriter(str(folder), purge_step=first_step + 1))

"""What is shown while a run trains: progress on stderr, and TensorBoard's event files in ``NAME.logs``.

Progress is one bar at a terminal, and a plain line now and then in a log file: steps done, time left, loss, learning
rate, and the validation score with the best so far. Any other reporter of transformers writes where its own
environment variables say; its token never passes through here.
"""

import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerState
from transformers.integrations import TensorBoardCallback

from hub.cli import say

SECONDS = 30.0  # between two lines of a log file


class ProgressReporter(TrainerCallback):
    """Callback that shows progress on stderr; ``metric`` names the validation score."""

    def __init__(self, metric: str):
        self.metric = metric
        self.bar: Any = None
        self.shown: dict[str, str] = {}
        self.started = self.told = time.monotonic()
        self.first_step = 0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Begin where a resumed run stands."""
        self.started, self.first_step = time.monotonic(), state.global_step
        if sys.stderr.isatty():
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, unit="step", desc="training")

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Advance to the state's step."""
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Show the newest numbers."""
        self.shown |= newest(logs or {}, state, self.metric)
        if self.bar is not None:
            self.bar.set_postfix(self.shown)
        elif time.monotonic() - self.told >= SECONDS:
            self._line(state)

    def _line(self, state: TrainerState) -> None:
        self.told = time.monotonic()
        done = state.global_step - self.first_step
        left = (self.told - self.started) / done * (state.max_steps - state.global_step) if done else 0
        numbers = ", ".join(f"{name} {value}" for name, value in self.shown.items())
        place = f"step {state.global_step:,} of {state.max_steps:,}"
        say(f"training: {place}, {tqdm.format_interval(left)} left, {numbers}")

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Close the bar, or say the last line."""
        if self.bar is not None:
            self.bar.close()
        else:
            self._line(state)


def newest(logs: dict[str, Any], state: TrainerState, metric: str) -> dict[str, str]:
    """The numbers of ``logs`` that a person watches, as text; the best validation score with its step."""
    shown = {}
    if "loss" in logs:
        shown = {"loss": f"{logs['loss']:.4f}", "learning rate": f"{logs['learning_rate']:.2e}"}
    if (score := logs.get("eval_sequential_score")) is not None:
        shown[metric] = f"{score:.4f}"
        earlier = [item for item in state.log_history if "eval_sequential_score" in item]
        best = max(earlier, key=lambda item: float(item["eval_sequential_score"]))
        shown["best"] = f"{best['eval_sequential_score']:.4f} at step {best['step']:,}"
    return shown


def tensorboard(folder: Path, first_step: int) -> TensorBoardCallback:
    """The reporter that writes event files to ``folder``. Points after ``first_step``, which a killed run left there,
    are dropped by the viewer.
    """
    from torch.utils.tensorboard import SummaryWriter  # its import is slow, and only the main process writes

    return TensorBoardCallback(SummaryWriter(str(folder), purge_step=first_step + 1))

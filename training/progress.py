"""Progress of a training run on stderr: one bar at a terminal, and a plain line now and then in a log file.

Both tell steps done, time left, loss, learning rate, and the validation score with the best so far.
"""

import sys
import time
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hub.cli import say

SECONDS = 30.0  # between two lines of a log file


class Progress(TrainerCallback):
    """Shows where the run stands; ``metric`` names the validation score."""

    def __init__(self, metric: str):
        self.metric = metric
        self.bar: Any = None
        self.shown: dict[str, str] = {}
        self.started = self.told = time.monotonic()
        self.first_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin where a resumed run stands."""
        self.started, self.first_step = time.monotonic(), state.global_step
        if sys.stderr.isatty():
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, unit="step", desc="training")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance to the state's step."""
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
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

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
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

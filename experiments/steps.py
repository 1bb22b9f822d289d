"""Steps of an experiment: commands of sts-dino in child processes, each run once.

A journal records the command of each step and its CPU seconds.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sts_dino.hub.contract.run_dir import MANIFEST
from sts_dino.hub.durable import make_folder, write_text
from sts_dino.release.options import format_settings
from sts_dino.release.stages import name_failure, run_stage

logger = logging.getLogger(__name__)

RESUME_HINT = "finished steps are kept: run the same command again to resume"


def hash_parts(*parts: Any) -> str:
    """Return twelve hexadecimal digits of the SHA-256 of the parts as JSON.

    A part that JSON cannot hold, e.g. a path, counts as its ``str``.
    """
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class StepOutput:
    """A file or folder that steps wrote, and CPU seconds of these steps.

    The function that returns an output says which steps the seconds cover.
    """

    path: Path
    seconds: float


class Steps:
    """The steps in ``folder``, each recorded in ``steps/KIND-KEY.json``."""

    def __init__(self, folder: Path):
        self.folder = folder

    def run_once(self, kind: str, key: str, command: list[str], title: str, out: Path) -> float:
        """Run ``sts-dino COMMAND`` unless its step is finished. Return the CPU seconds.

        The seconds are those of the run that finished the step; killed and failed runs before it
        are not counted. A finished step is recorded in ``steps/KIND-KEY.json``.
        Raises InputError or RunError when the command fails.

        Args:
            kind: kind of the step, e.g. dataset.
            key: digest of everything that decides the output.
            command: a subcommand of sts-dino and its arguments.
            title: names the step in messages.
            out: what the step writes; the step runs again when it is missing.
        """
        path = self._get_record_path(kind, key)
        if self.is_finished(kind, key) and out.exists():
            # Earlier versions recorded one number for each run; today the list has one
            return float(sum(json.loads(path.read_bytes())["seconds"]))
        make_folder(path.parent)
        with name_failure(f"{title}: {command[0]}", path, RESUME_HINT):
            seconds = self._run_command(command)
        record = {
            "command": ["sts-dino", *command],
            "seconds": [round(seconds, 2)],
            "finished": True,
        }
        write_text(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        logger.info(f"{title}: {kind} took {seconds:,.0f} CPU seconds")
        return seconds

    def is_finished(self, kind: str, key: str) -> bool:
        """Return whether a step is recorded as finished."""
        path = self._get_record_path(kind, key)
        return path.is_file() and bool(json.loads(path.read_bytes()).get("finished"))

    def _get_record_path(self, kind: str, key: str) -> Path:
        """Return the file that records a step."""
        return self.folder / "steps" / f"{kind}-{key}.json"

    def train(self, recipe: Path, settings: Sequence[str], key: str, title: str) -> StepOutput:
        """Train the encoder of a recipe, unless it has been.

        Returns the run directory, and the CPU seconds of the training. Raises InputError or
        RunError when the training fails.

        Args:
            recipe: the recipe file.
            settings: overrides of the recipe, ``KEY=VALUE`` or ``@FILE``.
            key: digest of everything that decides the encoder.
            title: names the step in messages.
        """
        out = self.folder / "encoders" / key
        command = ["train", str(recipe), "--out", str(out), *format_settings(settings)]
        seconds = self.run_once("encoder", key, command, title, out / MANIFEST)
        # `score` would also score the base encoder, if its folder lay beside the trained one
        shutil.rmtree(out.with_name(f"{out.name}.base"), ignore_errors=True)
        return StepOutput(out, seconds)

    def score(self, arguments: Sequence[str], key: str, title: str) -> StepOutput:
        """Score an encoder, unless it has been.

        Returns the folder of the evaluation, and the CPU seconds of the scoring. Raises InputError
        or RunError when the scoring fails.

        Args:
            arguments: what ``sts-dino score`` takes: the encoder, tasks and data.
            key: digest of everything that decides the scores.
            title: names the step in messages.
        """
        out = self.folder / "evaluations" / key
        command = ["score", *arguments, "--no-cache", "--out", str(out)]
        seconds = self.run_once("scores", key, command, title, out / "results.json")
        return StepOutput(out, seconds)

    def _run_command(self, command: list[str]) -> float:
        """Run a command with one thread. Return the CPU seconds of it and its children.

        Sets OMP_NUM_THREADS=1 in this process, too. Raises typer.Exit when the command fails,
        RunError when it is killed.
        """
        os.environ["OMP_NUM_THREADS"] = "1"
        start = os.times()
        run_stage(*command)
        end = os.times()
        user_seconds = end.children_user - start.children_user
        return user_seconds + end.children_system - start.children_system

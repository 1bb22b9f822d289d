"""A chain of stages against the embedded Hub, and its closing tables."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event

import typer

from hub import cli
from hub.contract.results import by_task, read_results
from hub.contract.run_dir import ARTIFACTS, Manifest, require_complete
from hub.errors import RunError
from hub.scores import score
from hub_server.process import LocalHub
from hub_server.storage.errors import CommandError
from release.stages import answer_of, run_stage

ORG = "sts-dino"
SERVED = "http://127.0.0.1:8899"  # by `make hub`, after a chain has stopped its own server


def local_hub(artifacts: Path, port: int) -> LocalHub:
    """Start the embedded Hub below ``artifacts``. Raises RunError."""
    try:
        return LocalHub(artifacts / "hub", port, orgs=[ORG], home=artifacts / "hf-home").start()
    except CommandError as error:
        raise RunError("demo", str(error)) from error


class Chain:
    """Releases artefacts below ``artifacts`` to ``hub`` and loads them from there."""

    def __init__(self, hub: LocalHub, artifacts: Path):
        self.hub, self.artifacts = hub, artifacts
        self._environment = {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"} | hub.client_environment()

    def release(
        self, recipe: Path, *words: str, publish: bool = True, quiet: bool = False, stop: Event | None = None
    ) -> None:
        """Run a recipe and publish the result, a dataset while it grows. ``quiet``: show messages only on failure."""
        title = f"make and publish {recipe.stem}" if publish else f"make {recipe.stem}"
        words = (str(recipe), "--artifacts", str(self.artifacts), "--org", ORG, "--public", *words)
        words += ("--yes",) if publish else ()  # the Hub's pages show public repositories alone
        self.stage(title, "release", *words, quiet=quiet, stop=stop)

    def stage(self, title: str, command: str, *words: str, quiet: bool = False, stop: Event | None = None) -> None:
        """Run ``sts-dino command words``. Raises RunError when it fails; its error is on stderr."""
        cli.say(f"\n== {title}: sts-dino {command} {' '.join(words)}")
        with tempfile.TemporaryFile() as log:
            try:
                run_stage(command, *words, stop=stop, environment=self._environment, stderr=log if quiet else 2)
            except typer.Exit as end:
                log.seek(0)
                cli.say(log.read().decode("utf-8", "replace"))
                raise RunError(title, f"sts-dino {command} failed (exit code {end.exit_code}), see above") from None

    def load(self, model: str, *datasets: str) -> dict[str, object]:
        """Load datasets and a model by name in a process with an empty cache; rows and similarities."""
        cli.say("\n== load everything by name, with an empty cache")
        return answer_of("verify", ORG, model, *datasets, environment=self._environment)


def report(artifacts: Path, datasets: Sequence[str], loaded: Mapping[str, dict[str, object]]) -> str:
    """The closing text, from manifests, results and timings.

    loaded: model → what a process with an empty cache found. Raises RunError when it found other row counts.
    """
    manifests = {name: require_complete(artifacts / "datasets" / name) for name in datasets}
    expected = {name: manifest.counts["splits"] for name, manifest in manifests.items()}
    lines = ["", *_dataset_table(artifacts, manifests), ""]
    several = len(loaded) > 1
    for model, found in loaded.items():
        if found["datasets"] != expected:
            raise RunError("sts-dino verify", f"loaded other rows than were generated: {found['datasets']}")
        lines += [*([model] if several else []), *_score_table(artifacts / "models" / model), ""]
    for model, found in loaded.items():
        what = model if several else "all of it"
        lines += [
            f"A clean process with an empty cache loaded {what}. Its cosines: {found['similar']} for two sentences",
            f"about a flute, {found['other']} for one of them and stock prices.",
        ]
    place = "" if artifacts == ARTIFACTS else f" HUB={artifacts / 'hub'}"
    lines += ["", f"On the embedded Hub, which `make hub{place}` serves at {SERVED}:"]
    lines += [f"  {SERVED}/datasets/{ORG}/{name}" for name in datasets]
    lines += [f"  {SERVED}/{ORG}/{model}" for model in loaded]
    usage = [
        f"export HF_ENDPOINT={SERVED} HF_HOME=$(mktemp -d)",
        "python",
        "from datasets import load_dataset; from sentence_transformers import SentenceTransformer",
        f'pairs = load_dataset("{ORG}/{datasets[0]}")',
        f'encoder = SentenceTransformer("{ORG}/{next(iter(loaded))}")',
    ]
    return "\n".join([*lines, "", *(f"  {line}" for line in usage)])


def _dataset_table(artifacts: Path, manifests: dict[str, Manifest]) -> list[str]:
    lines = [f"{'dataset':<15} {'rows per label':<36} {'keep rate':>9} {'rows/s':>7}"]
    for name, manifest in manifests.items():
        counts = manifest.counts
        labels = ", ".join(f"{label}: {count['kept']}" for label, count in counts["by_label"].items())
        timing = json.loads((artifacts / "datasets" / f"{name}.timing.json").read_text(encoding="utf-8"))
        rate = timing["rows"] / max(timing["seconds"], 1e-9)
        lines.append(f"{name:<15} {labels:<36} {counts['kept'] / counts['requested']:>9.1%} {rate:>7.0f}")
    return lines


def _score_table(directory: Path) -> list[str]:
    """Scores of the base encoder, the SimCSE baseline and the trained encoder."""
    results = read_results(directory / "results.json")
    control = by_task(results.control_scores)
    lines = [f"{'Spearman x 100':<24} {'base encoder':>22} {'SimCSE baseline':>22} {'trained':>22}"]
    for before, after in results.pairs_of_scores():
        shown = map(score, (before, control.get((after.task, after.split)), after))
        lines.append(f"{after.task + ' ' + after.split:<24} " + " ".join(f"{one:>22}" for one in shown))
    return lines

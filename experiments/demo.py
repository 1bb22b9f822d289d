"""The whole chain, offline: sts-dino demo (what `make demo` calls).

The built-in language model generates three small datasets, which are published to the embedded Hub
while they grow. An encoder is trained on two of them, loaded by repo id, and scored on the STS
Benchmark beside the untrained encoder and the SimCSE baseline. The encoder is published with its
card, and a clean process loads everything by name. Each step is the command that a user types;
finished steps are skipped.
"""

import json
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from hub_server.process import LocalHub
from hub_server.storage.errors import CommandError
from sts_dino.hub import cli
from sts_dino.hub.contract.results import map_by_task, read_results
from sts_dino.hub.contract.run_dir import ARTIFACTS, Manifest, require_complete
from sts_dino.hub.errors import RunError
from sts_dino.hub.process import measure_peak_rss_mb
from sts_dino.hub.scores import format_score
from sts_dino.release.stages import read_answer, run_parallel, run_stage

logger = logging.getLogger(__name__)

ORG = "sts-dino"
DATASETS = ("sts-dino-x2", "sts-dino-x1x2", "auto-nli")
MODEL = "demo-sts-dino"
RECIPES = Path("recipes/demo")
SERVED = "http://127.0.0.1:8899"  # by `make hub`, after a chain has stopped its own server

app = cli.make_app(__doc__)


@app.command()
def main(
    artifacts: Annotated[
        Path, typer.Option(help="Folder of all results, the Hub's storage included")
    ] = ARTIFACTS,
    port: Annotated[int, typer.Option(help="Port of the embedded Hub; 0 takes a free one")] = 0,
) -> None:
    """Run the chain and print its results.

    After an interruption the same command resumes, to the same bytes.
    """
    start = time.monotonic()
    with start_hub(artifacts, port) as hub:
        chain = Chain(hub, artifacts)
        calls = [partial(release_dataset, chain, name) for name in DATASETS]
        # Two processes of one thread each are faster than one process of two threads.
        run_parallel(calls, 2)
        chain.release(RECIPES / f"{MODEL}.yaml")
        loaded = {MODEL: chain.load(MODEL, *DATASETS)}
        seconds = time.monotonic() - start
        peak = measure_peak_rss_mb(children=True)
        print(format_report(artifacts, DATASETS, loaded))
        print(f"\n{seconds:.0f} s; the largest process took {peak / 1024:.1f} GB")


def release_dataset(chain: "Chain", name: str, stop: Event) -> None:
    """Generate and publish a dataset; only the first of ``DATASETS`` shows its progress.

    ``stop``: an event that ends the stage. Raises RunError when the stage fails, KeyboardInterrupt
    once ``stop`` is set.
    """
    chain.release(RECIPES / f"{name}.yaml", quiet=name != DATASETS[0], stop=stop)


def start_hub(artifacts: Path, port: int) -> LocalHub:
    """Start the embedded Hub, with its storage below ``artifacts``.

    Port 0 takes a free port. Raises RunError when the Hub does not start, e.g. on a port in use.
    """
    try:
        return LocalHub(artifacts / "hub", port, orgs=[ORG], home=artifacts / "hf-home").start()
    except CommandError as error:
        raise RunError("demo", str(error)) from error


class Chain:
    """Releases artefacts below ``artifacts`` to ``hub`` and loads them from there."""

    def __init__(self, hub: LocalHub, artifacts: Path):
        self.hub = hub
        self.artifacts = artifacts
        self._environment = {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
        self._environment |= hub.client_environment()

    def release(
        self,
        recipe: Path,
        *options: str,
        publish: bool = True,
        quiet: bool = False,
        stop: Event | None = None,
    ) -> None:
        """Run a recipe and publish the result; a dataset is published while it grows.

        Raises RunError when the command fails, KeyboardInterrupt once ``stop`` is set.

        Args:
            recipe: the file of a dataset or model recipe.
            options: further options of ``sts-dino release``.
            publish: False: only write the result below ``artifacts``.
            quiet: show messages only on failure.
            stop: an event that ends the stage; None: the stage runs to its end.
        """
        title = f"make {recipe.stem}"
        arguments = [str(recipe), "--artifacts", str(self.artifacts), "--org", ORG]
        arguments.append("--public")  # the Hub's pages show public repositories alone
        arguments += options
        if publish:
            title = f"make and publish {recipe.stem}"
            arguments.append("--yes")
        self.run_stage(title, "release", *arguments, quiet=quiet, stop=stop)

    def run_stage(
        self,
        title: str,
        command: str,
        *arguments: str,
        quiet: bool = False,
        stop: Event | None = None,
    ) -> None:
        """Run ``sts-dino COMMAND ARGUMENTS``.

        Raises RunError when it fails, KeyboardInterrupt once ``stop`` is set.

        Args:
            title: names the stage in messages.
            command: the subcommand.
            arguments: the subcommand's arguments and options.
            quiet: show the messages of the command only if it fails or is killed.
            stop: an event that ends the stage; None: the stage runs to its end.
        """
        logger.info(f"\n== {title}: sts-dino {command} {' '.join(arguments)}")
        with tempfile.TemporaryFile() as log:
            stderr = log if quiet else 2  # the number of this process's own stderr
            try:
                run_stage(
                    command, *arguments, stop=stop, environment=self._environment, stderr=stderr
                )
            except (typer.Exit, RunError) as end:
                log.seek(0)
                logger.info(log.read().decode("utf-8", "replace"))
                if isinstance(end, RunError):  # the stage was killed
                    raise
                problem = f"sts-dino {command} failed (exit code {end.exit_code}), see above"
                raise RunError(title, problem) from None

    def load(self, model: str, *datasets: str) -> dict[str, object]:
        """Load datasets and a model by name in a process with an empty cache.

        Return the JSON object of ``sts-dino verify``: ``datasets`` (rows by name, config and
        split), ``similar`` and ``other`` (cosines). Raises the errors of ``read_answer``.
        """
        logger.info("\n== load everything by name, with an empty cache")
        return read_answer("verify", ORG, model, *datasets, environment=self._environment)


def format_report(
    artifacts: Path, datasets: Sequence[str], loaded: Mapping[str, dict[str, object]]
) -> str:
    """Format the closing text, from manifests, results and timings.

    Raises RunError when the clean process loaded other row counts than were generated, InputError
    for an unfinished dataset and for missing or malformed results.

    Args:
        artifacts: folder of all results.
        datasets: names of the published datasets, at least one.
        loaded: model → what ``Chain.load`` returned; at least one model.
    """
    manifests = {name: require_complete(artifacts / "datasets" / name) for name in datasets}
    expected = {name: manifest.counts["splits"] for name, manifest in manifests.items()}
    has_several = len(loaded) > 1

    # rows of the datasets, scores of the encoders
    lines = ["", *_format_dataset_table(artifacts, manifests), ""]
    for model, answer in loaded.items():
        if answer["datasets"] != expected:
            problem = f"loaded other rows than were generated: {answer['datasets']}"
            raise RunError("sts-dino verify", problem)
        if has_several:
            lines.append(model)
        lines += [*_format_score_table(artifacts / "models" / model), ""]

    # what a clean process loaded
    for model, answer in loaded.items():
        subject = model if has_several else "all of it"
        lines.append(
            f"A clean process with an empty cache loaded {subject}. "
            f"Its cosines: {answer['similar']} for two sentences"
        )
        lines.append(f"about a flute, {answer['other']} for one of them and stock prices.")

    # where the artefacts are, and how to load them
    option = "" if artifacts == ARTIFACTS else f" HUB={artifacts / 'hub'}"
    lines += ["", f"On the embedded Hub, which `make hub{option}` serves at {SERVED}:"]
    lines += [f"  {SERVED}/datasets/{ORG}/{name}" for name in datasets]
    lines += [f"  {SERVED}/{ORG}/{model}" for model in loaded]
    imports = [
        "from datasets import load_dataset",
        "from sentence_transformers import SentenceTransformer",
    ]
    lines += [
        "",
        f"  export HF_ENDPOINT={SERVED} HF_HOME=$(mktemp -d)",
        "  python",
        f"  {'; '.join(imports)}",
        f'  pairs = load_dataset("{ORG}/{datasets[0]}")',
        f'  encoder = SentenceTransformer("{ORG}/{next(iter(loaded))}")',
    ]
    return "\n".join(lines)


def _format_dataset_table(artifacts: Path, manifests: dict[str, Manifest]) -> list[str]:
    """Format a table with a line for each dataset: kept rows by label, keep rate, rows per second.

    The first line is the header.

    Args:
        artifacts: folder of all results.
        manifests: dataset → its manifest.
    """
    lines = [f"{'dataset':<15} {'rows per label':<36} {'keep rate':>9} {'rows/s':>7}"]
    for name, manifest in manifests.items():
        counts = manifest.counts
        by_label = counts["by_label"].items()
        labels = ", ".join(f"{label}: {count['kept']}" for label, count in by_label)
        keep_rate = counts["kept"] / counts["requested"]
        timing_path = artifacts / "datasets" / f"{name}.timing.json"
        timing = json.loads(timing_path.read_text(encoding="utf-8"))
        speed = timing["rows"] / max(timing["seconds"], 1e-9)
        lines.append(f"{name:<15} {labels:<36} {keep_rate:>9.1%} {speed:>7.0f}")
    return lines


def _format_score_table(directory: Path) -> list[str]:
    """Format a table with a line for each task: base encoder, SimCSE baseline, trained encoder.

    The first line is the header.

    directory: the run directory of the trained encoder, with results.json.
    """
    results = read_results(directory / "results.json")
    controls = map_by_task(results.control_scores)
    lines = [f"{'Spearman x 100':<24} {'base encoder':>22} {'SimCSE baseline':>22} {'trained':>22}"]
    for base, trained in results.list_score_pairs():
        control = controls.get((trained.task, trained.split))
        line = f"{trained.task + ' ' + trained.split:<24}"
        for score in (base, control, trained):
            line += f" {format_score(score):>22}"
        lines.append(line)
    return lines

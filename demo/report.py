"""A chain's closing tables: read from manifests, results and timings, nothing computed anew."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from hub.contract.results import TaskScore, by_task, read_results
from hub.contract.run_dir import ARTIFACTS, Manifest, require_complete
from hub.errors import RunError


def report(
    artifacts: Path, datasets: Sequence[str], org: str, endpoint: str, loaded: Mapping[str, dict[str, object]]
) -> str:
    """The closing text; ``loaded``: of each model, what a clean process found. Raises RunError for other row counts."""
    manifests = {name: require_complete(artifacts / "datasets" / name) for name in datasets}
    written = {name: manifest.counts["splits"] for name, manifest in manifests.items()}
    lines = ["", *_dataset_table(artifacts, manifests), ""]
    several = len(loaded) > 1
    for model, found in loaded.items():
        if found["datasets"] != written:
            raise RunError("verify", f"loaded other rows than were written: {found['datasets']}")
        lines += [*([model] if several else []), *_score_table(artifacts / "models" / model), ""]
    for model, found in loaded.items():
        what = model if several else "all of it"
        lines += [
            f"A clean process with an empty cache loaded {what}. Its cosines: {found['similar']} for two sentences",
            f"about a flute, {found['other']} for one of them and stock prices.",
        ]
    place = "" if artifacts == ARTIFACTS else f" HUB={artifacts / 'hub'}"
    lines += ["", f"On the embedded Hub, which `make hub{place}` serves at {endpoint}:"]
    lines += [f"  {endpoint}/datasets/{org}/{name}" for name in datasets]
    lines += [f"  {endpoint}/{org}/{model}" for model in loaded]
    return "\n".join([*lines, "", *_usage(datasets[0], next(iter(loaded)), org, endpoint)])


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
    """Before training, the copies control (trained without labels on the same first texts), and after training."""
    results = read_results(directory / "results.json")
    control = by_task(results.control_scores)
    lines = [f"{'Spearman x 100':<24} {'before':>22} {'copies control':>22} {'after':>22}"]
    for before, after in results.pairs_of_scores():
        shown = map(_score, (before, control.get((after.task, after.split)), after))
        lines.append(f"{after.task + ' ' + after.split:<24} " + " ".join(f"{one:>22}" for one in shown))
    return lines


def _score(score: TaskScore | None) -> str:
    return f"{score.main_score:.2f} [{score.low:.2f}, {score.high:.2f}]" if score else "-"


def _usage(dataset: str, model: str, org: str, endpoint: str) -> list[str]:
    return [
        f"  export HF_ENDPOINT={endpoint} HF_HOME=$(mktemp -d)",
        "  python",
        "  from datasets import load_dataset; from sentence_transformers import SentenceTransformer",
        f'  pairs = load_dataset("{org}/{dataset}")',
        f'  encoder = SentenceTransformer("{org}/{model}")',
    ]

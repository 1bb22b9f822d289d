"""What a large dataset costs, on paper: python -m benchmarks.scale_costs --run artifacts/datasets/sts-dino-x2

Worker-hours, shards, files, bytes, commits, the driver's time and memory for 10^6, 10^8 and 10^10 pairs (accepted
texts, the rows of the config raw). Everything is computed from figures that were measured: texts per first text and
bytes per row from a finished run directory, the rate of a worker (the built-in language model, one thread) from
results/engine_throughput.json, that of finishing from results/scaling.json, the driver's share from
results/many_shards.json. For another model or machine give the rows/s that ``generation.run
--estimate`` predicts there: ``--rows-per-second``.

A shard gets as many first texts as make the folders small enough for the Hub, but not more than a worker writes in
``--shard-minutes`` (what a lost worker costs) or holds in memory (``ROWS_PER_SHARD``); where that does not suffice, the
source is cut in parts (a file each), one recipe and one repository a part.
"""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from generation import layout
from hub import budget, cli, run_dir
from hub.errors import InputError
from hub.recipe import DatasetRecipe
from hub.recipe_file import load_recipe
from hub.shards import write_text

app = cli.new_app(__doc__)
RESULTS = Path("benchmarks/results")
PAIRS = [10**6, 10**8, 10**10]
# The Hub's recommendations: https://huggingface.co/docs/hub/repositories-recommendations
FILES_PER_FOLDER = 10_000
FILES_PER_REPOSITORY = 100_000
FILES_PER_COMMIT = 100
ROWS_PER_SHARD = 100_000  # a worker holds them as Python objects: 1 to 2 kB each
LEAST_TEXTS = 64  # first texts of a shard: with fewer, the batch is not full for long
SEEN_BYTES = 23  # of SQLite for the digest of a first text (``generation.sources.SeenTexts``)


@dataclass(frozen=True)
class Facts:
    """What was measured. Rates are per worker and second, sizes in bytes."""

    rows_per_second: float  # accepted texts
    finished_per_second: float  # accepted texts that are turned into rows of the finished configs
    rows_per_text: float  # accepted texts of a first text
    bytes_per_row: float  # all configs, per accepted text
    driver_seconds_per_shard: float
    driver_bytes_per_second: float  # what the driver writes to disk, flushed
    driver_memory: float
    driver_memory_per_shard: float
    manifest_bytes_per_file: float
    manifest_seconds_per_file: float  # to read it


@dataclass(frozen=True)
class Layout:
    """How the shards of a dataset are spread; everything but ``repositories`` is of one repository."""

    texts_per_shard: int
    repositories: int
    shards: int
    files: dict[str, int]  # by folder

    @property
    def fits(self) -> bool:
        """Whether a repository keeps to what the Hub recommends."""
        return max(self.files.values()) <= FILES_PER_FOLDER and sum(self.files.values()) <= FILES_PER_REPOSITORY


def spread(recipe: DatasetRecipe, texts: int, size: int, repositories: int) -> Layout:
    """``texts`` first texts in so many repositories, ``size`` of them a shard; no file is left out for want of rows."""
    own = math.ceil(texts / repositories)
    source = recipe.source.model_copy(update={"limit": own})
    part = recipe.model_copy(update={"shard_size": size, "source": source})
    return Layout(size, repositories, math.ceil(own / size) * len(recipe.variants), layout.folders(part, own))


def suggest(recipe: DatasetRecipe, texts: int, most: int) -> Layout:
    """The smallest shards, of at most ``most`` first texts, that one repository can hold; else several repositories."""
    least, most = min(LEAST_TEXTS, texts), max(1, min(most, texts))
    size = min(least, most)
    while size < most and not spread(recipe, texts, size, 1).fits:
        size = min(most, math.ceil(size * 1.1))
    repositories = 1
    while not spread(recipe, texts, size, repositories).fits:
        repositories += 1
    return spread(recipe, texts, size, repositories)


def costs(recipe: DatasetRecipe, facts: Facts, pairs: int, shard_minutes: float, per_hour: int) -> dict[str, Any]:
    """The costs of ``pairs`` accepted texts: plain numbers in hours, bytes and pieces, over all repositories."""
    texts = math.ceil(pairs / facts.rows_per_text)
    per_text = facts.rows_per_text / len(recipe.variants)  # in one variant, which is what a shard asks for
    longest = min(shard_minutes * 60 * facts.rows_per_second, ROWS_PER_SHARD) / per_text
    plan = suggest(recipe, texts, int(longest))
    rows = plan.texts_per_shard * per_text
    files, size = sum(plan.files.values()), pairs * facts.bytes_per_row
    driver = facts.driver_seconds_per_shard + rows * facts.bytes_per_row / facts.driver_bytes_per_second
    writing, finishing = pairs / facts.rows_per_second / 3600, pairs / facts.finished_per_second / 3600
    return {
        "pairs": pairs,
        "first_texts": texts,
        "worker_hours": writing + finishing,
        "finishing_hours": finishing,
        "shard_size": plan.texts_per_shard,
        "shard_minutes": rows / facts.rows_per_second / 60,
        "repositories": plan.repositories,
        "shards": plan.shards * plan.repositories,
        "files_per_repository": files,
        "files_per_folder": max(plan.files.values()),
        "files": files * plan.repositories,
        "bytes": size,
        "commits": math.ceil(files / FILES_PER_COMMIT),
        "commit_hours": math.ceil(files / FILES_PER_COMMIT) / (per_hour - budget.RESERVED),
        "driver_hours": plan.shards * plan.repositories * driver / 3600,
        "workers_per_driver": rows / facts.rows_per_second / driver,
        "driver_memory": facts.driver_memory + plan.shards * facts.driver_memory_per_shard,
        "manifest_bytes": files * facts.manifest_bytes_per_file,
        "manifest_seconds": files * facts.manifest_seconds_per_file,
        "first_text_bytes": texts * SEEN_BYTES / plan.repositories,
    }


def facts_of(directory: Path, throughput: dict[str, Any], scaling: dict[str, Any], many: dict[str, Any]) -> Facts:
    """Facts from a finished run directory and the results of three benchmarks; of the driver's, the last run's.

    Raises InputError when the directory holds no finished dataset run.
    """
    manifest = run_dir.require_complete(directory)
    raw = [file for file in manifest.files if file.path.startswith("data/raw")]
    if manifest.kind != "dataset" or not raw:
        raise InputError(
            directory, "is not a dataset's run directory", hint="python -m generation.run RECIPE makes one"
        )
    rows = sum(file.rows or 0 for file in raw)
    driver, costs = many["runs"][-1], many["runs"][-1]["resumed"]["manifest"]
    return Facts(
        rows_per_second=throughput["cases"]["sts-x2, demo-lm"]["variants"]["engine float32"]["rate"],
        finished_per_second=scaling["summary"]["one process"]["finished_per_second"]["median"],
        rows_per_text=rows / manifest.counts["sources"],
        bytes_per_row=sum(file.bytes for file in manifest.files) / rows,
        driver_seconds_per_shard=driver["driver_ms_per_shard"] / 1e3,
        driver_bytes_per_second=driver["resumed"]["write_mb_per_second"] * 1e6,
        driver_memory=driver["killed"]["tenths"][0]["rss_mib"] * 2**20,
        driver_memory_per_shard=max(0.0, driver["rss_kib_per_shard"]) * 1024,
        manifest_bytes_per_file=costs["mb"] * 1e6 / costs["files"],
        manifest_seconds_per_file=costs["read_seconds"] / costs["files"],
    )


LINES = {  # of the table: label, and how the cell is written
    "first_texts": ("first texts", "count"),
    "worker_hours": ("worker-hours", "hours"),
    "finishing_hours": ("of them finishing", "hours"),
    "price": ("price", "count"),
    "shard_size": ("shard_size (first texts of a shard)", "count"),
    "shard_minutes": ("minutes of a worker per shard", "number"),
    "repositories": ("repositories", "count"),
    "shards": ("shards in all", "count"),
    "files_per_folder": ("files in the fullest folder", "count"),
    "files_per_repository": ("files of a repository", "count"),
    "files": ("files in all", "count"),
    "bytes": ("size in all", "bytes"),
    "commits": ("commits of a repository, if each had 100 files", "count"),
    "commit_hours": ("hours in which the budget allows them", "hours"),
    "driver_hours": ("the driver's own time in all", "hours"),
    "workers_per_driver": ("workers that the driver's own time suffices for", "count"),
    "driver_memory": ("the driver's memory", "bytes"),
    "manifest_bytes": ("manifest.json", "bytes"),
    "manifest_seconds": ("seconds to read it", "number"),
    "first_text_bytes": ("disk to tell equal first texts apart", "bytes"),
}


def cell(value: float | None, form: str) -> str:
    """A number for people: at most three digits, and a unit where the form has one."""
    if value is None:
        return "-"
    if form == "bytes":
        power = min(4, max(0, int(math.log10(max(value, 1)) // 3)))
        return f"{value / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
    if form == "hours" and value < 1:
        return f"{value * 60:.2g} min"
    return f"{round(value):,}" if form == "count" or value >= 100 else f"{value:.3g}"


def table(found: list[dict[str, Any]]) -> str:
    """Costs side by side, as Markdown."""
    heads = [f"10^{round(math.log10(one['pairs']), 2):g}" for one in found]
    rows = [f"| pairs | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(found)}"]
    for key, (label, form) in LINES.items():
        if any(one.get(key) is not None for one in found):
            rows.append(f"| {label} | {' | '.join(cell(one.get(key), form) for one in found)} |")
    return "\n".join(rows)


@app.command(no_args_is_help=False)
def main(
    run: Annotated[Path, typer.Option(help="A finished run directory: rows and bytes per first text")] = Path(
        "artifacts/datasets/sts-dino-x2"
    ),
    pairs: Annotated[list[int], typer.Option(min=1, help="Accepted texts wanted; repeatable")] = PAIRS,
    rows_per_second: Annotated[
        float | None,
        typer.Option(min=1e-6, help="Of one worker [default: of one thread, results/engine_throughput.json]"),
    ] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Of one worker for one hour")] = None,
    shard_minutes: Annotated[float, typer.Option(min=0.1, help="Longest shard, in a worker's time")] = 30,
    commits_per_hour: Annotated[int, typer.Option(min=1, max=128, help="As release.run has it")] = budget.PER_HOUR,
    results: Annotated[Path, typer.Option(help="Folder of the benchmarks' results")] = RESULTS,
    out: Annotated[Path | None, typer.Option(help="JSON file for figures and costs [default: none]")] = None,
) -> None:
    """Print the costs as a Markdown table, with the measured figures they come from."""
    facts = facts_of(
        run, *(_read(results / f"{name}.json") for name in ("engine_throughput", "scaling", "many_shards"))
    )
    if rows_per_second is not None:
        facts = replace(facts, rows_per_second=rows_per_second)
    recipe = load_recipe(run / run_dir.RECIPE, DatasetRecipe)
    found = [costs(recipe, facts, number, shard_minutes, commits_per_hour) for number in pairs]
    if price is not None:
        found = [one | {"price": one["worker_hours"] * price} for one in found]
    report = {"run": recipe.name, "facts": asdict(facts), "commits_per_hour": commits_per_hour, "costs": found}
    if out:
        write_text(out, json.dumps(report, indent=2) + "\n")
    print(table(found))
    cli.say("from: " + ", ".join(f"{name} {value:.4g}" for name, value in asdict(facts).items()))


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(path, "no such file", hint=f"python -m benchmarks.{path.stem} writes it") from error
    return found


if __name__ == "__main__":
    cli.run(app)

"""Does training teach anything on real text? ``python -m benchmarks.training_on_text --data DIR``

Every family of the project is trained by ``python -m training.run`` on captions, SNLI and Wikipedia and scored, with
its own untrained start, by ``python -m eval.run`` on STSb's development part. DIR is the folder of evaluation data (or
STS_DINO_DATA). Sizes are such that a family takes minutes on one core. A killed benchmark goes on where it stopped.
"""

import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import yaml
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from transformers.utils import logging as transformers_logging

from benchmarks.real_text import Held, Text, read_text
from benchmarks.small_roberta import SIZES, make_base
from benchmarks.text_families import FAMILIES, TRIED, Family, recipe_of
from benchmarks.text_material import write_material
from eval.registry import find_task
from eval.sts import cosine_scores, spearman
from eval.task_data import read_file
from hub import cli
from hub.errors import InputError
from hub.recipe import ModelRecipe
from hub.recipe_file import load_recipe
from hub.results import read_results
from hub.run_dir import read_manifest
from hub.shards import write_text
from release.repeats import is_scored

STSB = {"validation": Path("assets/stsb/sts-dev.csv"), "test": Path("assets/stsb/sts-test.csv")}
OUT = Path("benchmarks/results/training_on_text.json")
WORK = Path("artifacts/training-on-text")
SEED = 42
LIBRARIES = ("torch", "transformers", "sentence-transformers", "peft")

app = cli.new_app(__doc__)


@app.command(no_args_is_help=False)
def main(
    data: Annotated[Path, typer.Option(envvar="STS_DINO_DATA", help="Folder of text and evaluation data")],
    work: Annotated[Path, typer.Option(help="Where material, recipes and runs are kept")] = WORK,
    only: Annotated[list[str], typer.Option(help="Families by name; repeatable [default: all]")] = [],  # noqa: B006
    out: Annotated[Path, typer.Option(help="JSON file; families in it that are not run again stay")] = OUT,
) -> None:
    """Train and score every family, write a JSON file, print a Markdown table."""
    unknown = [name for name in only if name not in FAMILIES]
    if unknown:
        raise InputError(f"--only {unknown[0]}", "no such family", allowed=", ".join(FAMILIES))
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    prepared = prepare(data, work)
    report = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {"families": {}}
    for name in only or FAMILIES:
        cli.say(f"== {name}")
        report["families"][name] = measure(name, FAMILIES[name], work)
        report["families"] = {name: report["families"][name] for name in FAMILIES if name in report["families"]}
        report |= {"task": "stsb/cosine validation", "prepared": prepared, "tried": TRIED}
        report["machine"] = machine()
        write_text(out, json.dumps(report, indent=2) + "\n")
    print(markdown(report))


def prepare(data: Path, work: Path) -> dict[str, Any]:
    """Material and base in ``work``, made once; what they are."""
    done = work / "prepared.json"
    if done.is_file():
        return dict(json.loads(done.read_text(encoding="utf-8")))
    cli.say("reading the text")
    text = read_text(data, held_out())
    counts = write_material(work, text, SEED)
    cli.say("making the small RoBERTa")
    base = make_base(work / "roberta", sentences(text), SEED)
    base["shared_words"] = [shared_words(work / "roberta", seed) for seed in range(3)]
    prepared = {"removed": text.removed, "rows": counts, "small_roberta": base, "seed": SEED}
    write_text(done, json.dumps(prepared, indent=2) + "\n")
    return prepared


def held_out() -> Held:
    """Both parts of the STS Benchmark that a model is scored on."""
    parts = [read_file(path, find_task("stsb/cosine"), split) for split, path in STSB.items()]
    return Held(sentence for part in parts for sentence in (*part.first, *part.second))


def shared_words(folder: Path, seed: int) -> float:
    """STSb dev of the mean of random vectors for the tokens of a base: what counting shared words is worth."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    torch.manual_seed(seed)
    encoder = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=SIZES["hidden_size"])])
    pairs = read_file(STSB["validation"], find_task("stsb/cosine"), "validation")
    cosines = cosine_scores(pairs, lambda texts: encoder.encode(list(texts), show_progress_bar=False))
    return round(100 * spearman(cosines, pairs.gold), 2)


def sentences(text: Text) -> list[str]:
    """Every text, for the tokenizer."""
    captions = [caption for image in text.captions for caption in image]
    return [*captions, *(sentence for row in text.inference for sentence in row[:2]), *text.documents]


def measure(name: str, family: Family, work: Path) -> dict[str, Any]:
    """Train and score one family; its scores, or the last line of what failed."""
    recipe, model, log = work / f"{name}.yaml", work / "models" / name, work / f"{name}.log"
    write_text(recipe, yaml.safe_dump(recipe_of(name, family, work, STSB["validation"], SEED), sort_keys=False))
    told = {"family": family.family, "objective": family.objective, "start": family.start}
    told["data"] = f"{family.rows:,} {family.told}"
    failure = _stage("training.run", recipe, "--out", model, log)
    manifest = read_manifest(model)
    if failure is None and not (manifest and is_scored(model, manifest, load_recipe(recipe, ModelRecipe))):
        failure = _stage("eval.run", recipe, "--model", model, log)
    if failure is not None:
        cli.say(f"{name}: failed; see {log}")
        return {**told, "failed": failure}
    return {**told, **scores(model)}


def _stage(stage: str, recipe: Path, option: str, model: Path, log: Path) -> str | None:
    """Run a stage; the last line of its log if it failed."""
    words = [sys.executable, "-m", stage, str(recipe), option, str(model)]
    with log.open("a", encoding="utf-8") as stream:
        code = subprocess.run(words, stdout=stream, stderr=stream, check=False).returncode  # noqa: S603 - ours
    if code == 0:
        return None
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"{stage}: {lines[-1] if lines else f'exit code {code}'}"


def scores(model: Path) -> dict[str, Any]:
    """Before, after and gain on STSb's development part, and what the training took."""
    results, manifest = read_results(model / "results.json"), read_manifest(model)
    assert manifest is not None
    timing = json.loads(model.with_name(f"{model.name}.timing.json").read_text(encoding="utf-8"))
    ((before, after),), (gain,) = results.pairs_of_scores(), results.gains
    assert before is not None
    training = manifest.provenance["training"]
    return {
        "parameters": manifest.counts["parameters"],
        "steps": training["steps"],
        "batch_size": training.get("batch_size"),
        "arguments": training["arguments"],
        "validation": {"metric": training["validation_metric"], "score": training["validation_score"]},
        "minutes": round(timing["seconds"] / 60, 1),
        "resumed_from_step": timing["resumed_from_step"],
        "before": {key: round(getattr(before, key), 2) for key in ("main_score", "low", "high")},
        "after": {key: round(getattr(after, key), 2) for key in ("main_score", "low", "high")},
        "gain": {key: round(getattr(gain, key), 2) for key in ("difference", "low", "high")},
        "excludes_zero": gain.low > 0,
    }


def markdown(report: dict[str, Any]) -> str:
    """The table for docs/training.md."""
    lines = [
        "| family | objective | trained on | minutes | before | after | gain | above 0 |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in report["families"].values():
        lines.append(f"| {row['family']} | {row['objective']} | {row['data']} | {_cells(row)} |")
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"| | | | failed: {row['failed'].replace('|', '/')}"
    before, after, gain = row["before"], row["after"], row["gain"]
    shown = [f"{part['main_score']:.2f} [{part['low']:.2f}, {part['high']:.2f}]" for part in (before, after)]
    shown.append(f"{gain['difference']:+.2f} [{gain['low']:+.2f}, {gain['high']:+.2f}]")
    return " | ".join([f"{row['minutes']:.1f}", *shown, "yes" if row["excludes_zero"] else "**no**"])


def machine() -> dict[str, Any]:
    """Where the minutes were measured."""
    versions = {library: version(library) for library in LIBRARIES}
    return {"processor": platform.processor() or platform.machine(), "threads": 1, "versions": versions}


if __name__ == "__main__":
    cli.run(app)

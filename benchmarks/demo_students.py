"""What the demo's encoder could start from.

python -m benchmarks.demo_students --out benchmarks/results/demo_students.json

STS Benchmark scores of untrained students (random vectors for words, the built-in model's input embeddings, the whole
model mean-pooled) and of the same students trained on the demo's datasets, which `make demo` must have written.
"""

import json
import platform
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from eval.data.forms import ScoredPairs
from eval.outcomes import Outcomes
from eval.registry import find_task
from eval.significance import interval, resample
from eval.sts import cosine_scores, spearman
from eval.task_data import read_file
from hub import cli, run_dir
from hub.shards import write_text
from training.job import prepare
from training.models import build_student
from training.run import train

RECIPE = Path("recipes/demo/demo-sts-dino.yaml")
DIMENSION = 256  # of the built-in model

app = cli.new_app(__doc__)


def score(model: SentenceTransformer, data: dict[str, ScoredPairs]) -> dict[str, Any]:
    """Spearman x 100 with its 95 % bootstrap interval, per split."""
    rows = {}
    for split, pairs in data.items():
        cosines = cosine_scores(pairs, lambda texts: model.encode(list(texts), show_progress_bar=False))
        around = interval(resample([Outcomes(pairs.gold, cosines)], "spearman", "all", 1000, 42)[0])
        value = 100 * spearman(cosines, pairs.gold)
        rows[split] = {"spearman": round(value, 2), "low": round(around.low, 2), "high": round(around.high, 2)}
    return rows


def random_words(student: SentenceTransformer, seed: int) -> SentenceTransformer:
    """Random normal vectors for the tokens of ``student``: what counting shared words gives."""
    vectors = (
        np.random.default_rng(seed).normal(size=(student.tokenizer.get_vocab_size(), DIMENSION)).astype(np.float32)
    )
    return SentenceTransformer(modules=[StaticEmbedding(student.tokenizer, embedding_weights=vectors)])


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="JSON file for the results")],
    artifacts: Annotated[Path, typer.Option(help="Where `make demo` wrote its datasets")] = run_dir.ARTIFACTS,
) -> None:
    """Score and train every student; a few minutes on one core."""
    torch.set_num_threads(1)
    local = [
        f"{{path: {artifacts}/datasets/{name}, config: postprocessed, form: sts, loss: CosineSimilarityLoss}}"
        for name in ("sts-dino-x2", "sts-dino-x1x2")
    ]
    datasets = f"datasets=[{', '.join(local)}]"
    one_epoch = ["arguments.learning_rate=5e-4", "arguments.num_train_epochs=1", "base.modules=transformer"]
    report: dict[str, Any] = {}
    for name, settings in {"embeddings": [], "whole model": one_epoch}.items():
        with tempfile.TemporaryDirectory() as folder:
            job = prepare(RECIPE, Path(folder) / "student", None, [datasets, *settings])
            data = dict[str, ScoredPairs]()
            for entry in job.recipe.evaluation:
                data[entry.split] = read_file(Path(entry.path or ""), find_task(entry.task), entry.split)
            student = build_student(job.recipe.base, job.base)
            if name == "embeddings":
                report["random words, untrained"] = [score(random_words(student, seed), data) for seed in range(3)]
            report[f"{name}, untrained"] = score(student, data)
            started = time.monotonic()
            trainer = train(job, "benchmark").trainer
            seconds = round(time.monotonic() - started, 1)
            report[f"{name}, trained"] = {**score(trainer.model, data), "seconds": seconds}
        cli.say(f"{name}: {report[f'{name}, trained']}")
    machine = {"processor": platform.processor() or platform.machine(), "threads": 1}
    versions = {name: version(name) for name in ("torch", "sentence-transformers")}
    write_text(out, json.dumps({"students": report, "machine": machine, "versions": versions}, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    cli.run(app)

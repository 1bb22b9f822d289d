"""Compare which generated texts help a teacher: those for the label 1, for 0.5, or for 0.

The steps of ``sts-dino experiment domains --sentences 300 --row "teacher, base and pairs"`` hold
the domains' generated pairs. Run it after them, with one thread:

  python -m sts_dino.experiments.which_texts --folder artifacts/domains --base DIR --teacher DIR \
    --out domains_texts.json

An encoder learns the mean of the teacher's and the base's cosines on 300 sentences of a domain and
on the texts of some labels, without the generated pairs beside it.
"""

import json
import logging
import shutil
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import pandas as pd
import typer

from sts_dino.experiments.domains import compare_rows
from sts_dino.experiments.steps import Steps, hash_parts
from sts_dino.hub import cli
from sts_dino.hub.contract.measured import write_json
from sts_dino.hub.contract.recipe import TAUGHT_PAIRS
from sts_dino.teach import write_taught_pairs

DOMAINS = ("headlines", "forums", "images")  # the domains on which choices are made
LABELS = {
    "sentences alone": (),
    "texts for 1": ("1",),
    "texts for 0.5": ("0.5",),
    "texts for 0": ("0",),
    "texts for 1 and 0.5": ("1", "0.5"),
    "all texts": ("1", "0.5", "0"),
}
STUDENT = Path("recipes/small/minilm-sts-dino.yaml")
SETTINGS = [  # as `adapt --teacher` proposes them, without the generated pairs
    *("seed=1", "arguments.max_steps=150", "arguments.save_steps=150", "arguments.bf16=true"),
    *("arguments.learning_rate=3e-5", "batch_size=48", "merge=1.5", "control=null"),
    *("evaluation=[]", "@assets/offline.yaml", "threads=1"),
]


def main(
    folder: Annotated[Path, typer.Option(help="Steps of sts-dino experiment domains")],
    base: Annotated[Path, typer.Option(help="all-MiniLM-L6-v2")],
    teacher: Annotated[Path, typer.Option(help="EmbeddingGemma-300M")],
    out: Annotated[Path, typer.Option(help="Result to write")],
) -> None:
    """Train an encoder on the texts of each choice of labels, and score it."""
    cli.route_messages(cli.TerminalHandler())
    steps = Steps(folder)
    evaluations: dict[str, dict[str, list[Path]]] = {"as published": {}}
    seconds: dict[str, float] = {}
    for domain in DOMAINS:
        pairs = folder / "data" / domain / "pairs.tsv"
        score = steps.score([str(base), "--pairs", str(pairs)], f"base-{domain}", domain)
        evaluations["as published"][domain] = [score.path]
        for name, labels in LABELS.items():
            key = f"texts-{domain}-{'-'.join(labels) or 'none'}"
            file = score_pairs(folder, domain, labels, base, teacher, folder / "taught" / key)
            section = {"path": str(file), "config": "default", "example_type": "sts"}
            section |= {"loss": "CorrelationLoss", "license": "unlicensed"}
            settings = [*SETTINGS, f"datasets={json.dumps([section])}"]
            title = f"{domain}, {name}"
            encoder = steps.train(STUDENT, settings, key, title)
            seconds[name] = seconds.get(name, 0.0) + encoder.seconds
            arguments = [str(encoder.path), "--pairs", str(pairs)]
            score = steps.score(arguments, hash_parts(key), title)
            evaluations.setdefault(name, {})[domain] = [score.path]
    write_json(out, compare_rows(evaluations, seconds, 1))


def score_pairs(
    folder: Path, domain: str, labels: tuple[str, ...], base: Path, teacher: Path, out: Path
) -> Path:
    """Score pairs of a domain's sentences and their texts for ``labels``; return their file."""
    run = next((folder / "datasets").glob(f"{domain}-????????????"))
    shard = next(run.glob("data/postprocessed-*/*.parquet"))
    rows = pd.read_parquet(shard)
    sentences = (folder / "data" / domain / "sentences.txt").read_text("utf-8").splitlines()
    groups: dict[str, int] = {}
    for number, sentence in enumerate(sentences):
        groups.setdefault(sentence, number)
    of_source = dict(groups)
    for row in rows[rows["target"].isin(labels)].itertuples():
        groups.setdefault(row.sentence2, of_source[row.sentence1])
    for known in (folder / "taught").glob(f"{domain}-????????????/embeddings"):
        shutil.copytree(known, out / "embeddings", dirs_exist_ok=True)
    with patch("sts_dino.teach.read_groups", lambda *arguments: groups):
        facts = write_taught_pairs(str(run), str(teacher), out, base=str(base))
    logging.getLogger("sts_dino").info(f"{domain}, {labels}: {facts.texts} texts")
    return out / TAUGHT_PAIRS


if __name__ == "__main__":
    typer.run(main)

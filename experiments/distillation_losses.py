"""Compare losses of a teacher that the recipes do not have: MarginMSE and EmbedDistill.

The steps of ``sts-dino experiment domains --sentences 300 --row "teacher, base and pairs"`` hold
the domains' generated pairs and the pairs that the teacher scored. Run it after them:

  python -m sts_dino.experiments.distillation_losses --folder artifacts/domains --base DIR \
    --teacher DIR --out domains_distillation.json
"""

import os
import random
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from datasets import Dataset
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.training_args import (
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.util import pairwise_cos_sim

from sts_dino.experiments.domains import compare_rows
from sts_dino.experiments.steps import Steps
from sts_dino.hub.contract.measured import write_json
from sts_dino.training.loop.losses import CorrelationLoss

DOMAINS = ("headlines", "forums", "images")  # the domains on which choices are made
ROWS = ("MarginMSE", "EmbedDistill", "correlation")
TRIPLES = 7200  # as many as the pairs that the teacher scores
MERGES = (1.0, 1.5)  # base + factor x (trained - base)
STEPS, BATCH, RATE, SEED = 150, 48, 3e-5, 1  # as `adapt --teacher` proposes


def main(
    folder: Annotated[Path, typer.Option(help="Steps of sts-dino experiment domains")],
    base: Annotated[Path, typer.Option(help="all-MiniLM-L6-v2")],
    teacher: Annotated[Path, typer.Option(help="EmbeddingGemma-300M")],
    out: Annotated[Path, typer.Option(help="Result to write")],
) -> None:
    """Train an encoder with each loss on the choice domains, beside the generated pairs."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    steps = Steps(folder)
    evaluations: dict[str, dict[str, list[Path]]] = {"as published": {}}
    for domain in DOMAINS:
        pairs = folder / "data" / domain / "pairs.tsv"
        score = steps.score([str(base), "--pairs", str(pairs)], f"base-{domain}", domain)
        evaluations["as published"][domain] = [score.path]
        for row in ROWS:
            trained = folder / "distillation" / f"{domain}-{row}"
            if not trained.exists():
                train_row(row, domain, folder, base, teacher, trained)
            for factor in MERGES:
                name = f"{row}, merge {factor}"
                merged = folder / "distillation" / f"{domain}-{row}-{factor}"
                write_merged(base, trained, factor, merged)
                arguments = [str(merged), "--pairs", str(pairs)]
                score = steps.score(arguments, f"distilled-{merged.name}", f"{domain}, {name}")
                evaluations.setdefault(name, {})[domain] = [score.path]
    write_json(out, compare_rows(evaluations, {}, 1))


def train_row(row: str, domain: str, folder: Path, base: Path, teacher: Path, out: Path) -> None:
    """Train ``base`` on a domain with the loss ``row`` and InfoNCE; write the trained encoder."""
    encoder = SentenceTransformer(str(base), device="cpu")
    scored = pd.read_parquet(next((folder / "taught").glob(f"{domain}-*")) / "pairs.parquet")
    data: dict[str, Dataset] = {
        "pairs": read_triplets(next((folder / "datasets").glob(f"{domain}-????????????")))
    }
    loss: dict[str, Any] = {"pairs": losses.MultipleNegativesRankingLoss(encoder)}
    if row == "correlation":
        data["teacher"] = Dataset.from_pandas(scored, preserve_index=False)
        loss["teacher"] = CorrelationLoss(encoder)
    elif row == "MarginMSE":
        data["teacher"] = make_margins(scored)
        loss["teacher"] = losses.MarginMSELoss(encoder, similarity_fct=pairwise_cos_sim)
    else:
        texts = sorted({*scored["sentence1"], *scored["sentence2"]})
        model = SentenceTransformer(str(teacher), device="cpu")
        embeddings = model.encode(texts, prompt_name="STS", batch_size=16)
        data["teacher"] = Dataset.from_dict({"text": texts, "label": embeddings.tolist()})
        loss["teacher"] = losses.EmbedDistillLoss(encoder, projection_dim=embeddings.shape[1])
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(out.with_suffix(".trainer")),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        warmup_steps=0.1,
        batch_sampler="no_duplicates",
        bf16=True,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        seed=SEED,
    )
    SentenceTransformerTrainer(encoder, arguments, train_dataset=data, loss=loss).train()
    encoder.save_pretrained(str(out))


def write_merged(base: Path, trained: Path, factor: float, out: Path) -> None:
    """Write the encoder whose weights are the base's plus ``factor`` times the change."""
    shutil.copytree(trained, out, dirs_exist_ok=True)
    before = load_file(base / "model.safetensors")
    after = load_file(trained / "model.safetensors")
    for name, tensor in after.items():
        if tensor.is_floating_point():
            after[name] = before[name] + factor * (tensor - before[name])
    save_file(after, out / "model.safetensors", {"format": "pt"})


def read_triplets(run: Path) -> Dataset:
    """Return each source sentence, itself, and its generated text for 0.5 as hard negative."""
    files = sorted(run.glob("data/postprocessed-*/*.parquet"))
    rows = pd.concat([pd.read_parquet(file) for file in files])
    similar = rows[rows["target"] == "0.5"].drop_duplicates("sentence1")
    return Dataset.from_dict(
        {
            "anchor": similar["sentence1"].tolist(),
            "positive": similar["sentence1"].tolist(),
            "negative": similar["sentence2"].tolist(),
        }
    )


def make_margins(scored: pd.DataFrame) -> Dataset:
    """Return triples of a text and two partners, with the difference of the two scores."""
    partners: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for first, second, score in scored[["sentence1", "sentence2", "score"]].itertuples(index=False):
        partners[first].append((second, score))
        partners[second].append((first, score))
    draw = random.Random(SEED)
    anchors = [text for text, found in sorted(partners.items()) if len(found) > 1]
    rows: list[dict[str, Any]] = []
    while len(rows) < TRIPLES:
        anchor = draw.choice(anchors)
        (near, high), (far, low) = draw.sample(partners[anchor], 2)
        rows.append({"anchor": anchor, "near": near, "far": far, "label": high - low})
    return Dataset.from_list(rows)


if __name__ == "__main__":
    typer.run(main)

"""Search pairs measured on a judged collection: generated queries beside baselines without a language model."""

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from benchmarks.trials import table
from experiments.steps import Steps, digest
from experiments.variants import finished_rows
from generation.inputs.sources import file_rows
from hub import cli
from hub.contract.measured import VariantPlan, write_json
from hub.contract.recipe import Grades, ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import ARTIFACTS, locked, require_complete
from hub.contract.schema import ROW_SCHEMAS, base_config
from hub.contract.shards import read_shard
from hub.durable import write_text
from release.options import set_words

PAIRS, ENCODER = Path("recipes/search/search-cranfield.yaml"), Path("recipes/search/minilm-search.yaml")
FEWEST, MOST = 30, 90  # words of a document that is a passage; words kept of it
TOP = 10  # round-trip filter: the passage is among so many hits of its query
SENTENCE = re.compile(r"(?<=[.?!])\s+")
LOSS = {"loss": "MultipleNegativesRankingLoss", "license": "unlicensed"}
Texts = tuple[str, ...]


def main(
    collection: Annotated[Path, typer.Argument(metavar="DIR", help="queries.jsonl, corpus.jsonl, qrels.tsv")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Result to write")],
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the steps")] = ARTIFACTS / "search",
    texts: Annotated[int, typer.Option("--texts", min=1, help="Number of passages")] = 700,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Trainings of each row")] = 3,
    mixed: Annotated[
        Path | None, typer.Option("--sts", metavar="RUN_DIR", help="Scored pairs for one more row")
    ] = None,
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
) -> None:
    """Generate queries, train the encoder on them and on each baseline, and write scores with paired differences.

    ``--set`` applies to the dataset recipe; files (@FILE) also to the encoder's. Finished steps are kept.

    Example:

      sts-dino experiment search DIR --set @assets/offline.yaml --out experiments/results/search.json
    """
    steps, files = Steps(folder), [word for word in settings if word.startswith("@")]
    with locked(folder):
        passages = drawn(collection / "corpus.jsonl", texts)
        path = folder / "passages" / f"{digest(passages)}.txt"
        write_text(path, "\n".join(passages) + "\n")
        given = [*settings, f"source.path={path}", f"source.limit={texts}"]
        key = digest(passages, given, PAIRS.read_text(encoding="utf-8"))
        run = folder / "datasets" / key
        steps.once("dataset", key, ["write", str(PAIRS), *set_words(given), "--out", str(run)], "queries", run)
        variants = rows_of(run, passages, load_recipe(ENCODER, ModelRecipe, files))
        if mixed:
            found = finished_rows(mixed, list(ROW_SCHEMAS["sts"].columns), "--sts reads scored pairs")
            alike = [(first, second) for first, second, score in found if score >= Grades().positive_from]
            variants = {**variants, "queries and paraphrases": [*variants["queries"], *alike]}
        places = {name: [trained(steps, collection, rows, seed, files) for seed in range(1, seeds + 1)]
                  for name, rows in variants.items()}  # fmt: skip
    from eval.compare.seeds import SAMPLES, compared
    from eval.runs.records import BASE

    download = places["queries"][0] / BASE
    plan = VariantPlan(
        tasks=("queries.jsonl/ndcg@10",),
        split="test",
        samples=SAMPLES,
        variants={"as downloaded": (str(download),)} | {name: (*map(str, of),) for name, of in places.items()},
        control="as downloaded",
        differences=tuple(("queries", name) for name in variants if name != "queries"),
    )
    result = compared(plan)
    write_json(out, result)
    lines = [
        [name, len(variants.get(name, ())), one.average, one.over_simcse or ""] for name, one in result.variants.items()
    ]
    cli.say(table(["trained on", "rows", "nDCG@10", "over the download"], lines, names=1))


def drawn(corpus: Path, texts: int, seed: int = 42) -> list[str]:
    """The first words of documents, drawn by a hash of seed and id; no double quotation marks."""
    rows = [
        (name, text.replace('"', "'").split()[:MOST]) for name, text in file_rows(corpus, ("_id", "text"), str(corpus))
    ]
    long = [
        (sha256(f"{seed} {name}".encode()).digest(), " ".join(words)) for name, words in rows if len(words) >= FEWEST
    ]
    return list(dict.fromkeys(text for _, text in sorted(long)[:texts]))


def rows_of(run: Path, passages: Sequence[str], recipe: ModelRecipe) -> Mapping[str, list[Texts]]:
    """Row of the result → its training rows: (query, passage), or (passage, query, query without an answer)."""
    configs: dict[str, list[Texts]] = {"pair": [], "query-triplet": []}
    for file in require_complete(run).files:
        if (base := base_config(file.config or "")) in configs:
            columns = ["anchor", "positive", "negative"][: 2 if base == "pair" else 3]
            configs[base] += [tuple(row[name] for name in columns) for row in read_shard(run / file.path, columns)]
    pairs = configs["pair"]
    seconds = Random(42).sample([passage for _, passage in pairs], len(pairs))
    cut = (SENTENCE.split(passage, maxsplit=1) for passage in passages)
    return {
        "queries": pairs,
        "queries, round trip": round_trip(pairs, recipe),
        "hard-negative queries": configs["query-triplet"],
        "inverse cloze": [(parts[0], parts[1]) for parts in cut if len(parts) == 2],
        "shuffled passages": [(query, second) for (query, _), second in zip(pairs, seconds, strict=True)],
    }


def round_trip(pairs: Sequence[Texts], recipe: ModelRecipe) -> list[Texts]:
    """The pairs whose passage is among the base encoder's ``TOP`` hits of the query (Promptagator, InPars)."""
    import torch
    from sentence_transformers.util import semantic_search

    from eval.encoders.load import load_encoder

    base = recipe.base
    encoder, passages = load_encoder(base.path or f"{base.repo_id}@{base.revision}"), list({p: None for _, p in pairs})
    asked, found = (torch.from_numpy(encoder.embed(texts)) for texts in ([query for query, _ in pairs], passages))
    hits = semantic_search(asked, found, top_k=TOP)
    return [
        pair for pair, of in zip(pairs, hits, strict=True) if pair[1] in {passages[int(h["corpus_id"])] for h in of}
    ]


def trained(steps: Steps, collection: Path, rows: Sequence[Texts], seed: int, files: Sequence[str]) -> Path:
    """The evaluation of the encoder that is trained on some rows; missing steps run."""
    key = digest(rows, seed, ENCODER.read_text(encoding="utf-8"), files)
    folder = steps.folder / "encoders" / key
    columns = ["anchor", "positive", "negative"][: len(rows[0])]
    lines = (json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) for row in rows)
    write_text(folder / "rows.jsonl", "\n".join(lines) + "\n")
    kind = {"example_type": "pair" if len(columns) == 2 else "triplet", "config": "default"}
    data = json.dumps([{"path": str(folder / "rows.jsonl"), **kind, **LOSS}])
    encoder, scores = folder / "encoder", folder / "evaluation"
    words = set_words([f"seed={seed}", f"datasets={data}", *files])
    steps.once("encoder", key, ["train", str(ENCODER), *words, "--out", str(encoder)], "training", encoder)
    own = [word for name in ("queries.jsonl", "corpus.jsonl", "qrels.tsv")
           for word in (f"--{name.partition('.')[0]}", str(collection / name))]  # fmt: skip
    words = ["score", str(encoder), *own, "--no-cache", "--out", str(scores)]
    steps.once("scores", key, words, "scores", scores / "results.json")
    return scores

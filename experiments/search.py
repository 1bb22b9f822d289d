"""Search pairs measured on a judged collection.

Generated queries stand beside baselines without a language model.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from sts_dino.experiments.speed.trials import format_table
from sts_dino.experiments.steps import Steps, hash_parts
from sts_dino.experiments.variants import read_finished_rows
from sts_dino.generation.inputs.sources import read_file_rows
from sts_dino.hub import cli
from sts_dino.hub.contract.measured import VariantPlan, VariantScores, write_json
from sts_dino.hub.contract.recipe import Grades, ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import ARTIFACTS, lock_run, require_complete
from sts_dino.hub.contract.schema import ROW_SCHEMAS, get_base_config
from sts_dino.hub.contract.shards import read_shard
from sts_dino.hub.durable import write_text
from sts_dino.release.options import format_settings

logger = logging.getLogger(__name__)

DATASET_RECIPE = Path("recipes/search/search-cranfield.yaml")
ENCODER_RECIPE = Path("recipes/search/minilm-search.yaml")
MIN_WORDS = 30  # of a document that becomes a passage
MAX_WORDS = 90  # of a passage
ROUND_TRIP_HITS = 10  # round-trip filter: the passage is among so many hits of its query
SENTENCE_END = re.compile(r"(?<=[.?!])\s+")
LOSS_SETTINGS = {"loss": "MultipleNegativesRankingLoss", "license": "unlicensed"}
COLUMNS = ["anchor", "positive", "negative"]
Texts = tuple[str, ...]


def main(
    collection: Annotated[
        Path, typer.Argument(metavar="DIR", help="queries.jsonl, corpus.jsonl, qrels.tsv")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Result to write")],
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the steps")] = ARTIFACTS
    / "search",
    texts: Annotated[int, typer.Option("--texts", min=1, help="Number of passages")] = 700,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Trainings of each row")] = 3,
    mixed: Annotated[
        Path | None, typer.Option("--sts", metavar="RUN_DIR", help="Scored pairs for one more row")
    ] = None,
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
) -> None:
    """Train on generated queries and on each baseline, and write scores with paired differences.

    ``--set`` applies to the dataset recipe; files (@FILE) also to the encoder's. Finished steps are
    kept.

    Example:

      sts-dino experiment search DIR --set @assets/offline.yaml --out results.json
    """
    steps = Steps(folder)
    files = [setting for setting in settings if setting.startswith("@")]
    with lock_run(folder):
        passages = draw_passages(collection / "corpus.jsonl", texts)
        run = generate_queries(steps, passages, texts, settings)
        variants = build_variants(run, passages, load_recipe(ENCODER_RECIPE, ModelRecipe, files))
        if mixed:
            paraphrases = read_paraphrases(mixed)
            variants["queries and paraphrases"] = [*variants["queries"], *paraphrases]
        evaluations = dict[str, list[Path]]()
        for name, rows in variants.items():
            evaluations[name] = [
                train_and_score(steps, collection, rows, seed, files)
                for seed in range(1, seeds + 1)
            ]
    result = compare_evaluations(evaluations)
    write_json(out, result)
    lines = []
    for name, scores in result.variants.items():
        rows_count = len(variants.get(name, ()))
        lines.append([name, rows_count, scores.average, scores.over_simcse or ""])
    columns = ["trained on", "rows", "nDCG@10", "over the download"]
    logger.info(format_table(columns, lines, names=1))


def generate_queries(
    steps: Steps, passages: Sequence[str], limit: int, settings: Sequence[str]
) -> Path:
    """Return the run directory of queries for at most ``limit`` passages.

    They are generated once for the same passages, settings and recipe.
    """
    path = steps.folder / "passages" / f"{hash_parts(passages)}.txt"
    write_text(path, "\n".join(passages) + "\n")
    all_settings = [*settings, f"source.path={path}", f"source.limit={limit}"]
    key = hash_parts(passages, all_settings, DATASET_RECIPE.read_text(encoding="utf-8"))
    run = steps.folder / "datasets" / key
    command = ["write", str(DATASET_RECIPE), *format_settings(all_settings), "--out", str(run)]
    steps.run_once("dataset", key, command, "queries", run)
    return run


def read_paraphrases(run: Path) -> list[Texts]:
    """Read the sentence pairs of a dataset whose score is at least ``Grades.positive_from``."""
    columns = list(ROW_SCHEMAS["sts"].columns)
    rows = read_finished_rows(run, columns, "--sts reads scored pairs")
    lowest = Grades().positive_from
    return [(sentence1, sentence2) for sentence1, sentence2, score in rows if score >= lowest]


def compare_evaluations(evaluations: Mapping[str, Sequence[Path]]) -> VariantScores:
    """Compare the evaluations of each row of the result with those of the downloaded encoder."""
    from sts_dino.eval.compare.seeds import DEFAULT_RESAMPLES, compare_variants
    from sts_dino.eval.runs.records import BASE_FOLDER

    variants: dict[str, Texts] = {"as downloaded": (str(evaluations["queries"][0] / BASE_FOLDER),)}
    for name, folders in evaluations.items():
        variants[name] = tuple(str(folder) for folder in folders)
    baselines = [name for name in evaluations if name != "queries"]
    plan = VariantPlan(
        tasks=("queries.jsonl/ndcg@10",),
        split="test",
        samples=DEFAULT_RESAMPLES,
        variants=variants,
        control="as downloaded",
        differences=tuple(("queries", name) for name in baselines),
    )
    return compare_variants(plan)


def draw_passages(corpus: Path, texts: int, seed: int = 42) -> list[str]:
    """Return passages: the first ``MAX_WORDS`` words of documents drawn by a hash of seed and id.

    A document of fewer than ``MIN_WORDS`` words gives no passage. Apostrophes replace double
    quotation marks.

    Args:
        corpus: BEIR's corpus.jsonl, with the columns _id and text.
        texts: number of passages, at most; equal ones among them are returned once.
        seed: seed of the draw.
    """
    passages = []
    for name, text in read_file_rows(corpus, ("_id", "text"), str(corpus)):
        words = text.replace('"', "'").split()[:MAX_WORDS]
        if len(words) >= MIN_WORDS:
            order = sha256(f"{seed} {name}".encode()).digest()
            passages.append((order, " ".join(words)))
    passages.sort()
    return list(dict.fromkeys(passage for _, passage in passages[:texts]))


def build_variants(
    run: Path, passages: Sequence[str], recipe: ModelRecipe
) -> dict[str, list[Texts]]:
    """Return name of a way to make queries → training rows.

    A row is (query, passage), or (passage, query, query without an answer) for
    "hard-negative queries".

    Args:
        run: the run directory of generated queries.
        passages: the passages of the run.
        recipe: the model recipe, whose base encoder filters by round trip.
    """
    # the generated queries, as pairs and with hard negatives
    configs: dict[str, list[Texts]] = {"pair": [], "query-triplet": []}
    for file in require_complete(run).files:
        base = get_base_config(file.config or "")
        if base in configs:
            columns = COLUMNS[:2] if base == "pair" else COLUMNS
            for row in read_shard(run / file.path, columns):
                configs[base].append(tuple(row[name] for name in columns))

    # The baselines need no language model. Inverse cloze takes the first sentence of a passage as
    # the query of the other sentences.
    pairs = configs["pair"]
    queries = [query for query, _ in pairs]
    shuffled = Random(42).sample([passage for _, passage in pairs], len(pairs))
    inverse_cloze = list[Texts]()
    for passage in passages:
        parts = SENTENCE_END.split(passage, maxsplit=1)
        if len(parts) == 2:
            inverse_cloze.append(tuple(parts))
    return {
        "queries": pairs,
        "queries, round trip": filter_round_trip(pairs, recipe),
        "hard-negative queries": configs["query-triplet"],
        "inverse cloze": inverse_cloze,
        "shuffled passages": list(zip(queries, shuffled, strict=True)),
    }


def filter_round_trip(pairs: Sequence[Texts], recipe: ModelRecipe) -> list[Texts]:
    """Return the pairs whose passage is among the hits of its own query.

    The base encoder of ``recipe`` searches all passages and returns ``ROUND_TRIP_HITS`` of them.
    Source: Promptagator, InPars.
    """
    import torch
    from sentence_transformers.util import semantic_search

    from sts_dino.eval.encoders.load import load_encoder

    encoder = load_encoder(recipe.base.location)
    passages = list(dict.fromkeys(passage for _, passage in pairs))
    query_vectors = torch.from_numpy(encoder.embed([query for query, _ in pairs]))
    passage_vectors = torch.from_numpy(encoder.embed(passages))
    hits = semantic_search(query_vectors, passage_vectors, top_k=ROUND_TRIP_HITS)
    consistent = []
    for pair, pair_hits in zip(pairs, hits, strict=True):
        if pair[1] in {passages[int(hit["corpus_id"])] for hit in pair_hits}:
            consistent.append(pair)
    return consistent


def train_and_score(
    steps: Steps, collection: Path, rows: Sequence[Texts], seed: int, files: Sequence[str]
) -> Path:
    """Train an encoder on rows and score it, each once; return the folder of the evaluation.

    Args:
        steps: the steps of the experiment.
        collection: folder of the judged collection.
        rows: training rows: pairs or triplets.
        seed: training seed.
        files: settings with files for the model recipe.
    """
    # the training rows as a file
    key = hash_parts(rows, seed, ENCODER_RECIPE.read_text(encoding="utf-8"), files)
    folder = steps.folder / "encoders" / key
    columns = COLUMNS[: len(rows[0])]
    lines = []
    for row in rows:
        fields = dict(zip(columns, row, strict=True))
        lines.append(json.dumps(fields, ensure_ascii=False) + "\n")
    path = folder / "rows.jsonl"
    write_text(path, "".join(lines))

    # the encoder
    example_type = "pair" if len(columns) == 2 else "triplet"
    dataset = {
        "path": str(path),
        "example_type": example_type,
        "config": "default",
        **LOSS_SETTINGS,
    }
    settings = [f"seed={seed}", f"datasets={json.dumps([dataset])}", *files]
    encoder = folder / "encoder"
    command = ["train", str(ENCODER_RECIPE), *format_settings(settings), "--out", str(encoder)]
    steps.run_once("encoder", key, command, "training", encoder)

    # its scores
    scores = folder / "evaluation"
    command = ["score", str(encoder)]
    for name in ("queries.jsonl", "corpus.jsonl", "qrels.tsv"):
        option = name.partition(".")[0]
        command += [f"--{option}", str(collection / name)]
    command += ["--no-cache", "--out", str(scores)]
    steps.run_once("scores", key, command, "scores", scores / "results.json")
    return scores

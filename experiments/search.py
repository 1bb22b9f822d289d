"""Search pairs measured on a judged collection.

Generated queries stand beside baselines without a language model, and beside a teacher: an encoder
whose similarities of queries and passages are learned.
"""

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np
import typer

from sts_dino.eval.encoders.embeddings import Embeddings
from sts_dino.eval.encoders.load import Encoder, load_encoder
from sts_dino.experiments.domains import choose_names
from sts_dino.experiments.speed.trials import format_table
from sts_dino.experiments.steps import Steps, hash_parts
from sts_dino.experiments.variants import read_finished_rows
from sts_dino.generation.backends.registry import parse_server
from sts_dino.generation.inputs.sources import read_file_rows
from sts_dino.hub import cli
from sts_dino.hub.contract.measured import VariantPlan, VariantScores, write_json
from sts_dino.hub.contract.recipe import Grades, ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import ARTIFACTS, lock_run, require_complete
from sts_dino.hub.contract.schema import ROW_SCHEMAS, get_base_config
from sts_dino.hub.contract.shards import read_shard
from sts_dino.hub.durable import hash_file, write_text
from sts_dino.hub.errors import InputError
from sts_dino.release.options import format_settings
from sts_dino.teach import Vectors, compute_unit_vectors, join_vectors
from sts_dino.teacher import load_teacher

DATASET_RECIPE = Path("recipes/search/search-cranfield.yaml")
ENCODER_RECIPE = Path("recipes/search/minilm-search.yaml")
COLLECTION_FILES = ("queries.jsonl", "corpus.jsonl", "qrels.tsv")  # also names of options
MIN_WORDS = 30  # of a document that becomes a passage
MAX_WORDS = 90  # of a passage
SEED = 42  # of everything random but the trainings
ROUND_TRIP_HITS = 10  # round-trip filter: the passage is among so many hits of its query
SENTENCE_END = re.compile(r"(?<=[.?!])\s+")
CANDIDATES = 20  # passages of each query that the teacher scores
NEAREST = 10  # of them: the query's own passage and the nearest ones; the others are random
COLUMNS = {  # example type → columns of its rows
    "pair": ("anchor", "positive"),
    "triplet": ("anchor", "positive", "negative"),
    "sts": ("sentence1", "sentence2", "score"),
}
LOSSES = {
    "pair": "MultipleNegativesRankingLoss",
    "triplet": "MultipleNegativesRankingLoss",
    "sts": "CorrelationLoss",
}
# Settings for training on scored pairs: those of results/search_teacher.json, without its merge
TAUGHT_SETTINGS = (
    "arguments.max_steps=150",
    "arguments.save_steps=150",
    "arguments.learning_rate=3e-5",
    "arguments.batch_sampler=batch_sampler",
    "batch_size=48",
)
PUBLISHED = "as published"
TEACHER = "the teacher"
CLOZE = "inverse cloze"
PARAPHRASES = "queries and paraphrases"
TAUGHT = {"queries, teacher": "queries", "inverse cloze, teacher": CLOZE}  # row → row of its pairs
GENERATED_ROWS = (  # rows of the table that need generated queries
    "queries",
    "queries, round trip",
    "hard-negative queries",
    "shuffled passages",
    PARAPHRASES,
    "queries, teacher",
)
ROWS = (*GENERATED_ROWS, CLOZE, "inverse cloze, teacher", TEACHER)
Texts = tuple[str, ...]
Example = tuple[str | float, ...]  # texts, or two texts and their score


def main(
    collection: Annotated[
        Path, typer.Argument(metavar="DIR", help="queries.jsonl, corpus.jsonl, qrels.tsv")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Result to write")],
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the steps")] = ARTIFACTS
    / "search",
    texts: Annotated[int, typer.Option("--texts", min=1, help="Number of passages")] = 700,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Trainings of each row")] = 3,
    rows: Annotated[
        list[str] | None, typer.Option("--row", metavar="NAME", help="Row [default: all]")
    ] = None,
    teacher: Annotated[str, typer.Option(help="Teacher encoder")] = "embeddinggemma-300m",
    mixed: Annotated[
        Path | None, typer.Option("--sts", metavar="RUN_DIR", help="Scored pairs for one more row")
    ] = None,
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
) -> None:
    """Train on generated queries and on each baseline, and write scores with paired differences.

    ``--set`` applies to the dataset recipe; files (@FILE) also to the encoder's. Finished steps are
    kept.

    Examples:

      sts-dino experiment search DIR --set @assets/offline.yaml --out results.json

      sts-dino experiment search DIR --row "inverse cloze, teacher" --row "the teacher"
      --seeds 1 --set @assets/offline.yaml --out taught.json
    """
    names = choose_rows(rows, mixed)
    if TEACHER in names and parse_server("--teacher", teacher) is not None:
        hint = f"name the rows with --row, without {TEACHER!r}"
        raise InputError("--teacher", "is a server, which cannot be scored", hint=hint)
    search = Search(Steps(folder), collection, settings, teacher)
    with lock_run(folder):
        variants = search.make_rows(names, texts, mixed)
        evaluations = {PUBLISHED: [search.score(search.base)]}
        for name in names:
            if name == TEACHER:
                evaluations[name] = [search.score(teacher)]
                continue
            evaluations[name] = [
                search.train_and_score(variants[name], seed) for seed in range(1, seeds + 1)
            ]
    result = compare_evaluations(evaluations)
    write_json(out, result)
    lines = []
    for name, scores in result.variants.items():
        rows_count = len(variants[name]) if name in variants else ""
        lines.append([name, rows_count, scores.average, scores.over_simcse or ""])
    columns = ["trained on", "rows", "nDCG@10", f"over {PUBLISHED}"]
    print(format_table(columns, lines, names=1))


def choose_rows(requested: list[str] | None, mixed: Path | None) -> list[str]:
    """Return the requested rows of the table; None or []: all rows that can be made.

    ``mixed``: the run directory of scored pairs (``--sts``); None: the row ``PARAPHRASES`` cannot
    be made. Raises InputError for an unknown row, and for that row when it is requested.
    """
    names = choose_names("--row", requested, ROWS)
    if mixed is not None or PARAPHRASES not in names:
        return names
    if requested:
        hint = f"the row {PARAPHRASES!r} reads the scored pairs of a finished run"
        raise InputError("--sts", "is missing", hint=hint)
    return [name for name in names if name != PARAPHRASES]


class Search:
    """Makes the rows of the table on one judged collection; each step runs once.

    steps: the steps of the experiment.
    collection: the folder of the judged collection.
    settings: overrides of the dataset recipe; files (@FILE) also override the encoder's recipe.
    teacher: the teacher, as the user named it.

    Raises InputError for a collection without one of ``COLLECTION_FILES``.
    """

    def __init__(self, steps: Steps, collection: Path, settings: Sequence[str], teacher: str):
        self.steps = steps
        self.collection = collection
        self.settings = list(settings)
        self.teacher = teacher
        for name in COLLECTION_FILES:
            if not (collection / name).is_file():
                raise InputError(collection / name, "no such file", hint="DIR has BEIR's layout")
        self.files = [setting for setting in settings if setting.startswith("@")]
        self.base = load_recipe(ENCODER_RECIPE, ModelRecipe, self.files).base.location

    def make_rows(
        self, names: Sequence[str], texts: int, mixed: Path | None
    ) -> dict[str, Sequence[Example]]:
        """Return row of the table → its training rows, for ``names`` and the rows they start from.

        Further rows may be among them; ``TEACHER`` has no training rows. Raises InputError for a
        corpus that gives no training rows for one of ``names``, and InputError or RunError when the
        generation fails.

        Args:
            names: the rows of the table.
            texts: the largest number of passages.
            mixed: the run directory of scored pairs; None without the row ``PARAPHRASES``.
        """
        passages = draw_passages(self.collection / "corpus.jsonl", texts)
        variants: dict[str, Sequence[Example]] = {CLOZE: draw_inverse_cloze(passages)}
        if not set(names).isdisjoint(GENERATED_ROWS):
            run = generate_queries(self.steps, passages, texts, self.settings)
            variants |= build_variants(run, self.base)
            if mixed is not None:
                variants[PARAPHRASES] = [*variants["queries"], *read_paraphrases(mixed)]
        for name in names:
            if name != TEACHER and not variants[TAUGHT.get(name, name)]:
                raise InputError(
                    self.collection / "corpus.jsonl",
                    f"gives no training rows for the row {name!r}",
                    allowed=f"documents of {MIN_WORDS} words or more, in several sentences",
                )
        for name, source in TAUGHT.items():
            if name in names:
                variants[name] = score_candidates(
                    variants[source], self.teacher, self.base, self.steps.folder / "embeddings"
                )
        return variants

    def train_and_score(self, rows: Sequence[Example], seed: int) -> Path:
        """Train an encoder on rows and score it, each once; return the folder of the evaluation.

        ``rows``: pairs, triplets, or pairs with a score; at least one. ``seed``: the training seed.
        Raises InputError or RunError when a step fails.
        """
        # the training rows as a file
        example_type = find_example_type(rows[0])
        own_settings = list(TAUGHT_SETTINGS) if example_type == "sts" else []
        recipe = ENCODER_RECIPE.read_text(encoding="utf-8")
        key = hash_parts(rows, seed, recipe, own_settings, self.files)
        lines = []
        for row in rows:
            fields = dict(zip(COLUMNS[example_type], row, strict=True))
            lines.append(json.dumps(fields, ensure_ascii=False) + "\n")
        path = self.steps.folder / "rows" / f"{key}.jsonl"
        write_text(path, "".join(lines))

        # the encoder
        dataset = {
            "path": str(path),
            "example_type": example_type,
            "config": "default",
            "loss": LOSSES[example_type],
            "license": "unlicensed",
        }
        settings = [f"seed={seed}", f"datasets={json.dumps([dataset])}", *own_settings]
        encoder = self.steps.train(ENCODER_RECIPE, [*settings, *self.files], key, "training")
        return self.score(str(encoder.path))

    def score(self, encoder: str) -> Path:
        """Score an encoder on the collection once; return the folder of the evaluation.

        ``encoder``: what ``sts-dino score`` takes. Raises InputError or RunError when that fails.
        """
        files = [self.collection / name for name in COLLECTION_FILES]
        key = hash_parts(encoder, [hash_file(file) for file in files])
        arguments = [encoder]
        for file in files:
            arguments += [f"--{file.stem}", str(file)]
        return self.steps.score(arguments, key, "scores").path


def find_example_type(row: Example) -> str:
    """Return the example type of a training row: "sts" with a score, "pair" or "triplet"."""
    if isinstance(row[-1], float):
        return "sts"
    return "pair" if len(row) == len(COLUMNS["pair"]) else "triplet"


def generate_queries(
    steps: Steps, passages: Sequence[str], limit: int, settings: Sequence[str]
) -> Path:
    """Return the run directory of queries for at most ``limit`` passages.

    The queries are generated once for equal passages, settings and recipe. Raises InputError or
    RunError when the generation fails.
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
    """Read the sentence pairs of a dataset whose score is at least ``Grades.positive_from``.

    Raises InputError for an unfinished run, and for one without scored pairs.
    """
    columns = list(ROW_SCHEMAS["sts"].columns)
    rows = read_finished_rows(run, columns, "--sts reads scored pairs")
    lowest = Grades().positive_from
    return [(sentence1, sentence2) for sentence1, sentence2, score in rows if score >= lowest]


def compare_evaluations(evaluations: Mapping[str, Sequence[Path]]) -> VariantScores:
    """Compare the evaluations of each row of the table with that of the encoder as published.

    The row "queries", if there is one, is also compared with every other row. Raises InputError for
    evaluations on different queries.

    ``evaluations``: row → folder of the evaluation of each training seed, ``PUBLISHED`` included.
    """
    from sts_dino.eval.compare.seeds import DEFAULT_RESAMPLES, compare_variants

    variants = {name: tuple(map(str, folders)) for name, folders in evaluations.items()}
    others = [name for name in evaluations if name not in ("queries", PUBLISHED)]
    plan = VariantPlan(
        tasks=("queries.jsonl/ndcg@10",),
        split="test",
        samples=DEFAULT_RESAMPLES,
        variants=variants,
        control=PUBLISHED,
        differences=tuple(("queries", name) for name in others if "queries" in evaluations),
    )
    return compare_variants(plan)


def draw_passages(corpus: Path, texts: int, seed: int = SEED) -> list[str]:
    """Return passages: the first ``MAX_WORDS`` words of documents drawn by a hash of seed and id.

    A document of fewer than ``MIN_WORDS`` words gives no passage. Apostrophes replace double
    quotation marks.

    Args:
        corpus: BEIR's corpus.jsonl, with the columns _id and text.
        texts: number of documents that are drawn, at most; equal passages are returned once.
        seed: seed of the draw.

    Raises InputError for a missing or malformed file.
    """
    passages = []
    for name, text in read_file_rows(corpus, ("_id", "text"), str(corpus)):
        words = text.replace('"', "'").split()[:MAX_WORDS]
        if len(words) >= MIN_WORDS:
            order = sha256(f"{seed} {name}".encode()).digest()
            passages.append((order, " ".join(words)))
    passages.sort()
    return list(dict.fromkeys(passage for _, passage in passages[:texts]))


def draw_inverse_cloze(passages: Sequence[str]) -> list[Texts]:
    """Return (first sentence, rest of the passage) of each passage with several sentences.

    The first sentence is the query, and the rest its passage: no language model is needed.
    """
    pairs = list[Texts]()
    for passage in passages:
        parts = SENTENCE_END.split(passage, maxsplit=1)
        if len(parts) == 2:
            pairs.append(tuple(parts))
    return pairs


def build_variants(run: Path, base: str) -> dict[str, list[Texts]]:
    """Return name of a way to use generated queries → training rows.

    A row is (query, passage), or for "hard-negative queries" (passage, query, query that the
    passage does not answer).

    Args:
        run: the run directory of generated queries.
        base: the location of the encoder that filters by round trip.
    """
    # the generated queries, as pairs and with hard negatives
    example_types = {"pair": "pair", "query-triplet": "triplet"}
    configs: dict[str, list[Texts]] = {"pair": [], "query-triplet": []}
    for file in require_complete(run).files:
        config = get_base_config(file.config or "")
        if config in configs:
            columns = COLUMNS[example_types[config]]
            for row in read_shard(run / file.path, list(columns)):
                configs[config].append(tuple(row[name] for name in columns))

    # a baseline: each query with the passage of a random query
    pairs = configs["pair"]
    queries = [query for query, _ in pairs]
    shuffled = Random(SEED).sample([passage for _, passage in pairs], len(pairs))
    return {
        "queries": pairs,
        "queries, round trip": filter_round_trip(pairs, base),
        "hard-negative queries": configs["query-triplet"],
        "shuffled passages": list(zip(queries, shuffled, strict=True)),
    }


def score_candidates(
    pairs: Sequence[Example], teacher: str, base: str, folder: Path
) -> list[Example]:
    """Return (query, passage, score) of each query's candidate passages.

    The candidates are, in this order, the query's own passage, those nearest to the query, and
    random ones; ``CANDIDATES`` in all, or all passages where there are fewer. The score is the
    weighted mean of both encoders' cosines, as ``sts_dino.teach.join_vectors`` weighs them, clipped
    to 0 to 1. Each encoder has its own prompts for queries and documents.

    Args:
        pairs: (query, its passage).
        teacher: the teacher, as the user named it.
        base: the location of the encoder that is trained.
        folder: keeps the embeddings.
    """
    # Embeddings (queries + passages, dimensions); a query is in the group of its passage
    queries = [str(query) for query, _ in pairs]
    passages = list(dict.fromkeys(str(passage) for _, passage in pairs))
    own = np.array([passages.index(str(passage)) for _, passage in pairs])
    groups = np.concatenate([own, np.arange(len(passages))])
    vectors = [
        embed_sides(encoder, queries, passages, folder)
        for encoder in (load_teacher(teacher), load_encoder(base))
    ]
    joined = join_vectors(vectors[0], vectors[1], groups, SEED)
    cosines = joined[: len(queries)] @ joined[len(queries) :].T

    # Own and nearest passages, then random ones
    generator = np.random.default_rng(SEED)
    count = min(CANDIDATES, len(passages))
    examples = list[Example]()
    for number, query in enumerate(queries):
        ranked = np.argsort(-cosines[number])
        nearest = [own[number], *ranked[ranked != own[number]]][: min(NEAREST, count)]
        others = np.setdiff1d(ranked, nearest)
        drawn = generator.choice(others, count - len(nearest), replace=False)
        for candidate in (*nearest, *drawn):
            score = float(cosines[number, candidate].clip(0, 1))
            examples.append((query, passages[candidate], score))
    return examples


def embed_sides(
    encoder: Encoder, queries: Sequence[str], passages: Sequence[str], folder: Path
) -> Vectors:
    """Return the unit vectors of queries, then of passages, (queries + passages, dimension).

    ``folder`` keeps the embeddings for the next call.
    """
    with Embeddings(encoder, folder) as embeddings:
        sides = [embeddings.embed(queries, "query"), embeddings.embed(passages, "document")]
    return compute_unit_vectors(np.concatenate(sides))


def filter_round_trip(pairs: Sequence[Texts], base: str) -> list[Texts]:
    """Return the (query, passage) pairs whose passage is among the hits of its own query.

    The hits are the ``ROUND_TRIP_HITS`` passages of ``pairs`` that are nearest to the query for the
    encoder ``base`` (folder or Hub id). The filter is that of Promptagator and InPars.
    """
    import torch
    from sentence_transformers.util import semantic_search

    encoder = load_encoder(base)
    passages = list(dict.fromkeys(passage for _, passage in pairs))
    query_vectors = torch.from_numpy(encoder.embed([query for query, _ in pairs]))
    passage_vectors = torch.from_numpy(encoder.embed(passages))
    hits = semantic_search(query_vectors, passage_vectors, top_k=ROUND_TRIP_HITS)
    consistent = []
    for pair, pair_hits in zip(pairs, hits, strict=True):
        if pair[1] in {passages[int(hit["corpus_id"])] for hit in pair_hits}:
            consistent.append(pair)
    return consistent

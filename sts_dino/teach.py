"""Pairs with a teacher's similarities, for the training of a smaller encoder (distillation).

DIR/pairs.parquet   the pairs: sentence1, sentence2, and score, the cosine of the teacher (with
                    --base, the weighted mean of its cosine and that encoder's)
DIR/teach.json      the teacher, the dataset and the numbers of texts and pairs
DIR/embeddings/     the embeddings; a second call encodes only new texts
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from sts_dino.eval.audit.command import ConfigOption, silence_transformers
from sts_dino.eval.audit.source import find_rows
from sts_dino.eval.encoders.embeddings import Embeddings
from sts_dino.eval.encoders.load import Encoder, load_encoder, resolve_encoder
from sts_dino.eval.scoring.bootstrap import compute_score
from sts_dino.eval.tasks.task import Outcomes
from sts_dino.generation.inputs.sources import SourceStream, read_file_rows
from sts_dino.hub import cli
from sts_dino.hub.contract.recipe import TAUGHT_PAIRS, DatasetRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import lock_run
from sts_dino.hub.contract.schema import ROW_SCHEMAS, build_features
from sts_dino.hub.contract.shards import write_shard
from sts_dino.hub.durable import hash_file, make_folder, write_text
from sts_dino.hub.errors import InputError
from sts_dino.hub.text_files import is_blank, kind_of
from sts_dino.hub.untrusted import warn_of_cut_texts
from sts_dino.teacher import has_changed, load_teacher

logger = logging.getLogger(__name__)

FACTS_FILE = "teach.json"
DEFAULT_PAIRS = 7_200  # 150 steps of 48 pairs
RANGES = 8  # equal ranges of the cosine; each gives equally many pairs
NEAREST = 6  # nearest texts of a text that make candidate pairs with it
RANDOM = 3  # random texts that make candidate pairs with a text
FEWEST_TEXTS = 20
MOST_SENTENCES = 2_000  # of a recipe's corpus beside the generated texts
MOST_TEXTS = 20_000  # of a larger dataset, so many texts are drawn
WEIGHED_PAIRS = 4_000  # pairs whose cosines decide the weights of two encoders
# Least standard deviation of cosines; that of an encoder that hardly tells texts apart is near 0
SMALLEST_SPREAD = 1e-3
CHUNK_TEXTS = 1_024  # texts that are compared with all others at a time

Indices = NDArray[np.int64]
Vectors = NDArray[np.float32]
app = cli.make_app(__doc__)


class TeachingFacts(BaseModel, extra="forbid", frozen=True):
    """What ``teach.json`` holds: the teacher and the origin of the pairs.

    teacher, revision: the name of the encoder and the hash of its files, its Hub commit, or the
        hash of a server's URL and its name of the encoder.
    requested: the encoder as the user named it.
    prompt: the text before each sentence.
    base, base_revision: the encoder whose cosines are averaged with the teacher's; empty: none.
    dataset: the name of the dataset; texts_sha256: the hash of its texts and groups.
    seconds: the time of both encoders; texts encoded by an earlier call are not in it.
    pairs_sha256: the hash of ``pairs.parquet``.
    """

    teacher: str
    revision: str
    requested: str
    prompt: str
    base: str = ""
    base_revision: str = ""
    dataset: str
    texts: int
    texts_sha256: str
    pairs: int
    seed: int
    seconds: float
    pairs_sha256: str


@app.command()
def main(
    dataset: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Run directory, ORG/NAME@REVISION, or a .txt file"),
    ],
    teacher: Annotated[
        str,
        typer.Option(
            help="Encoder: NAME of sts-dino lm, folder, ORG/NAME[@REVISION], or NAME@URL of an "
            "embeddings server"
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the results")],
    base: Annotated[
        str | None,
        typer.Option(
            help="Encoder that will be trained: the scores become the weighted mean of the "
            "teacher's cosines and this encoder's"
        ),
    ] = None,
    pairs: Annotated[int, typer.Option(min=RANGES, help="Number of pairs")] = DEFAULT_PAIRS,
    sentences: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="More sentences: a .txt file, or the dataset recipe whose corpus has them",
        ),
    ] = None,
    config: ConfigOption = None,
    encoding: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Encoding of files that are not UTF-8 [default: recognised]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the drawn pairs")] = 42,
    as_json: cli.JsonOption = False,
) -> None:
    """Draw pairs of a dataset's texts, with the teacher's cosines as scores.

    The pairs are spread evenly over the scores. Train an encoder on them with the loss
    CorrelationLoss; sts-dino adapt --teacher does both.

    Examples:

      sts-dino teach artifacts/adapted/questions/datasets/questions-pairs
      --teacher embeddinggemma-300m --out taught

      sts-dino teach sentences.txt --teacher bge-m3@http://127.0.0.1:8080/v1 --out taught
    """
    silence_transformers()
    with lock_run(out):
        facts = write_taught_pairs(
            dataset,
            teacher,
            out,
            pairs,
            sentences,
            seed,
            base=base,
            config=config,
            encoding=encoding,
        )
    line = (
        f"{out / TAUGHT_PAIRS}: {facts.pairs:,} pairs of {facts.texts:,} texts, "
        f"scored by {facts.teacher}"
    )
    cli.print_answer(line, facts.model_dump(), as_json)


def write_taught_pairs(
    dataset: str,
    teacher: str,
    out: Path,
    pairs: int = DEFAULT_PAIRS,
    sentences: Path | None = None,
    seed: int = 42,
    *,
    base: str | None = None,
    config: str | None = None,
    encoding: str | None = None,
) -> TeachingFacts:
    """Write ``pairs.parquet`` and ``teach.json``; finished files of the same inputs stay.

    Args:
        dataset: a run directory, ORG/NAME@REVISION, or a file of texts, a line each.
        teacher: the encoder, as the user named it.
        out: the folder of the results, which is locked.
        pairs: the number of pairs.
        sentences: a file that ``read_sentences`` reads; None: the dataset's texts alone.
        seed: decides which pairs are drawn.
        base: the encoder that will be trained, see ``join_vectors``; None: the teacher alone.
        config, encoding: see ``read_groups``.

    Raises InputError for a dataset that cannot be read or has too few texts, and for an encoder
    that cannot be loaded; RunError when the Hub or the server fails.
    """
    # Read the texts, and load the encoders.
    texts, group_numbers = choose_texts(dataset, sentences, seed, config=config, encoding=encoding)
    encoder = load_teacher(teacher)
    base_encoder = None if base is None else load_encoder(resolve_encoder(base))

    # Return early when the finished files have all of these facts.
    expected: dict[str, Any] = {
        "teacher": encoder.name,
        "revision": encoder.revision,
        "requested": teacher,
        "prompt": encoder.settings.get("prompt", ""),
        "base": base_encoder.name if base_encoder else "",
        "base_revision": base_encoder.revision if base_encoder else "",
        "dataset": Path(dataset).name,
        "texts": len(texts),
        "texts_sha256": _hash_groups(texts, group_numbers),
        "pairs": pairs,
        "seed": seed,
    }
    facts = read_facts(out)
    if facts is not None and expected.items() <= facts.model_dump().items():
        logger.info(f"{out}: already finished; nothing to do")
        return facts

    # Encode, draw the pairs, and write them
    vectors, seconds = _encode(encoder, texts, out)
    if base_encoder is not None:
        base_vectors, base_seconds = _encode(base_encoder, texts, out)
        vectors = join_vectors(vectors, base_vectors, group_numbers, seed)
        seconds += base_seconds
    first, second, cosines = draw_pairs(vectors, group_numbers, pairs, seed)
    rows = [
        {"sentence1": texts[left], "sentence2": texts[right], "score": float(cosine)}
        for left, right, cosine in zip(first, second, cosines, strict=True)
    ]
    make_folder(out)
    write_shard(out / TAUGHT_PAIRS, rows, build_features(ROW_SCHEMAS["sts"].columns))
    facts = TeachingFacts(**expected, seconds=seconds, pairs_sha256=hash_file(out / TAUGHT_PAIRS))
    write_text(out / FACTS_FILE, facts.model_dump_json(indent=2) + "\n")
    return facts


def _encode(encoder: Encoder, texts: Sequence[str], out: Path) -> tuple[Vectors, float]:
    """Return the embeddings of texts, (n, d), of length 1, and the seconds of encoding.

    Embeddings that the folder ``out`` keeps are not computed again; new ones are added there. The
    log warns of texts that the encoder cuts.
    """
    if encoder.model is not None:
        warn_of_cut_texts(encoder.model, texts, encoder.name, "texts")
    with Embeddings(encoder, out / "embeddings") as embeddings:
        embeddings.declare(texts)
        return compute_unit_vectors(embeddings.embed(texts)), embeddings.seconds


def choose_texts(
    dataset: str,
    sentences: Path | None,
    seed: int,
    *,
    config: str | None = None,
    encoding: str | None = None,
) -> tuple[list[str], Indices]:
    """Return the texts that the teacher reads, (n,), and the group of each, (n,).

    With more than ``MOST_TEXTS`` texts, the seed draws groups with about that number of texts.
    Raises InputError for fewer than ``FEWEST_TEXTS``, and the errors of ``read_groups``.
    """
    groups = read_groups(dataset, sentences, config, encoding)
    texts = list(groups)
    if len(texts) < FEWEST_TEXTS:
        raise InputError(
            dataset, f"has {len(texts)} distinct texts", allowed=f"at least {FEWEST_TEXTS}"
        )
    if len(texts) > MOST_TEXTS:
        texts = sample_groups(groups, MOST_TEXTS, seed)
        logger.info(f"{dataset}: the teacher reads {len(texts):,} of {len(groups):,} texts")
    return texts, np.array([groups[text] for text in texts])


def read_groups(
    dataset: str,
    sentences: Path | None,
    config: str | None = None,
    encoding: str | None = None,
) -> dict[str, int]:
    """Return each distinct text → the index of its source sentence, from 0.

    A text of several source sentences has the index of the first one.

    Args:
        dataset: a run directory, ORG/NAME@REVISION, or a file of texts; the source sentence is a
            row's first column.
        sentences: a file that ``read_sentences`` reads, with more sentences; None: no more.
        config: the config of a dataset that is not a file; None: the one to train on.
        encoding: the encoding of files that are not UTF-8; None: it is recognised.

    Raises InputError for a dataset or a file that cannot be read, and for a config of a file.
    """
    # Read the rows of the dataset, and each further sentence as a row. A .txt file that is missing
    # is refused as a file, not searched on a Hub.
    path = Path(dataset)
    files = [] if sentences is None else [sentences]
    rows: list[tuple[str, ...]] = []
    if path.is_file() or (kind_of(path) == ".txt" and not path.is_dir()):
        if config is not None:
            raise InputError(
                "--config", f"{dataset} is a file, which has no configs", hint="leave it out"
            )
        files.insert(0, path)
    else:
        for batch in find_rows(dataset, config).read_batches():
            rows += zip(*batch.texts.values(), strict=True)
    for file in files:
        rows += [(sentence,) for sentence in read_sentences(file, encoding)]

    # Index the source sentences; a blank cell is no text.
    groups: dict[str, int] = {}
    numbers: dict[str, int] = {}
    for source, *generated in rows:
        number = numbers.setdefault(source, len(numbers))
        for text in (source, *generated):
            if not is_blank(text):
                groups.setdefault(text.strip(), number)
    return groups


def read_sentences(file: Path, encoding: str | None = None) -> list[str]:
    """Return the sentences of a .txt file, or the first ones of a dataset recipe's corpus.

    A corpus gives at most ``MOST_SENTENCES``, none if the language model generates the sources.

    ``encoding``: of a .txt file that is not UTF-8. Raises InputError for a file of another kind,
    and for one that cannot be read; RunError for a Hub that cannot be read.
    """
    if kind_of(file) == ".txt":
        return [sentence for (sentence,) in read_file_rows(file, (), str(file), encoding)]
    if file.suffix not in (".yaml", ".yml"):
        raise InputError(
            file,
            f"is a file of the kind {file.suffix!r}",
            allowed="a .txt file, a text per line, or a dataset recipe",
            hint="save its texts as .txt",
        )
    recipe = load_recipe(file, DatasetRecipe)
    if recipe.source.kind == "model":
        return []
    changes = {"limit": MOST_SENTENCES, "share": 1.0}
    source = recipe.source.model_copy(update=changes)
    recipe = recipe.model_copy(update={"source": source, "premise_tokens": None})
    count_tokens = len  # never called: the copy has no bounds on tokens
    return [sentence.text for sentence in SourceStream(recipe, count_tokens)]


def sample_groups(groups: Mapping[str, int], most: int, seed: int) -> list[str]:
    """Return all texts of random groups, about ``most`` texts, in the order of ``groups``."""
    share = most / len(groups)
    draws = np.random.default_rng(seed).random(max(groups.values()) + 1)
    return [text for text, number in groups.items() if draws[number] < share]


def read_facts(out: Path) -> TeachingFacts | None:
    """Return the facts of a finished folder; None without one, or when a file is changed."""
    file = out / FACTS_FILE
    pairs = out / TAUGHT_PAIRS
    if not file.is_file() or not pairs.is_file():
        return None
    try:
        facts = TeachingFacts.model_validate_json(file.read_bytes())
    except ValidationError:  # damaged, or of another version: the caller draws the pairs anew
        return None
    return facts if hash_file(pairs) == facts.pairs_sha256 else None


def compute_unit_vectors(vectors: Vectors) -> Vectors:
    """Return vectors (n, d) of length 1; a zero vector stays zero."""
    norms: Vectors = np.linalg.norm(vectors, axis=1, keepdims=True)
    norms[norms == 0] = 1
    return vectors / norms


def join_vectors(teacher: Vectors, base: Vectors, groups: Indices, seed: int) -> Vectors:
    """Join two encoders' vectors: a cosine of joined ones is the weighted mean of both cosines.

    An encoder's weight is the inverse of its cosines' standard deviation over drawn pairs, so that
    both rank the pairs with equal force. The mean has two advantages: the encoders err differently,
    and the trained encoder stays near its start.

    Args:
        teacher, base: (n, d) and (n, e), of length 1.
        groups, seed: as ``draw_pairs`` takes them.

    Returns vectors (n, d + e) of length 1.
    """
    first, second, _ = draw_pairs(teacher, groups, WEIGHED_PAIRS, seed)
    # A factor of both vectors counts twice in their product, so each vector gets the weight's root
    parts = []
    for vectors in (teacher, base):
        cosines = np.einsum("ij,ij->i", vectors[first], vectors[second])
        parts.append(vectors / np.sqrt(max(cosines.std(), SMALLEST_SPREAD)))
    return compute_unit_vectors(np.concatenate(parts, axis=1))


def compare_teacher(name: str, base: Outcomes, teacher: Outcomes) -> None:
    """Log how the base encoder, the teacher, and the mean of their cosines score on judged pairs.

    Warn when the teacher or the mean is not better than the base encoder. In docs/teacher.md
    (Romanian) an encoder lost points by a teacher that was worse, though the mean was better.

    Args:
        name: the name of the teacher.
        base, teacher: the cosines of both encoders for the same rows. The mean weighs them as
            ``join_vectors``.
    """
    predicted = np.zeros(len(base))
    for outcomes in (base, teacher):
        predicted += outcomes.predicted / max(outcomes.predicted.std(), SMALLEST_SPREAD)
    joined = replace(base, predicted=predicted / 2)

    scores = [compute_score(rows, "spearman") for rows in (base, teacher, joined)]
    logger.info(
        f"on your pairs: base encoder {scores[0]:.1f}, teacher {name} {scores[1]:.1f}, "
        f"mean of their cosines {scores[2]:.1f} (the encoder learns the mean)"
    )
    if min(scores[1:]) <= scores[0]:
        logger.warning(f"the teacher {name} is not better here; try another --teacher, or none")


def draw_pairs(
    vectors: Vectors, groups: Indices, count: int, seed: int
) -> tuple[Indices, Indices, Vectors]:
    """Draw pairs of texts that are spread evenly over the vectors' cosines.

    Candidates are all pairs within a group, each text with its ``NEAREST`` nearest texts, and each
    text with ``RANDOM`` random ones. They fall into ``RANGES`` equal ranges of the cosine, from the
    lowest to the highest. Each range that has candidates gives the same number of pairs, or one
    more. The pairs of a range with too few candidates repeat.

    Args:
        vectors: (n, d), of length 1.
        groups: (n,), the index of each text's source sentence.
        count: the number of pairs.
        seed: decides the random candidates and the draw.

    Returns the indices of both texts and the cosines, each (count,), in random order. Negative
    cosines become 0, the lowest score of a pair.
    """
    generator = np.random.default_rng(seed)
    first, second = list_candidates(vectors, groups, generator)
    cosines = np.einsum("ij,ij->i", vectors[first], vectors[second]).clip(0, 1)

    # Draw the same number of pairs from each range that has any; the first ranges give the rest
    edges = np.linspace(cosines.min(), cosines.max(), RANGES + 1)[1:-1]
    range_of = np.digitize(cosines, edges)
    filled = np.unique(range_of)
    drawn = []
    least, rest = divmod(count, len(filled))
    for position, number in enumerate(filled):
        members = generator.permutation(np.flatnonzero(range_of == number))
        share = least + 1 if position < rest else least
        drawn.append(np.resize(members, share))  # repeats the members of a small range
    chosen = generator.permutation(np.concatenate(drawn))
    return first[chosen], second[chosen], cosines[chosen]


def list_candidates(
    vectors: Vectors, groups: Indices, generator: np.random.Generator
) -> tuple[Indices, Indices]:
    """Return the indices of both texts of each distinct candidate pair, each (m,).

    The smaller index is in the first array. ``draw_pairs`` says which pairs are candidates.
    ``generator`` draws the random partners.
    """
    count = len(vectors)
    parts = [_list_group_pairs(groups), _list_nearest_pairs(vectors)]
    others = generator.integers(0, count, count * RANDOM)
    parts.append(np.stack([np.repeat(np.arange(count), RANDOM), others], axis=1))
    pairs = np.sort(np.concatenate(parts), axis=1)
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    return pairs[:, 0], pairs[:, 1]


def _list_group_pairs(groups: Indices) -> Indices:
    """Return the indices of all pairs of texts of the same group, (m, 2)."""
    members: dict[int, list[int]] = {}
    for index, number in enumerate(groups.tolist()):
        members.setdefault(number, []).append(index)
    pairs: list[tuple[int, int]] = []
    for group in members.values():
        pairs += combinations(group, 2)
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _list_nearest_pairs(vectors: Vectors) -> Indices:
    """Return the index of each text beside those of its nearest texts by cosine, (n * k, 2).

    k is ``NEAREST``, or n - 1 for fewer texts. vectors: (n, d), of length 1.
    """
    count = len(vectors)
    nearest = min(NEAREST, count - 1)
    parts = []
    for start in range(0, count, CHUNK_TEXTS):
        rows = np.arange(start, min(start + CHUNK_TEXTS, count))
        cosines = vectors[rows] @ vectors.T
        cosines[np.arange(len(rows)), rows] = -np.inf  # a text itself
        partners = np.argpartition(-cosines, nearest - 1, axis=1)[:, :nearest]
        parts.append(np.stack([np.repeat(rows, nearest), partners.ravel()], axis=1))
    return np.concatenate(parts)


def is_taught(
    out: Path, dataset: str, teacher: str, sentences: Path | None = None, base: str | None = None
) -> bool:
    """Return whether a folder has the finished pairs of these texts and encoders, as named.

    The answer is no where files of the teacher or the base have changed, and for a base on a Hub
    with another commit. The commit of a tag is not looked up: the answer is no, and the step itself
    finds that nothing is to do.

    Raises the errors of ``choose_texts``.
    """
    facts = read_facts(out)
    if facts is None or facts.requested != teacher or has_changed(teacher, facts.revision):
        return False
    if not _has_base(facts, base):
        return False
    return facts.texts_sha256 == _hash_groups(*choose_texts(dataset, sentences, facts.seed))


def _has_base(facts: TeachingFacts, base: str | None) -> bool:
    """Return whether the pairs are averaged with the encoder ``base``; None: with no encoder."""
    if base is None:
        return facts.base == ""
    if Path(base).is_dir():
        return facts.base != "" and not has_changed(base, facts.base_revision)
    return facts.base == base  # ORG/NAME@COMMIT


def _hash_groups(texts: Sequence[str], groups: Indices) -> str:
    """Return the SHA-256 of the texts and the numbers of their groups."""
    content = json.dumps([list(texts), groups.tolist()])
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()

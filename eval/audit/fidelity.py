"""Label agreement: are generated texts as similar to their source sentence as their label says?

The judge is a sentence encoder. The judge measures only: no row is rejected for its cosine. The
measured rows are the training rows without sampled negatives, which were not generated for their
source sentence. Texts of one source sentence are dependent, so the sample draws source sentences,
and intervals resample source sentences.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

from sts_dino.eval.audit import command
from sts_dino.eval.audit.agreement import (
    Rows,
    compare_raters,
    compute_bootstrap_interval,
    compute_correlation_interval,
    resample_source_sentences,
)
from sts_dino.eval.audit.quality import NliModel, load_nli_model
from sts_dino.eval.audit.source import DatasetRows, find_rows
from sts_dino.eval.encoders.embeddings import compute_text_cosines
from sts_dino.eval.encoders.load import (
    Encoder,
    find_local_encoder,
    get_default_judge,
    load_encoder,
    require_model,
    require_packaged_encoder,
)
from sts_dino.hub.cli import JsonOption, make_app, print_answer
from sts_dino.hub.contract.measured import (
    NEAR_COPY_OVERLAP,
    Fidelity,
    Judge,
    LabelFidelity,
    PersonAgreement,
)
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import RECIPE, Manifest, require_complete
from sts_dino.hub.contract.schema import NLI_LABELS, QUERY_CLASS, SAMPLED
from sts_dino.hub.errors import InputError
from sts_dino.hub.untrusted import Markdown, format_code, format_table
from sts_dino.hub.word_overlap import compute_word_overlap

if TYPE_CHECKING:
    import pandas

logger = logging.getLogger(__name__)

Mask = NDArray[np.bool_]  # (n,)
PAIR_COLUMNS = ("first", "second", "label")
RECORDED_LIBRARIES = (
    "sentence-transformers",
    "transformers",
    "torch",
    "numpy",
    "scipy",
    "sts-dino",
)
OTHER_JUDGE_HINT = ", or name a sentence encoder as judge: --encoder FOLDER or ORG/NAME@REVISION"
ANNOTATED_SPLIT = "train"  # the split that sts-dino annotate shows


def draw_pairs(rows: DatasetRows, count: int, seed: int) -> tuple["pandas.DataFrame", int]:
    """Draw source sentences at random, with all their pairs but sampled negatives.

    Rows are read twice. Memory holds eight bytes for each row, and the drawn pairs.

    Args:
        rows: a config of labelled pairs.
        count: the number of source sentences to draw, at least 1; all are drawn when there are
            fewer.
        seed: seed of the draw.

    Returns the drawn pairs in the order of the rows (columns ``PAIR_COLUMNS``; "first" is the
    source sentence), and the number of source sentences that they were drawn from. Raises
    InputError for rows that are not labelled pairs, when every pair is a sampled negative, for a
    damaged shard and for a score that is not finite.
    """
    import pandas

    if len(rows.columns) != 2 or rows.label_column is None:
        raise InputError(
            rows.location,
            f"has {rows.example_type} rows",
            allowed="labelled pairs (schema: sts, nli or search)",
        )
    # Hash every source sentence; those with the smallest hashes are a simple random sample
    all_hashes = (_hash_text(first, seed) for first, _, _ in _read_generated_pairs(rows))
    hashes = np.unique(np.fromiter(all_hashes, dtype=np.uint64))
    if not len(hashes):
        raise InputError(rows.location, "has no pair that was generated for a label")
    largest_drawn = hashes[min(count, len(hashes)) - 1]

    # Keep the pairs of the drawn source sentences
    drawn = [
        (first, second, label)
        for first, second, label in _read_generated_pairs(rows)
        if _hash_text(first, seed) <= largest_drawn
    ]
    return pandas.DataFrame(drawn, columns=[*PAIR_COLUMNS]), len(hashes)


def _read_generated_pairs(rows: DatasetRows) -> Iterator[tuple[str, str, str]]:
    """Yield (source sentence, generated text, label) of each labelled pair, in the rows' order.

    Sampled negatives are left out, because they were not generated for their source sentence.
    """
    for batch in rows.read_batches():
        first, second, labels = batch.to_pairs()
        if rows.example_type == QUERY_CLASS.name:  # the generated query is the first column
            first, second = second, first
        for source, generated, label in zip(first, second, labels, strict=True):
            if label != SAMPLED:
                yield source, generated, label


def _hash_text(text: str, seed: int) -> int:
    """Return a 64-bit hash of a text, the same in every run; another seed orders texts anew."""
    content = f"{seed}\0{text}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def measure_labels(
    pairs: "pandas.DataFrame",
    scores: Mapping[str, float | None],
    cosines: Sequence[float],
    classes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the values of ``labels``, ``spearman`` and ``near_copies`` of a ``Fidelity``.

    They are label → ``LabelFidelity``, Spearman's correlation of label score and cosine, and the
    share of near-copies among all pairs. ``spearman`` and the labels' ``fitting`` are None unless
    the label of every pair has a score and neither scores nor cosines are all the same.

    Args:
        pairs: n pairs with the columns ``PAIR_COLUMNS``, n ≥ 1.
        scores: label → its similarity score; None for a label without a score.
        cosines: the judge's cosine of each pair, (n,).
        classes: the NLI judge's class of each pair, (n,); None without an NLI judge.

    Raises InputError for a label of ``scores`` that no pair has.
    """
    # Compare the texts of each pair
    texts = zip(pairs["first"], pairs["second"], strict=True)
    measured = pairs.assign(
        cosine=np.asarray(cosines, dtype=np.float64),
        overlap=[compute_word_overlap(first, second) for first, second in texts],
        same=pairs["first"] == pairs["second"],
        judged=classes,
    )
    measured = measured.assign(near=measured["overlap"] >= NEAR_COPY_OVERLAP)
    resamples = resample_source_sentences(list(pairs["first"]))

    # Compare the score of each pair's label (NaN for a label without a score) with the cosine
    pair_scores = np.array([scores.get(label) for label in pairs["label"]], dtype=np.float64)
    spearman = None
    if not np.isnan(pair_scores).any():
        spearman = compute_correlation_interval(pair_scores, cosines, resamples)
    if spearman is not None:
        measured["fitting"] = find_fitting_pairs(pair_scores, measured["cosine"].to_numpy())

    # Measure each label
    labels = {label: _measure_label(measured, label, resamples) for label in scores}
    near_copies = float(measured["near"].mean())
    return {"labels": labels, "spearman": spearman, "near_copies": near_copies}


def find_fitting_pairs(scores: NDArray[np.float64], cosines: NDArray[np.float64]) -> Mask:
    """Return whether each pair has the score that the rank of its cosine stands for, (n,).

    All pairs are sorted by cosine, and their scores are sorted, too: the k-th lowest cosine stands
    for the k-th lowest score. Equal cosines keep the order of the pairs.

    Args:
        scores: the score of each pair's label, (n,).
        cosines: the judge's cosine of each pair, (n,).
    """
    # The pair at rank k by cosine stands for the k-th lowest score
    by_cosine = np.argsort(cosines, kind="stable")
    fits = np.empty(len(scores), dtype=bool)
    fits[by_cosine] = scores[by_cosine] == np.sort(scores)
    return fits


def _measure_label(
    measured: "pandas.DataFrame", label: str, resamples: Sequence[Rows]
) -> LabelFidelity:
    """Measure the texts of one label. Raises InputError when no pair has the label.

    Args:
        measured: a row for each pair of all labels, with the columns that ``measure_labels`` adds:
            cosine, overlap, same, near, judged and, where it is defined, fitting.
        label: the label to measure.
        resamples: the row numbers of each bootstrap resample.
    """
    # Choose the label's pairs
    is_label = (measured["label"] == label).to_numpy()
    if not is_label.any():
        raise InputError("labels", f"no text of label {label!r} was kept", hint="give a larger run")
    cosines = measured["cosine"].to_numpy()

    def compute_mean_cosine(rows: Rows) -> float:
        """Return the mean cosine of the label's pairs among the row numbers ``rows``.

        NaN when none of these pairs has the label.
        """
        drawn = cosines[rows][is_label[rows]]
        return float(drawn.mean()) if len(drawn) else float("nan")

    # Compute the shares of the NLI judge's classes, and of pairs that fit, where they were measured
    texts = measured[is_label]
    nli = None
    if texts["judged"].notna().any():
        shares = texts["judged"].value_counts(normalize=True)
        nli = {name: float(shares.get(name, 0)) for name in NLI_LABELS}
    fitting = None
    if "fitting" in texts:
        fitting = float(texts["fitting"].mean())
    return LabelFidelity(
        texts=len(texts),
        cosine=compute_bootstrap_interval(compute_mean_cosine, resamples, len(cosines)),
        identical=float(texts["same"].mean()),
        near_copies=float(texts["near"].mean()),
        word_overlap=float(texts["overlap"].mean()),
        nli=nli,
        fitting=fitting,
    )


class Drawn(NamedTuple):
    """A finished run and its drawn pairs.

    ``pairs`` has the columns ``PAIR_COLUMNS``. ``sources`` is the number of source sentences of
    ``config``, from which the pairs were drawn.
    """

    directory: Path
    manifest: Manifest
    config: str
    pairs: "pandas.DataFrame"
    sources: int


app = make_app("Measure how well the texts of finished datasets fit their labels, for their cards.")


@app.command()
def main(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="Finished runs with labelled pairs")
    ],
    encoder: Annotated[
        str | None,
        typer.Option(
            help="The judge: NAME of sts-dino lm, folder or ORG/NAME[@REVISION] "
            "[default: all-minilm-l6-v2, for other languages than English multilingual-e5-small]"
        ),
    ] = None,
    nli: command.NliOption = None,
    nli_labels: command.NliLabelsOption = None,
    config: command.ConfigOption = None,
    source_sentences: Annotated[
        int, typer.Option(min=2, help="Random source sentences to measure, with all their texts")
    ] = 1000,
    seed: command.SeedOption = 42,
    annotations: Annotated[
        Path | None,
        typer.Option(help="Folder of answers of sts-dino annotate [default: its default]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure label agreement of each RUN_DIR, print a table, and write fidelity.json for its card.

    The table has Spearman's correlation of label score and the judge's cosine, the mean cosine of
    each label, the share of pairs that fit their label by the order of the cosines, near-copies of
    source sentences, the share of kept texts, and annotators' answers if there are some. Intervals
    are 95 % bootstrap intervals over source sentences.

    Examples:

      sts-dino fidelity artifacts/datasets/sts-dino-x2

      sts-dino fidelity artifacts/datasets/sts-dino-x2 --encoder DIR --nli DIR
    """
    command.require_nli_model(nli, nli_labels)

    # Check every run, and choose the judge. All runs have one judge: for a run in another language
    # than English, the multilingual one.
    manifests = [require_complete(directory) for directory in runs]
    recipes = [load_recipe(directory / RECIPE, DatasetRecipe) for directory in runs]
    other_languages = [recipe.language for recipe in recipes if recipe.language != "en"]
    default_judge = get_default_judge(other_languages[0] if other_languages else "en")
    if encoder:
        judge_location = find_local_encoder(encoder) or encoder
    else:
        judge_location = str(require_packaged_encoder(default_judge, OTHER_JUDGE_HINT))
    require_model(judge_location)

    # Draw the pairs of every run, before a model is loaded
    samples: list[Drawn] = []
    for directory, manifest in zip(runs, manifests, strict=True):
        rows = find_rows(str(directory), config)
        pairs, sources = draw_pairs(rows, source_sentences, seed)
        samples.append(Drawn(directory, manifest, rows.config, pairs, sources))

    # Load the models
    command.silence_transformers()
    judge = load_encoder(judge_location)
    if not encoder:
        judge = replace(judge, name=default_judge)
    nli_model = load_nli_model(nli, nli_labels) if nli else None

    # Measure every run; a run's document is written before the next one is measured
    documents: list[Fidelity] = []
    for sample, recipe in zip(samples, recipes, strict=True):
        fidelity = _measure_run(sample, recipe, judge, nli_model, seed, annotations)
        logger.info(f"written: {fidelity.write(sample.directory)}")
        documents.append(fidelity)
    next_steps = [f"sts-dino card {quote(str(directory))}" for directory in runs]
    print_answer("\n\n".join(map(format_fidelity, documents)), documents, as_json, next_steps)


def _measure_run(
    sample: Drawn,
    recipe: DatasetRecipe,
    judge: Encoder,
    nli: NliModel | None,
    seed: int,
    annotations: Path | None,
) -> Fidelity:
    """Return the fidelity document of one run.

    Args:
        sample: the run and its drawn pairs.
        recipe: the recipe of the run.
        judge: the encoder that judges similarity.
        nli: the NLI model that judges the pairs; None: none does.
        seed: the seed of the drawn pairs.
        annotations: the folder of people's answers; None: the default folder, which may be missing.

    Raises InputError when the encoder gives no embeddings, when a label has no text, and when a
    given folder has no answers about these rows. Raises RunError when an output of the NLI model is
    not finite, when an encoder that is a function raises, and when answers cannot be opened.
    """
    # Find the counts. A run with several shot counts has counts of each: those of the config
    # pair-class-5shot are under 5shot
    manifest = sample.manifest
    shots = sample.config.rpartition("-")[2]
    counts = manifest.counts.get("variants", {}).get(shots, manifest.counts)

    # Judge every pair
    first = list(sample.pairs["first"])
    second = list(sample.pairs["second"])
    people = _read_people(sample.directory, manifest.name, sample.config, annotations)
    cosines = compute_text_cosines(judge, first, second)
    nli_judge = None
    classes = None
    if nli is not None:
        nli_judge = Judge(name=nli.name, revision=nli.revision)
        classes = nli.predict(first, second)
    label_scores = {label.name: label.score for label in recipe.written_labels}
    return Fidelity(
        dataset=manifest.name,
        config=sample.config,
        fingerprint=manifest.fingerprint,
        judge=Judge(name=judge.name, revision=judge.revision),
        nli_judge=nli_judge,
        source_sentences=sample.pairs["first"].nunique(),
        all_source_sentences=sample.sources,
        seed=seed,
        requested=counts["requested"],
        kept=counts["kept"],
        people=people,
        versions={name: version(name) for name in RECORDED_LIBRARIES},
        **measure_labels(sample.pairs, label_scores, cosines, classes),
    )


def _read_people(
    directory: Path, name: str, config: str, folder: Path | None
) -> tuple[PersonAgreement, ...]:
    """Return each person's agreement with the labels of a run's config.

    People are in the order of their first answers; the last answer to a row counts. A person
    without an answer to these rows is left out.

    Args:
        directory: the run directory.
        name: the dataset's name.
        config: the config; people answer about its split ``ANNOTATED_SPLIT``.
        folder: the folder of answers; None: the default folder. Where the default folder has no
            answers, answers about other rows, or a damaged file, the result is empty.

    Raises InputError for a given ``folder`` without answers about these rows, RunError when the
    answers cannot be opened.
    """
    from sts_dino.eval.audit.survey import ANSWERS_FILE, AnswerStore, read_examples

    # Open the stored answers if they are about these rows
    answers_folder = folder or command.get_default_folder("annotations", name, config)
    if not (answers_folder / ANSWERS_FILE).is_file():
        if folder is not None:
            raise InputError(
                folder,
                f"holds no answers (no {ANSWERS_FILE})",
                hint="run: sts-dino annotate RUN_DIR",
            )
        return ()
    examples = read_examples(find_rows(str(directory), config, ANNOTATED_SPLIT))
    try:
        store = AnswerStore(answers_folder, examples)
    except InputError as error:
        if folder is not None:
            raise
        logger.info(f"people's answers left out: {error}")
        return ()

    # Compare each person's answers with the labels
    generated = dict(enumerate(examples.labels))
    people = []
    for labels in store.read_answers().values():
        if agreement := compare_raters(examples.scale, (labels, generated)):
            person = PersonAgreement(
                answers=agreement.n, same=agreement.same, kappa=agreement.kappa
            )
            people.append(person)
    return tuple(people)


def format_fidelity(fidelity: Fidelity) -> str:
    """Return a heading, a Markdown table with a row for each label, and a line for each person.

    A warning about weak labels follows the table, if ``Fidelity.describe_doubt`` has one.
    """
    # The heading
    share = f"{fidelity.kept / fidelity.requested:.1%}"
    spearman = f"Spearman(score, cosine) {fidelity.spearman}, " if fidelity.spearman else ""
    lines = [
        f"{format_code(fidelity.dataset)} ({format_code(fidelity.config)}), "
        f"{fidelity.source_sentences:,} source sentences, judge {fidelity.judge.name}: "
        f"{spearman}near-copies {fidelity.near_copies:.1%}, kept {share}",
        "",
    ]

    # The table
    rows = []
    classes: list[str] = []
    for name, label in fidelity.labels.items():
        shares = label.nli or {}
        classes = classes or list(shares)
        row = [format_code(name), label.texts, Markdown(label.cosine)]
        row.append("–" if label.fitting is None else Markdown(f"{label.fitting:.1%}"))
        row += [Markdown(f"{label.near_copies:.1%}"), round(label.word_overlap, 2)]
        row += [Markdown(f"{share:.1%}") for share in shares.values()]
        rows.append(row)
    header = ["label", "texts", "cosine", "fitting", "near-copies", "word overlap", *classes]
    lines += [format_table(header, rows), ""]
    if doubt := fidelity.describe_doubt():
        lines.append(doubt)
    for number, person in enumerate(fidelity.people, 1):
        kappa = person.kappa or "undefined (one label only)"
        lines.append(
            f"person {number}: {person.answers} answers, {person.same.value:.0f} % as labelled, "
            f"κ {kappa}"
        )
    return "\n".join(lines)

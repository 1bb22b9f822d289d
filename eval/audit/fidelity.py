"""Label agreement: whether generated texts are as similar to their source sentence as their label says, by a judge.

The judge is a sentence encoder; it measures, and no row is rejected for its cosine. Rows are those of training without
sampled negatives, which were not generated for their source sentence. Texts of one source sentence are dependent, so
source sentences are drawn, and intervals resample source sentences.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from eval.audit import command
from eval.audit.agreement import bootstrap_interval, compared, correlation_interval, resampled
from eval.audit.quality import load_nli_model
from eval.audit.source import DatasetRows, find_rows
from eval.encoders.embeddings import cosine
from eval.encoders.load import MINILM, load_encoder, minilm, require_model
from hub.cli import JsonOption, answer, new_app, say
from hub.contract.measured import NEAR_COPY, Fidelity, Judge, LabelFidelity, PersonAgreement
from hub.contract.packaged import MULTILINGUAL
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import RECIPE, require_complete
from hub.contract.schema import NLI_LABELS, QUERY_CLASS, SAMPLED
from hub.errors import InputError
from hub.untrusted import Markdown, code, table
from hub.word_overlap import word_overlap

if TYPE_CHECKING:
    import pandas


def draw_pairs(rows: DatasetRows, count: int, seed: int) -> tuple["pandas.DataFrame", int]:
    """All pairs (first, second, label) of ``count`` source sentences drawn at random; the number to draw from.

    Rows are read twice; eight bytes of each source sentence are kept. Raises InputError without labelled pairs.
    """
    import pandas

    if len(rows.columns) != 2 or rows.labelled_by is None:
        raise InputError(rows.place, f"has {rows.example_type} rows", allowed="labelled pairs (schema: sts or nli)")
    hashes = np.unique(np.fromiter((_hash(first, seed) for first, _, _ in _generated(rows)), dtype=np.uint64))
    if not len(hashes):
        raise InputError(rows.place, "has no pair that was generated for a label")
    last = hashes[min(count, len(hashes)) - 1]  # the smallest hashes: a simple random sample
    drawn = [pair for pair in _generated(rows) if _hash(pair[0], seed) <= last]
    return pandas.DataFrame(drawn, columns=[*PAIR]), len(hashes)


def _generated(rows: DatasetRows) -> Iterator[tuple[str, str, str]]:
    """Source text, generated text and label of every pair but sampled negatives, batch by batch."""
    for batch in rows.batches():
        first, second, labels = batch.pairs()
        both = (second, first) if rows.example_type == QUERY_CLASS.name else (first, second)  # a query stands first
        yield from (pair for pair in zip(*both, labels, strict=True) if pair[2] != SAMPLED)


def _hash(text: str, seed: int) -> int:
    """A number that orders texts at random, the same in every run."""
    digest = hashlib.blake2b(f"{seed}\0{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def label_fidelity(
    pairs: "pandas.DataFrame",
    scores: Mapping[str, float | None],
    cosines: Sequence[float],
    classes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """``labels``, ``spearman`` and ``near_copies`` of ``hub.contract.measured.Fidelity`` for ``pairs``.

    scores: of each label, None where labels have none; ``cosines`` and an NLI judge's ``classes``: one a pair.
    Raises InputError for a label without a text.
    """
    both = zip(pairs["first"], pairs["second"], strict=True)
    found = pairs.assign(cosine=np.asarray(cosines, dtype=np.float64), overlap=[word_overlap(*one) for one in both])
    found = found.assign(same=found["first"] == found["second"], near=found["overlap"] >= NEAR_COPY, judged=classes)
    resamples = resampled(list(pairs["first"]))

    def of_label(label: str) -> LabelFidelity:
        chosen = (found["label"] == label).to_numpy()
        if not chosen.any():
            raise InputError("labels", f"no text of label {label!r} was kept", hint="give a larger run")
        values, texts = found["cosine"].to_numpy(), found[chosen]

        def mean(rows: NDArray[np.int64]) -> float:
            drawn = values[rows][chosen[rows]]
            return float(drawn.mean()) if len(drawn) else float("nan")

        shares = texts["judged"].value_counts(normalize=True)
        return LabelFidelity(
            texts=len(texts),
            cosine=bootstrap_interval(mean, resamples, len(values)),
            identical=float(texts["same"].mean()),
            near_copies=float(texts["near"].mean()),
            word_overlap=float(texts["overlap"].mean()),
            nli={name: float(shares.get(name, 0)) for name in NLI_LABELS} if classes is not None else None,
        )

    graded = np.array([scores.get(label) for label in pairs["label"]], dtype=np.float64)  # NaN: no score
    return {
        "labels": {label: of_label(label) for label in scores},
        "spearman": None if np.isnan(graded).any() else correlation_interval(graded, cosines, resamples),
        "near_copies": float(found["near"].mean()),
    }


PAIR = ("first", "second", "label")
LIBRARIES = ("sentence-transformers", "transformers", "torch", "numpy", "scipy", "sts-dino")
NO_JUDGE = "sts-dino lm all-minilm-l6-v2, or name a sentence encoder as judge: --encoder FOLDER or ORG/NAME@REVISION"
ANSWERED = "train"  # the split that people are asked about

app = new_app("Measure how well the texts of finished datasets fit their labels, for their cards.")


@app.command()
def main(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Finished runs with labelled pairs")],
    encoder: Annotated[
        str | None, typer.Option(help="The judge: folder or ORG/NAME[@REVISION] [default: packaged all-MiniLM-L6-v2]")
    ] = None,
    nli: command.NliOption = None,
    nli_labels: command.NliLabelsOption = None,
    config: command.ConfigOption = None,
    source_sentences: Annotated[
        int, typer.Option(min=2, help="Random source sentences to measure, with all their texts")
    ] = 1000,
    seed: command.SeedOption = 42,
    annotations: Annotated[
        Path | None, typer.Option(help="Folder of answers of sts-dino annotate [default: its default]")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure label fidelity of each RUN_DIR, print a table, and write fidelity.json for its card.

    Spearman's correlation of label score and the judge's cosine, the mean cosine of each label, near-copies of source
    sentences, the share of texts that was kept, and annotators' answers if there are some. Intervals are 95 % bootstrap
    intervals over source sentences.

    Examples:

      sts-dino fidelity artifacts/datasets/sts-dino-x2

      sts-dino fidelity artifacts/datasets/sts-dino-x2 --encoder artifacts/models/all-MiniLM-L6-v2 --nli DIR
    """
    place = encoder or str(minilm(NO_JUDGE))
    require_model(place)
    manifests = [require_complete(directory) for directory in runs]
    drawn = [(rows := find_rows(str(one), config), *draw_pairs(rows, source_sentences, seed)) for one in runs]
    command.quiet_transformers()
    measured = list[Fidelity]()
    judge, nli_judge = load_encoder(place), load_nli_model(nli, nli_labels) if nli else None
    for directory, manifest, (rows, pairs, all_source_sentences) in zip(runs, manifests, drawn, strict=True):
        recipe = load_recipe(directory / RECIPE, DatasetRecipe)
        if encoder is None and recipe.language != "en":
            hint = f"a judge that knows it: --encoder {MULTILINGUAL}"
            say(f"warning: {directory}: is in {recipe.language!r}, and {MINILM} knows English alone; {hint}")
        first, second = list(pairs["first"]), list(pairs["second"])
        of_shots = manifest.counts.get("variants", {}).get(rows.config.rpartition("-")[2], manifest.counts)
        found = Fidelity(
            dataset=manifest.name,
            config=rows.config,
            fingerprint=manifest.fingerprint,
            judge=Judge(name=judge.name if encoder else MINILM, revision=judge.revision),
            nli_judge=Judge(name=nli_judge.name, revision=nli_judge.revision) if nli_judge else None,
            source_sentences=pairs["first"].nunique(),
            all_source_sentences=all_source_sentences,
            seed=seed,
            requested=of_shots["requested"],
            kept=of_shots["kept"],
            people=_people(directory, manifest.name, rows.config, annotations),
            versions={name: version(name) for name in LIBRARIES},
            **label_fidelity(
                pairs,
                {label.name: label.score for label in recipe.written_labels},
                cosine(judge)(first, second),
                nli_judge.predict(first, second) if nli_judge else None,
            ),
        )
        say(f"written: {found.write(directory)}")
        measured.append(found)
    then = [f"sts-dino card {quote(str(directory))}" for directory in runs]
    answer("\n\n".join(map(shown, measured)), measured, as_json, then)


def _people(directory: Path, name: str, config: str, folder: Path | None) -> tuple[PersonAgreement, ...]:
    """How each person's answers agree with the labels; none where nobody was asked about these rows."""
    from eval.audit.survey import FILE, AnswerStore, read_examples

    place = folder or command.default_folder("annotations", name, config)
    if not (place / FILE).is_file():
        if folder is not None:
            raise InputError(folder, f"holds no answers (no {FILE})", hint="run: sts-dino annotate RUN_DIR")
        return ()
    examples = read_examples(find_rows(str(directory), config, ANSWERED))
    try:
        store = AnswerStore(place, examples)
    except InputError as error:
        if folder is not None:
            raise
        say(f"people's answers left out: {error}")
        return ()
    generated = dict(enumerate(examples.labels))
    found = (compared(examples.scale, (given, generated)) for given in store.answers().values())
    return tuple(PersonAgreement(answers=one.n, same=one.same, kappa=one.kappa) for one in found if one)


def shown(found: Fidelity) -> str:
    """A heading and a Markdown table, a row for each label."""
    near, kept = f"{found.near_copies:.1%}", f"{found.kept / found.requested:.1%}"
    spearman = f"Spearman(score, cosine) {found.spearman}, " if found.spearman else ""
    head = f"{code(found.dataset)} ({code(found.config)}), {found.source_sentences:,} source sentences, "
    rows = [
        [code(label), of.texts, Markdown(of.cosine), Markdown(f"{of.near_copies:.1%}"), round(of.word_overlap, 2)]
        + [Markdown(f"{share:.1%}") for share in (of.nli or {}).values()]
        for label, of in found.labels.items()
    ]
    classes = list(next(iter(found.labels.values())).nli or {})
    lines = [f"{head}judge {found.judge.name}: {spearman}near-copies {near}, kept {kept}", ""]
    lines += [table(["label", "texts", "cosine", "near-copies", "word overlap", *classes], rows), ""]
    lines += filter(None, [found.doubt()])
    for number, person in enumerate(found.people, 1):
        lines.append(
            f"person {number}: {person.answers} answers, {person.same.value:.0f} % as labelled, κ {person.kappa}"
        )
    return "\n".join(lines)

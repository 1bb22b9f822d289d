"""Measure how well texts fit their labels, for a dataset's card: ``python -m eval.fidelity RUN_DIR... [--encoder M]``.

RUN_DIR is a finished run of scored pairs or NLI pairs. Writes fidelity.json into it, which is published with the
dataset and shown on its card. The judge measures alone: no row is dropped for what it says.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from eval.audit.source import default_folder, find_rows
from eval.audit.text_forms import code, table
from hub.cli import JsonOption, answer, new_app, run, say
from hub.contract.label_fidelity import FIDELITY, Fidelity, Interval, Judge, PersonAgreement
from hub.contract.measured import write_measured
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import RECIPE, Manifest, require_complete
from hub.contract.schema import SCHEMAS
from hub.errors import InputError

LIBRARIES = ("sentence-transformers", "transformers", "torch", "numpy", "scipy", "sts-dino")
NO_JUDGE = "name a sentence encoder as judge: --encoder FOLDER or --encoder ORG/NAME@REVISION"
ANSWERED = "train"  # the split that people are asked about

app = new_app("Measure how well the texts of finished datasets fit their labels, for their cards.")


@app.command()
def main(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Finished runs with labelled pairs")],
    encoder: Annotated[
        str | None,
        typer.Option("--encoder", help="The judge: folder or ORG/NAME[@REVISION] [default: packaged all-MiniLM-L6-v2]"),
    ] = None,
    nli: Annotated[
        str | None, typer.Option("--nli", help="A cross-encoder for NLI as a second judge, named likewise")
    ] = None,
    nli_labels: Annotated[
        str | None, typer.Option("--nli-labels", help="Its outputs in order, if its config does not name them")
    ] = None,
    config: Annotated[str | None, typer.Option("--config", help="[default: the one with labels]")] = None,
    first_texts: Annotated[
        int, typer.Option("--first-texts", min=2, help="So many first texts, drawn at random, with all their texts")
    ] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws the first texts")] = 42,
    annotations: Annotated[
        Path | None, typer.Option("--annotations", help="Where eval.annotate keeps answers [default: its default]")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure label fidelity of each RUN_DIR, print a table, and write fidelity.json for its card.

    Spearman's correlation of label score and the judge's cosine, the mean cosine of each label, near-copies of first
    texts, the share of texts that was kept; people's answers where eval.annotate has some. Intervals are 95 % bootstrap
    intervals over first texts.

    Examples:

      python -m eval.fidelity artifacts/datasets/sts-dino-x2

      python -m eval.fidelity artifacts/datasets/sts-dino-x2 --encoder artifacts/models/all-MiniLM-L6-v2 --nli DIR
    """
    prepared = [(directory, _manifest(directory)) for directory in runs]
    from eval.encoders.load import MINILM, minilm, require_model

    place = encoder or str(minilm(NO_JUDGE))
    require_model(place)
    import transformers  # it and torch cost seconds

    from eval.audit.fidelity import draw_pairs, label_fidelity
    from eval.audit.quality import load_nli_model
    from eval.encoders.embeddings import cosine
    from eval.encoders.load import load_encoder

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    measured = list[Fidelity]()
    judge, second = load_encoder(place), load_nli_model(nli, nli_labels) if nli else None
    for directory, (manifest, recipe) in prepared:
        rows = find_rows(str(directory), config)
        pairs, chosen = draw_pairs(rows, first_texts, seed), str(rows.config)
        classes = second.predict(pairs.first, pairs.second) if second else None
        scores = {label.name: label.score for label in recipe.written_labels}
        requested, kept = _asked_and_kept(manifest, chosen)
        found = Fidelity(
            dataset=manifest.name,
            config=chosen,
            fingerprint=manifest.fingerprint,
            judge=Judge(name=judge.name if encoder else MINILM, revision=judge.revision),
            nli_judge=Judge(name=second.name, revision=second.revision) if second else None,
            first_texts=pairs.first_texts,
            all_first_texts=pairs.all_first_texts,
            seed=seed,
            requested=requested,
            kept=kept,
            people=_people(directory, manifest.name, chosen, annotations),
            versions={name: version(name) for name in LIBRARIES},
            **label_fidelity(pairs, scores, cosine(judge)(pairs.first, pairs.second), classes),
        )
        say(f"written: {write_measured(directory, FIDELITY, found, manifest.fingerprint)}")
        measured.append(found)
    then = [f"python -m model_cards.render {directory}" for directory, _ in prepared]
    answer("\n\n".join(map(told, measured)), measured, as_json, then)


def _manifest(directory: Path) -> tuple[Manifest, DatasetRecipe]:
    """The finished run of a dataset of pairs. Raises InputError for any other directory."""
    manifest = require_complete(directory)
    if manifest.kind != "dataset":
        raise InputError(directory, f"is the run of a {manifest.kind}", allowed="the run of a dataset")
    recipe = load_recipe(directory / RECIPE, DatasetRecipe)
    if not recipe.dataset_schema.pairs:
        pairs = ", ".join(name for name, schema in SCHEMAS.items() if schema.pairs)
        raise InputError(directory, f"its schema {recipe.schema_name} has no pairs", allowed=pairs)
    return manifest, recipe


def _asked_and_kept(manifest: Manifest, config: str) -> tuple[int, int]:
    """Texts requested and kept of a config: of its shot count, where the run has several."""
    of_shots = manifest.counts.get("variants", {}).get(config.rpartition("-")[2], manifest.counts)
    return of_shots["requested"], of_shots["kept"]


def _people(directory: Path, name: str, config: str, folder: Path | None) -> tuple[PersonAgreement, ...]:
    """How each person's answers agree with the labels; none where nobody was asked about these rows."""
    from eval.audit.agreement import Estimate, make_report
    from eval.audit.survey import FILE, AnswerStore, Sample, read_examples

    place = folder or default_folder("annotations", name, config)
    if not (place / FILE).is_file():
        if folder is not None:
            raise InputError(folder, f"holds no answers (no {FILE})", hint="run: python -m eval.annotate RUN_DIR")
        return ()
    examples = read_examples(find_rows(str(directory), config, ANSWERED))
    try:
        store = AnswerStore(place, examples)
    except InputError as error:
        if folder is not None:
            raise
        say(f"people's answers left out: {error}")
        return ()
    given = {person: store.answers(person) for person in store.annotators()}
    report = make_report(Sample(examples, 0, tuple(range(len(examples)))), given)

    def interval(of: Estimate) -> Interval:
        return Interval(value=round(of.value, 4), low=round(of.low, 4), high=round(of.high, 4))

    return tuple(
        PersonAgreement(answers=one.n, same=interval(one.same), kappa=interval(one.kappa) if one.kappa else None)
        for one in report.annotators.values()
    )


def told(found: Fidelity) -> str:
    """A heading and a Markdown table, a row for each label."""
    near, kept = f"{found.near_copies:.1%}", f"{found.kept / found.requested:.1%}"
    spearman = f"Spearman(score, cosine) {found.spearman}, " if found.spearman else ""
    head = f"{code(found.dataset)} ({code(found.config)}), {found.first_texts:,} first texts, "
    rows = [
        [code(label), f"{of.texts:,}", str(of.cosine), f"{of.near_copies:.1%}", f"{of.word_overlap:.2f}"]
        + [f"{share:.1%}" for share in (of.nli or {}).values()]
        for label, of in found.labels.items()
    ]
    classes = list(next(iter(found.labels.values())).nli or {})
    lines = [f"{head}judge {found.judge.name}: {spearman}near-copies {near}, kept {kept}", ""]
    lines += [table(["label", "texts", "cosine", "near-copies", "word overlap", *classes], rows), ""]
    for number, person in enumerate(found.people, 1):
        lines.append(
            f"person {number}: {person.answers} answers, {person.same.value:.0f} % as labelled, κ {person.kappa}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    run(app)

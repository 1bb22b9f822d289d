"""Find evaluation sentences in a dataset: ``python -m eval.decontaminate RUN --senteval-data DIR [--sts-data DIR]``.

RUN is a finished dataset run directory or ``ORG/NAME@REVISION`` of a Hub. Writes ledger.json and
ledger.md; ``--drop DIR`` writes the dataset without the rows that were found.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm

from eval.audit.drop import SUFFIX, Target, command_of, drop, dropped_recipe, require_new
from eval.audit.evaluation_sentences import EvaluationTexts, MatchSettings, Sentences, read_evaluation_sets
from eval.audit.ledger import DROPPED, SCORED, Bookkeeper, report
from eval.audit.source import DatasetRows, default_folder, find_dataset, made_folder
from eval.tasks.registry import DATASETS
from hub.cli import JsonOption, answer, new_app, run, say
from hub.contract.decontamination import KINDS, LEDGER, Kind
from hub.contract.measured import write_measured
from hub.contract.shards import write_text
from hub.errors import InputError, did_you_mean

app = new_app("Find the sentences of evaluation data in a dataset, and drop them.")


def names_in(text: str) -> list[str]:
    """The names in a comma-separated option."""
    return [name.strip() for name in text.split(",") if name.strip()]


def split_list(text: str, allowed: tuple[str, ...], option: str) -> list[str]:
    """``names_in``. Raises InputError for one that is not allowed."""
    names = names_in(text)
    for name in names:
        if name not in allowed:
            hint = did_you_mean(name, allowed)
            raise InputError(option, f"unknown name {name!r}", allowed=", ".join(allowed), hint=hint)
    return names


def require_possible(place: str, target: Target, split: str | None) -> None:
    """Raise InputError, before anything is checked, when the rest could not be written or named so."""
    require_new(target.out)
    if not Path(place).is_dir():
        hint = "get it first: hf download ORG/NAME --repo-type dataset --revision REVISION --local-dir DIR"
        raise InputError(place, "rows are dropped from a run directory only", hint=hint)
    if split is not None:
        raise InputError("--drop", f"writes every split, but --split {split} is given", hint="leave --split out")
    dropped_recipe(Path(place), target)
    made_folder(target.out.parent, "--drop")


def require_whole(place: str, config: str | None, split: str | None) -> None:
    """Raise InputError, before anything is checked, when the ledger would not be that of a whole run directory."""
    if not Path(place).is_dir():
        raise InputError(place, "--card writes into a run directory", hint="leave it out, or give the run directory")
    for option, value in (("--config", config), ("--split", split)):
        if value is not None:
            found = f"a card tells of every config and split, but {option} {value} is given"
            raise InputError("--card", found, hint=f"leave {option} out")


@app.command()
def main(
    place: Annotated[str, typer.Argument(metavar="RUN", help="Run directory, or ORG/NAME@REVISION of a Hub")],
    senteval_data: Annotated[Path | None, typer.Option("--senteval-data", help="SentEval's directory")] = None,
    sts_data: Annotated[Path | None, typer.Option("--sts-data", help="The STS organisers' directory")] = None,
    sets: Annotated[str, typer.Option("--sets", help="Only these data sets, e.g. sts12,mrpc [default: all]")] = "",
    config: Annotated[str | None, typer.Option("--config", help="[default: all that one trains on]")] = None,
    split: Annotated[str | None, typer.Option("--split", help="[default: all]")] = None,
    similarity: Annotated[
        float, typer.Option("--similarity", min=0.3, max=1.0, help="Of near matches; lower is slower")
    ] = 0.5,
    drop_to: Annotated[
        Path | None, typer.Option("--drop", metavar="DIR", help="Write the dataset without the matching rows")
    ] = None,
    drop_kinds: Annotated[str, typer.Option("--drop-kinds", help="Matches to drop")] = ",".join(DROPPED),
    drop_splits: Annotated[
        str, typer.Option("--drop-splits", help="Evaluation splits whose matches are dropped")
    ] = ",".join(SCORED),
    drop_name: Annotated[
        str | None, typer.Option("--drop-name", metavar="NAME", help=f"Its name [default: the dataset's, and {SUFFIX}]")
    ] = None,
    drop_version: Annotated[
        str | None, typer.Option("--drop-version", metavar="X.Y.Z", help="Its version [default: the dataset's]")
    ] = None,
    card: Annotated[
        bool, typer.Option("--card", help="Into the run directory, too: its card shows the counts")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="[default: a folder in artifacts/quality]")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check every text of the dataset RUN against STS, SICK and SentEval sentences.

    Without a directory only the STS Benchmark's validation and test splits are checked, and the ledger says so. A
    Markdown table of the counts is printed and stands beside the ledger.

    Examples:

      python -m eval.decontaminate artifacts/datasets/sts-dino-x2 --senteval-data DIR --sts-data DIR2

      python -m eval.decontaminate artifacts/datasets/auto-nli --senteval-data DIR --drop artifacts/datasets/clean

      python -m eval.decontaminate artifacts/datasets/clean --senteval-data DIR --card
    """
    kinds: list[Kind] = [kind for kind in KINDS if kind in split_list(drop_kinds, KINDS, "--drop-kinds")]
    splits = split_list(drop_splits, ("train", *SCORED), "--drop-splits")
    options = {
        "--senteval-data": senteval_data,
        "--sts-data": sts_data,
        "--sets": sets,
        "--config": config,
        "--similarity": similarity,
        "--drop-kinds": ",".join(kinds),
        "--drop-splits": ",".join(splits),
        "--drop-name": drop_name,
        "--drop-version": drop_version,
    }
    target = Target(drop_to, command_of(place, options), drop_name, drop_version) if drop_to else None
    if target is not None:
        require_possible(place, target, split)
    if card:
        require_whole(place, config, split)
    dataset = find_dataset(place)
    configs = [dataset.rows(name, split) for name in ([config] if config else dataset.finished or [None])]
    folder = made_folder(out or default_folder("quality", dataset.name, config or "all"))
    evaluation = read_evaluation_sets(senteval_data, sts_data, split_list(sets, tuple(DATASETS), "--sets"))
    books = checked(configs, evaluation, MatchSettings(similarity=similarity), kinds, splits)
    ledger = books.ledger()
    text = report(ledger)
    write_text(folder / "ledger.md", text)
    write_text(folder / "ledger.json", ledger.model_dump_json(indent=2) + "\n")
    say(f"written: {folder}")
    if card:
        say(f"written: {write_measured(Path(place), LEDGER, ledger, ledger.revision)}")
        say(f"next: python -m model_cards.render {place}")
    answer(text.rstrip(), ledger, as_json)
    if target is not None:
        manifest = drop(Path(place), target, books)
        dropped = sum(int((one > 0).sum()) for hits in books.hits.values() for one in hits.values())
        say(f"written: {target.out} ({manifest.name} v{manifest.version}), without {dropped:,} rows")
        say(f"next: python -m model_cards.render {target.out}, and python -m release.publish {target.out}")


def checked(
    configs: Sequence[DatasetRows],
    evaluation: EvaluationTexts,
    settings: MatchSettings,
    kinds: Sequence[Kind],
    splits: Sequence[str],
) -> Bookkeeper:
    """The rows of all configs, matched with the evaluation's sentences."""
    for name in evaluation.absent:
        say(f"not checked, no files: {name}")
    expected = f"{settings.recall:.1%} of those with just that similarity are expected to be found"
    say(f"near matches from {settings.similarity:g} on: {expected}")
    books = Bookkeeper(Sentences(evaluation.sets, settings), evaluation, kinds, splits)
    with tqdm(total=sum(rows.total for rows in configs), desc="checking", unit=" rows") as bar:
        for rows in configs:
            books.check(rows, bar.update)
    return books


if __name__ == "__main__":
    run(app)

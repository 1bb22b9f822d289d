"""A corpus to a compared encoder in one command: sts-dino adapt CORPUS --out DIR"""

import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from hub import cli
from hub.assets import asset
from hub.contract.run_dir import ARTIFACTS, locked
from hub.durable import write_text
from hub.errors import InputError
from release.options import option_groups
from sts_dino.new import CorpusChoices, propose, propose_encoder, stem_of

if TYPE_CHECKING:
    from sts_dino.adaptation import Adaptation, AdaptationEstimate

TRIAL = 600  # fewest first texts whose pairs were seen to gain over the copies control (docs/better_pairs.md)
TIMED = 64  # texts that the encoder is timed on
CHOICES = "choices.json"  # what the recipes in a folder were proposed for

app = cli.new_app(__doc__)


@app.command()
@option_groups
def main(
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS", help="A file of texts, ORG/NAME@REVISION of a Hub, or a recipe of sts-dino new (.yaml)"
        ),
    ],
    choices: CorpusChoices,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="[default: artifacts/adapted/CORPUS's name]")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            "--encoder",
            help="What is trained: prompteol or static (of the language model), a folder, ORG/NAME@REVISION",
        ),
    ] = None,
    encoder_license: Annotated[str | None, typer.Option("--encoder-license", help="Of another encoder")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes that write (with Ray)")] = None,
    only_estimate: Annotated[bool, typer.Option("--estimate", help="Predict time, disk and memory, and stop")] = False,
    as_json: cli.JsonOption = False,
) -> None:
    """Write pairs for a corpus, verify them, train an encoder on them, score it, and report all of it on one page.

    It says first how long that will take. Stop it at any time: the same command goes on. What is proposed for the
    corpus stands in two recipes in DIR; edit them and give the same command, or begin with sts-dino new.

    Examples:

      sts-dino adapt questions.csv --out questions

      sts-dino adapt questions.csv --out questions --estimate

      sts-dino adapt notizen.txt --lm artifacts/lm/gemma-3-270m --lm-license gemma --encoder static --limit 300
    """
    out = out or ARTIFACTS / "adapted" / stem_of(corpus)
    found = proposed(corpus, out, choices, (encoder, encoder_license), workers)
    from sts_dino.adaptation import estimated, steps
    from sts_dino.steps import run_steps

    with locked(out / ".adapt"):
        predicted = estimated(found, sample_of(found))
        if only_estimate:
            cli.answer(told(found, predicted), {"out": out, **asdict(predicted)}, as_json)
            return
        cli.say(told(found, predicted))
        run_steps(steps(found, predicted), out)
        page = report_of(found)
    facts = {"out": out, "dataset": found.pairs, "encoder": found.encoder, "report": page}
    cli.answer(summary(found, page), facts, as_json, following(found))


def proposed(
    corpus: str, out: Path, choices: CorpusChoices, encoder: tuple[str | None, str | None], workers: int | None
) -> "Adaptation":
    """The recipes: those that are there, else proposed ones, in ``out``.

    encoder: what is trained, and its licence. Raises InputError where recipes are there that were proposed for
    something else, and for what cannot be proposed.
    """
    from hub.contract.recipe import DatasetRecipe
    from hub.contract.recipe_file import load_recipe
    from sts_dino.adaptation import FEWEST, Adaptation

    given = Path(corpus) if Path(corpus).suffix in (".yaml", ".yml") else None
    name = given.stem if given else stem_of(corpus)
    recipe = given or out / f"{name}.yaml"
    kept, chosen = out / CHOICES, {"corpus": Path(corpus).name, **asdict(choices), "encoder": encoder}
    if kept.is_file() and json.loads(kept.read_text(encoding="utf-8")) != json.loads(json.dumps(chosen)):
        hint = f"give another --out, edit {recipe}, or remove {out}"
        raise InputError(out, "was begun with another corpus or other options", hint=hint)
    if given and choices != CorpusChoices():
        hint = "edit the recipe, or give the corpus itself"
        raise InputError(corpus, "is a recipe, which says itself what the options for a corpus choose", hint=hint)
    if choices.limit is not None and choices.limit < FEWEST:
        raise InputError("--limit", f"is {choices.limit}", allowed=f"{FEWEST} or more: fewer train no encoder")
    if not given and not recipe.exists():
        propose(corpus, recipe, f"{name}-pairs", choices, FEWEST)
    own = recipe.with_name(f"{name}.encoder.yaml")
    model_recipe = own if given and own.exists() and encoder == (None, None) else out / own.name
    if model_recipe.exists() and encoder != (None, None) and not kept.is_file():
        raise InputError("--encoder", f"{model_recipe} says what is trained", hint="edit it, or give another --out")
    if not model_recipe.exists():
        dataset = load_recipe(recipe, DatasetRecipe)
        propose_encoder(dataset, model_recipe, f"datasets/{dataset.name}", *encoder)
    found = Adaptation.of(out, recipe, model_recipe, workers)
    write_text(kept, json.dumps(chosen) + "\n")  # after all that may be refused
    return found


def sample_of(found: "Adaptation") -> list[str]:
    """Some texts of the corpus; where it is no file here, first sentences of the examples."""
    from generation.inputs.sources import file_rows

    source = found.dataset.source
    if source.kind == "file" and source.path:
        texts = (cells[0] for cells in file_rows(Path(source.path), source.columns, source.path))
        return list(islice((text for text in texts if text.strip()), TIMED))
    rows = file_rows(asset("examples/sts.tsv"), ("text1",), "examples")
    return [cells[0] for cells in rows]


def told(found: "Adaptation", predicted: "AdaptationEstimate") -> str:
    """The estimate as a small table, in minutes."""
    of_steps = {
        "write": f"about {predicted.rows:,} texts before filters, {found.dataset.source.limit or 'all'} first texts",
        "verify": "how well the texts fit their labels",
        "train": f"{found.model.arguments.get('max_steps', '?')} steps",
        "control": "as many on the first texts alone",
        "score": "before, control and after",
    }
    rows = [
        ("step", "minutes", ""),
        *((name, _minutes(getattr(predicted, name)), what) for name, what in of_steps.items()),
    ]
    rows.append(("all", _minutes(predicted.seconds), ""))
    table = cli.aligned([row for row in rows if row[1] != "0.0"], right=(1,))
    room = f"disk {predicted.disk / 2**30:.1f} GiB in {found.out}, memory {predicted.memory_mb / 1024:.1f} GiB"
    few = (found.dataset.source.limit or TRIAL) < TRIAL
    trial = (
        f"a trial: written pairs were seen to gain over the copies control from {TRIAL} first texts on\n" if few else ""
    )
    return f"estimate, by pilots on this machine:\n\n{table}\n\n{room}\n{trial}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def report_of(found: "Adaptation") -> Path:
    """Write the report's page; people's answers are in it once there are some."""
    from sts_dino.report.run import report

    page = found.out / "report.html"
    answered = [found.answers] if (found.answers / "answers.sqlite").is_file() else []
    report([found.pairs, found.encoder], page, commands_of(found), annotations=answered)
    return page


def commands_of(found: "Adaptation") -> list[str]:
    """How it was made: the stages' commands, from the folder that holds the recipes."""
    return [f"sts-dino adapt {quote(found.dataset_recipe.name)} --out {quote(found.out.name)}"]  # may be published


def summary(found: "Adaptation", page: Path) -> str:
    """What was written of each label, the scores before and after, and where the page is."""
    from eval.runs.table import table
    from generation.run import summary as of_dataset
    from hub.contract.results import read_results
    from hub.contract.run_dir import require_complete

    parts = [of_dataset(found.pairs, require_complete(found.pairs))]
    if found.model.evaluation:
        parts.append(table(read_results(found.encoder / "results.json")))
    else:
        parts.append(
            f"no evaluation data in {found.dataset.language!r} come with the project: judge some pairs yourself"
        )
    return "\n\n".join([*parts, f"report: {page}"])


def following(found: "Adaptation") -> list[str]:
    """The commands that a person may want next."""
    answers = f"--out {quote(str(found.answers))} --encoder {quote(str(found.encoder))}"
    both = f"{quote(str(found.pairs))} {quote(str(found.encoder))}"
    return [f"sts-dino annotate {quote(str(found.pairs))} {answers}", f"sts-dino publish {both} --yes"]

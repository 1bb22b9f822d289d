"""Turn a task specification of the original DINO implementation into a recipe: sts-dino import-task TASK.json

A specification is one JSON object: ``{"task_name", "labels": {label: {"instruction", "counter_labels"}}}``. It becomes
the recipe's labels and schema. Source, model and licences come from ``--set``.
"""

import json
import re
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
import yaml
from pydantic import BaseModel, Field, ValidationError

from hub import cli
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import apply_overrides, checked
from hub.contract.schema import SCHEMAS
from hub.durable import sha256_file, write_text
from hub.errors import InputError
from hub.untrusted import first_line

app = cli.new_app(__doc__)


class TaskLabel(BaseModel, extra="forbid", strict=True):
    """One label of a specification."""

    instruction: str
    counter_labels: list[str] = []


class TaskSpec(BaseModel, extra="forbid", strict=True):
    """A task specification. ``stage``, in specifications of later projects, is ignored."""

    task_name: str
    stage: str | None = None
    labels: Annotated[dict[str, TaskLabel], Field(min_length=1)]

    @property
    def numbers(self) -> dict[str, float]:
        """Label names that are numbers, as numbers."""
        return {name: float(name) for name in self.labels if re.fullmatch(r"\d+(\.\d+)?", name)}

    @property
    def schema_name(self) -> str:
        """The schema of the labels: scores (sts), entailment and contradiction (nli), or classes of texts (text).

        Numbers are scores unless a counter-label is the smaller one: DINO's are CL(y) = {y' > y}.
        """
        numbers = self.numbers
        if len(numbers) == len(self.labels):
            pairs = ((name, other) for name, label in self.labels.items() for other in label.counter_labels)
            return "sts" if all(numbers.get(other, 0) > numbers[name] for name, other in pairs) else "text"
        return "nli" if {"entailment", "contradiction"} <= self.labels.keys() else "text"

    def recipe_labels(self, schema: str) -> list[dict[str, Any]]:
        """The recipe's labels. Scores are divided by the largest where it is above 1 (labels 0, 1, 2 → 0, 0.5, 1)."""
        numbers = self.numbers if schema in SCHEMAS and SCHEMAS[schema].scored else {}
        scale = max(1.0, *numbers.values()) if numbers else 1.0
        scores = {name: {"score": number / scale} for name, number in numbers.items()}
        return [
            {"name": name, **scores.get(name, {}), **label.model_dump(exclude_defaults=True)}
            for name, label in self.labels.items()
        ]


def read_spec(path: Path) -> TaskSpec:
    """The specification in a JSON file. Raises InputError naming the file and the wrong key."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=lambda pairs: _object(path, pairs))
        json.dumps(tree, ensure_ascii=False).encode()
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not JSON, or not UTF-8
        raise InputError(path, f"cannot be read as JSON: {first_line(error)}") from error
    try:
        return TaskSpec.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the specification"
        raise InputError(f"{path}: {place}", first["msg"].lower()) from error


def _object(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(path, f"the key {twice!r} stands twice in one object")
    return dict(pairs)


@app.command()
def main(
    spec_path: Annotated[Path, typer.Argument(metavar="TASK.json", help="Task specification")],
    out: Annotated[Path, typer.Option("--out", help="Recipe to write; its file name is the dataset's name")],
    settings: cli.SetOption = [],  # noqa: B006 - typer reads it
    as_json: cli.JsonOption = False,
) -> None:
    """Write a recipe from a task specification; ``--set`` gives license, source and model.

    Example:

      sts-dino import-task sts-x2.json --out my-sts.yaml --set license=mit
      --set 'source={kind: file, path: x1.txt, description: captions, license: cc0-1.0}'
      --set 'model={path: artifacts/lm, license: mit}'
    """
    if out.exists():
        raise InputError(f"--out {out}", "exists already", hint="choose another name, or remove it first")
    spec = read_spec(spec_path)
    given = [setting.removeprefix("schema=") for setting in settings if setting.startswith("schema=")]
    schema = given[-1] if given else spec.schema_name
    head = {"kind": "dataset", "name": out.stem, "version": "0.1.0", "schema": schema, "pretty_name": spec.task_name}
    tree = apply_overrides({**head, "labels": spec.recipe_labels(schema)}, settings)
    recipe = checked(out, DatasetRecipe, tree)
    body = yaml.safe_dump(recipe.model_dump(mode="json", exclude_unset=True), sort_keys=False, width=1000)
    write_text(out, f"# Imported from a task specification with SHA-256 {sha256_file(spec_path)}.\n{body}")
    facts = {"recipe": out, "schema": schema, "labels": list(spec.labels)}
    then = [f"sts-dino write {quote(str(out))} --dry-run"]
    cli.answer(f"wrote {out}: schema {schema}, labels {', '.join(spec.labels)}", facts, as_json, then)

"""Every key of a recipe and every function of the Python API, for people and for editors: sts-dino reference

``docs/recipe_reference.md`` and ``assets/recipe.schema.json`` come from the models that read recipes: a key's meaning
is the comment beside it in the source (``hub.contract``). ``docs/api.md`` comes from signatures and docstrings.
"""

import ast
import inspect
import io
import json
import textwrap
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from hub import cli
from hub.assets import asset
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import EXTENDS
from hub.untrusted import code, table
from sts_dino import api

PAGE, SCHEMA = Path("docs/recipe_reference.md"), asset("recipe.schema.json")
API_PAGE = Path("docs/api.md")
RECIPES: tuple[type[BaseModel], ...] = (DatasetRecipe, ModelRecipe)
HEAD = """# Recipe reference

Every key of a recipe, drawn from the models that read it by `sts-dino reference`; a test holds
the page to them. What the sections are for: [recipes.md](recipes.md) for datasets, [training.md](training.md) and
[training_data.md](training_data.md) for models. An editor with a YAML language server completes keys and shows these
words: a recipe that `sts-dino new` writes names `recipe.schema.json` in its first line.

A recipe may extend another one: `extends: FILE.yaml`, relative to its own folder. It then names only the keys that
differ. Sections are merged key by key, except a section of another `kind`; a list replaces the other list. A published
recipe is whole.
"""
API_HEAD = """# Python API

Drawn from the signatures and docstrings of `sts_dino/api.py` by `sts-dino reference`; a test
holds the page to them. All of it at work: [notebooks/first_encoder.ipynb](notebooks/first_encoder.ipynb).
"""

_EXTENDING = {
    "type": "object",
    "required": [EXTENDS],
    "properties": {EXTENDS: {"type": "string", "description": "the recipe file whose values hold for all other keys"}},
}
app = cli.new_app(__doc__)


@app.command(no_args_is_help=False)
def main() -> None:
    """Write the references of recipes and of the Python API to the clone."""
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8", newline="\n")
        print(path)


def texts() -> dict[Path, str]:
    """Each file and its text."""
    return {PAGE: page(), SCHEMA: schema(), API_PAGE: api_page()}


def page() -> str:
    """The reference as Markdown: a section for each section of a recipe, a row for each key."""
    parts, seen = [HEAD], set[type[BaseModel]]()
    for recipe in RECIPES:
        kind = recipe.__name__.removesuffix("Recipe").lower()
        parts.append(f"## {kind.capitalize()} recipes\n\n{_section(recipe)}")
        for place, model in _sections(recipe, ""):
            again = model in seen
            seen.add(model)
            body = "As above.\n" if again else _section(model)
            parts.append(f"### {kind}: {code(place)}\n\n{body}")
    return "\n".join(parts)


def _section(model: type[BaseModel]) -> str:
    said = inspect.cleandoc(model.__doc__ or "").replace("``", "`")
    rows = []
    for name, field in model.model_fields.items():
        default = "needed" if field.is_required() else code(_plain(field.get_default(call_default_factory=True)))
        rows.append([code(field.alias or name), _type(field.annotation), default, comments(model).get(name, "")])
    return f"{said}\n\n{table(['key', 'value', 'default', 'meaning'], rows)}\n"


def _sections(model: type[BaseModel], above: str) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        for inner, many in _models(field.annotation):
            place = f"{above}{field.alias or name}{'.N' if many else ''}"
            yield place, inner
            yield from _sections(inner, f"{place}.")


def _models(annotation: Any, many: bool = False) -> Iterator[tuple[type[BaseModel], bool]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, many
    for inner in get_args(annotation) if get_origin(annotation) is not Annotated else get_args(annotation)[:1]:
        yield from _models(inner, many or get_origin(annotation) is tuple)


def _type(annotation: Any) -> str:
    """An annotation in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(inner[0])
    if origin in (Union, UnionType):
        return " or ".join(_type(one) for one in inner if one is not type(None))
    if origin is tuple:
        return f"list of {_type(inner[0])}" if inner[-1] is Ellipsis else f"[{', '.join(map(_type, inner))}]"
    if origin is dict:
        return f"mapping to {_type(inner[1])}"
    if inner:  # Literal
        return ", ".join(map(str, inner))
    words = {str: "text", int: "number", float: "number", bool: "true or false"}
    return words.get(annotation, "section" if isinstance(annotation, type) else "any")


def _plain(value: Any) -> str:
    if isinstance(value, BaseModel):
        return "its keys' own"
    if value is None:
        return "none"
    return json.dumps(value, ensure_ascii=False, default=str)


@cache
def comments(model: type[BaseModel]) -> dict[str, str]:
    """Key → the comment that stands beside it in the source, those of the classes it is built on included."""
    found = dict[str, str]()
    for one in reversed([each for each in model.__mro__ if issubclass(each, BaseModel) and each is not BaseModel]):
        source = textwrap.dedent(inspect.getsource(one))
        beside = {
            token.start[0]: token.string.removeprefix("#").strip()
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        body = ast.parse(source).body[0]
        assert isinstance(body, ast.ClassDef)
        for node in body.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                said = " ".join(beside[line] for line in lines if line in beside and "type: ignore" not in beside[line])
                found[node.target.id] = said
    return found


def schema() -> str:
    """JSON schema of both kinds of recipe; unknown keys are errors in it, as they are in a recipe."""
    kinds = []
    definitions = dict[str, Any]()
    for recipe in RECIPES:
        tree = recipe.model_json_schema(ref_template="#/$defs/{model}")
        definitions |= tree.pop("$defs", {})
        definitions[recipe.__name__] = tree
        kinds.append({"$ref": f"#/$defs/{recipe.__name__}"})
    for model in {*RECIPES, *(inner for recipe in RECIPES for _, inner in _sections(recipe, ""))}:
        for name, said in comments(model).items():
            key = (model.model_fields[name].alias if name in model.model_fields else None) or name
            if said and key in definitions[model.__name__]["properties"]:
                definitions[model.__name__]["properties"][key]["description"] = said
    for definition in definitions.values():
        for field in definition["properties"].values():
            for one in (field, *field.get("anyOf", ())):
                if one.get("additionalProperties") == {"type": "string"}:  # any scalar: it is read as text
                    one["additionalProperties"] = {"type": ["string", "number", "boolean"]}
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "sts-dino recipe",
        "oneOf": [*kinds, _EXTENDING],  # which then names the keys that differ, in sections that are not whole
        "$defs": dict(sorted(definitions.items())),
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def api_page() -> str:
    """The Python API as Markdown: what the module says, then every public function in its order."""
    own = [one for name, one in vars(api).items() if inspect.isfunction(one) and not name.startswith("_")]
    parts = [API_HEAD, f"{_prose(api)}\n"]
    for one in (one for one in own if one.__module__ == api.__name__):
        signature = inspect.getsource(one).partition(':\n    """')[0].replace("def ", "api.", 1)
        parts.append(f"## {one.__name__}\n\n```python\n{signature}\n```\n\n{_prose(one)}\n")
    return "\n".join(parts)


def _prose(documented: object) -> str:
    return (inspect.getdoc(documented) or "").replace("``", "`")

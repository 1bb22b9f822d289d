"""Every key of a recipe and every function of the Python API, for people and for editors.

``docs/recipe_reference.md`` and ``assets/recipe.schema.json`` come from the models that read
recipes: a key's meaning is the comment beside it in the source (``sts_dino.hub.contract``).
``docs/api.md`` comes from signatures and docstrings. ``sts-dino reference`` writes all three.
"""

import ast
import inspect
import io
import json
import re
import textwrap
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from sts_dino import api
from sts_dino.hub import cli
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import EXTENDS
from sts_dino.hub.untrusted import format_code, format_table

RECIPE_PAGE = Path("docs/recipe_reference.md")
API_PAGE = Path("docs/api.md")
SCHEMA = find_asset("recipe.schema.json")
RECIPES: tuple[type[BaseModel], ...] = (DatasetRecipe, ModelRecipe)
RECIPE_HEAD = """# Recipe reference

Every key of a recipe, drawn from the models that read it by `sts-dino reference`; a test holds
the page to them. What the sections are for: [recipes.md](recipes.md) for datasets,
[training.md](training.md) and [training_data.md](training_data.md) for models. An editor with a
YAML language server completes keys and shows these words: a recipe that `sts-dino new` writes names
`recipe.schema.json` in its first line.

A recipe may extend another one: `extends: FILE.yaml`, relative to its own folder. It then names
only the keys that differ. Sections are merged key by key, except a section of another `kind`; a
list replaces the other list. A published recipe is whole.
"""
API_HEAD = """# Python API

Drawn from the signatures and docstrings of `sts_dino/api.py` by `sts-dino reference`; a test holds
the page to them. All of it at work:
[notebooks/first_encoder.ipynb](notebooks/first_encoder.ipynb). Messages are records of
`logging.getLogger("sts_dino")`: set its level, or add a handler to it.
"""
EXTENDING_RECIPE = {
    "type": "object",
    "required": [EXTENDS],
    "properties": {
        EXTENDS: {
            "type": "string",
            "description": "the recipe file whose values hold for all other keys",
        }
    },
}
TYPE_NAMES = {str: "text", int: "number", float: "number", bool: "true or false"}

app = cli.make_app(__doc__)


@app.command(no_args_is_help=False)
def main() -> None:
    """Write the references of recipes and of the Python API to the clone."""
    for path, text in make_files().items():
        path.write_text(text, encoding="utf-8", newline="\n")
        print(path)


def make_files() -> dict[Path, str]:
    """Return path → text of the three files."""
    return {RECIPE_PAGE: make_recipe_page(), SCHEMA: make_schema(), API_PAGE: make_api_page()}


def make_recipe_page() -> str:
    """Make the recipes' reference in Markdown: a part for each section, a row for each key.

    A section that both kinds of recipe have is described once.
    """
    parts = [RECIPE_HEAD]
    described: set[type[BaseModel]] = set()
    for recipe in RECIPES:
        kind = recipe.__name__.removesuffix("Recipe").lower()
        parts.append(f"## {kind.capitalize()} recipes\n\n{_describe_section(recipe)}")
        for key, model in _list_sections(recipe):
            body = "As above.\n"
            if model not in described:
                described.add(model)
                body = _describe_section(model)
            parts.append(f"### {kind}: {format_code(key)}\n\n{body}")
    return "\n".join(parts)


def _describe_section(model: type[BaseModel]) -> str:
    """Return a model's docstring and a Markdown table of its keys."""
    comments = read_key_comments(model)
    rows = []
    for name, field in model.model_fields.items():
        default = "needed"
        if not field.is_required():
            default = format_code(_format_default(field.get_default(call_default_factory=True)))
        key = format_code(field.alias or name)
        rows.append([key, _describe_type(field.annotation), default, comments.get(name, "")])
    table = format_table(["key", "value", "default", "meaning"], rows)
    return f"{_read_docstring(model)}\n\n{table}\n"


def _list_sections(model: type[BaseModel], prefix: str = "") -> list[tuple[str, type[BaseModel]]]:
    """List the sections of a model, each followed by those within it.

    A section is its key, such as ``few_shot.examples`` or ``labels.N``, and its model.
    """
    sections: list[tuple[str, type[BaseModel]]] = []
    for name, field in model.model_fields.items():
        for inner, is_repeated in _find_models(field.annotation):
            key = f"{prefix}{field.alias or name}"
            if is_repeated:
                key += ".N"
            sections.append((key, inner))
            sections += _list_sections(inner, f"{key}.")
    return sections


def _find_models(
    annotation: Any, is_repeated: bool = False
) -> Iterator[tuple[type[BaseModel], bool]]:
    """Yield each model that a type annotation names, and whether it is an item of a tuple."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, is_repeated
    is_repeated = is_repeated or get_origin(annotation) is tuple
    for argument in get_args(annotation):
        yield from _find_models(argument, is_repeated)


def _describe_type(annotation: Any) -> str:
    """Return the type of a key in words: ``list of text`` for ``tuple[str, ...]``."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return _describe_type(arguments[0])
    if origin in (Union, UnionType):
        types = [argument for argument in arguments if argument is not type(None)]
        return " or ".join(map(_describe_type, types))
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"list of {_describe_type(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(map(_describe_type, arguments))}]"
    if origin is dict:
        return f"mapping to {_describe_type(arguments[1])}"
    if origin is Literal:
        return ", ".join(map(str, arguments))
    if annotation in TYPE_NAMES:
        return TYPE_NAMES[annotation]
    return "section" if isinstance(annotation, type) else "any"


def _format_default(value: Any) -> str:
    """Return a key's default in words: JSON, none, or a hint at the keys of a section."""
    if isinstance(value, BaseModel):
        return "its keys' own"
    if value is None:
        return "none"
    return json.dumps(value, ensure_ascii=False, default=str)


@cache
def read_key_comments(model: type[BaseModel]) -> dict[str, str]:
    """Return the comment of each key, also of those that the model inherits.

    The comment stands beside the key in the source, or in whole lines right above it.
    """
    comments: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        source = textwrap.dedent(inspect.getsource(base))
        source_lines = source.splitlines()
        comment_at = _find_comments(source)
        body = ast.parse(source).body[0]
        assert isinstance(body, ast.ClassDef)
        for node in body.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            # Line numbers start at 1, so the line above ``first`` has the index ``first - 2``.
            first = node.lineno
            while source_lines[first - 2].lstrip().startswith("#"):
                first -= 1
            lines = range(first, (node.end_lineno or node.lineno) + 1)
            texts = [comment_at[line] for line in lines if line in comment_at]
            comments[node.target.id] = " ".join(texts)
    return comments


def _find_comments(source: str) -> dict[int, str]:
    """Return line number → comment of a source, without the comments for type checkers."""
    comment_at: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "type: ignore" not in token.string:
            comment_at[token.start[0]] = token.string.removeprefix("#").strip()
    return comment_at


def make_schema() -> str:
    """Make the JSON schema of both kinds of recipe; unknown keys are errors, as in a recipe."""
    # The schemas of both recipes, and of the sections by name
    definitions: dict[str, Any] = {}
    for recipe in RECIPES:
        schema = recipe.model_json_schema(ref_template="#/$defs/{model}")
        definitions |= schema.pop("$defs", {})
        definitions[recipe.__name__] = schema

    # A key's comment is its description.
    sections = [section for recipe in RECIPES for section in _list_sections(recipe)]
    for model in {*RECIPES, *(model for _, model in sections)}:
        properties = definitions[model.__name__]["properties"]
        comments = read_key_comments(model)
        for name, field in model.model_fields.items():
            key = field.alias or name
            if key in properties and comments.get(name):
                properties[key]["description"] = comments[name]

    # Loosen mappings to text, then join the definitions into one schema.
    for definition in definitions.values():
        for field in definition["properties"].values():
            _allow_scalars(field)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "sts-dino recipe",
        # An extending recipe names only the keys that differ, also within sections.
        "oneOf": [
            *({"$ref": f"#/$defs/{recipe.__name__}"} for recipe in RECIPES),
            EXTENDING_RECIPE,
        ],
        "$defs": dict(sorted(definitions.items())),
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _allow_scalars(field: dict[str, Any]) -> None:
    """Allow numbers and booleans as values of a mapping to text: a recipe reads them as text.

    field: the schema of a key, which is changed in place.
    """
    for alternative in [field, *field.get("anyOf", ())]:
        if alternative.get("additionalProperties") == {"type": "string"}:
            alternative["additionalProperties"] = {"type": ["string", "number", "boolean"]}


def make_api_page() -> str:
    """Make the Python API's reference in Markdown: the module, then each public function."""
    parts = [API_HEAD, f"{_read_docstring(api)}\n"]
    for name, function in vars(api).items():
        is_own = inspect.isfunction(function) and function.__module__ == api.__name__
        if not is_own or name.startswith("_"):
            continue
        # The signature ends where the docstring begins.
        source = inspect.getsource(function)
        signature = source.partition(':\n    """')[0].replace("def ", "api.", 1)
        prose = _read_docstring(function)
        parts.append(f"## {name}\n\n```python\n{signature}\n```\n\n{prose}\n")
    return "\n".join(parts)


def _read_docstring(documented: object) -> str:
    """Return a docstring as Markdown, its arguments as a list."""
    text = (inspect.getdoc(documented) or "").replace("``", "`")
    text, title, arguments = text.partition("\nArgs:\n")
    if not title:
        return text
    arguments = re.sub(r"^ {4}(?=\S)", "- ", arguments, flags=re.MULTILINE)
    arguments = re.sub(r"^ {8}", "  ", arguments, flags=re.MULTILINE)
    return f"{text}\nArguments:\n\n{arguments}"

"""Recipe files: YAML to a checked recipe, with overrides, and back to YAML.

Every YAML scalar is read as text and typed by the model, so none of YAML's surprises (``2e-5`` a string, ``no`` False,
a key ``0.5`` a float, ``1.10`` = 1.1) reaches a recipe. Unknown keys are refused with the nearest valid one. A recipe
may say only what differs from another one (``extends: FILE.yaml``, relative to its own folder). Recipes are untrusted
(published ones are downloaded and run), so they are read within the limits of ``hub.untrusted.load_yaml``.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from hub.contract import old_names
from hub.contract.published_paths import LIBRARIES, PATH, published
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.run_dir import RECIPE, Manifest
from hub.contract.sections import Strict
from hub.errors import InputError, did_you_mean
from hub.untrusted import Guard, load_yaml

MAX_BYTES = 1 << 20
_MAX_DEPTH, _MAX_NODES = 20, 20_000  # a recipe has about 100 values on 4 levels
ON_HUB = ("repo_id", "revision", "path", "config", "splits", "gguf_file")  # keys that say which part of the Hub
EXTENDS, _MOST_EXTENDED = "extends", 5
_KEYS = "docs/recipe_reference.md has every key"
_COMMANDS = {"dataset": "write", "model": "train"}  # by the kind of recipe that they take
_MOST_SHOWN = 200  # characters of a value in a message


class _TextLoader(Guard, yaml.SafeLoader):
    """SafeLoader that leaves every scalar but null as text, and refuses a key that stands twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the attribute belongs to yaml
        first: [(tag, pattern) for tag, pattern in pairs if tag == "tag:yaml.org,2002:null"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(problem="a key must be plain text", problem_mark=key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key!r} stands twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


Recipe = TypeVar("Recipe", DatasetRecipe, ModelRecipe)


def read_yaml(path: Path, extending: int = 0) -> dict[str, Any]:
    """Return the mapping in a YAML file, all scalars as text, on top of the recipe that its key ``extends`` names.

    ``extending``: how many files extend this one. Raises InputError naming file and line.
    """
    tree = old_names.current(_mapping(path), path, quiet=path.name == RECIPE)  # nobody can edit a published recipe
    if EXTENDS not in tree or path.name == RECIPE:  # a published recipe is whole
        return dict(tree)
    name = tree.pop(EXTENDS)
    if not isinstance(name, str) or not name.endswith(".yaml"):
        raise InputError(f"{path}:{EXTENDS}", f"is not a recipe file (found {_shown(name)})", allowed="FILE.yaml")
    if extending == _MOST_EXTENDED:
        raise InputError(f"{path}:{EXTENDS}", f"more than {_MOST_EXTENDED} recipes extend each other")
    base = path.parent / name
    return _on_top(beside(read_yaml(base, extending + 1), base.parent), tree)


def _on_top(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """``base`` with the values of ``own``; sections are merged key by key, except a section of another ``kind``."""
    found = dict(base)
    for key, value in own.items():
        below: Any = base.get(key)
        both = isinstance(value, dict) and isinstance(below, dict)
        merged = both and value.get("kind", below.get("kind")) == below.get("kind")
        found[key] = _on_top(below, value) if merged else value
    return found


def _mapping(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            tree = _read(file.read(MAX_BYTES + 1))
    except FileNotFoundError as error:
        raise InputError(path, "no such recipe", hint="look in recipes/") from error
    except IsADirectoryError as error:
        raise InputError(path, "is a folder, not a recipe file", hint="look in recipes/") from error
    except UnicodeDecodeError as error:
        raise InputError(path, f"is not UTF-8 (byte {error.start})", hint="save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        place = f"{path}:{error.problem_mark.line + 1}" if error.problem_mark else path
        hint = "indent with spaces" if "'\\t'" in (error.problem or "") else None
        raise InputError(place, f"not valid YAML: {error.problem}", hint=hint) from error
    except yaml.reader.ReaderError as error:
        raise InputError(path, f"not valid YAML: {error.reason} (character {error.position})") from error
    if not isinstance(tree, dict):
        problem = "is empty" if tree is None else "is no mapping of keys to values"
        raise InputError(path, problem, hint=f"copy one from recipes/; {_KEYS}")
    return tree


def _read(text: str) -> Any:
    return load_yaml(text, max_bytes=MAX_BYTES, max_depth=_MAX_DEPTH, max_nodes=_MAX_NODES, loader=_TextLoader)


def apply_overrides(tree: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """``tree`` with ``a.b=c`` settings applied (list items by index), and files of overrides (``@FILE``) applied.

    Raises InputError for a malformed one.
    """
    tree = json.loads(json.dumps(tree))
    for setting in overrides:
        if setting.startswith("@"):
            tree = with_overrides(tree, Path(setting[1:]))
            continue
        path, equals, text = setting.partition("=")
        if not equals or not all(path.split(".")):
            raise InputError(f"--set {setting}", "cannot be read", allowed="KEY.KEY=VALUE, or @FILE of overrides")
        try:
            value = _read(text)
        except yaml.YAMLError as error:
            raise InputError(f"--set {setting}", "the value is not valid YAML") from error
        *parents, last = old_names.current_key(path).split(".")
        node: Any = tree
        for key in parents:
            place = _place(node, key, setting)
            node = node.setdefault(place, {}) if isinstance(node, dict) else node[place]
        node[_place(node, last, setting)] = value
        tree = old_names.current(tree, "--set")
    return tree


def beside(tree: dict[str, Any], folder: Path) -> dict[str, Any]:
    """``tree`` with every local path that leads from ``folder`` to something that is there, as an absolute one."""

    def placed(node: Any) -> Any:
        if isinstance(node, list):
            return [placed(item) for item in node]
        if not isinstance(node, dict):
            return node
        found = {key: item if key in LIBRARIES else placed(item) for key, item in node.items()}
        path = found.get(PATH)
        if isinstance(path, str) and path and found.get("repo_id") is None and (folder / path).exists():
            found[PATH] = str((folder / path).resolve())
        return found

    return {key: placed(item) for key, item in tree.items()}


def with_overrides(tree: dict[str, Any], path: Path) -> dict[str, Any]:
    """``tree`` with what a file names in place of repositories of the Hub: the way to run a recipe without one.

    The file maps a ``repo_id`` to keys of a section, e.g. ``google/gemma-3-270m: {path: artifacts/lm/gemma-3-270m}``.
    Each section of that repo_id loses the keys that say where on the Hub (``ON_HUB``) and has those keys instead. So
    the recipe that is run, and all that is written from it, names what was read. Raises InputError for a file of
    anything else, and for one that has nothing for this recipe.
    """
    overrides, used = read_yaml(path), set[str]()
    for repo_id, keys in overrides.items():
        if not isinstance(keys, dict) or not keys:
            hint = "write google/gemma-3-270m: {path: FOLDER}"
            raise InputError(f"{path}:{repo_id}", "is no mapping of a section's keys", hint=hint)

    def replaced(node: Any) -> Any:
        if isinstance(node, list):
            return [replaced(item) for item in node]
        if not isinstance(node, dict):
            return node
        repo_id = node.get("repo_id")
        inner = {key: replaced(item) for key, item in node.items()}  # a section may hold another
        if not isinstance(repo_id, str) or repo_id not in overrides:
            return inner
        used.add(repo_id)
        return {**{key: item for key, item in inner.items() if key not in ON_HUB}, **overrides[repo_id]}

    found: dict[str, Any] = replaced(tree)
    if not used:
        raise InputError(path, "names no repository of the recipe", allowed=", ".join(overrides))
    return found


def _place(node: Any, key: str, setting: str) -> Any:
    """``key``, of a list as an index. Raises InputError where ``node`` has no such place."""
    if isinstance(node, dict):
        return key
    if isinstance(node, list) and key.isdigit() and int(key) < len(node):
        return int(key)
    raise InputError(f"--set {setting}", f"{key!r} does not lead anywhere")


def load_recipe(path: Path, model: type[Recipe], overrides: list[str] | None = None) -> Recipe:
    """Read, override and check a recipe. Raises InputError that names ``file:key``, the value and what is allowed.

    A relative path in the file means beside the file, and where nothing is there, in the current folder; one in an
    override means in the current folder.
    """
    tree = apply_overrides(beside(read_yaml(path), path.parent), overrides or [])
    kind = model.__name__.removesuffix("Recipe").lower()
    if tree.get("kind") not in (None, kind):
        other = _COMMANDS.get(tree["kind"]) if isinstance(tree["kind"], str) else None
        hint = f"give it to sts-dino {other}" if other else None
        problem = f"this command takes a {kind} recipe, not {_shown(tree['kind'])}"
        raise InputError(f"{path}:kind", problem, allowed=None if other else ", ".join(_COMMANDS), hint=hint)
    return checked(path, model, tree)


def checked(path: Path, model: type[Recipe], tree: dict[str, Any]) -> Recipe:
    """``tree`` as a recipe. Raises InputError that names ``path:key``, the value and what is allowed."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise _input_error(path, model, tree, error) from error


def _input_error(path: Path, model: type[BaseModel], tree: Any, error: ValidationError) -> InputError:
    """The first problem of a ValidationError, in the project's form (misspelt keys before what they leave missing)."""
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    first = problems[0]
    keys = [str(part) for part in first["loc"]]
    place = f"{path}:{'.'.join(keys)}" if keys else str(path)
    if first["type"] == "extra_forbidden":
        valid = _valid_keys(model, keys[:-1])
        hint = did_you_mean(keys[-1], valid)
        return InputError(place, "unknown key", allowed=", ".join(sorted(valid)), hint=hint)
    if first["type"] == "missing":
        return InputError(place, "missing", hint=_KEYS)
    message = re.sub(r"^Value error, ", "", first["msg"])
    found = "" if isinstance(first["input"], (dict, list)) else f" (found {_shown(first['input'])})"
    return InputError(place, message + found)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _valid_keys(model: type[BaseModel], keys: list[str]) -> list[str]:
    """Field names of the section at ``keys``, following nested models through tuples and unions."""
    for key in keys:
        if key.isdigit():
            continue
        annotation: Any = model.model_fields[key].annotation
        while not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            candidates = [a for a in annotation.__args__ if a is not Ellipsis and a is not type(None)]
            annotation = candidates[0]
        model = annotation
    return [field.alias or name for name, field in model.model_fields.items()]


def resolved(recipe: DatasetRecipe | ModelRecipe) -> str:
    """The recipe with every default written out, as YAML: what is saved inside the artefact, so it tells no place of
    this machine (``hub.contract.published_paths``).
    """
    return yaml.safe_dump(published(recipe).model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def deciding(value: Any, place: str = "") -> Any:
    """A recipe as plain values without the keys that decide no row and no weight (``NotFingerprinted``).

    Keys have the names that they had when they were new (``hub.contract.old_names``): renaming one changes no run.
    """
    if isinstance(value, Strict):
        found = dict[str, Any]()
        for name in sorted({*value.deciding_keys(), *value.also_deciding} - value.unset_options):
            key = f"{place}.{type(value).model_fields[name].alias or name}".removeprefix(".")
            found[old_names.fingerprint_key(key)] = deciding(getattr(value, name), key)
        return found
    if isinstance(value, tuple):
        return [deciding(item, f"{place}.{index}") for index, item in enumerate(value)]
    return value


def fingerprint(recipe: DatasetRecipe | ModelRecipe, inputs: dict[str, str]) -> str:
    """SHA-256 over the keys that decide rows or weights and the hashes of the input files: what a run is known by.

    The other digest, over the whole resolved recipe, is ``Manifest.recipe_sha256``: what its card is written from.
    """
    text = json.dumps({"recipe": deciding(published(recipe)), "inputs": inputs}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def new_manifest(recipe: DatasetRecipe | ModelRecipe, inputs: dict[str, str], versions: dict[str, str]) -> Manifest:
    """The manifest of a run of which nothing is made yet; ``inputs``: input file or model → SHA-256."""
    return Manifest(
        kind=recipe.kind,
        name=recipe.name,
        version=recipe.version,
        fingerprint=fingerprint(recipe, inputs),
        inputs=inputs,
        versions=versions,
    )

"""Recipe files: YAML to a checked recipe, with overrides, and back to YAML.

Every YAML scalar is read as text and typed by the model, so none of YAML's surprises (``2e-5`` a string, ``no`` False,
a key ``0.5`` a float, ``1.10`` = 1.1) reaches a recipe. Unknown keys are refused with the nearest valid one. A recipe
may say only what differs from another one (``extends: FILE.yaml``, relative to its own folder). Recipes are untrusted
(published ones are downloaded and run), so they are read within the limits of ``hub.untrusted.load_yaml``.

Old keys (``OLD_KEYS``) are read for one version with a warning. The next version removes ``with_current_names``, not
the table: a fingerprint holds the names that a recipe had when the key was new, so published runs keep theirs.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from shlex import quote
from types import NoneType
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from hub import cli
from hub.contract.published_paths import LIBRARIES, PATH
from hub.contract.recipe import DECIDING, PUBLISHED, DatasetRecipe, ModelRecipe
from hub.contract.run_dir import RECIPE, Manifest, begin
from hub.errors import InputError, did_you_mean
from hub.untrusted import Guard, load_yaml

MAX_BYTES = 1 << 20
_LIMITS = {"max_bytes": MAX_BYTES, "max_depth": 20, "max_nodes": 20_000}  # a recipe has about 100 values on 4 levels
ON_HUB = ("repo_id", "revision", "path", "config", "splits", "gguf_file")  # keys that say which part of the Hub
EXTENDS, _MOST_EXTENDED = "extends", 5
_KEYS = "docs/recipe_reference.md has every key"
_LOOK = "look in recipes/, or write one for a corpus: sts-dino new CORPUS"
_COMMANDS = {"dataset": "write", "model": "train"}  # by the kind of recipe that they take
_MOST_SHOWN = 200  # characters of a value in a message
ITEM = "N"  # any item of a list
OLD_KEYS = {"form": "schema", "decoding.floor": "epsilon", f"datasets.{ITEM}.form": "example_type"}
OLD_VALUES = {"control": {"copies": "simcse"}}
Recipe = TypeVar("Recipe", DatasetRecipe, ModelRecipe)


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


def read_yaml(path: Path, depth: int = 0) -> dict[str, Any]:
    """Return the mapping in a YAML file, all scalars as text, on top of the recipe that its key ``extends`` names.

    ``depth``: how many recipes extend this one. Raises InputError naming file and line.
    """
    tree = with_current_names(_mapping(path), path, quiet=path.name == RECIPE)  # nobody can edit a published recipe
    if EXTENDS not in tree or path.name == RECIPE:  # a published recipe is whole
        return tree
    name = tree.pop(EXTENDS)
    if not isinstance(name, str) or not name.endswith(".yaml"):
        raise InputError(f"{path}:{EXTENDS}", f"is not a recipe file (found {_shown(name)})", allowed="FILE.yaml")
    if depth == _MOST_EXTENDED:
        raise InputError(f"{path}:{EXTENDS}", f"more than {_MOST_EXTENDED} recipes extend each other")
    base = path.parent / name
    return _on_top(beside(read_yaml(base, depth + 1), base.parent), tree)


def recipe_files(path: Path) -> list[Path]:
    """A recipe file that ``read_yaml`` has read, and those that it extends, one after the other."""
    files = [path]
    while name := _mapping(files[-1]).get(EXTENDS):
        files.append(files[-1].parent / name)
    return files


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
    if path.suffix.lower() not in ("", ".yaml", ".yml", ".json") and path.is_file():
        new = f"for the recipe of a corpus: sts-dino new {quote(str(path))}"
        raise InputError(path, "is not a recipe file", allowed="FILE.yaml", hint=new)
    try:
        if path.is_fifo():
            raise InputError(path, "is a pipe, a socket or a device", hint="look in recipes/")
        with path.open(encoding="utf-8") as file:
            tree = _read(file.read(MAX_BYTES + 1))
    except FileNotFoundError as error:
        raise InputError(path, "no such recipe", hint=_LOOK) from error
    except IsADirectoryError as error:
        raise InputError(path, "is a folder, not a recipe file", hint=_LOOK) from error
    except UnicodeDecodeError as error:
        raise InputError(path, f"is not UTF-8 (byte {error.start})", hint="save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        place = f"{path}:{error.problem_mark.line + 1}" if error.problem_mark else path
        hint = "indent with spaces" if "'\\t'" in (error.problem or "") else None
        raise InputError(place, f"not valid YAML: {error.problem}", hint=hint) from error
    except yaml.reader.ReaderError as error:
        raise InputError(path, f"not valid YAML: {error.reason} (character {error.position})") from error
    if not isinstance(tree, dict):
        problem = "is empty" if tree is None else "is not a mapping of keys to values"
        raise InputError(path, problem, hint=f"copy one from recipes/, or run sts-dino new on a corpus; {_KEYS}")
    return tree


def _read(text: str) -> Any:
    return load_yaml(text, **_LIMITS, loader=_TextLoader)


def with_current_names(tree: dict[str, Any], place: object, quiet: bool = False) -> dict[str, Any]:
    """``tree``, changed to today's keys and values; one line on stderr for each old one, unless ``quiet``.

    Raises InputError for a section that has a key under both names.
    """
    for key, section in _sections(tree):
        for last, new in _renamed(key).items():
            if last not in section:
                continue
            if new in section:
                raise InputError(f"{place}:{key}{last}", f"is the old name of {new}, which is given too; remove it")
            section[new] = section.pop(last)
            _warn(place, f"{key}{last}", new, quiet)
    for key, values in OLD_VALUES.items():
        given = tree.get(key)
        if isinstance(given, str) and given in values:
            tree[key] = values[given]
            _warn(place, f"{key}: {given}", f"{key}: {values[given]}", quiet)
    return tree


@cache
def _warn(place: object, old: str, new: str, quiet: bool = False) -> None:
    """Print one line, once per process: a command reads a recipe several times."""
    if not quiet:
        cli.say(f"warning: {place}: {old} is the old name of {new}; the next version no longer reads it")


def _renamed(place: str) -> dict[str, str]:
    """Old key → today's, in the section at ``place``, e.g. ``datasets.0.``."""
    above = "".join(f"{ITEM if part.isdigit() else part}." for part in place.split(".")[:-1])
    return {last: new for old, new in OLD_KEYS.items() if (last := old.removeprefix(above)) in old.split(".")[-1:]}


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
        above, dot, last = path.rpartition(".")
        new = _renamed(above + dot).get(last)
        if new is not None:
            _warn("--set", path, new)
            path = above + dot + new
        node: Any = {"": tree}
        place: Any = ""
        for key in path.split("."):
            node = node.setdefault(place, {}) if isinstance(node, dict) else node[place]
            place = int(key) if isinstance(node, list) and key.isdigit() else key
            if not isinstance(node, dict) and not (isinstance(place, int) and place < len(node)):
                raise InputError(f"--set {setting}", f"{key!r} does not lead anywhere")
        node[place] = value
        tree = with_current_names(tree, "--set")
    return tree


def _sections(node: Any, place: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Every mapping in a tree but a library's own arguments, with its place (``datasets.0.``), inner ones first."""
    found = list[tuple[str, dict[str, Any]]]()
    for key, item in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if key not in LIBRARIES:
            found += _sections(item, f"{place}{key}.")
    return [*found, (place, node)] if isinstance(node, dict) else found


def beside(tree: dict[str, Any], folder: Path) -> dict[str, Any]:
    """``tree`` with every local path that leads from ``folder`` to something that is there made absolute, in place."""
    for _, section in _sections(tree):
        path = section.get(PATH)
        if isinstance(path, str) and path and section.get("repo_id") is None and (folder / path).exists():
            section[PATH] = str((folder / path).resolve())
    return tree


def with_overrides(tree: dict[str, Any], path: Path) -> dict[str, Any]:
    """``tree``, changed to what a file names in place of repositories of the Hub: the way to run a recipe without one.

    The file maps a ``repo_id`` to keys of a section, e.g. ``google/gemma-3-270m: {path: artifacts/lm/gemma-3-270m}``.
    Each section of that repo_id loses the keys that say where on the Hub (``ON_HUB``) and has those keys instead. So
    the recipe that is run, and all that is written from it, names what was read. Raises InputError for a file of
    anything else, and for one that has nothing for this recipe.
    """
    overrides, used = read_yaml(path), set[str]()
    for repo_id, keys in overrides.items():
        if not isinstance(keys, dict) or not keys:
            hint = "write google/gemma-3-270m: {path: FOLDER}"
            raise InputError(f"{path}:{repo_id}", "is not a mapping of a section's keys", hint=hint)
    for _, section in _sections(tree):
        named = section.get("repo_id")
        if isinstance(named, str) and named in overrides:
            used.add(named)
            for key in ON_HUB:
                section.pop(key, None)
            section |= overrides[named]
    if not used:
        raise InputError(path, "names no repository of the recipe", allowed=", ".join(overrides))
    return tree


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
        if kind == "model" and (own := path.with_name(f"{path.stem}.encoder.yaml")).is_file():
            hint = f"{hint}; the recipe of its encoder is {own}"
        problem = f"this command takes a {kind} recipe, not {_shown(tree['kind'])}"
        raise InputError(f"{path}:kind", problem, allowed=None if other else ", ".join(_COMMANDS), hint=hint)
    return checked(path, model, tree)


def checked(path: Path, model: type[Recipe], tree: dict[str, Any]) -> Recipe:
    """``tree`` as a recipe. Raises InputError that names ``path:key``, the value and what is allowed."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:  # misspelt keys before what they leave missing
        first = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
        keys = [str(part) for part in first["loc"]]
        place = f"{path}:{'.'.join(keys)}" if keys else str(path)
        if first["type"] == "extra_forbidden":
            valid = _valid_keys(model, keys[:-1])
            hint = did_you_mean(keys[-1], valid)
            raise InputError(place, "unknown key", allowed=", ".join(sorted(valid)), hint=hint) from error
        if first["type"] == "missing":
            raise InputError(place, "missing", hint=_KEYS) from error
        found = "" if isinstance(first["input"], dict | list) else f" (found {_shown(first['input'])})"
        raise InputError(place, first["msg"].removeprefix("Value error, ") + found) from error


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _valid_keys(model: type[BaseModel], keys: list[str]) -> list[str]:
    """Field names of the section at ``keys``, following nested models through tuples and unions."""
    for key in (key for key in keys if not key.isdigit()):
        annotation: Any = model.model_fields[key].annotation
        while not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            annotation = next(one for one in get_args(annotation) if one not in (..., NoneType))
        model = annotation
    return [field.alias or name for name, field in model.model_fields.items()]


def resolved(recipe: DatasetRecipe | ModelRecipe) -> str:
    """The recipe as YAML with every default and no place of this machine: what is saved inside the artefact."""
    tree = recipe.model_dump(mode="json", context=PUBLISHED)
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120)


def deciding(recipe: DatasetRecipe | ModelRecipe) -> dict[str, Any]:
    """A recipe as plain values, as it is published, without the keys that decide no row and no weight.

    Keys have the names that they had when they were new (``OLD_KEYS``): renaming one changes no run.
    """
    tree = recipe.model_dump(mode="json", context=DECIDING)
    for key, section in _sections(tree):
        for old, new in _renamed(key).items():
            if new in section:
                section[old] = section.pop(new)
    return tree


def fingerprint(recipe: DatasetRecipe | ModelRecipe, inputs: dict[str, str]) -> str:
    """SHA-256 over the keys that decide rows or weights and the hashes of the input files: what a run is known by.

    The other digest, over the whole resolved recipe, is ``Manifest.recipe_sha256``: what its card is written from.
    """
    text = json.dumps({"recipe": deciding(recipe), "inputs": inputs}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def begin_run(
    directory: Path, recipe: DatasetRecipe | ModelRecipe, inputs: dict[str, str], versions: dict[str, str]
) -> Manifest:
    """Start or resume the run of a recipe (``run_dir.begin``); ``inputs``: input file or model → SHA-256."""
    kind, name, version, known = recipe.kind, recipe.name, recipe.version, fingerprint(recipe, inputs)
    manifest = Manifest(kind=kind, name=name, version=version, fingerprint=known, inputs=inputs, versions=versions)
    return begin(directory, manifest, resolved(recipe))

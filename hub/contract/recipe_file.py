"""Recipe files: YAML to a checked recipe, with overrides, and back to YAML.

Every YAML scalar is read as text, and the recipe's model gives the text its type. So YAML's own
types (``2e-5`` a string, ``no`` False, a key ``0.5`` a float, ``1.10`` = 1.1) reach no recipe.
Unknown keys are refused with the nearest valid key. A recipe with ``extends: FILE.yaml``, relative
to its folder, holds only the differences to that recipe. Published recipes are downloaded and run,
so all are untrusted and read within the limits of ``sts_dino.hub.untrusted.load_yaml``.

``load_recipe`` checks a recipe once: it returns a frozen model that no later stage checks again.
"""

import codecs
import hashlib
import json
import stat
from pathlib import Path
from shlex import quote
from types import NoneType
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from sts_dino.hub.contract.packaged import find_moved_folder
from sts_dino.hub.contract.published_paths import LIBRARY_ARGUMENT_KEYS, PATH_KEY
from sts_dino.hub.contract.recipe import DECIDING, PUBLISHED, DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.run_dir import RECIPE, Manifest, begin
from sts_dino.hub.errors import InputError, suggest_choice
from sts_dino.hub.untrusted import Guard, load_yaml

MAX_BYTES = 1 << 20
# a recipe has about 100 values on 4 levels
_LIMITS = {"max_bytes": MAX_BYTES, "max_depth": 20, "max_nodes": 20_000}
# keys of a section that name a part of the Hub
HUB_KEYS = ("repo_id", "revision", "path", "config", "splits", "gguf_file")
EXTENDS = "extends"
_MAX_EXTENDED = 5
_KEYS_HINT = "docs/recipe_reference.md has every key"
_RECIPES_HINT = "look in recipes/, or write one for a corpus: sts-dino new CORPUS"
_COMMANDS = {"dataset": "write", "model": "train"}  # kind of recipe → its command
_MAX_SHOWN = 200  # characters of a value in a message
# YAML's tags of dates, bytes and sets
_TAGS_BEYOND_JSON = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "binary", "set")}
Recipe = TypeVar("Recipe", DatasetRecipe, ModelRecipe)


class _TextLoader(Guard, yaml.SafeLoader):
    """SafeLoader that reads every scalar but null as text and refuses repeated keys.

    A tag such as ``!!int`` still gives a value its type. The tags whose values JSON lacks are
    unknown to this loader, because ``apply_overrides`` copies a recipe by way of JSON.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - the attribute belongs to yaml
        first: [(tag, pattern) for tag, pattern in pairs if tag == "tag:yaml.org,2002:null"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {  # noqa: RUF012 - the attribute belongs to yaml
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag not in _TAGS_BEYOND_JSON
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping. Raises yaml.MarkedYAMLError unless its keys are distinct texts."""
        keys: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            problem = None
            if not isinstance(key, str):
                problem = "a key must be plain text"
            elif key in keys:
                problem = f"key {key!r} stands twice"
            if problem is not None:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep)


def load_recipe(path: Path, model: type[Recipe], overrides: list[str] | None = None) -> Recipe:
    """Read, override and check a recipe, and return it.

    A relative path in the file is looked up beside the file, then in the current folder. A relative
    path in an override is looked up in the current folder.

    Args:
        path: the recipe file.
        model: the kind of recipe that is expected.
        overrides: ``KEY=VALUE`` or ``@FILE``, as ``apply_overrides`` takes them; None: none.

    Raises:
        InputError: the file is missing or no recipe, or an override cannot be applied, or a value
            is refused. The error then names ``file:key``, the value, and the allowed values or what
            is wrong with it.
        OSError: the file cannot be read.
    """
    tree = resolve_local_paths(read_yaml(path), path.parent)
    tree = apply_overrides(tree, overrides or [])
    _locate_downloaded_models(tree)
    _require_kind(path, model, tree)
    return validate_recipe(path, model, tree)


def read_yaml(path: Path, depth: int = 0) -> dict[str, Any]:
    """Return the mapping in a YAML file, all scalars but null as text.

    With ``extends``, the file's values are merged onto those of the recipe that it extends.
    ``depth``: the number of recipes that were read before this one, because each extends the next.
    Raises InputError naming the file, and the line of bad YAML; InputError when more than
    ``_MAX_EXTENDED`` recipes extend each other; OSError when a file cannot be read.
    """
    tree = _read_mapping(path)
    # A published recipe is whole; in it ``extends`` stays, and is refused as an unknown key.
    is_published = path.name == RECIPE
    if EXTENDS not in tree or is_published:
        return tree
    name = tree.pop(EXTENDS)
    if not isinstance(name, str) or not name.endswith(".yaml"):
        raise InputError(
            f"{path}:{EXTENDS}",
            f"is not a recipe file (found {_quote_value(name)})",
            allowed="FILE.yaml",
        )
    if depth == _MAX_EXTENDED:
        raise InputError(
            f"{path}:{EXTENDS}", f"more than {_MAX_EXTENDED} recipes extend each other"
        )
    base_path = path.parent / name
    base = resolve_local_paths(read_yaml(base_path, depth + 1), base_path.parent)
    return _merge_sections(base, tree)


def _merge_sections(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of ``base`` with ``changes`` merged key by key.

    Sections are merged; a section of another ``kind`` replaces the section of the base. Any other
    value of ``changes``, a list included, replaces that of the base.
    """
    merged = dict(base)
    for key, value in changes.items():
        section: Any = base.get(key)
        if isinstance(value, dict) and isinstance(section, dict):
            same_kind = value.get("kind", section.get("kind")) == section.get("kind")
            merged[key] = _merge_sections(section, value) if same_kind else value
        else:
            merged[key] = value
    return merged


def _read_mapping(path: Path) -> dict[str, Any]:
    """Read one YAML file, and no recipe that it extends.

    Raises InputError naming the file, and the place of bad YAML, for a missing file, a folder, a
    pipe, a socket, a device, a file with another suffix than .yaml, .yml and .json, and for other
    content than a mapping in UTF-8 of at most ``MAX_BYTES``. Raises OSError for a file without
    permission.
    """
    if path.suffix.lower() not in ("", ".yaml", ".yml", ".json") and path.is_file():
        raise InputError(
            path,
            "is not a recipe file",
            allowed="FILE.yaml",
            hint=f"for the recipe of a corpus: sts-dino new {quote(str(path))}",
        )
    try:
        mode = path.stat().st_mode  # raises FileNotFoundError, as open does
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise InputError(path, "is a pipe, a socket or a device", hint="look in recipes/")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 4)
        # The last character of a larger file may be cut; its text is still too long to parse.
        is_whole = len(content) <= MAX_BYTES
        tree = _parse_yaml(codecs.getincrementaldecoder("utf-8")().decode(content, is_whole))
    except FileNotFoundError as error:
        raise InputError(path, "no such recipe", hint=_RECIPES_HINT) from error
    except IsADirectoryError as error:
        raise InputError(path, "is a folder, not a recipe file", hint=_RECIPES_HINT) from error
    except UnicodeDecodeError as error:
        raise InputError(
            path, f"is not UTF-8 (byte {error.start})", hint="save it as UTF-8"
        ) from error
    except yaml.MarkedYAMLError as error:
        line = f"{path}:{error.problem_mark.line + 1}" if error.problem_mark else path
        # PyYAML's message shows the character that it cannot read.
        remedy = "indent with spaces" if "'\\t'" in (error.problem or "") else None
        raise InputError(line, f"not valid YAML: {error.problem}", hint=remedy) from error
    except yaml.reader.ReaderError as error:
        raise InputError(
            path, f"not valid YAML: {error.reason} (character {error.position})"
        ) from error
    if not isinstance(tree, dict):
        problem = "is empty" if tree is None else "is not a mapping of keys to values"
        raise InputError(
            path,
            problem,
            hint=f"copy one from recipes/, or run sts-dino new on a corpus; {_KEYS_HINT}",
        )
    return tree


def _parse_yaml(text: str) -> Any:
    """Parse a YAML text whose scalars but null are text. Raises yaml.YAMLError."""
    return load_yaml(text, **_LIMITS, loader=_TextLoader)


def apply_overrides(tree: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Return a copy of ``tree`` with overrides applied in order.

    An override is ``a.b=c`` (list items by index from 0) or ``@FILE`` (``_replace_hub_sections``).
    Raises InputError for an override of another form, for a key that leads nowhere, and for a file
    that cannot be used.
    """
    # Uses of one YAML alias are one object; as JSON they become several, to be changed one by one.
    tree = json.loads(json.dumps(tree))
    for override in overrides:
        if override.startswith("@"):
            _replace_hub_sections(tree, Path(override[1:]))
        else:
            _apply_setting(tree, override)
    return tree


def _apply_setting(tree: dict[str, Any], setting: str) -> None:
    """Apply one setting ``a.b=c`` to ``tree`` in place; missing and null sections are made.

    Raises InputError for another form, for a value that is not YAML, and for a key below a value or
    beyond the end of a list.
    """
    path, equals, text = setting.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise InputError(
            f"--set {setting}", "cannot be read", allowed="KEY.KEY=VALUE, or @FILE of overrides"
        )
    try:
        value = _parse_yaml(text)
    except yaml.YAMLError as error:
        as_text = quote(f"{path}={json.dumps(text, ensure_ascii=False)}")
        hint = f"put a text into quotation marks: --set {as_text}"
        raise InputError(f"--set {setting}", "the value is not valid YAML", hint=hint) from error

    # walk to the section or list that holds the last key; a section that is missing or null is made
    holder: Any = tree
    for depth, key in enumerate(keys, start=1):
        position: Any = int(key) if isinstance(holder, list) and key.isdecimal() else key
        is_item = isinstance(position, int) and position < len(holder)
        if not isinstance(holder, dict) and not is_item:
            raise InputError(f"--set {setting}", f"{key!r} does not lead anywhere")
        if depth == len(keys):
            holder[position] = value
        elif isinstance(holder, dict) and holder.get(position) is None:
            holder[position] = {}
        holder = holder[position]


def _list_sections(tree: Any) -> list[dict[str, Any]]:
    """List every mapping in a tree but those of library arguments, in no particular order."""
    sections: list[dict[str, Any]] = []
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            sections.append(node)
            pending += [item for key, item in node.items() if key not in LIBRARY_ARGUMENT_KEYS]
    return sections


def resolve_local_paths(tree: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make the local paths of ``tree`` that exist in ``folder`` absolute, in place.

    Returns ``tree``. Paths inside a Hub repository are not local. A link to a file keeps its own
    path: the link's name says the file's kind, and its target may be a blob without a suffix.
    """
    for section in _list_sections(tree):
        path = section.get(PATH_KEY)
        if not isinstance(path, str) or not path or section.get("repo_id") is not None:
            continue
        local_path = folder / path
        if local_path.is_file():
            section[PATH_KEY] = str(local_path.parent.resolve() / local_path.name)
        elif local_path.exists():
            section[PATH_KEY] = str(local_path.resolve())
    return tree


def _locate_downloaded_models(tree: dict[str, Any]) -> None:
    """Replace each absent path ``artifacts/lm/NAME`` of ``tree``, in place, by the model's folder.

    ``sts-dino lm`` downloads to a folder of the user; earlier versions used artifacts/lm. The path
    of a model that is not downloaded stays.
    """
    for section in _list_sections(tree):
        path = section.get(PATH_KEY)
        if not isinstance(path, str) or section.get("repo_id") is not None:
            continue
        folder = find_moved_folder(path)
        if folder is not None:
            section[PATH_KEY] = str(folder)


def _replace_hub_sections(tree: dict[str, Any], path: Path) -> None:
    """Replace Hub repositories in ``tree`` by local folders, in place, to run without a Hub.

    The file ``path`` maps a ``repo_id`` to keys of a section, e.g. ``google/gemma-3-270m: {path:
    artifacts/lm/gemma-3-270m}``. A section with that repo_id loses its ``HUB_KEYS`` and gets the
    mapped keys, so the recipe names what was read. Raises InputError when the file is missing,
    holds anything else, or names no repository of this recipe; OSError when it cannot be read.
    """
    if not path.exists():
        hint = "it maps each repo_id to keys, e.g. google/gemma-3-270m: {path: FOLDER}"
        raise InputError(f"--set @{path}", "no such file of overrides", hint=hint)
    replacements = read_yaml(path)
    for name, keys in replacements.items():
        if not isinstance(keys, dict) or not keys:
            raise InputError(
                f"{path}:{name}",
                "is not a mapping of a section's keys",
                hint="write google/gemma-3-270m: {path: FOLDER}",
            )
    sections = [item for item in _list_sections(tree) if isinstance(item.get("repo_id"), str)]
    repositories = sorted({section["repo_id"] for section in sections})
    if not replacements.keys() & set(repositories):
        found = ", ".join(replacements) or "nothing"
        problem = f"names no repository of the recipe (found {found})"
        allowed = ", ".join(repositories) or "no file: no section of the recipe has a repo_id"
        raise InputError(path, problem, allowed=allowed)
    for section in sections:
        replacement = replacements.get(section["repo_id"])
        if replacement is not None:
            for key in HUB_KEYS:
                section.pop(key, None)
            section |= replacement


def _require_kind(path: Path, model: type[Recipe], tree: dict[str, Any]) -> None:
    """Raise InputError for a recipe of another ``kind``, naming the command that takes it.

    A recipe without ``kind`` passes here: ``validate_recipe`` refuses it. ``path``: the recipe file
    of ``tree``. ``model``: the kind of recipe that is expected.
    """
    kind = model.__name__.removesuffix("Recipe").lower()
    if tree.get("kind") in (None, kind):
        return
    command = _COMMANDS.get(str(tree["kind"]))
    allowed = None if command else ", ".join(_COMMANDS)
    hints = [f"give it to sts-dino {command}"] if command else []
    encoder_recipe = path.with_name(f"{path.stem}.encoder.yaml")
    if kind == "model" and encoder_recipe.is_file():
        hints.append(f"the recipe of its encoder is {encoder_recipe}")
    raise InputError(
        f"{path}:kind",
        f"this command takes a {kind} recipe, not {_quote_value(tree['kind'])}",
        allowed=allowed,
        hint="; ".join(hints) or None,
    )


def validate_recipe(path: Path, model: type[Recipe], tree: dict[str, Any]) -> Recipe:
    """Make the recipe of the kind ``model`` from ``tree``.

    Raises InputError for one problem, an unknown key first: it names ``path:key``, the value, and
    the allowed values or what is wrong with it.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        # Report a misspelt key first: the key that it stands for is then missing, too.
        first = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
        keys = [str(part) for part in first["loc"]]
        place = f"{path}:{'.'.join(keys)}" if keys else str(path)
        if first["type"] == "extra_forbidden":
            valid = _list_valid_keys(model, keys[:-1])
            raise InputError(
                place,
                "unknown key",
                allowed=", ".join(sorted(valid)),
                hint=suggest_choice(keys[-1], valid),
            ) from error
        if first["type"] == "missing":
            raise InputError(place, "missing", hint=_KEYS_HINT) from error
        problem = first["msg"].removeprefix("Value error, ")
        if not isinstance(first["input"], dict | list):
            problem += f" (found {_quote_value(first['input'])})"
        raise InputError(place, problem) from error


def _quote_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _list_valid_keys(model: type[BaseModel], keys: list[str]) -> list[str]:
    """List the valid keys of the section of ``model`` that ``keys`` lead to.

    A number among the keys is the index in a list of sections.
    """
    for key in keys:
        if key.isdigit():
            continue
        # Find the section's model inside ``tuple[Section, ...]`` or ``Section | None``.
        annotation: Any = model.model_fields[key].annotation
        while not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            annotation = next(inner for inner in get_args(annotation) if inner is not NoneType)
        model = annotation
    return [field.alias or name for name, field in model.model_fields.items()]


def format_recipe(recipe: DatasetRecipe | ModelRecipe) -> str:
    """Return the resolved recipe as YAML, as saved in the run directory.

    The YAML has every default, and no path or address of this machine.
    """
    tree = recipe.model_dump(mode="json", context=PUBLISHED)
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120)


def get_deciding_values(recipe: DatasetRecipe | ModelRecipe) -> dict[str, Any]:
    """Return the published values of the keys that decide rows or weights, as a tree of JSON."""
    tree = recipe.model_dump(mode="json", context=DECIDING)
    # Three keys were renamed; fingerprints keep their first names, so that older runs stay valid.
    if isinstance(recipe, DatasetRecipe):
        tree["form"] = tree.pop("schema")
        tree["decoding"]["floor"] = tree["decoding"].pop("epsilon")
    for dataset in tree.get("datasets", ()):
        dataset["form"] = dataset.pop("example_type")
    return tree


def compute_fingerprint(recipe: DatasetRecipe | ModelRecipe, inputs: dict[str, str]) -> str:
    """Return the SHA-256 of the recipe's deciding keys and of the inputs' hashes.

    ``inputs``: input file or model → SHA-256. ``Manifest.recipe_sha256`` covers the whole resolved
    recipe instead, with the keys that only a card shows.
    """
    content = {"recipe": get_deciding_values(recipe), "inputs": inputs}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def begin_run(
    directory: Path,
    recipe: DatasetRecipe | ModelRecipe,
    inputs: dict[str, str],
    versions: dict[str, str],
) -> Manifest:
    """Start or resume the run of a recipe, and return its manifest.

    Raises InputError when the directory holds another run or cannot be resumed
    (``run_dir.begin``).

    Args:
        directory: the run directory, locked by the caller.
        recipe: the dataset or model recipe.
        inputs: input file or model → SHA-256.
        versions: library → version.
    """
    manifest = Manifest(
        kind=recipe.kind,
        name=recipe.name,
        version=recipe.version,
        fingerprint=compute_fingerprint(recipe, inputs),
        inputs=inputs,
        versions=versions,
    )
    return begin(directory, manifest, format_recipe(recipe))

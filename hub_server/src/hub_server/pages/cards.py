"""Cards: the front matter of a README and its problems, and its Markdown as safe HTML (rendered in a limited child)."""

import math
import posixpath
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import nh3
import yaml
from markdown_it import MarkdownIt

from hub_server.pages.readers import Card, CardQuestion

_FRONT_MATTER = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
# The largest front matter on the Hub, the results of leaderboards, has some 200 kB.
_MAX_YAML, _MAX_DEPTH, _MAX_VALUES, _MAX_MERGES, _MAX_NUMBER = 1 << 20, 64, 100_000, 1000, 100
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_CHARACTERS = 100  # of a text that count as one more value
_MAX_BYTES = 4 << 20
_TEXTS = ("language", "license", "datasets", "base_model", "metrics")
_LISTS = ("tags", "task_categories", "task_ids", "size_categories", "configs", "model-index")
_DATASET_TAGS = ("task_categories", "task_ids", "language", "license", "size_categories")
_MAX_CONFIGS, _MAX_PATTERNS, _MAX_TEXT = 20, 100, 200
_MAX_ERROR, _MAX_ERRORS = 500, 20
CARD = 200_000  # characters that are rendered
_HEADING_SHIFT = 2  # a card stands below the page's own h1 and h2
_MAX_TRIES = 500_000  # of a pattern with a path: half a second


class Config(NamedTuple):
    """A config of a dataset: its name, and the parquet files of each split."""

    name: str
    splits: dict[str, list[str]]


class CardProblem(Exception):
    """The front matter cannot be used."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The types of YAML's core schema; keys are text, as in JSON (numbers as keys can be chosen to collide)."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of ``node``. Raises YAMLError."""
        if node.tag in _NUMBERS and len(node.value) > _MAX_NUMBER:  # in base 60 it costs the square of its length
            raise _refused(f"a number of {len(node.value)} characters", node)
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, KeyError, AttributeError) as error:  # 2024-13-45, !!int x, !!bool x
            raise _refused(f"not a value of its type ({node.tag.rpartition(':')[2]})", node) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of ``node`` with its scalar keys as text."""
        self.flatten_mapping(node)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


def _refused(problem: str, place: Any) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


def _load(text: str) -> Any:
    """Return the one document in untrusted ``text``. Raises YAMLError, also for a text beyond the limits."""
    size = len(text.encode("utf-8", "replace"))
    if size > _MAX_YAML:
        raise yaml.YAMLError(f"{size} bytes of YAML; at most {_MAX_YAML} are read")
    try:
        _check_extent(yaml.parse(text, _Loader))
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except UnicodeEncodeError as error:
        raise yaml.YAMLError("half a surrogate pair is not a character") from error


def _check_extent(events: Iterator[yaml.Event]) -> None:
    """Raise YAMLError for a document that, with its aliases unfolded, is too deep or has too many values.

    PyYAML builds by recursion: 30,000 nested ``[`` crash it, and nine lines of aliases stand for billions of values.
    """
    named: dict[str | None, tuple[int, int]] = {}  # anchor → values, levels
    outer: list[tuple[str | None, int, int]] = []  # of each open collection: anchor, values before it, levels beside it
    values = levels = merges = 0  # levels: inside the innermost open collection, so far
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in named:
                raise _refused(f"alias *{event.anchor} has no anchor before it, or is inside of it", event)
            values, levels = values + named[event.anchor][0], max(levels, named[event.anchor][1])
        elif isinstance(event, yaml.ScalarEvent):
            weight = 1 + len(event.value) // _CHARACTERS
            values, merges = values + weight, merges + (event.value == "<<")
            named[event.anchor] = (weight, 0)
        elif isinstance(event, yaml.CollectionStartEvent):
            named.pop(event.anchor, None)
            outer.append((event.anchor, values, levels))
            values, levels = values + 1, 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before, beside = outer.pop()
            named[anchor] = (values - before, levels + 1)
            levels = max(beside, levels + 1)
        if len(outer) + levels > _MAX_DEPTH or values > _MAX_VALUES or merges > _MAX_MERGES:
            most = f"{_MAX_DEPTH} levels, {_MAX_VALUES} keys and values or {_MAX_MERGES} merges"
            raise _refused(f"more than {most} (an alias counts as its content)", event)


def read_metadata(text: str) -> dict | None:
    """The front matter as plain JSON values; None without one; ``CardProblem`` when it is broken."""
    found = _FRONT_MATTER.match(text)
    if found is None:
        return None
    try:
        metadata = _plain(_load(found.group(1)))
    except yaml.YAMLError as error:
        raise CardProblem(f"YAML Metadata Error: {str(error)[:_MAX_ERROR]}") from error
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise CardProblem("YAML Metadata Error: the front matter must be a mapping")
    return metadata


def _plain(value: object) -> object:
    """``value`` as JSON can hold it (dates become text)."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)


def configs(metadata: dict, paths: list[str]) -> list[Config]:
    """Return a card's configs that have parquet files, the default first; else one config of the first file.

    Patterns beyond ``_MAX_TRIES`` comparisons match nothing.
    """
    parquet = [path for path in paths if path.endswith(".parquet")]
    listed, found, left = metadata.get("configs"), [], _MAX_TRIES
    known = [config for config in listed if isinstance(config, dict)] if isinstance(listed, list) else []
    for config in sorted(known[:_MAX_CONFIGS], key=lambda config: config.get("default") is not True):
        splits: dict[str, list[str]] = {}
        for split, pattern in _data_files(config.get("data_files")):
            left -= len(parquet)
            if left >= 0 and (fits := [path for path in parquet if fnmatchcase(path, pattern)]):
                splits[split] = list(dict.fromkeys([*splits.get(split, []), *fits]))
        if splits:
            found.append(Config(str(config.get("config_name"))[:_MAX_TEXT], splits))
    return found or [Config("default", {"": [path]}) for path in parquet[:1]]


def _data_files(value: object) -> list[tuple[str, str]]:
    """(split, pattern) pairs in all forms that cards use: one pattern, patterns, or splits with patterns."""
    pairs = []
    for item in value if isinstance(value, list) else [value]:
        split, patterns = (item.get("split"), item.get("path")) if isinstance(item, dict) else ("train", item)
        for pattern in patterns if isinstance(patterns, list) else [patterns]:
            pairs.append((str(split)[:_MAX_TEXT], str(pattern)[:_MAX_TEXT]))
    return pairs[:_MAX_PATTERNS]


def problems(text: str) -> tuple[list[str], list[str]]:
    """(errors, warnings) of a card."""
    try:
        metadata = read_metadata(text)
    except CardProblem as problem:
        return [str(problem)], []
    if not metadata:
        return [], ["empty or missing yaml metadata in repo card"]
    errors = [f'"{key}" must be an array' for key in _LISTS if not isinstance(metadata.get(key, []), list)]
    for key in (*_TEXTS, "tags", "task_categories", "task_ids", "size_categories"):
        values = metadata.get(key) or []
        for item in values if isinstance(values, list) else [values]:
            if not isinstance(item, str):
                errors.append(f'"{key}" must be text, found {item!r} (quote it if YAML took it for something else)')
    configs = metadata.get("configs") or []
    for config in configs if isinstance(configs, list) else []:
        if not isinstance(config, dict) or not isinstance(config.get("config_name"), str):
            errors.append('each of "configs" must have a "config_name" that is text')
    return [error[:_MAX_ERROR] for error in errors[:_MAX_ERRORS]], []


@lru_cache(maxsize=512)
def stored_metadata(readme: Path) -> dict:
    """The front matter of a stored README ({} when absent or broken). Blobs never change, so it is kept."""
    if readme.stat().st_size > _MAX_BYTES:
        return {}
    try:
        return read_metadata(readme.read_text(encoding="utf-8", errors="replace")) or {}
    except CardProblem:
        return {}


def tags(kind: str, metadata: dict) -> list[str]:
    """The tags the Hub derives from a card."""
    found: list[str] = []
    if kind == "dataset":
        found = [f"{key}:{value}" for key in _DATASET_TAGS for value in _texts(metadata, key)]
        return [*found, *_texts(metadata, "tags")]
    found = [*_texts(metadata, "library_name"), *_texts(metadata, "tags"), *_texts(metadata, "pipeline_tag")]
    found += [f"dataset:{value}" for value in _texts(metadata, "datasets")]
    found += [f"base_model:{value}" for value in _texts(metadata, "base_model")]
    found += [*_texts(metadata, "language"), *(f"license:{value}" for value in _texts(metadata, "license"))]
    return list(dict.fromkeys(found))


def _texts(metadata: dict, key: str) -> list[str]:
    value = metadata.get(key) or []
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]


def answer(question: bytes) -> Card:
    """Render the card of a ``CardQuestion``."""
    asked = CardQuestion.model_validate_json(question)
    text = Path(asked.readme).read_bytes()[: 4 * CARD].decode(errors="replace")
    found = _FRONT_MATTER.match(text)
    return Card(html=render_card(text[found.end() :] if found else text, asked.base))


def render_card(text: str, base: str) -> str:
    """Markdown as HTML without scripts, styles, forms, frames and pictures from elsewhere; its headings begin at h3."""

    def address(tag: str, attribute: str, value: str) -> str | None:
        if attribute not in ("href", "src"):
            return value
        parts = urlsplit(value)
        if parts.scheme or parts.netloc:
            return value if tag == "a" and parts.scheme in ("http", "https", "mailto") else None
        if not parts.path:
            return f"#{quote(parts.fragment)}" if tag == "a" else None
        path = posixpath.normpath(unquote(parts.path))
        return None if path.startswith(("/", "..")) else base + quote(path)

    tags = "a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd li ol p pre s span"
    tags += " strong sub summary sup table tbody td tfoot th thead tr ul"
    attributes = {"a": {"href", "title"}, "img": {"src", "alt", "title", "width", "height"}, "ol": {"start"}}
    attributes |= {tag: {"colspan", "rowspan", "align"} for tag in ("td", "th")}
    html = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text[:CARD])
    html = re.sub(r'<(t[dh]) style="text-align:(left|center|right)">', r'<\1 align="\2">', html)
    clean = nh3.clean(
        html,
        tags=set(tags.split()),
        attributes=attributes,
        attribute_filter=address,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )
    return re.sub(r"(</?h)([1-6])>", lambda tag: f"{tag[1]}{min(6, int(tag[2]) + _HEADING_SHIFT)}>", clean)

"""Cards: the front matter of a README and its problems, and its Markdown as safe HTML.

Markdown is rendered in a limited child process (``readers``).
"""

import math
import posixpath
import re
from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import nh3
import yaml
from markdown_it import MarkdownIt

from hub_server.pages.readers import Card

_FRONT_MATTER = re.compile(
    r"\A\s*---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
# The largest front matter on the Hub, the results of leaderboards, has some 200 kB.
_MAX_YAML = 1 << 20  # bytes
_MAX_DEPTH = 64  # levels of collections
_MAX_VALUES = 100_000  # keys and values
_MAX_MERGES = 1000  # keys ``<<``, each of which costs PyYAML a copy of its mapping
_MAX_NUMBER = 100  # characters of a number
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MAPPINGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:set")
_CHARACTERS_PER_VALUE = 100  # of a text; a longer text counts as several values
_MAX_BYTES = 4 << 20  # of a README whose front matter is read
_MOST_CACHED_CARDS = 64  # a card's values may take megabytes of memory
_TEXTS = ("language", "license", "datasets", "base_model", "metrics")
# the ids of huggingface.co/docs/hub/repositories-licenses
_LICENCES = (
    "afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m "
    "bigscience-bloom-rail-1.0 bigscience-openrail-m bsd bsd-2-clause bsd-3-clause "
    "bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 "
    "cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 "
    "cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 "
    "cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 "
    "epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl "
    "gpl gpl-2.0 gpl-3.0 grok2-community h-research intel-research isc lgpl lgpl-2.1 lgpl-3.0 "
    "lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa "
    "odbl odc-by ofl-1.1 openmdw-1.0 openrail openrail++ osl-3.0 other pddl postgresql unknown "
    "unlicense wtfpl zlib"
)
LICENCES = frozenset(_LICENCES.split())
_LISTS = ("tags", "task_categories", "task_ids", "size_categories", "configs", "model-index")
# The keys of a card that become tags of its repo, and the tags' prefixes.
_DATASET_TAGS = {
    "task_categories": "task_categories:",
    "task_ids": "task_ids:",
    "language": "language:",
    "license": "license:",
    "size_categories": "size_categories:",
    "tags": "",
}
_MODEL_TAGS = {
    "library_name": "",
    "tags": "",
    "pipeline_tag": "",
    "datasets": "dataset:",
    "base_model": "base_model:",
    "language": "",
    "license": "license:",
}
_MAX_CONFIGS = 20  # of a card
_MAX_PATTERNS = 100  # of files, of a config
_MAX_TEXT = 200  # characters of a name or a pattern
_MAX_ERROR = 500  # characters
_MAX_ERRORS = 20
MOST_CARD_CHARACTERS = 200_000
_HEADING_SHIFT = 2  # a card stands below the page's own h1 and h2
_MAX_TRIES = 500_000  # of a pattern with a path: half a second
_HTML_TAGS = (
    "a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd li ol "
    "p pre s span strong sub summary sup table tbody td tfoot th thead tr ul"
)
_HTML_ATTRIBUTES = {
    "a": {"href", "title"},
    "img": {"src", "alt", "title", "width", "height"},
    "ol": {"start"},
    "td": {"colspan", "rowspan", "align"},
    "th": {"colspan", "rowspan", "align"},
}


class Config(NamedTuple):
    """A config of a dataset: its name, and the parquet files of each split."""

    name: str
    splits: dict[str, list[str]]


class CardProblem(Exception):
    """The front matter cannot be used."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Loader for the types of YAML's core schema, with scalar keys as text, as in JSON.

    An attacker could choose numeric keys with colliding hashes, which make a dict slow.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of ``node``.

        Raises YAMLError for a value that is not of its type, and for a long number.
        """
        # PyYAML's time for a number in base 60 is quadratic in its length.
        if node.tag in _NUMBERS and len(node.value) > _MAX_NUMBER:
            raise _make_yaml_error(f"a number of {len(node.value)} characters", node)
        # PyYAML reads the items of a mapping after this call.
        if node.tag in _MAPPINGS and not isinstance(node, yaml.MappingNode):
            raise _make_yaml_error("not a mapping", node)
        try:
            return super().construct_object(node, deep)
        # PyYAML raises these over 2024-13-45, !!int x, !!int "" and !!bool x.
        except (ValueError, OverflowError, LookupError, AttributeError) as error:
            problem = f"not a value of its type ({node.tag.rpartition(':')[2]})"
            raise _make_yaml_error(problem, node) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of ``node`` with its scalar keys as text."""
        self.flatten_mapping(node)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


def _make_yaml_error(problem: str, node: Any) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _load_yaml(text: str) -> Any:
    """Return the value of the YAML document in an untrusted text.

    Raises YAMLError for bad YAML, and for a document beyond a limit of this module.
    """
    size = len(text.encode("utf-8", "replace"))
    if size > _MAX_YAML:
        raise yaml.YAMLError(f"{size} bytes of YAML; at most {_MAX_YAML} are read")
    try:
        _check_extent(yaml.parse(text, _Loader))
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except UnicodeEncodeError as error:
        raise yaml.YAMLError("half a surrogate pair is not a character") from error


class _Extent(NamedTuple):
    """The number of keys and values in a YAML node, and its levels of nested collections."""

    values: int
    levels: int


def _check_extent(events: Iterator[yaml.Event]) -> None:
    """Raise YAMLError for a document that is too deep, or has too many values or merges.

    An alias counts as its content, and a long text as several values. PyYAML builds values by
    recursion, so 30,000 nested ``[`` crash the process; nine lines of aliases stand for billions of
    values.
    """
    anchors: dict[str | None, _Extent] = {}  # anchor → the extent of its content
    # For each open collection: its anchor, and the extent of the document before it
    open_collections: list[tuple[str | None, _Extent]] = []
    values = 0
    merges = 0
    levels = 0  # of the finished nodes in the innermost open collection
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                problem = f"alias *{event.anchor} has no anchor before it, or is inside of it"
                raise _make_yaml_error(problem, event)
            content = anchors[event.anchor]
            values += content.values
            levels = max(levels, content.levels)
        elif isinstance(event, yaml.ScalarEvent):
            weight = 1 + len(event.value) // _CHARACTERS_PER_VALUE
            values += weight
            merges += event.value == "<<"
            anchors[event.anchor] = _Extent(weight, 0)
        elif isinstance(event, yaml.CollectionStartEvent):
            anchors.pop(event.anchor, None)  # an alias inside its own collection is an error
            open_collections.append((event.anchor, _Extent(values, levels)))
            values += 1
            levels = 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_collections.pop()
            content = _Extent(values - before.values, levels + 1)
            anchors[anchor] = content
            levels = max(before.levels, content.levels)

        # The deepest level so far is inside the innermost open collection.
        depth = len(open_collections) + levels
        if depth > _MAX_DEPTH or values > _MAX_VALUES or merges > _MAX_MERGES:
            most = f"{_MAX_DEPTH} levels, {_MAX_VALUES} keys and values or {_MAX_MERGES} merges"
            raise _make_yaml_error(f"more than {most} (an alias counts as its content)", event)


def read_metadata(text: str) -> dict | None:
    """Return the front matter of a README as JSON values; None without one or for an empty one.

    Raises CardProblem for bad YAML, for YAML beyond a limit, and for other values than a mapping.
    """
    match = _FRONT_MATTER.match(text)
    if match is None:
        return None
    try:
        metadata = _convert_to_json(_load_yaml(match.group(1)))
    except yaml.YAMLError as error:
        raise CardProblem(f"YAML Metadata Error: {str(error)[:_MAX_ERROR]}") from error
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise CardProblem("YAML Metadata Error: the front matter must be a mapping")
    return metadata


def _convert_to_json(value: object) -> object:
    """Return ``value`` as JSON can hold it: keys, dates, NaN and infinity become text.

    Sets and tuples become lists.
    """
    if isinstance(value, dict):
        return {str(key): _convert_to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_convert_to_json(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(value)


def list_configs(metadata: dict, paths: list[str]) -> list[Config]:
    """Return a card's configs that have parquet files, the default config first.

    Without such a config, the first parquet file makes one config ``default`` with the split "".
    Without a parquet file, the list is empty. The first ``_MAX_CONFIGS`` configs of the card are
    read, with ``_MAX_PATTERNS`` patterns each. After ``_MAX_TRIES`` comparisons of a pattern with a
    path, further patterns are ignored.

    Args:
        metadata: the card's front matter.
        paths: the paths of all files of the commit.
    """
    parquet = [path for path in paths if path.endswith(".parquet")]
    listed = metadata.get("configs")
    items = listed if isinstance(listed, list) else []
    sections = [item for item in items if isinstance(item, dict)][:_MAX_CONFIGS]
    # False sorts first: the default config, then the others in the card's order.
    sections.sort(key=lambda section: section.get("default") is not True)
    configs = []
    tries = 0
    for section in sections:
        splits: dict[str, list[str]] = {}
        for split, pattern in _list_data_files(section.get("data_files")):
            tries += len(parquet)
            if tries > _MAX_TRIES:
                break
            matches = [path for path in parquet if fnmatchcase(path, pattern)]
            if matches:
                # Several patterns of a split may match one file, which counts once.
                splits[split] = list(dict.fromkeys(splits.get(split, []) + matches))
        if splits:
            configs.append(Config(str(section.get("config_name"))[:_MAX_TEXT], splits))
    if not configs and parquet:
        configs.append(Config("default", {"": parquet[:1]}))
    return configs


def _list_data_files(value: object) -> list[tuple[str, str]]:
    """Return the (split, pattern) pairs of a config's ``data_files``, at most ``_MAX_PATTERNS``.

    A card has one pattern, a list of patterns, or a list of splits with one or more patterns each.
    A pattern without a split is of the split ``train``.
    """
    pairs = []
    for item in _make_list(value):
        section = item if isinstance(item, dict) else {"split": "train", "path": item}
        split = str(section.get("split"))[:_MAX_TEXT]
        for pattern in _make_list(section.get("path")):
            pairs.append((split, str(pattern)[:_MAX_TEXT]))
    return pairs[:_MAX_PATTERNS]


def _make_list(value: object) -> list:
    """Return a list as it is, and another value as a list of one."""
    return value if isinstance(value, list) else [value]


def find_problems(text: str) -> tuple[list[str], list[str]]:
    """Return the errors and the warnings over the front matter of a card, as the Hub words them.

    The first ``_MAX_ERRORS`` errors are returned. A card without front matter has one warning. Both
    lists are empty for a valid front matter.
    """
    try:
        metadata = read_metadata(text)
    except CardProblem as problem:
        return [str(problem)], []
    if not metadata:
        return [], ["empty or missing yaml metadata in repo card"]
    errors = [
        f'"{key}" must be an array' for key in _LISTS if not isinstance(metadata.get(key, []), list)
    ]
    errors += _find_bad_texts(metadata)
    errors += _find_unknown_licences(metadata)
    errors += _find_bad_configs(metadata.get("configs") or [])
    return [error[:_MAX_ERROR] for error in errors[:_MAX_ERRORS]], []


def _find_bad_texts(metadata: dict) -> Iterator[str]:
    """Yield an error for each value that must be a text but has another type."""
    for key in (*_TEXTS, "tags", "task_categories", "task_ids", "size_categories"):
        for item in _make_list(metadata.get(key) or []):
            if not isinstance(item, str):
                hint = "quote it if YAML took it for something else"
                yield f'"{key}" must be text, found {item!r} ({hint})'


def _find_unknown_licences(metadata: dict) -> Iterator[str]:
    """Yield an error for each licence that the Hub has no id for."""
    licences = [name for name in _make_list(metadata.get("license")) if isinstance(name, str)]
    unknown = [name for name in licences if name not in LICENCES]
    for licence in unknown[:_MAX_ERRORS]:
        shown = licence[:_MAX_TEXT]
        similar = get_close_matches(shown.lower(), LICENCES, n=1)
        hint = f"did you mean {similar[0]!r}? " if similar else ""
        yield (
            f'"license" is {shown!r}, which is not a licence of the Hub; {hint}'
            'for any other: "license: other" with license_name and license_link'
        )


def _find_bad_configs(configs: object) -> Iterator[str]:
    """Yield an error for each config without a name; no error when ``configs`` is not a list."""
    for config in configs if isinstance(configs, list) else []:
        if not isinstance(config, dict) or not isinstance(config.get("config_name"), str):
            yield 'each of "configs" must have a "config_name" that is text'


@lru_cache(maxsize=_MOST_CACHED_CARDS)
def read_stored_metadata(readme: Path) -> dict:
    """Return the front matter of a stored README; {} if it is missing, broken or too large.

    Stored files never change, so the last ``_MOST_CACHED_CARDS`` results are kept. Raises OSError
    for a file that cannot be read.
    """
    if readme.stat().st_size > _MAX_BYTES:
        return {}
    try:
        return read_metadata(readme.read_text(encoding="utf-8", errors="replace")) or {}
    except CardProblem:
        return {}


def list_tags(kind: str, metadata: dict) -> list[str]:
    """Return the tags that the Hub derives from a card, key after key of ``_DATASET_TAGS``.

    For a model, the keys are those of ``_MODEL_TAGS``. Several of these give tags without a prefix,
    so equal tags of a model count once. ``kind``: "model" or "dataset".
    """
    prefixes = _DATASET_TAGS if kind == "dataset" else _MODEL_TAGS
    tags = []
    for key, prefix in prefixes.items():
        tags += [f"{prefix}{value}" for value in _get_texts(metadata, key)]
    if kind == "model":
        tags = list(dict.fromkeys(tags))
    return tags


def _get_texts(metadata: dict, key: str) -> list[str]:
    """Return the texts of a key, which holds one value or a list; only texts are returned."""
    return [item for item in _make_list(metadata.get(key) or []) if isinstance(item, str)]


def answer(readme: Path, base: str) -> Card:
    """Return a stored README without its front matter as safe HTML; ``readers.ask`` calls this.

    ``base``: the address that relative addresses in the README are placed below.
    """
    # A character of UTF-8 has at most 4 bytes.
    text = readme.read_bytes()[: 4 * MOST_CARD_CHARACTERS].decode(errors="replace")
    text = _FRONT_MATTER.sub("", text, count=1)
    return Card(html=render_card(text, base))


def render_card(text: str, base: str) -> str:
    """Return Markdown as HTML without scripts, styles, forms, frames and pictures from elsewhere.

    Only the first ``MOST_CARD_CHARACTERS`` characters are rendered. Headings begin at h3. ``base``:
    the address that relative addresses are placed below, with a slash at its end.
    """

    def filter_attribute(tag: str, attribute: str, value: str) -> str | None:
        if attribute not in ("href", "src"):
            return value
        return _filter_url(tag, value, base)

    def convert_heading(match: re.Match[str]) -> str:
        level = min(6, int(match[2]) + _HEADING_SHIFT)  # HTML has no h7
        return f"{match[1]}{level}"

    # Render the Markdown, and clean the HTML.
    markdown = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    html = markdown.render(text[:MOST_CARD_CHARACTERS])
    # The cleaner drops the attribute style, and keeps align.
    html = re.sub(r'<(t[dh]) style="text-align:(left|center|right)">', r'<\1 align="\2">', html)
    clean = nh3.clean(
        html,
        tags=set(_HTML_TAGS.split()),
        attributes=_HTML_ATTRIBUTES,
        attribute_filter=filter_attribute,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )
    return re.sub(r"(</?h)([1-6])(?=[\s>])", convert_heading, clean)


def _filter_url(tag: str, url: str, base: str) -> str | None:
    """Return a safe address for the tag of a link (``a``) or a picture; None drops the address.

    A relative address is placed below ``base``, without its query and fragment; an address that
    leaves ``base`` is dropped. A link to a fragment of the card stays.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # e.g. half an IPv6 address
        return None
    # Links may lead elsewhere, pictures may not.
    if parts.scheme or parts.netloc:
        return url if tag == "a" and parts.scheme in ("http", "https", "mailto") else None
    if not parts.path:
        return f"#{quote(parts.fragment)}" if tag == "a" else None

    # Relative addresses stay inside the repo.
    path = posixpath.normpath(unquote(parts.path))
    return None if path.startswith(("/", "..")) else base + quote(path)

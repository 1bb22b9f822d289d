"""Untrusted input: text for a terminal or a page, YAML, dataset cards, model folders, store URLs.

``load_yaml`` limits size, depth and the expansion of aliases: PyYAML builds values by recursion, so 30,000 nested ``[``
are a segmentation fault, and nine lines of aliases stand for billions of values.

Markdown's special characters become numeric entities, not backslash escapes: an entity can never be structure
(CommonMark 2.5), and parsers differ on a backslash before a table's pipe.
"""

import errno
import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hub.errors import InputError, StsDinoError

if TYPE_CHECKING:
    from jinja2 import BaseLoader, Environment

LONGEST = 300  # characters that a server's own words may take in a line of ours
_SEQUENCE = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # a title, a link, the clipboard (OSC)
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours, the cursor (CSI)
    r"|\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?"  # strings to the device (DCS, SOS, PM, APC)
    r"|\x1b[ -/]*[0-~]?"
)
# Controls, invisible and direction marks (bidi), halves of pairs, line and paragraph separators.
_DROPPED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    """``text`` without escape sequences, control characters and invisible marks; its line breaks and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    bare = _SEQUENCE.sub("", text.replace("\r\n", "\n"))
    return "".join(c for c in bare if c in "\n\t" or unicodedata.category(c) not in _DROPPED)


def one_line(text: str, longest: int = LONGEST) -> str:
    """``text`` as ``printable``, in one line of at most ``longest`` characters."""
    line = " ".join(printable(re.sub(r"[\r\n\x85\u2028\u2029]", " ", text[: 20 * longest])).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def first_line(error: BaseException, longest: int = LONGEST) -> str:
    """The first line of an error's message, as ``one_line``; its type's name when it says nothing."""
    said = str(error).strip().splitlines()
    return one_line(said[0] if said else "", longest) or type(error).__name__


HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co"})  # control, format (bidi, tags, zero width), surrogate, private use
JOINERS = frozenset("\u200c\u200d")  # format characters that emoji and some scripts need
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BREAK = "&#8203;"  # zero-width space, written as an entity so that it can be seen in the file
ENTITIES = str.maketrans({char: f"&#{ord(char)};" for char in "&<>\\`*_[]|~$^=!#"})
ADDRESS_DOT = re.compile(r"(?i)(?<=www)\.|(?<=\w)\.(?=[^\W\d_])")  # not that of 3.14
SAMPLE_LIMIT = 200


class Markdown(str):
    """Text that is Markdown already: printed as it stands."""

    __slots__ = ()


def visible(text: str) -> str:
    """``text`` with every character that hides or reorders others shown as U+FFFD (line breaks and tabs stay)."""
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    keep = char in "\n\t" or char in JOINERS or unicodedata.category(char) not in HIDDEN
    return char if keep else REPLACEMENT


def visible_line(text: str) -> str:
    """``text`` on one line, without hidden characters."""
    return visible(" ".join(text.split()))


def inline(text: str) -> Markdown:
    """Text for a paragraph, a list item or a table cell, also at the start of a line."""
    escaped = visible_line(text).translate(ENTITIES)
    escaped = re.sub(r"^[+-]", lambda mark: f"&#{ord(mark[0])};", escaped)  # bullet, rule or heading underline
    return Markdown(re.sub(r"^(\d+)([.)])", lambda mark: f"{mark[1]}&#{ord(mark[2])};", escaped))  # numbered list


def prose(text: str) -> Markdown:
    """Paragraphs of text, escaped line by line; only ``code`` between backticks on one line is markup."""
    lines = (
        re.sub("&#96;(.+?)&#96;", lambda span: code(unescape(span[1])), inline(line)) for line in text.splitlines()
    )
    return Markdown("\n".join(lines).strip())


def sample(text: str, limit: int = SAMPLE_LIMIT) -> Markdown:
    """A sample row's text: shortened, escaped, and with nothing left that a renderer would turn into a link.

    Renderers find bare addresses after entities are resolved, so escaping alone does not stop them: the characters that
    make an address get an invisible break. A bare ``name.tld`` counts as an address for some.
    """
    text = visible_line(text)
    if len(text) > limit:
        text = text[: limit - 1].rstrip() + "…"
    escaped = re.sub("/(?=/)", f"/{BREAK}", inline(text).replace("@", f"@{BREAK}"))
    return Markdown(ADDRESS_DOT.sub(f"{BREAK}.", escaped))


def code(text: str) -> Markdown:
    """An inline code span, safe in a table cell."""
    text = visible_line(text)
    if text and not set(text) & set("`|\\"):
        return Markdown(f"`{text}`")
    return Markdown(f"<code>{inline(text)}</code>")


def fenced(text: str, language: str = "text") -> Markdown:
    """A fenced block of ``text`` as it is; the fence is longer than any run of backticks inside."""
    text = visible(text.replace("\r\n", "\n").replace("\r", "\n"))
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markdown(f"{fence}{language}\n{text}\n{fence}")


def finalize(value: Any) -> str:
    """What a template or a table prints for ``value``: Markdown as it is, numbers formatted, all other text escaped."""
    if isinstance(value, Markdown):
        return value
    if isinstance(value, bool) or value is None:
        raise TypeError(f"a card cannot print {value!r}: decide in the template what it means")
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return inline(str(value))


def template_environment(loader: "BaseLoader") -> "Environment":
    """Jinja templates of Markdown pages: ``finalize`` escapes all text, and an undefined variable raises."""
    from jinja2 import Environment, StrictUndefined

    found = Environment(
        loader=loader,
        undefined=StrictUndefined,
        finalize=finalize,
        autoescape=False,  # noqa: S701 - the output is Markdown: HTML escaping would not do
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"table": table, "zip": zip}
    found.filters |= {"code": code, "markdown": Markdown}
    return found


def table(header: list[Any], rows: list[list[Any]]) -> Markdown:
    """A Markdown table; columns of numbers are aligned to the right."""
    numeric = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]
    lines = [_row(header), _row([Markdown("---:" if right else "---") for right in numeric])]
    return Markdown("\n".join(lines + [_row(row) for row in rows]))


def _row(cells: list[Any]) -> str:
    return "| " + " | ".join(finalize(cell) for cell in cells) + " |"


if TYPE_CHECKING:
    _Base = yaml.SafeLoader
else:
    _Base = object
MAX_MERGES = 1_000  # each ``<<`` costs PyYAML a copy of its mapping
MAX_NUMBER = 100  # characters: a number in base 60 costs the square of its length
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_TEXT = "tag:yaml.org,2002:str"


class UnsafeYaml(yaml.MarkedYAMLError):
    """YAML that breaks a limit, or whose value its type does not allow; ``problem`` and ``problem_mark`` say where."""

    def __init__(self, problem: str, mark: Any = None):
        super().__init__(problem=problem, problem_mark=mark)


class Guard(_Base):
    """Mixed into a loader: values that PyYAML's constructors trip over are refused with their line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of ``node``. Raises UnsafeYaml."""
        if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER:
            raise UnsafeYaml(f"a number of {len(node.value)} characters", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, KeyError, AttributeError) as error:  # 2024-13-45, !!int x, !!bool x
            problem = f"not a value of its type ({node.tag.rpartition(':')[2]})"
            raise UnsafeYaml(problem, node.start_mark) from error


class SafeTypes(Guard, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The types of YAML's core schema; keys are text, as in JSON (numbers as keys can be chosen to collide)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of ``node``, its scalar keys as text."""
        self.flatten_mapping(node)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = _TEXT
        return super().construct_mapping(node, deep)


def load_yaml(text: str, *, max_bytes: int, max_depth: int, max_nodes: int, loader: Any = SafeTypes) -> Any:
    """The one document in ``text``, as plain Python values.

    ``max_bytes`` bounds the text in UTF-8 and the characters its aliases unfold to, ``max_depth`` the levels of
    collections, ``max_nodes`` the keys and values, both with aliases and merges unfolded. A ``loader`` of one's own
    mixes in ``Guard``. Raises UnsafeYaml for what breaks a limit, another yaml.YAMLError for what is not YAML.
    """
    size = len(text.encode("utf-8", "replace"))
    if size > max_bytes:
        raise UnsafeYaml(f"{size} bytes of YAML; at most {max_bytes} are read")
    try:
        kinds = yaml.NodeEvent | yaml.CollectionEndEvent
        events = (event for event in yaml.parse(text, loader) if isinstance(event, kinds))
        _require_limits(events, max_nodes, max_bytes, max_depth)
        return yaml.load(text, loader)  # noqa: S506 - a SafeLoader
    except UnicodeEncodeError as error:
        raise UnsafeYaml("half a surrogate pair, which is not a character") from error


def _require_limits(events: Iterator[yaml.Event], max_nodes: int, max_characters: int, max_depth: int) -> None:
    """Raise UnsafeYaml where a document with its aliases unfolded breaks a limit, and for an alias to nothing."""
    unfolded = list[tuple[int, int]]()  # of every event: change of depth, characters of text
    named, opened = dict[str | None, slice](), list[tuple[str | None, int]]()  # by anchor, places in ``unfolded``
    depth = deepest = nodes = characters = merges = 0
    for event in events:
        start, steps = len(unfolded), [(-1, 0)]
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in named:
                problem = f"alias *{event.anchor} stands for nothing before it, or for what it is in"
                raise UnsafeYaml(problem, event.start_mark)
            steps = unfolded[named[event.anchor]]
        elif isinstance(event, yaml.ScalarEvent):
            steps, merges = [(0, len(event.value))], merges + (event.value == "<<")
        elif isinstance(event, yaml.CollectionStartEvent):
            steps = [(1, 0)]
            named.pop(event.anchor, None)
            opened.append((event.anchor, start))
        for change, length in steps:
            depth, nodes, characters = depth + change, nodes + (change >= 0), characters + length
            deepest = max(deepest, depth)
        unfolded += steps
        if isinstance(event, yaml.ScalarEvent):
            named[event.anchor] = slice(start, len(unfolded))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, start = opened.pop()
            named[anchor] = slice(start, len(unfolded))
        limits = {
            "levels": (deepest, max_depth),
            "keys and values": (nodes, max_nodes),
            "characters": (characters, max_characters),
            "merges": (merges, MAX_MERGES),
        }
        for what, (number, most) in limits.items():
            if number > most:
                problem = f"more than {most} {what} (an alias counts as what it stands for)"
                raise UnsafeYaml(problem, event.start_mark)


CARD_LIMITS = {"max_bytes": 10 << 20, "max_depth": 50, "max_nodes": 1_000_000}
_STANDALONE = ".huggingface.yaml"


def check_dataset_card(repo_id: str, revision: str) -> None:
    """InputError when the metadata of a Hub's dataset breaks a limit; what is wrong otherwise, ``datasets`` says."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    for name in ("README.md", _STANDALONE):
        try:
            path = hf_hub_download(repo_id, name, repo_type="dataset", revision=revision)
        except LocalEntryNotFoundError:
            if constants.HF_HUB_OFFLINE:  # then ``datasets`` takes rows that it prepared before
                continue
            raise
        except EntryNotFoundError:
            continue
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        found = REGEX_YAML_BLOCK.search(text)
        try:
            load_yaml(text if name == _STANDALONE else found.group(2) if found else "", **CARD_LIMITS)
        except UnsafeYaml as error:
            hint = "it would stop the library that reads it: use another revision, or download its files and name them"
            raise InputError(f"dataset {repo_id}: {name}", f"its metadata has {error.problem}", hint=hint) from None
        except yaml.YAMLError:
            pass


NO_CODE: dict[str, Any] = {"trust_remote_code": False}
"""For every ``from_pretrained``: left out, transformers asks on the terminal, and a ``y`` runs the folder's files."""
NO_PICKLES: dict[str, Any] = {**NO_CODE, "use_safetensors": True, "allow_all_kernels": False}
"""For everything that loads weights; a saved config could ask for pickles and for kernels from any repository."""
ORIGIN = "provenance.yaml"  # what a folder was made from: those of generation.fetch_lm, and the built-in model's
ENCODER = "SentenceTransformer"  # the model_type of encoders, also where a folder names none
MOST_MODULES = 100  # of a SentenceTransformer; most have two or three
_PICKLES = ("pytorch_model*.bin", "adapter_model*.bin")  # the ones that would be loaded
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_INSTALL = "install what the quantization needs, or what the message names"


@contextmanager
def reading_model(
    place: object,
    problem: str = "cannot be loaded",
    *,
    allowed: object = None,
    hint: str | None = None,
    passes: Callable[[Exception], object] = lambda error: False,
) -> Iterator[None]:
    """Turn what the libraries raise over a model's files into InputError: ``place: problem: their first line``.

    They raise anything: tokenizers ``Exception`` itself, and a BaseException for a regular expression that takes too
    long; architectures AttributeError. A disk or memory that fails, and
    what ``passes`` says is not the model's fault, is not translated.
    """
    try:
        yield
    except (StsDinoError, MemoryError):
        raise
    except BaseException as error:
        number = error.errno if isinstance(error, OSError) else None
        has_no_memory = type(error).__name__ == "OutOfMemoryError"  # of torch, which this package does not import
        if not isinstance(error, Exception):
            if type(error).__name__ != "PanicException":  # of tokenizers
                raise
        elif has_no_memory or (number is not None and number not in _ABSENT) or passes(error):
            raise
        needs = _INSTALL if isinstance(error, ImportError) else hint
        raise InputError(place, f"{problem}: {first_line(error)}", allowed=allowed, hint=needs) from error


def read_object(path: Path, model: object) -> dict[str, Any]:
    """A JSON file of a model. Raises InputError when it is not an object."""
    return _read_json(path, model, dict, "a JSON object")


def no_cross_encoder(folder: Path, model: object) -> str:
    """The kind of model that a folder states. Raises InputError for a cross-encoder."""
    transformer, own = folder / "config.json", folder / "config_sentence_transformers.json"
    kind: str = read_object(own, model).get("model_type", ENCODER) if own.is_file() else ENCODER
    heads = read_object(transformer, model).get("architectures") if transformer.is_file() else None
    is_classifier = "ForSequenceClassification" in str(heads) and not (folder / "modules.json").is_file()
    if kind == "CrossEncoder" or is_classifier:
        problem = "is a cross-encoder: it scores pairs and gives no embeddings"
        raise InputError(model, problem, allowed=f"a {ENCODER}")
    return kind


def require_modules(folder: Path, model: object) -> None:
    """Raise InputError unless a folder holds a SentenceTransformer of at most ``MOST_MODULES`` modules.

    sentence-transformers would convert another kind to something that its author did not mean.
    """
    path, allowed = folder / "modules.json", f"a list of at most {MOST_MODULES} modules"
    kind = no_cross_encoder(folder, model)
    if not path.is_file():
        hint = "name a folder that sts-dino train or sentence-transformers saved; a plain transformer is a base alone"
        raise InputError(model, f"is not a {ENCODER} model (no modules.json)", hint=hint)
    if kind != ENCODER:
        raise InputError(model, f"is a {kind}", allowed=f"a {ENCODER}")
    if (count := len(_read_json(path, model, list, allowed))) > MOST_MODULES:
        raise InputError(model, f"its modules.json lists {count:,} modules", allowed=allowed)


def _read_json(path: Path, model: object, kind: type, allowed: str) -> Any:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(model, f"its {path.name} is not JSON: {first_line(error)}") from error
    if not isinstance(found, kind):
        raise InputError(model, f"its {path.name} is a {type(found).__name__}", allowed=allowed)
    return found


def require_safetensors(folder: Path, model: object, loaded_by: str = "sentence-transformers") -> None:
    """Raise InputError when there are no safetensors, or naming a pickle that would be loaded for the lack of them."""
    hint = f"convert it: load it with {loaded_by} where you trust its author, and save_pretrained(FOLDER)"
    for pattern in _PICKLES:
        for path in sorted(folder.rglob(pattern)):
            if not list(path.parent.glob("*.safetensors")):
                problem = f"its weights are a pickle ({path.relative_to(folder).as_posix()}), which can run code"
                raise InputError(model, problem, allowed="*.safetensors", hint=hint)
    if not list(folder.rglob("*.safetensors")):
        raise InputError(model, "has no weights in safetensors", allowed="*.safetensors", hint=hint)


def require_all_weights(network: Any, folder: Path, model: object, **settings: Any) -> None:
    """Raise InputError for weights that the files lack: transformers makes them at random, and only warns.

    Names are compared again on the meta device, which reads no weights. A pooler is not part of an embedding.
    """
    if getattr(network, "is_quantized", False):
        return
    settings |= {"device_map": "meta", "output_loading_info": True}
    _, found = type(network).from_pretrained(folder, **settings, **NO_PICKLES)
    missing = sorted(name for name in found["missing_keys"] if "pooler" not in name)
    if missing:
        raise InputError(model, f"its weights lack {missing[0]} ({len(missing)} in all), which its config asks for")


def upstream_of(folder: str | Path | None) -> dict[str, Any]:
    """``{"upstream": {"model", "made_by", "packages"}}``; empty where the folder says nothing that can be read.

    The folders of ``sts-dino lm`` add "license", "sha256" of the published weights and, from a Hub, "revision".
    """
    place = Path(folder or "") / ORIGIN
    if folder is None or not place.is_file():
        return {}
    try:
        found = load_yaml(place.read_text(encoding="utf-8"), max_bytes=1 << 16, max_depth=5, max_nodes=1_000)
        packages = {str(name): str(version) for name, version in found["packages"].items()}
        keys = ("model", "made_by", *(key for key in ("license", "sha256", "revision") if found.get(key)))
        return {"upstream": {**{key: str(found[key]) for key in keys}, "packages": packages}}
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError):  # somebody else's file
        return {}


_SECRET = re.compile(r"[^:]+://([^/@]*:.*@|[^/@]+@|[^?]*\?)")  # user:password@, token@, a query


def require_no_secret(url: str) -> None:
    """Raise InputError for a URL with a user, a password or a query in it."""
    if _SECRET.match(url):
        hint = "give them the way its package reads them: environment variables, a file in the home folder, a login"
        place = f"store {url.partition(':')[0]}://…"
        raise InputError(place, "the URL must not hold users, passwords or keys", hint=hint)

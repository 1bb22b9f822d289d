"""Untrusted input: text for a terminal or a page, YAML, dataset cards, model folders, store URLs.

``load_yaml`` limits size, depth and the expansion of aliases: PyYAML builds values by recursion, so
30,000 nested ``[`` are a segmentation fault, and nine lines of aliases stand for billions of
values.

Markdown's special characters become numeric entities, not backslash escapes: an entity can never be
structure (CommonMark 2.5), and parsers differ on a backslash before a table's pipe.
"""

import errno
import json
import logging
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from yaml.constructor import SafeConstructor

from sts_dino.hub.errors import InputError, StsDinoError

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from jinja2 import BaseLoader, Environment

LONGEST = 300  # characters of an untrusted message inside one line of output
# Escape sequences of terminals (ECMA-48 and xterm)
_SEQUENCE = re.compile(
    # a title, a link, the clipboard (OSC)
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours, the cursor (CSI)
    r"|\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?"  # strings to the device (DCS, SOS, PM, APC)
    r"|\x1b[ -/]*[0-~]?"
)
_LINE_BREAKS = re.compile(r"[\r\n\x85\u2028\u2029]")
# Unicode's categories: control, format (bidi marks, zero width), surrogate, line and paragraph
# separator
_DROPPED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

# Unicode's categories: control, format (bidi marks, tags, zero width), surrogate, private use
HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co"})
# Format characters that scripts need: the zero-width joiner and non-joiner, and the visible signs
# of Arabic, Syriac and Kaithi around a number (Unicode's property Prepended_Concatenation_Mark)
SCRIPT_CHARACTERS = frozenset(
    "\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"
    "\U000110bd\U000110cd"
)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
ZERO_WIDTH_SPACE_ENTITY = "&#8203;"  # an entity, because an editor would not show the character
MARKDOWN_ENTITIES = str.maketrans({char: f"&#{ord(char)};" for char in "&<>\\`*_[]|~$^=!#"})
DOT_IN_ADDRESS = re.compile(r"(?i)(?<=www)\.|(?<=\w)\.(?=[^\W\d_])")  # no match in 3.14
MOST_SAMPLE_CHARACTERS = 200

MAX_MERGES = 1_000  # each ``<<`` costs PyYAML a copy of its mapping
MAX_NUMBER_CHARACTERS = 100  # PyYAML's time for a number in base 60 is quadratic in its length
# Limits of a dataset card's metadata, as ``load_yaml`` takes them
CARD_LIMITS = {"max_bytes": 10 << 20, "max_depth": 50, "max_nodes": 1_000_000}
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MAPPING_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:set")
_TEXT_TAG = "tag:yaml.org,2002:str"
_CARD = "README.md"
_STANDALONE_METADATA = ".huggingface.yaml"

# Arguments of every ``from_pretrained``: without them transformers asks on the terminal, and the
# answer ``y`` runs Python files of the folder.
NO_CODE: dict[str, Any] = {"trust_remote_code": False}
# Arguments of every call that loads weights: a saved config could ask for pickles, and for kernels
# of any repository.
NO_PICKLES: dict[str, Any] = {**NO_CODE, "use_safetensors": True, "allow_all_kernels": False}
# Patterns of files that are not downloaded with a model: pickles, weights for other libraries.
SKIPPED_FILES = [
    "*.bin",
    "*.pt",
    "*.pth",
    "*.pkl",
    "*.h5",
    "*.ot",
    "*.msgpack",
    "*.onnx",
    "onnx/*",
    "openvino/*",
]
# Names the origin of a model folder's files; ``sts-dino lm`` and the built-in model have this file.
ORIGIN = "provenance.yaml"
ENCODER = "SentenceTransformer"  # the model_type of encoders; the default where a folder has none
MOST_MODULES = 100  # of a SentenceTransformer; most have two or three
_PICKLE_PATTERNS = ("pytorch_model*.bin", "adapter_model*.bin")  # transformers would load these
_ABSENT_FILE_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_HINT_INSTALL = "install what the quantization needs, or what the message names"

# A URL with user:password@, with token@, or with a query
_URL_WITH_SECRET = re.compile(r"[^:]+://([^/@]*:.*@|[^/@]+@|[^?]*\?)")


def strip_controls(text: str, kept: Collection[str] = ()) -> str:
    """Return ``text`` without escape sequences, control characters and invisible marks.

    Tabs and ``\\n`` stay, and so do the characters of ``kept``. ``\\r\\n`` becomes ``\\n``; other
    line breaks are removed.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _SEQUENCE.sub("", text.replace("\r\n", "\n"))
    characters = []
    for character in text:
        is_dropped = unicodedata.category(character) in _DROPPED_CATEGORIES
        if not is_dropped or character in "\n\t" or character in kept:
            characters.append(character)
    return "".join(characters)


def join_lines(text: str, longest: int = LONGEST) -> str:
    """Return ``text`` on one line of at most ``longest`` characters, without control characters.

    Line breaks and runs of blanks become one blank. A line that is too long is cut and ends in
    ``…``. Only the first 20 * ``longest`` characters of ``text`` are read.
    """
    # Controls and blanks vanish, so more characters are read than the line has.
    text = _LINE_BREAKS.sub(" ", text[: 20 * longest])
    line = " ".join(strip_controls(text).split())
    if len(line) > longest:
        line = f"{line[: longest - 1]}…"
    return line


def get_first_line(error: BaseException, longest: int = LONGEST) -> str:
    """Return the first line of an error's message; the name of its type for an empty message.

    The line has at most ``longest`` characters and no control characters.
    """
    lines = str(error).strip().splitlines() or [""]
    return join_lines(lines[0], longest) or type(error).__name__


class Markdown(str):
    """Markdown text; ``finalize`` does not escape a value of this type."""

    __slots__ = ()


def make_visible(text: str) -> str:
    """Return ``text`` with U+FFFD for each character of ``HIDDEN_CATEGORIES``.

    Such a character is invisible, or reorders the text around it. Tabs, ``\\n`` and
    ``SCRIPT_CHARACTERS`` stay.
    """
    return "".join(REPLACEMENT if _is_hidden(char) else char for char in text)


def _is_hidden(char: str) -> bool:
    if char in "\n\t" or char in SCRIPT_CHARACTERS:
        return False
    return unicodedata.category(char) in HIDDEN_CATEGORIES


def make_visible_line(text: str) -> str:
    """Return ``make_visible(text)`` on one line; blanks and line breaks become single blanks."""
    return make_visible(" ".join(text.split()))


def escape_inline(text: str) -> Markdown:
    """Return untrusted text as Markdown that renders as ``make_visible_line(text)``, no markup.

    The result fits a paragraph, a list item and a table cell, also at the start of a line.
    """
    escaped = make_visible_line(text).translate(MARKDOWN_ENTITIES)
    # A leading + or - would begin a list, a rule or the underline of a heading.
    escaped = re.sub(r"^[+-]", lambda mark: f"&#{ord(mark[0])};", escaped)
    # A leading number with a dot or a bracket would begin a numbered list.
    return Markdown(re.sub(r"^(\d+)([.)])", lambda mark: f"{mark[1]}&#{ord(mark[2])};", escaped))


def escape_prose(text: str) -> Markdown:
    """Return untrusted paragraphs as Markdown, escaped line by line (``escape_inline``).

    The only markup that stays is ``code`` between two backticks on one line. Blank lines at the
    start and the end are removed.
    """
    lines = []
    for line in text.splitlines():
        escaped = escape_inline(line)
        lines.append(re.sub("&#96;(.+?)&#96;", lambda m: format_code(unescape(m[1])), escaped))
    return Markdown("\n".join(lines).strip())


def escape_sample(text: str) -> Markdown:
    """Return a sample text as one line of escaped Markdown without links.

    The text is cut to ``MOST_SAMPLE_CHARACTERS``, with ``…`` as the last, before it is escaped.
    Renderers look for addresses such as ``name.tld`` after they resolve entities, so escapes alone
    do not prevent a link. Therefore a zero-width space follows each ``@`` and the first slash of
    ``//``, and precedes each dot of an address.
    """
    text = make_visible_line(text)
    if len(text) > MOST_SAMPLE_CHARACTERS:
        text = text[: MOST_SAMPLE_CHARACTERS - 1].rstrip() + "…"
    escaped = escape_inline(text).replace("@", f"@{ZERO_WIDTH_SPACE_ENTITY}")
    escaped = re.sub("/(?=/)", f"/{ZERO_WIDTH_SPACE_ENTITY}", escaped)
    return Markdown(DOT_IN_ADDRESS.sub(f"{ZERO_WIDTH_SPACE_ENTITY}.", escaped))


def format_code(text: str) -> Markdown:
    """Return untrusted text as an inline code span that is safe in a table cell."""
    text = make_visible_line(text)
    if text and not set(text) & set("`|\\"):
        return Markdown(f"`{text}`")
    return Markdown(f"<code>{escape_inline(text)}</code>")


def format_fenced(text: str, language: str = "text") -> Markdown:
    """Return untrusted text as a fenced code block with the info string ``language``.

    The fence is longer than every run of backticks in the text.
    """
    text = make_visible(text.replace("\r\n", "\n").replace("\r", "\n"))
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markdown(f"{fence}{language}\n{text}\n{fence}")


def finalize(value: Any) -> str:
    """Return a value as text for a Markdown template or table.

    ``Markdown`` stays unchanged. An int has commas between thousands, a float at most 6 significant
    digits. Any other value is escaped as one line of text. Raises TypeError for a truth value and
    None: a template has to choose a word for them.
    """
    if isinstance(value, Markdown):
        return value
    if isinstance(value, bool) or value is None:
        raise TypeError(f"a card cannot print {value!r}: decide in the template what it means")
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return escape_inline(str(value))


def make_template_environment(loader: "BaseLoader") -> "Environment":
    """Return a Jinja environment for Markdown pages with the templates of ``loader``.

    ``finalize`` escapes every printed text that is not ``Markdown``, formats numbers, and raises
    TypeError for None and truth values. The filter ``markdown`` marks a trusted text as
    ``Markdown``, and ``code`` is ``format_code``; the function ``table`` is ``format_table``. A
    template that prints an undefined variable, or has it as a condition, raises UndefinedError;
    ``is defined`` may ask for it.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        loader=loader,
        undefined=StrictUndefined,
        finalize=finalize,
        autoescape=False,  # noqa: S701 - the output is Markdown: HTML escaping would not do
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"table": format_table, "zip": zip}
    environment.filters |= {"code": format_code, "markdown": Markdown}
    return environment


def format_table(header: list[Any], rows: list[list[Any]]) -> Markdown:
    """Return a Markdown table; ``finalize`` formats each cell of the header and the rows.

    Each row has as many cells as the header. A column is aligned to the right when all its values
    are numbers. Raises TypeError for None and truth values.
    """
    rules = []
    for index in range(len(header)):
        is_numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        rules.append(Markdown("---:" if is_numeric else "---"))
    return Markdown("\n".join(_format_row(row) for row in [header, rules, *rows]))


def _format_row(cells: list[Any]) -> str:
    return "| " + " | ".join(finalize(cell) for cell in cells) + " |"


class UnsafeYaml(yaml.MarkedYAMLError):
    """Untrusted YAML breaks a limit of ``load_yaml``, or has a malformed value."""

    def __init__(self, problem: str, mark: Any = None):
        super().__init__(problem=problem, problem_mark=mark)


class Guard(SafeConstructor):
    """Mixin of a YAML loader: raises UnsafeYaml for values that PyYAML cannot build."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of ``node``; ``deep`` is PyYAML's own argument.

        Raises UnsafeYaml for a value that is not of its type, for a number of more than
        ``MAX_NUMBER_CHARACTERS``, and for half of a surrogate pair. Other errors of PyYAML, such as
        for an unknown tag, are yaml.YAMLError, too.
        """
        if node.tag in _NUMBER_TAGS and len(node.value) > MAX_NUMBER_CHARACTERS:
            raise UnsafeYaml(f"a number of {len(node.value)} characters", node.start_mark)
        # PyYAML reads the items of a mapping after this call.
        if node.tag in _MAPPING_TAGS and not isinstance(node, yaml.MappingNode):
            raise UnsafeYaml("not a mapping", node.start_mark)
        try:
            value = super().construct_object(node, deep)
        # PyYAML raises these over 2024-13-45, !!int x, !!int "" and !!bool x.
        except (ValueError, OverflowError, LookupError, AttributeError) as error:
            raise UnsafeYaml(
                f"not a value of its type ({node.tag.rpartition(':')[2]})", node.start_mark
            ) from error
        # JSON writes an emoji as two escapes, which PyYAML's own scanner leaves apart.
        if isinstance(value, str) and not value.isascii():
            try:
                value = value.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError as error:
                raise UnsafeYaml("half of a surrogate pair", node.start_mark) from error
        return value


class SafeTypes(Guard, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Loader for the types of YAML's core schema, with scalar keys as text, as in JSON.

    An attacker could choose numeric keys with colliding hashes, which make a dict slow.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of ``node``, its scalar keys as text."""
        self.flatten_mapping(node)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = _TEXT_TAG
        return super().construct_mapping(node, deep)


def load_yaml(
    text: str, *, max_bytes: int, max_depth: int, max_nodes: int, loader: Any = SafeTypes
) -> Any:
    """Return the one document in ``text`` as Python values of YAML's types; None without one.

    Args:
        text: the YAML.
        max_bytes: the most bytes of the text in UTF-8, and the most characters of all scalars
            after every alias is replaced by its content.
        max_depth: the most levels of nested collections, with aliases replaced.
        max_nodes: the most keys and values, with aliases and merges replaced.
        loader: the loader's class, which has the mixin ``Guard``.

    Raises:
        UnsafeYaml: the text breaks a limit (``MAX_MERGES`` is one, too), or has a malformed value,
            half a surrogate pair, or an escape that is no character.
        yaml.YAMLError: the text is not YAML, or has several documents. The base of UnsafeYaml.
    """
    size = len(text.encode("utf-8", "replace"))
    if size > max_bytes:
        raise UnsafeYaml(f"{size} bytes of YAML; at most {max_bytes} are read")
    try:
        _require_limits(yaml.parse(text, loader), max_nodes, max_bytes, max_depth)
        return yaml.load(text, loader)  # noqa: S506 - a SafeLoader
    except UnicodeEncodeError as error:
        raise UnsafeYaml("half a surrogate pair, which is not a character") from error
    except (ValueError, OverflowError) as error:
        raise UnsafeYaml("an escape, such as \\U00110000, that is no character") from error


class _Extent(NamedTuple):
    """The extent of a YAML node: levels of collections, nodes, and characters of its scalars.

    Keys and values are nodes. An alias counts as its content.
    """

    levels: int
    nodes: int
    characters: int


def _require_limits(
    events: Iterable[yaml.Event], max_nodes: int, max_characters: int, max_depth: int
) -> None:
    """Raise UnsafeYaml when a document breaks a limit after its aliases are replaced.

    The limits are those of ``load_yaml``, and ``MAX_MERGES``. Raise UnsafeYaml, too, for an alias
    without an earlier anchor, or inside its own anchor; yaml.YAMLError for a text that is not YAML.
    """
    # anchor → the extent of its content; the key None, of nodes without an anchor, is never read
    anchors: dict[str | None, _Extent] = {}
    # the anchor of each open collection, with ``levels``, ``nodes`` and ``characters`` at its start
    open_collections: list[tuple[str | None, _Extent]] = []
    nodes = 0
    characters = 0
    merges = 0
    levels = 0  # of the finished nodes in the innermost open collection
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise UnsafeYaml(
                    f"alias *{event.anchor} stands for nothing before it, or for what it is in",
                    event.start_mark,
                )
            content = anchors[event.anchor]
            nodes += content.nodes
            characters += content.characters
            levels = max(levels, content.levels)
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            characters += len(event.value)
            merges += event.value == "<<"
            anchors[event.anchor] = _Extent(0, 1, len(event.value))
        elif isinstance(event, yaml.CollectionStartEvent):
            # An alias to this collection inside itself must not find an earlier one of the name.
            anchors.pop(event.anchor, None)
            open_collections.append((event.anchor, _Extent(levels, nodes, characters)))
            nodes += 1
            levels = 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_collections.pop()
            content = _Extent(levels + 1, nodes - before.nodes, characters - before.characters)
            anchors[anchor] = content
            levels = max(before.levels, content.levels)

        limits = {
            "levels": (len(open_collections) + levels, max_depth),
            "keys and values": (nodes, max_nodes),
            "characters": (characters, max_characters),
            "merges": (merges, MAX_MERGES),
        }
        for kind, (count, most) in limits.items():
            if count > most:
                raise UnsafeYaml(
                    f"more than {most} {kind} (an alias counts as what it stands for)",
                    event.start_mark,
                )


def check_dataset_card(repo_id: str, revision: str) -> None:
    """Raise InputError when a Hub dataset's metadata breaks ``CARD_LIMITS`` or has a bad value.

    The metadata are the card's front matter and ``.huggingface.yaml``, which this function
    downloads. A file that the dataset lacks is skipped; offline, also a file that was not
    downloaded before. Metadata that are not YAML pass: ``datasets`` reports these. Other errors of
    the Hub's client pass unchanged. ``revision``: a commit, a branch or a tag.
    """
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    for name in (_CARD, _STANDALONE_METADATA):
        try:
            path = hf_hub_download(repo_id, name, repo_type="dataset", revision=revision)
        except LocalEntryNotFoundError:
            if constants.HF_HUB_OFFLINE:  # ``datasets`` reads no card, but rows it prepared before
                continue
            raise
        except EntryNotFoundError:
            continue
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        if name == _CARD:
            text = find_front_matter(text)
        try:
            load_yaml(text, **CARD_LIMITS)
        except UnsafeYaml as error:
            raise InputError(
                f"dataset {repo_id}: {name}",
                f"its metadata has {error.problem}",
                hint="it would stop the library that reads it: use another revision, "
                "or download its files and name them",
            ) from None
        except yaml.YAMLError:
            pass


def find_front_matter(card: str) -> str:
    """Return the YAML at the start of a card, without the lines ``---``; "" for a card without."""
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    block = REGEX_YAML_BLOCK.search(card)
    return block.group(2) if block else ""


def list_card_licences(metadata: Mapping[str, Any]) -> list[str]:
    """Return the licence ids that a card's metadata names, in lower case; [] where it names none.

    ``license`` holds one id or a list. ``license: other``, for a licence that the Hub does not
    know, stands for the id in ``license_name``.
    """
    for key in ("license", "license_name"):
        value = metadata.get(key)
        names = value if isinstance(value, list) else [value]
        licences = [name.strip().lower() for name in names if isinstance(name, str)]
        if licences != ["other"]:
            break
    return licences


@contextmanager
def convert_model_errors(
    model: object,
    problem: str = "cannot be loaded",
    *,
    allowed: object = None,
    hint: str | None = None,
    passes: Callable[[Exception], object] = lambda error: False,
) -> Iterator[None]:
    """Turn a library's exception over a model's files into InputError, with its first line.

    Libraries raise anything: tokenizers ``Exception`` itself, and a BaseException for a regular
    expression that takes too long; architectures AttributeError. These pass unchanged: the
    project's own errors, those of a failing disk or memory, and Ctrl-C.

    Args:
        model: the model, for the message.
        problem: the problem, for the message.
        allowed: the allowed values, for the message.
        hint: the remedy, for the message; an ImportError has a remedy of its own.
        passes: a function of the exception. When it returns a true value, the exception is not the
            model's fault and passes unchanged.
    """
    try:
        yield
    except (StsDinoError, MemoryError):
        raise
    except BaseException as error:
        if not _is_about_a_model(error) or (isinstance(error, Exception) and passes(error)):
            raise
        raise InputError(
            model,
            f"{problem}: {get_first_line(error)}",
            allowed=allowed,
            hint=_HINT_INSTALL if isinstance(error, ImportError) else hint,
        ) from error


def _is_about_a_model(error: BaseException) -> bool:
    """Return whether a model's files, or the lack of one, caused an error.

    Other causes are the user (Ctrl-C), a failing disk and the memory of a GPU.
    """
    name = type(error).__name__
    if not isinstance(error, Exception):
        return name == "PanicException"  # raised by tokenizers
    if name == "OutOfMemoryError":  # raised by torch, which this package does not import
        return False
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _ABSENT_FILE_ERRORS
    return True


def read_json_object(path: Path, model: object) -> dict[str, Any]:
    """Return the JSON object in a file of a model.

    ``model``: the model's name for the message. Raises InputError for other content, OSError for a
    file that cannot be opened.
    """
    return _read_json(path, model, dict, "a JSON object")


def _read_json(path: Path, model: object, kind: type, allowed: str) -> Any:
    # Raises InputError unless the file holds JSON of the type ``kind``; ``allowed`` names the type.
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(model, f"its {path.name} is not JSON: {get_first_line(error)}") from error
    if not isinstance(value, kind):
        raise InputError(model, f"its {path.name} is a {type(value).__name__}", allowed=allowed)
    return value


def require_no_cross_encoder(folder: Path, model: object) -> str:
    """Return the ``model_type`` of a model's folder. Raises InputError for a cross-encoder.

    ``model_type`` is ``ENCODER`` where the folder names none. ``model``: the model's name, for the
    error. Raises InputError for a damaged config, too.
    """
    kind: str = ENCODER
    encoder_config = folder / "config_sentence_transformers.json"
    if encoder_config.is_file():
        kind = read_json_object(encoder_config, model).get("model_type", ENCODER)

    # A classification head without modules is a cross-encoder, too.
    architectures = None
    config = folder / "config.json"
    if config.is_file():
        architectures = read_json_object(config, model).get("architectures")
    is_classifier = "ForSequenceClassification" in str(architectures)
    has_modules = (folder / "modules.json").is_file()
    if kind == "CrossEncoder" or (is_classifier and not has_modules):
        raise InputError(
            model,
            "is a cross-encoder: it scores pairs and gives no embeddings",
            allowed=f"a {ENCODER}",
        )
    return kind


def require_modules(folder: Path, model: object) -> None:
    """Raise InputError unless a folder holds a SentenceTransformer of at most ``MOST_MODULES``.

    sentence-transformers would silently build an encoder from another kind of model. ``model``: the
    model's name, for the error.
    """
    # Check the kind of model first: a cross-encoder gets its own message.
    path = folder / "modules.json"
    kind = require_no_cross_encoder(folder, model)
    if not path.is_file():
        raise InputError(
            model,
            f"is not a {ENCODER} model (no modules.json)",
            hint="name a folder that sts-dino train or sentence-transformers saved; "
            "a plain transformer is a base alone",
        )
    if kind != ENCODER:
        raise InputError(model, f"is a {kind}", allowed=f"a {ENCODER}")
    allowed = f"a list of at most {MOST_MODULES} modules"
    count = len(_read_json(path, model, list, allowed))
    if count > MOST_MODULES:
        raise InputError(model, f"its modules.json lists {count:,} modules", allowed=allowed)


def require_safetensors(
    folder: Path, model: object, loaded_by: str = "sentence-transformers"
) -> None:
    """Raise InputError when a model's folder has no weights in safetensors.

    Raise InputError, too, when a folder in it has a pickle of weights and no safetensors.

    Args:
        folder: the model's folder.
        model: the model's name for the message.
        loaded_by: the library that converts the model, for the hint.
    """
    # The libraries load a pickle when the same folder has no safetensors file.
    problem = None
    for pattern in _PICKLE_PATTERNS:
        for path in sorted(folder.rglob(pattern)):
            if problem is None and not list(path.parent.glob("*.safetensors")):
                name = path.relative_to(folder).as_posix()
                problem = f"its weights are a pickle ({name}), which can run code"
    if problem is None and not list(folder.rglob("*.safetensors")):
        problem = "has no weights in safetensors"
    if problem:
        raise InputError(
            model,
            problem,
            allowed="*.safetensors",
            hint=f"convert it: load it with {loaded_by} where you trust its author, "
            "and save_pretrained(FOLDER)",
        )


def require_all_weights(network: Any, folder: Path, model: object, **settings: Any) -> None:
    """Raise InputError when the files of a loaded model lack weights.

    transformers fills missing weights at random, and only warns. This function loads the model
    again on the meta device, which reads no weights, and looks at the names of missing weights.
    Weights of a pooler may be missing: an embedding does not use them. Quantized models are not
    checked. Exceptions of ``from_pretrained`` pass unchanged.

    Args:
        network: the loaded model.
        folder: the model's folder.
        model: the model's name for the message.
        settings: the arguments that ``from_pretrained`` loaded the model with.
    """
    if getattr(network, "is_quantized", False):
        return
    settings |= {"device_map": "meta", "output_loading_info": True}
    _, info = type(network).from_pretrained(folder, **settings, **NO_PICKLES)
    missing = sorted(name for name in info["missing_keys"] if "pooler" not in name)
    if missing:
        raise InputError(
            model,
            f"its weights lack {missing[0]} ({len(missing)} in all), which its config asks for",
        )


def require_ids(tokenizer: Any, rows: int, model: object, used: Iterable[int | None]) -> None:
    """Raise InputError for a token whose id is beyond the rows of an embedding.

    Args:
        tokenizer: the tokenizer.
        rows: the number of rows of the embedding.
        model: the model's name for the message.
        used: the ids of special tokens that occur in texts; None stands for an absent token. Other
            special tokens are not checked: Gemma's tokenizer has an id for images that is beyond
            the rows of the embedding.
    """
    added_tokens = tokenizer.added_tokens_decoder.items()
    special = {token for token, added in added_tokens if added.special}
    ids = set(tokenizer.get_vocab().values()) - special
    ids |= {token for token in used if token is not None}
    beyond = sorted(token for token in ids if token >= rows)
    if beyond:
        tokens = ", ".join(tokenizer.convert_ids_to_tokens(beyond[:3]))
        raise InputError(
            model,
            f"its tokenizer gives ids beyond the {rows} rows of its embedding: "
            f"{beyond[0]} ({tokens})",
            allowed=f"ids below {rows}",
            hint="resize the embedding (resize_token_embeddings) and save the model again, "
            "or remove the added tokens",
        )


def count_usable_positions(transformer: Any) -> int | None:
    """Return the number of tokens for which a transformer has learned position embeddings.

    None for a transformer without position embeddings. RoBERTa reserves the rows of the table up to
    the padding row, so these do not count.
    """
    # GPT-2 names its table ``wpe``.
    layers = getattr(transformer, "embeddings", transformer)
    table: Any = getattr(layers, "position_embeddings", None) or getattr(layers, "wpe", None)
    if not hasattr(table, "num_embeddings"):
        return None
    first = 0 if table.padding_idx is None else table.padding_idx + 1
    return int(table.num_embeddings) - first


_MORE_TOKENS = 8  # special tokens of a text, and a mark at its start, at most
_TEXTS_AT_ONCE = 1_000  # texts that are tokenised together


def warn_of_cut_texts(encoder: Any, texts: Sequence[str], name: str, unit: str) -> None:
    """Log a warning when texts are longer than an encoder reads: "38 of 40 documents are cut".

    An encoder without a limit, or without a tokenizer that can be called, is not checked.

    Args:
        encoder: a SentenceTransformer.
        texts: the texts.
        name: the encoder or data that the warning names.
        unit: the warning's word for the texts, e.g. documents.
    """
    limit = encoder.max_seq_length
    tokenizer = encoder.tokenizer
    if not limit or limit == float("inf") or not callable(tokenizer):
        return
    # A token has a byte or more, so shorter texts need not be tokenised.
    long_texts = [
        text for text in texts if len(text.encode(errors="replace")) + _MORE_TOKENS > limit
    ]
    cut = 0
    for start in range(0, len(long_texts), _TEXTS_AT_ONCE):
        batch = long_texts[start : start + _TEXTS_AT_ONCE]
        encoded = tokenizer(batch, truncation=False, verbose=False)["input_ids"]
        cut += sum(len(ids) > limit for ids in encoded)
    if cut:
        logger.warning(f"{name}: {cut:,} of {len(texts):,} {unit} are cut at {limit} tokens")


def read_upstream(folder: str | Path | None) -> dict[str, Any]:
    """Return ``{"upstream": {"model", "made_by", "packages"}}`` from a model folder's ``ORIGIN``.

    Return ``{}`` for None as folder, and when the file is absent or malformed. Where the file has
    them, these keys are added: "license", "sha256" of the published weights, "revision" of a Hub
    model, and "converted_from" of converted weights.
    """
    if folder is None:
        return {}
    path = Path(folder) / ORIGIN
    if not path.is_file():
        return {}
    try:
        origin = load_yaml(
            path.read_text(encoding="utf-8"), max_bytes=1 << 16, max_depth=5, max_nodes=1_000
        )
        upstream: dict[str, Any] = {key: str(origin[key]) for key in ("model", "made_by")}
        for key in ("license", "sha256", "revision", "converted_from"):
            if origin.get(key):
                upstream[key] = str(origin[key])
        packages = origin["packages"].items()
        upstream["packages"] = {str(name): str(version) for name, version in packages}
    # The file may come from another program, and have any content.
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        return {}
    return {"upstream": upstream}


def require_no_secret(url: str) -> None:
    """Raise InputError for a store's URL that holds a user, a password or a query."""
    if _URL_WITH_SECRET.search(url):  # search: fsspec joins URLs, as simplecache::s3://...
        raise InputError(
            f"store {url.partition(':')[0]}://…",
            "the URL must not hold users, passwords or keys",
            hint="give them the way its package reads them: environment variables, "
            "a file in the home folder, a login",
        )

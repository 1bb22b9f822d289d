"""Loader of untrusted YAML with limits on size, depth and the expansion of aliases and merges.

The events of the text are counted before anything is built from them, because PyYAML builds by recursion: in C, 30,000
nested ``[`` are a segmentation fault, and nine lines of aliases or merges stand for billions of values.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

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


class _Extent(NamedTuple):
    """What a node stands for with its aliases unfolded: values, characters of text, levels of collections."""

    nodes: int = 0
    characters: int = 0
    levels: int = 0


def load(text: str, *, max_bytes: int, max_depth: int, max_nodes: int, loader: Any = SafeTypes) -> Any:
    """The one document in ``text``, as plain Python values.

    ``max_bytes`` bounds the text in UTF-8 and the characters its aliases unfold to, ``max_depth`` the levels of
    collections, ``max_nodes`` the keys and values, both with aliases and merges unfolded. A ``loader`` of one's own
    mixes in ``Guard``. Raises UnsafeYaml for what breaks a limit, another yaml.YAMLError for what is not YAML.
    """
    size = len(text.encode("utf-8", "replace"))
    if size > max_bytes:
        raise UnsafeYaml(f"{size} bytes of YAML; at most {max_bytes} are read")
    try:
        _Count(_Extent(max_nodes, max_bytes, max_depth)).read(yaml.parse(text, loader))
        return yaml.load(text, loader)  # noqa: S506 - a SafeLoader
    except UnicodeEncodeError as error:
        raise UnsafeYaml("half a surrogate pair, which is no character") from error


class _Count:
    """The running extent of a document whose events are read one by one, and of everything in it with an anchor."""

    def __init__(self, most: _Extent):
        self._most = most
        self._nodes, self._characters, self._merges = 0, 0, 0
        self._named: dict[str | None, _Extent] = {}
        self._open: list[tuple[str | None, int, int]] = []  # anchor, and the counts before it
        self._below = [0]  # levels inside the document, and inside each open collection, so far

    def read(self, events: Iterator[yaml.Event]) -> None:
        """Raises UnsafeYaml at the first event at which the document, aliases unfolded, exceeds a limit."""
        for event in events:
            if isinstance(event, yaml.CollectionEndEvent):
                self._close()
            elif isinstance(event, yaml.NodeEvent):
                self._add(event, self._extent(event))
                self._check(event)

    def _extent(self, event: yaml.NodeEvent) -> _Extent:
        """What this event adds. An alias to nothing, or to what it is in, is refused."""
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._named:
                problem = f"alias *{event.anchor} stands for nothing before it, or for what it is in"
                raise UnsafeYaml(problem, event.start_mark)
            return self._named[event.anchor]
        if isinstance(event, yaml.ScalarEvent):
            self._merges += event.value == "<<"
            return _Extent(1, len(event.value))
        return _Extent(1)

    def _add(self, event: yaml.NodeEvent, extent: _Extent) -> None:
        self._below[-1] = max(self._below[-1], extent.levels)
        if isinstance(event, yaml.CollectionStartEvent):
            self._named.pop(event.anchor, None)
            self._open.append((event.anchor, self._nodes, self._characters))
            self._below.append(0)
        elif event.anchor:
            self._named[event.anchor] = extent
        self._nodes += extent.nodes
        self._characters += extent.characters

    def _close(self) -> None:
        anchor, nodes, characters = self._open.pop()
        levels = self._below.pop() + 1
        self._below[-1] = max(self._below[-1], levels)
        if anchor:
            self._named[anchor] = _Extent(self._nodes - nodes, self._characters - characters, levels)

    def _check(self, event: yaml.NodeEvent) -> None:
        levels = len(self._open) + self._below[-1]
        for what, found, most in (
            ("levels", levels, self._most.levels),
            ("keys and values", self._nodes, self._most.nodes),
            ("characters", self._characters, self._most.characters),
            ("merges", self._merges, MAX_MERGES),
        ):
            if found > most:
                problem = f"more than {most} {what} (an alias counts as what it stands for)"
                raise UnsafeYaml(problem, event.start_mark)

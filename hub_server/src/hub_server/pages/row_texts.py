"""The rows of a page as texts: values rounded, labels by name, second texts below their first, nothing without end."""

import json
from typing import Any

from hub_server.pages.rows import Group, Second, Window, visible

CELL, FOLDED, PAGE = 10_000, 300, 300_000  # characters: of a cell, of one on a page that is full, of all cells


def sort_key(value: object) -> tuple[float, str]:
    """Numbers from high to low, then texts."""
    return (-float(value), "") if isinstance(value, int | float) and value == value else (0.0, str(value))


def grouped(
    rows: list[dict[str, Any]], pair: tuple[str, str], label: str, named: dict[str, list[str]], *, has_before: bool
) -> list[Group]:
    """One group for each first text, its second texts by label."""
    first, second = pair
    before = rows.pop(0).get(first) if has_before and rows else None
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row.get(first), []).append(row)
    found = []
    for text, members in groups.items():
        members.sort(key=lambda row: sort_key(row.get(label)))
        seconds = [
            Second(
                label=cell(label_name(row.get(label), named.get(label, []))),
                text=cell(row.get(second)),
                note="sampled" if row.get("target") == "sampled" else "",
            )
            for row in members
        ]
        found.append(Group(first=cell(text), seconds=seconds, continued=has_before and text == before))
    return found


def label_names(metadata: dict[bytes, bytes] | None, column: str) -> list[str]:
    """The names of a label column, as the datasets library keeps them in the file; none when it has none."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
        return [str(name) for name in names]
    except (KeyError, TypeError, ValueError):
        return []


def label_name(value: object, names: list[str]) -> object:
    """A label's name, or the value when it has none."""
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value


def named_value(value: object, names: list[str]) -> object:
    """A label's number with its name."""
    name = label_name(value, names)
    return value if name is value else f"{value} ({name})"


def cell(value: object) -> str:
    """A value as text: floats in six digits, hidden characters shown, at most ``CELL`` characters."""
    text = "" if value is None else str(rounded(value))
    return visible(text if len(text) <= CELL else f"{text[:CELL]}… (cut: {len(text):,} characters)")


def rounded(value: object) -> object:
    """Floats in six digits, inside lists and mappings, too."""
    if isinstance(value, float):
        return Number(f"{value:.6g}")
    if isinstance(value, list):
        return [rounded(item) for item in value[:CELL]]
    return {key: rounded(item) for key, item in value.items()} if isinstance(value, dict) else value


class Number(str):
    """A number's digits, which a list shows without quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__


def shortened(answer: Window) -> Window:
    """The answer with shorter cells when all of them together would make too large a page."""
    left = PAGE

    def fit(text: str) -> str:
        nonlocal left
        short = text if len(text) <= max(FOLDED, left) else f"{text[:FOLDED]}… (cut: the page is full)"
        left -= len(short)
        return short

    answer.table = [[fit(text) for text in row] for row in answer.table]
    for group in answer.groups:
        group.first = fit(group.first)
        for second in group.seconds:
            second.text = fit(second.text)
    return answer

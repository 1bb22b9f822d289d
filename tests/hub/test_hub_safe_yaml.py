"""YAML of strangers: every form of it that is too deep, too large or unfolds to too much is refused, with its line."""

import pytest
import yaml

from hub.untrusted import UnsafeYaml, load_yaml

LIMITS = {"max_bytes": 1 << 20, "max_depth": 50, "max_nodes": 50_000}
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(12))
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i + 1}: &a{i + 1} {{<<: [{', '.join([f'*a{i}'] * 9)}], y{i}: 1}}\n" for i in range(12)
)
LADDER = "a0: &a0 [x]\n" + "".join(f"a{i + 1}: &a{i + 1} {'[' * 40}*a{i}{']' * 40}\n" for i in range(100))
BOMBS = {
    "flow lists": ("[" * 30_000, "levels"),
    "flow mappings": ("{a: " * 30_000, "levels"),
    "block lists": ("- " * 30_000, "levels"),
    "complex keys": ("? " * 30_000, "levels"),
    "indented mappings": ("".join(" " * i + "a:\n" for i in range(200)), "levels"),
    "aliases that deepen": (LADDER, "levels"),
    "aliases": (LAUGHS, "keys and values"),
    "merges": (MERGES, "keys and values"),
    "empty merges": ("a: {" + "<<: {}, " * 2_000 + "}", "merges"),
    "long text, named often": (f"a: &a {'x' * 9_999}\nb: [{'*a, ' * 200}]", "characters"),
    "itself": ("a: &a [*a]", "stands for nothing before it"),
    "itself, by a name used before": ("a: &a 1\nb: &a [*a]", "stands for nothing before it"),
    "its own merge": ("a: &a {<<: *a}", "stands for nothing before it"),
    "nothing": ("a: *b", "stands for nothing before it"),
    "number": ("a: " + "1" * 5_000, "number"),
    "number in base 60": ("a: 1" + ":1" * 5_000, "number"),
    "no such day": ("a: 2024-13-45", "not a value of its type"),
    "no number": ("a: !!int x", "not a value of its type"),
    "no truth value": ("a: !!bool x", "not a value of its type"),
    "no time": ("a: !!timestamp x", "not a value of its type"),
    "size": ("a: " + "x" * (1 << 20), "bytes"),
    "half a character": ("a: \ud800", "surrogate"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_with_its_cause(name: str) -> None:
    text, cause = BOMBS[name]
    with pytest.raises(UnsafeYaml, match=cause):
        load_yaml(text, **LIMITS)


def test_the_line_is_named() -> None:
    with pytest.raises(UnsafeYaml) as caught:
        load_yaml("a: 1\nb: " + "[" * 60, **LIMITS)
    assert caught.value.problem_mark.line == 1


def test_ordinary_yaml_is_what_a_safe_loader_reads() -> None:
    text = """
license: apache-2.0
size: 1_000
when: 2024-01-31
score: 2.5e+3
none: ~
tags: &tags [a, b]
base: &base {x: 1, y: no}
more: {<<: *base, y: yes, tags: *tags}
text: |
  two
  lines
"""
    assert load_yaml(text, **LIMITS) == yaml.safe_load(text)
    assert load_yaml("", **LIMITS) is None


def test_keys_are_text() -> None:
    assert load_yaml("{1: a, 1.10: b, no: c, ~: d}", **LIMITS) == {"1": "a", "1.10": "b", "no": "c", "~": "d"}


def test_a_merge_keeps_its_meaning() -> None:
    assert load_yaml("a: &a {1: x, 2: y}\nb: {<<: [*a], 2: z}", **LIMITS)["b"] == {"1": "x", "2": "z"}


def test_limits_hold_for_what_is_within_them() -> None:
    """Exactly at a limit is read; one more is not."""
    at = {"max_bytes": 8, "max_depth": 2, "max_nodes": 4}
    assert load_yaml("[[a, b]]", **at) == [["a", "b"]]
    for less in ("max_bytes", "max_depth", "max_nodes"):
        with pytest.raises(UnsafeYaml):
            load_yaml("[[a, b]]", **{**at, less: at[less] - 1})


def test_broken_yaml_stays_a_yaml_error() -> None:
    with pytest.raises(yaml.YAMLError):
        load_yaml("a: [", **LIMITS)

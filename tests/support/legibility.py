"""Measure how dense the product's Python is: python tests/support/legibility.py [--write]

Prints every figure beside its bound in tests/repository/weight.yaml. ``--write`` lowers the bounds
of figures that improved. A figure tells where to look, never whether code is good.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

BOUNDS = Path(__file__).parents[1] / "repository" / "weight.yaml"
WORDS = yaml.safe_load(Path(__file__).with_name("legibility.yaml").read_text(encoding="utf-8"))
VAGUE_NAMES = frozenset(WORDS["vague_names"].split())
VERBS = frozenset(WORDS["verbs"].split())
LONGEST_LINE = 100
COMPLEX = 15
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTION)
COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BRANCH = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert)
TOKENS_OF_CODE = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
PER_THOUSAND = {
    "tuple assignments per 1,000 lines": "tuple assignments",
    "comprehensions per 1,000 lines": "comprehensions",
    "nested comprehensions per 1,000 lines": "nested comprehensions",
    "conditional expressions per 1,000 lines": "conditional expressions",
}
AT_LEAST = ("verb-first function names, %", "whole-line comments, %")  # higher is better


@dataclass
class Counts:
    """What a set of modules holds, by kind, and the places of what a bound is on."""

    number: Counter[str] = field(default_factory=Counter)
    complex_functions: list[str] = field(default_factory=list)
    long_lines: list[str] = field(default_factory=list)


def list_tracked_files() -> tuple[Path, ...]:
    """Every file of the project that git knows, or would add; no symbolic links."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    paths = [Path(name) for name in output.splitlines()]
    return tuple(path for path in paths if path.is_file())


def list_product_modules() -> list[Path]:
    """The Python modules outside tests."""
    paths = list_tracked_files()
    return [path for path in paths if path.suffix == ".py" and "tests" not in path.parts]


def measure_complexity(function: ast.AST) -> int:
    """The cyclomatic complexity of a function, nested functions included."""
    complexity = 1
    for node in ast.walk(function):
        if isinstance(node, (*BRANCH, ast.match_case)):
            complexity += 1
        elif isinstance(node, ast.BoolOp):
            complexity += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            complexity += 1 + len(node.ifs)
    return complexity


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is read like an attribute, so that its name is a noun."""
    names = [node.id for node in function.decorator_list if isinstance(node, ast.Name)]
    return "property" in names or "cached_property" in names


def is_tuple_assignment(node: ast.AST) -> bool:
    """Whether a statement assigns several values to several names: ``a, b = x, y``."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return any(isinstance(target, ast.Tuple) for target in node.targets)


def is_nested(comprehension: ast.AST) -> bool:
    """Whether a comprehension has two loops, or another comprehension inside."""
    inner = [node for node in ast.walk(comprehension) if isinstance(node, COMPREHENSION)]
    return len(inner) > 1 or len(comprehension.generators) > 1  # type: ignore[attr-defined]


def list_bound_names(tree: ast.AST) -> Iterator[str]:
    """The names that a module binds: assignments, loop variables and parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def find_docstring_lines(tree: ast.AST) -> set[int]:
    """The numbers of the lines that docstrings stand on."""
    numbers: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            numbers.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return numbers


def count_functions(path: Path, tree: ast.AST, counts: Counts) -> None:
    """Count the functions of a module, their verbs, docstrings and complexity."""
    for node in ast.walk(tree):
        if not isinstance(node, FUNCTION):
            continue
        complexity = measure_complexity(node)
        if complexity > COMPLEX:
            counts.complex_functions.append(f"{path}:{node.lineno} {node.name} {complexity}")
        if not node.name.startswith("__") and not is_property(node):
            counts.number["actions"] += 1
            first_word = node.name.strip("_").split("_")[0]
            counts.number["verbs"] += first_word in VERBS
        if not node.name.startswith("_"):
            counts.number["public functions"] += 1
            counts.number["undocumented"] += ast.get_docstring(node) is None


def count_expressions(tree: ast.AST, counts: Counts) -> None:
    """Count statements, and the expressions that make a line dense."""
    for node in ast.walk(tree):
        counts.number["statements"] += isinstance(node, ast.stmt)
        counts.number["conditional expressions"] += isinstance(node, ast.IfExp)
        counts.number["tuple assignments"] += is_tuple_assignment(node)
        if isinstance(node, COMPREHENSION):
            counts.number["comprehensions"] += 1
            counts.number["nested comprehensions"] += is_nested(node)
    for name in list_bound_names(tree):
        counts.number["bindings"] += 1
        counts.number["vague names"] += name in VAGUE_NAMES


def count_lines(path: Path, source: str, docstring_lines: set[int], counts: Counts) -> None:
    """Count the lines of a module by kind, and the tokens of its code."""
    lines = source.splitlines()
    comment_lines: set[int] = set()
    tokens: Counter[int] = Counter()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        number = token.start[0]
        if token.type == tokenize.COMMENT and lines[number - 1].lstrip().startswith("#"):
            comment_lines.add(number)
        elif token.type in TOKENS_OF_CODE:
            tokens[number] += 1

    counts.number["lines"] += len(lines)
    counts.number["comments"] += len(comment_lines)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        counts.number["lines with text"] += 1
        if len(line) > LONGEST_LINE:
            counts.long_lines.append(f"{path}:{number}")
        if number not in docstring_lines and number not in comment_lines:
            counts.number["lines of code"] += 1
            counts.number["tokens"] += tokens[number]


def count_modules(paths: Iterable[Path]) -> Counts:
    """Count everything that a figure needs in some modules."""
    counts = Counts()
    for path in paths:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        count_functions(path, tree, counts)
        count_expressions(tree, counts)
        count_lines(path, source, find_docstring_lines(tree), counts)
        counts.number["modules"] += 1
    return counts


def compute_figures(counts: Counts) -> dict[str, float]:
    """The figures that weight.yaml bounds, each rounded to two decimals."""
    number = counts.number
    code_lines = max(1, number["lines of code"])
    figures = {
        "tokens per code line": number["tokens"] / code_lines,
        "lines over 100 characters": len(counts.long_lines),
        "functions above complexity 15": len(counts.complex_functions),
        "verb-first function names, %": 100 * number["verbs"] / max(1, number["actions"]),
        "vague names, %": 100 * number["vague names"] / max(1, number["bindings"]),
        "whole-line comments, %": 100 * number["comments"] / max(1, number["lines"]),
        "public functions without a docstring, %": 100
        * number["undocumented"]
        / max(1, number["public functions"]),
        "modules": number["modules"],
        "statements": number["statements"],
    }
    for title, kind in PER_THOUSAND.items():
        figures[title] = 1000 * number[kind] / code_lines
    return {title: round(figure, 2) for title, figure in figures.items()}


def count_statements_by_package() -> dict[str, int]:
    """The statements of each top-level folder."""
    statements: Counter[str] = Counter()
    for path in list_product_modules():
        folder = path.parts[0] if len(path.parts) > 1 else "."
        tree = ast.parse(path.read_text(encoding="utf-8"))
        statements[folder] += sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
    return dict(statements)


def improve_bounds(bounds: dict[str, float], figures: dict[str, float]) -> dict[str, float]:
    """The bounds, each replaced by its figure where the figure is better."""
    improved = {}
    for title, bound in bounds.items():
        better = max if title in AT_LEAST else min
        improved[title] = better(bound, figures[title])
    return improved


def main() -> None:
    """Print the figures beside their bounds; ``--write`` tightens the bounds."""
    text = BOUNDS.read_text(encoding="utf-8")
    bounds = yaml.safe_load(text)
    figures = compute_figures(count_modules(list_product_modules()))
    statements: dict[str, float] = dict(count_statements_by_package())
    for title, bound in (bounds["figures"] | bounds["statements"]).items():
        print(f"{title:45}{(figures | statements)[title]:10}{bound:10}")
    if "--write" in sys.argv[1:]:
        head = text[: text.index("figures:")]
        bounds["figures"] = improve_bounds(bounds["figures"], figures)
        bounds["statements"] = improve_bounds(bounds["statements"], statements)
        BOUNDS.write_text(head + yaml.safe_dump(bounds, sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    main()

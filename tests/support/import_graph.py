"""Who imports whom, as modules and as folders: python tests/support/import_graph.py [--write]

Prints the diagrams of docs/architecture.md, or writes them there; ``test_layout.py`` uses the same
functions. The modules of a folder itself (``hub/errors.py``) are the folder ``hub``.
"""

import ast
import sys
from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

STAGES = ("generation", "training", "eval", "model_cards", "release")
PACKAGES = ("hub", *STAGES, "sts_dino", "experiments")
FOLDERS = {*PACKAGES} - {"sts_dino"}  # imported as sts_dino.FOLDER
PAGE = Path("docs/architecture.md")
Graph = dict[str, set[str]]
"""Name → the names it imports, itself left out."""


def imported(tree: ast.AST) -> set[str]:
    """Every name that a module imports, at the top or inside a function: modules, and names of
    modules. ``sts_dino.hub.errors`` counts as the file's path, ``hub.errors``.
    """
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {as_path(name) for name in names}


def as_path(name: str) -> str:
    """``sts_dino.hub.errors`` → ``hub.errors``, for the file lies in the folder ``hub``."""
    _, _, rest = name.partition("sts_dino.")
    return rest if rest.split(".")[0] in FOLDERS else name


def module_graph(root: Path = Path()) -> Graph:
    """The imports among modules of ours. A package that is imported only for what is in it does not
    count.
    """
    files = {
        module_name(path.relative_to(root)): path
        for name in PACKAGES
        for path in sorted((root / name).rglob("*.py"))
    }
    graph: Graph = {}
    for name, path in files.items():
        found = imported(ast.parse(path.read_text(encoding="utf-8"))) & files.keys()
        graph[name] = {
            other for other in found if other != name and files[other].name != "__init__.py"
        }
    return graph


def module_name(path: Path) -> str:
    """``hub/errors.py`` → ``hub.errors``, ``hub/__init__.py`` → ``hub``."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def grouped(graph: Mapping[str, Iterable[str]], group: Callable[[str], str]) -> Graph:
    """The graph of groups: one imports another when any of its modules does."""
    found: Graph = {}
    for name, others in graph.items():
        found.setdefault(group(name), set()).update(
            {group(other) for other in others} - {group(name)}
        )
    return found


def folder(module: str) -> str:
    """The folder that a module lies in, with dots: ``generation.rows`` for
    ``generation.rows.pairs``.
    """
    return module.rpartition(".")[0] or module


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Some circle of imports, first name again at its end; empty when there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def reduced(graph: Graph) -> Graph:
    """The graph without arrows that a longer way implies (transitive reduction). It must have no
    circle.
    """
    reach: Graph = {}
    for name in TopologicalSorter(graph).static_order():
        reach[name] = set().union(*({other} | reach[other] for other in graph.get(name, ())))
    return {
        name: {
            other for other in others if not any(other in reach[way] for way in others - {other})
        }
        for name, others in graph.items()
    }


def mermaid(graph: Graph, short: Callable[[str], str] = str) -> str:
    """A graph as a Mermaid flowchart: an arrow from what is imported to what imports it, so that it
    reads as a flow.
    """
    lines = ["```mermaid", "flowchart LR"]
    names = sorted(graph)
    lines += [f"    {name.replace('.', '_')}[{short(name)}]" for name in names]
    arrows = sorted((other, name) for name in names for other in reduced(graph)[name])
    lines += [f"    {a.replace('.', '_')} --> {b.replace('.', '_')}" for a, b in arrows]
    return "\n".join([*lines, "```"])


def inside(graph: Graph, package: str) -> Graph:
    """The folders of a package, without the package's own modules (its commands) and what lies
    elsewhere.
    """

    def room(module: str) -> str:
        return ".".join(module.split(".")[:2])

    rooms = {name for name in map(folder, graph) if name.startswith(f"{package}.")}
    kept = {
        name: {o for o in others if folder(o) in rooms}
        for name, others in graph.items()
        if folder(name) in rooms
    }
    return grouped(kept, room)


def diagrams(graph: Graph) -> dict[str, str]:
    """Title → diagram: the packages, and the folders of the two largest."""
    packages = grouped(graph, lambda name: name.partition(".")[0])
    drawn = {
        "packages": mermaid({name: packages[name] for name in packages.keys() - {"experiments"}})
    }
    for package in ("generation", "eval"):
        drawn[package] = mermaid(inside(graph, package), lambda name: name.partition(".")[2])
    return drawn


def with_diagrams(page: str, drawn: Mapping[str, str]) -> str:
    """The page with the diagram after each ``<!-- imports: TITLE -->`` replaced."""
    for title, diagram in drawn.items():
        head, mark, rest = page.partition(f"<!-- imports: {title} -->\n")
        assert mark, f"{PAGE} has no place for {title}"
        page = head + mark + diagram + rest[rest.index("\n```\n") + 4 :]
    return page


if __name__ == "__main__":
    found = diagrams(module_graph())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(with_diagrams(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    else:
        print("\n\n".join(found.values()))

"""The project's weight: statements, modules and figures of legibility, each with a bound."""

from pathlib import Path

import legibility
import pytest
import yaml

BOUNDS = yaml.safe_load(Path(__file__).with_name("weight.yaml").read_text(encoding="utf-8"))
COUNTS = legibility.count_modules(legibility.list_product_modules())
FIGURES = legibility.compute_figures(COUNTS)
LONGEST_README = 110
LONGEST_PAGE = {"docs/decisions.md": 300, "docs/recipe_reference.md": 500}


@pytest.mark.parametrize("title", BOUNDS["figures"])
def test_a_figure_of_legibility_stays_within_its_bound(title):
    figure, bound = FIGURES[title], BOUNDS["figures"][title]
    if title in legibility.AT_LEAST:
        assert figure >= bound
    else:
        assert figure <= bound, COUNTS.complex_functions + COUNTS.long_lines


def test_each_package_stays_within_its_statements():
    statements = legibility.count_statements_by_package()
    assert statements.keys() == BOUNDS["statements"].keys()
    too_many = {
        package: count
        for package, count in statements.items()
        if count > BOUNDS["statements"][package]
    }
    assert not too_many, "remove some, or argue for a higher bound in the commit"


def test_every_figure_has_a_bound():
    assert FIGURES.keys() == BOUNDS["figures"].keys()


def test_the_figures_count_what_they_name(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        '"""A module."""\n'
        "# a comment\n"
        "one, path = 1, 2\n"
        "pairs = [a + b for a in range(2) for b in range(3)]\n"
        "def shard(x):\n"
        "    return 1 if x else 2\n"
        "def read_shard(x):\n"
        '    """Read."""\n'
        f"    return {'x and ' * COMPLEX_ENOUGH}x  # {'long ' * 20}\n"
    )
    counts = legibility.count_modules([module])
    figures = legibility.compute_figures(counts)
    assert figures["statements"] == 8 and figures["modules"] == 1
    assert figures["functions above complexity 15"] == 1 and counts.complex_functions[0].endswith(
        "16"
    )
    assert figures["lines over 100 characters"] == 1
    assert figures["verb-first function names, %"] == 50
    assert figures["public functions without a docstring, %"] == 50
    assert figures["vague names, %"] == round(100 / 7, 2)  # one of one, path, pairs, a, b, x, x
    assert counts.number["tuple assignments"] == counts.number["nested comprehensions"] == 1
    assert counts.number["conditional expressions"] == counts.number["comments"] == 1


COMPLEX_ENOUGH = 15


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_pages_stay_short():
    assert count_lines(Path("README.md")) <= LONGEST_README
    pages = [path for path in legibility.list_tracked_files() if path.match("docs/*.md")]
    for page in pages:
        assert count_lines(page) <= LONGEST_PAGE.get(str(page), 260), page

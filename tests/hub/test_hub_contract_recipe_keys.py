"""Which keys of a recipe decide rows or weights: every key is walked, and one that nobody marked
decides.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from sts_dino.hub.contract import recipe, run_dir
from sts_dino.hub.contract.recipe import Grades, Strict, Vocabulary
from sts_dino.hub.contract.recipe_file import compute_fingerprint, format_recipe, load_recipe
from sts_dino.hub.contract.run_dir import Manifest, begin, read_manifest
from sts_dino.hub.errors import InputError

X2 = Path("recipes/demo/sts-dino-x2.yaml")
LORA = Path("recipes/models/prompteol-auto-nli-20shot.yaml")


def whole_dataset() -> recipe.DatasetRecipe:
    """A dataset recipe with every section."""
    found = load_recipe(Path("recipes/datasets/auto-nli.yaml"), recipe.DatasetRecipe)
    contrast = recipe.Contrast(instruction="<X1>", keys={"entailment": "follows"})
    server = recipe.Server(base_url="http://localhost:8000/v1", model="m").model_copy(
        update={"contrast": contrast}
    )
    model = found.model.model_copy(update={"server": server})
    sections = {"verification": recipe.Verification(), "selection": recipe.Selection()}
    return found.model_copy(update={"model": model, **sections})


def whole_model() -> recipe.ModelRecipe:
    """A model recipe with every section; what does not fit together is put in unchecked."""
    found = load_recipe(LORA, recipe.ModelRecipe)
    validation = recipe.ValidationData(repo_id="org/pairs", revision="v1.0.0")
    teacher = recipe.Teacher(path="teacher", license="mit")
    sections = {
        **{"spans": recipe.Spans(), "grades": Grades(), "guide": found.base},
        "teacher": teacher,
    }
    dataset = found.datasets[0].model_copy(update=sections)
    more = {
        "slanted_triangular": recipe.SlantedTriangular(),
        "validation": (validation,),
        "datasets": (dataset,),
    }
    base = found.base.model_copy(update={"vocabulary": Vocabulary(path="sentences.txt")})
    return found.model_copy(update={**more, "base": base})


WHOLE = (whole_dataset(), whole_model())
SERVER = "base_url concurrency timeout max_retries price_per_million budget"
CARD = "version pretty_name about language license"
DATASET_CARD = "source.description source.license model.license labels.meaning"
BESIDE = {
    "DatasetRecipe": {
        *CARD.split(),
        *DATASET_CARD.split(),
        *("few_shot.examples.description", "few_shot.examples.license"),
        *(f"model.server.{name}" for name in SERVER.split()),
    },
    "ModelRecipe": {
        *CARD.split(),
        *("base.license", "datasets.license", "datasets.guide.license"),
        "datasets.teacher.license",
        *("evaluation", "bootstrap_samples", "control"),
    },
}


def parts(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


def keys(section: Strict, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all keys and of lists of sections, before what is in them; of several alike, the
    first one's.
    """
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        first = next(iter(parts(value)), None)
        if isinstance(value, tuple) or not sections(field.annotation):
            yield (*path, name)
        if isinstance(first, Strict):
            yield from keys(first, (*path, name))


def changed(value: Any, path: tuple[str, ...]) -> Any:
    """``value`` with another value at a path, unchecked; without the sections of a list."""
    if not path:
        return () if isinstance(next(iter(parts(value)), None), Strict) else f"not {value}"
    first, *others = parts(value)
    inner = first.model_copy(update={path[0]: changed(getattr(first, path[0]), path[1:])})
    return (inner, *others) if isinstance(value, tuple) else inner


def sections(model: Any) -> set[type[Strict]]:
    """Every section that a recipe may hold, by its annotations."""
    if isinstance(model, type) and issubclass(model, Strict):
        return {model}.union(*(sections(field.annotation) for field in model.model_fields.values()))
    return set().union(*(sections(argument) for argument in get_args(model)))


# the other values are of another type
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("whole", WHOLE, ids=lambda one: type(one).__name__)
def test_every_key_decides_unless_it_is_marked(whole):
    named, before = BESIDE[type(whole).__name__], compute_fingerprint(whole, {})
    walked, held = list[str](), {type(whole)}
    for path in keys(whole):
        value: Any = whole
        for name in path:
            value = getattr(parts(value)[0], name)
            held |= {type(part) for part in parts(value) if isinstance(part, Strict)}
        walked.append(".".join(path))
    assert held == sections(type(whole)), "the walk comes to every section"
    free = {
        name
        for name in walked
        if compute_fingerprint(changed(whole, tuple(name.split("."))), {}) == before
    }
    assert {
        name for name in free if not any(name.startswith(f"{above}.") for above in named)
    } == named


def started(directory: Path, *settings: str) -> Manifest:
    made = load_recipe(X2, recipe.DatasetRecipe, list(settings))
    now = Manifest(
        kind="dataset",
        name=made.name,
        version=made.version,
        fingerprint=compute_fingerprint(made, {}),
    )
    return begin(directory, now, format_recipe(made))


def test_a_finished_run_takes_a_corrected_recipe_and_its_card_is_stale(tmp_path, capsys):
    first = started(tmp_path / "run")
    run_dir.write_manifest(
        tmp_path / "run", first.model_copy(update={"complete": True, "counts": {"kept": 3}})
    )
    same = started(
        tmp_path / "run", "pretty_name=Corrected", "version=0.1.1", "source.description=sentences"
    )
    assert same == read_manifest(tmp_path / "run") and same.complete and same.counts == {"kept": 3}
    assert same.version == "0.1.1" and same.fingerprint == first.fingerprint
    assert same.recipe_sha256 != first.recipe_sha256 and run_dir.has_current_recipe(
        tmp_path / "run", same
    )
    assert "pretty_name: Corrected" in (tmp_path / "run" / "recipe.yaml").read_text()
    assert "the card has to be written again" in capsys.readouterr().err
    before = (tmp_path / "run" / "manifest.json").stat().st_mtime_ns
    assert (
        started(
            tmp_path / "run",
            "pretty_name=Corrected",
            "version=0.1.1",
            "source.description=sentences",
        )
        == same
    )
    assert (
        tmp_path / "run" / "manifest.json"
    ).stat().st_mtime_ns == before and not capsys.readouterr().err
    with pytest.raises(InputError, match="holds a run of another recipe"):
        started(tmp_path / "run", "name=other")


def test_a_start_killed_between_manifest_and_recipe_ends_well(tmp_path, monkeypatch):
    started(tmp_path / "run")
    write = run_dir.write_text
    monkeypatch.setattr(
        run_dir, "write_text", lambda path, text: path.name != "recipe.yaml" and write(path, text)
    )
    cut = started(tmp_path / "run", "license=cc0-1.0")
    monkeypatch.undo()
    assert not run_dir.has_current_recipe(tmp_path / "run", cut)
    again = started(tmp_path / "run", "license=cc0-1.0")
    assert run_dir.has_current_recipe(tmp_path / "run", again)

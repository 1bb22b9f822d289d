"""A run's facts are read and checked once for its card; what formats them takes them as they are."""

import pytest
from card_runs import dataset_run, model_run, score
from walks import record_walk

from sts_dino.model_cards import plots, render  # noqa: F401 - plots before the walk begins

# what reads or checks a fact
READING = {
    "dataset": ("require_manifest", "load_recipe", "check_dataset", "find_changed_files"),
    "model": (
        "require_manifest",
        "load_recipe",
        "check_model",
        "find_changed_files",
        "read_results",
    ),
}
READERS_OF_RUNS = ("hub/contract/run_dir.py", "hub/contract/recipe_file.py")
# Python files and functions of ours that run for a card
FILES = 22
FUNCTIONS = {"dataset": 168, "model": 134}


@pytest.fixture(scope="module", params=["dataset", "model"])
def walk(request, tmp_path_factory):
    """Kind of run, and the calls of our functions: all, and those while files are made."""
    directory = tmp_path_factory.mktemp("card") / "run"
    if request.param == "dataset":
        dataset_run(directory, "sts")
    else:
        model_run(directory, (score(),))
    # cached functions run in this first call alone, whichever tests ran before
    render.main(directory, as_json=True)
    with record_walk("make_dataset_files", "make_model_files") as recorded:
        render.main(directory, as_json=True)
    return request.param, recorded


def test_every_fact_is_read_and_checked_once(walk):
    kind, recorded = walk
    assert recorded.count_by_name(READING[kind]) == dict.fromkeys(READING[kind], 1)


def test_formatting_reads_and_checks_no_fact_again(walk):
    _, recorded = walk
    assert recorded.within_phase
    functions = {
        name
        for path, name in recorded.within_phase
        if path in READERS_OF_RUNS and not name.startswith("Manifest.")
    }
    checks = {name for _, name in recorded.within_phase if name.startswith(("check_", "require_"))}
    assert not functions and not checks, (functions, checks)


def test_a_card_passes_few_files_and_functions(walk):
    kind, recorded = walk
    assert 15 < len(recorded.files) <= FILES, sorted(recorded.files)
    assert 80 < len(recorded.calls) <= FUNCTIONS[kind], len(recorded.calls)

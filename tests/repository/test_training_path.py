"""A training's recipe, data and base are read and checked once, at the door (``prepare``); what
trains takes them unchecked. The walk ends where the first step begins.
"""

import json

import pytest
from training_inputs import write_recipe
from walks import record_walk

import sts_dino.training.run
from sts_dino.hub.contract.licences import load_licences
from sts_dino.training.loop import train, validation  # noqa: F401 - imported before the walk begins
from sts_dino.training.loop.trainer import EncoderTrainer

DATASETS = 2
ONCE = (
    *("prepare", "load_recipe", "check_losses", "check_argument_names", "parse_arguments"),
    *("check_arguments", "parse_reporters", "build_trainer_arguments", "check_sets"),
    *("find_base", "_hash_files", "_check_ids", "build_encoder", "make_trainer"),
)
ONCE_A_DATASET = (
    *("parse_loss_arguments", "load_training_set", "open_dataset", "check_rows"),
    *("require_distinct_rows", "build_loss"),
)
# modules that read or check the recipe, the data and the base
DOOR = (
    *("hub/contract/recipe_file.py", "hub/contract/licences.py", "hub/text_files.py"),
    *("training/data/", "training/encoder/bases.py", "training/loop/job.py"),
)
READING = ("check_", "load_", "open_", "parse_", "read_", "require_", "find_", "validate_")
FILES, FUNCTIONS = 25, 200  # of ours that run before the first step, the progress bar included


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """Calls before the first step on two files of pairs; those of ``run_training`` apart."""
    folder = tmp_path_factory.mktemp("training")
    datasets = []
    for index in range(DATASETS):
        path = folder / f"pairs{index}.jsonl"
        rows = [
            {"sentence1": f"a man number {i}", "sentence2": f"a person {i}", "score": i % 3 / 2}
            for i in range(32)
        ]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        data = {"path": str(path), "config": "default", "license": "mit"}
        datasets.append(data | {"example_type": "sts", "loss": "CosineSimilarityLoss"})
    recipe = write_recipe(folder, datasets=datasets)

    def stop(*_, **__):
        raise SystemExit

    load_licences()  # cached: it runs in this call alone, whichever tests ran before
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(EncoderTrainer, "training_step", stop)
        with record_walk("run_training") as recorded:
            sts_dino.training.run.main(recipe, out=folder / "run")
    return recorded


def test_recipe_data_and_base_are_checked_once(walk):
    assert walk.count_by_name(ONCE) == dict.fromkeys(ONCE, 1)
    assert walk.count_by_name(ONCE_A_DATASET) == dict.fromkeys(ONCE_A_DATASET, DATASETS)
    # first of the base alone, before anything is downloaded; then with the data
    assert walk.count_by_name(("check_model",)) == {"check_model": 2}


def test_training_reads_and_checks_nothing_again(walk):
    assert walk.within_phase
    again = {
        (path, name)
        for path, name in walk.within_phase
        if path.startswith(DOOR) and name.rpartition(".")[2].lstrip("_").startswith(READING)
    }
    assert not again, again


def test_few_functions_and_files_before_the_first_step(walk):
    assert 10 < len(walk.files) <= FILES, sorted(walk.files)
    assert 50 < len(walk.calls) <= FUNCTIONS, len(walk.calls)

"""Several processes: the recipe's batch cut evenly, the same weights as of one, one voice, and resuming a group."""

import pytest
import torch
from safetensors.torch import load_file
from training_inputs import labelled_data, sts_rows, write_dataset, write_recipe
from training_processes import killed, launched, trained

from hub.contract.run_dir import require_complete
from hub.errors import InputError, RunError
from training.loop.arguments import per_device_batch
from training.loop.distributed import report_once
from training.loop.trainer import SharedBatches

PLAIN = {"optim": "sgd", "learning_rate": "0.1", "report_to": "none", "logging_steps": "1"}  # Adam blows noise up


def furthest(first, second):
    """The largest difference between two models' weights."""
    first, second = (load_file(directory / "model.safetensors") for directory in (first, second))
    return max((first[name] - second[name]).abs().max().item() for name in first)


@pytest.fixture
def folder(tmp_path):
    write_dataset(tmp_path / "pairs", {"train": sts_rows(100)})  # no validation: near-equal scores would tip the choice
    return tmp_path


@pytest.mark.slow("trains in two processes")
@pytest.mark.parametrize("streamed", [True, False])
def test_two_processes_end_in_the_weights_of_one_and_the_main_one_alone_writes(folder, streamed):
    """A stream past its end (7 steps of 32 rows, of 100), or two datasets with a last, smaller batch (of 4 or 6)."""
    pairs = {"path": str(folder / "pairs"), "config": "postprocessed", "example_type": "sts"}
    two = [pairs | {"loss": "CoSENTLoss"}, labelled_data(folder)]
    data = [pairs | {"loss": "CosineSimilarityLoss", "streaming": "true"}] if streamed else two
    arguments = PLAIN | {"report_to": "tensorboard"} | ({"max_steps": "7"} if streamed else {})
    recipe = write_recipe(folder, batch_size="32", arguments=arguments, datasets=data)
    one, two = folder / "by1", folder / "by2"
    assert trained([str(recipe), "--out", str(one)], 1, folder / "log1") == [0], (folder / "log1.err").read_text()
    code = launched([str(recipe), "--out", str(two)], 2, folder / "log")  # as torchrun does
    assert code == 0, (folder / "log.err").read_text()
    assert furthest(one, two) < 1e-5 < furthest(one, folder / "by1.base")
    facts = [require_complete(out).provenance["training"] for out in (one, two)]
    assert [(fact["processes"], fact["steps"]) for fact in facts] == [(1, 7), (2, 7)]
    first, second = (torch.tensor(fact["loss_curve"]) for fact in facts)
    assert torch.allclose(first, second, atol=1e-4)
    assert (folder / "log.out").read_text().count(", 7 steps") == 1
    assert (folder / "log.err").read_text().count("training: step 7 of 7") == 1
    assert len(list((folder / "by2.logs").iterdir())) == 1
    assert not (folder / "by2.checkpoints").exists()


@pytest.mark.slow("trains in two processes")
def test_an_error_ends_the_group_with_one_message(folder):
    recipe = write_recipe(folder, arguments=PLAIN)
    words = [str(recipe), "--out", str(folder / "out"), "--set", "arguments.weight_decay=1e30"]
    first, second = trained(words, 2, folder / "log")
    said = (folder / "log.err").read_text()
    assert first == 1 and second != 0
    assert said.count("error: ") == 1 and "training, step" in said and "Traceback" not in said


def test_the_end_of_another_process_is_told_in_one_line(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(RunError, match="another process of this run has ended; its own message says why"),
        report_once(),
    ):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:59062.")
    with pytest.raises(RuntimeError, match="of another kind"), report_once():
        raise RuntimeError("of another kind")


@pytest.mark.slow("trains in two processes")
def test_a_run_may_go_on_with_another_number_of_processes(folder):
    recipe = write_recipe(folder, arguments=PLAIN | {"num_train_epochs": "3", "save_strategy": "epoch"})
    assert trained([str(recipe), "--out", str(folder / "whole")], 1, folder / "log") == [0]
    marks = folder / "cut.checkpoints"
    command = [str(recipe), "--out", str(folder / "cut")]
    killed(command, 2, folder / "killed", lambda: any(marks.glob("checkpoint-*/whole.json")), folder / "cut")
    assert trained(command, 1, folder / "again") == [0]
    assert "2 processes wrote it, now there are 1" in (folder / "again.err").read_text()
    assert furthest(folder / "whole", folder / "cut") < 1e-5


def test_shares_are_even_and_cover_the_batch():
    class Whole:
        batch_size, drop_last = 4, False

        def __iter__(self):
            yield from ([0, 1, 2, 3], [4, 5, 6], [7])

        def __len__(self):
            return 3

    first, second = (SharedBatches(Whole(), process, 2) for process in (0, 1))
    assert list(first) == [[0, 1], [4], [7]]
    assert list(second) == [[2, 3], [5], [7]]
    assert len(first) == 3 and first.batch_size == 2
    halves = SharedBatches(Whole(), 1, 2, accumulated=2)
    assert list(halves) == [[1], [3], [4, 5, 6], [4, 5, 6], [7], [7]]  # fewer rows than the four shares: all of them
    assert len(halves) == 6


@pytest.mark.parametrize(("size", "processes", "accumulated", "allowed"), [(30, 4, 1, "28 or 32"), (2, 2, 2, "e.g. 4")])
def test_a_batch_that_does_not_divide_names_the_nearest_that_do(size, processes, accumulated, allowed):
    with pytest.raises(InputError, match=allowed):
        per_device_batch(size, processes, accumulated, "recipe.yaml:batch_size")
    assert per_device_batch(32, 4, 2, "recipe.yaml:batch_size") == 4

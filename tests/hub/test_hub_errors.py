"""hub.errors: the one line a user reads, and its way back from a worker process."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from hub.errors import InputError, RunError, did_you_mean


def fail(kind: type[Exception]) -> None:
    raise kind("x1.tsv:3", "has 2 columns", allowed="3", hint="mend the line")


def test_one_line_names_the_place_what_was_found_what_is_allowed_and_what_to_do():
    with pytest.raises(InputError) as caught:
        fail(InputError)
    assert str(caught.value) == "x1.tsv:3: has 2 columns; allowed: 3; mend the line"
    assert caught.value.place == "x1.tsv:3"


def test_an_error_of_a_worker_process_arrives_as_it_was_raised():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for kind, code in ((InputError, 2), (RunError, 1)):
            error = pool.submit(fail, kind).exception()
            assert type(error) is kind and error.exit_code == code and error.place == "x1.tsv:3"
            assert str(error) == "x1.tsv:3: has 2 columns; allowed: 3; mend the line"


def test_the_nearest_choice_or_none():
    assert did_you_mean("Top_K", ["top_k", "top_p", "floor"]) == "did you mean 'top_k'?"
    assert did_you_mean("batch", ["top_k", "top_p"]) is None

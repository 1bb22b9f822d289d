"""Kept answers: on the disk, found again, and clear errors when they cannot be."""

import pytest

from generation.backends.answers import Answer, AnswerCache, key_of
from hub.errors import InputError, RunError


def test_the_journal_outlives_its_process_and_says_when_it_is_none(tmp_path):
    path, answer = tmp_path / "run.answers.sqlite", Answer('héllo"\x00', "stop", 3, None, -0.5)
    AnswerCache(path).add(key_of("a", 1), answer)
    assert AnswerCache(path).find(key_of("a", 1)) == answer and AnswerCache(path).find(key_of("a", 2)) is None
    assert AnswerCache(path).totals() == (1, 3, 0, 1)
    path.write_bytes(b"no journal" * 1000)
    with pytest.raises(InputError, match=r"is not a journal of answers.*move it away"):
        AnswerCache(path)


def test_a_journal_that_cannot_be_written_is_a_failed_run(tmp_path):
    journal = AnswerCache(tmp_path / "full.sqlite")
    pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
    journal._connection.execute(f"PRAGMA max_page_count = {pages}")  # as a full disk does it
    with pytest.raises(RunError, match=r"full.sqlite: cannot keep answers: database or disk is full"):
        for number in range(100):
            journal.add(key_of(number), Answer("x" * 1000, None, None, None, None))

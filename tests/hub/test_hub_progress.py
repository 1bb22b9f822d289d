"""Progress in a log file is a line every 5 %, however often the bar is updated."""

import io
import logging
import multiprocessing
import sys
import threading
import time

import pytest

from sts_dino.hub.messages import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def log(caplog, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(logging.getLogger("sts_dino"), "propagate", True)
    caplog.set_level(logging.INFO, "sts_dino")
    return caplog


def test_ten_thousand_updates_are_at_most_twenty_lines(log):
    with ProgressBar(total=10_000, desc="run", unit="text", mininterval=0, miniters=1) as bar:
        for _ in range(10_000):
            bar.update()
    assert len(log.messages) == 20
    assert log.messages[0].startswith("run: 500 of 10000 texts, 00:")
    assert log.messages[-1] == "run: 10000 of 10000 texts, 00:00 left"


def test_a_resumed_run_reports_what_is_new(log):
    with ProgressBar(
        total=200, initial=50, desc="run", unit="row", mininterval=0, miniters=1
    ) as bar:
        for _ in range(150):
            bar.update()
    assert len(log.messages) == 15 and log.messages[0].startswith("run: 60 of 200 rows")


def test_a_total_that_grows_or_a_count_that_falls_repeats_no_line(log):
    with ProgressBar(total=100, desc="run", unit="row", mininterval=0, miniters=1) as bar:
        for count in (50, 49, 50, 51):
            bar.n = count
            bar.refresh()
        bar.total = 1000
        bar.refresh()
        bar.n = 1000
        bar.refresh()
    assert [line.split(",")[0] for line in log.messages] == [
        "run: 50 of 100 rows",
        "run: 1000 of 1000 rows",
    ]


def test_short_work_is_silent(log):
    assert list(ProgressBar(range(5), desc="run", unit="row", delay=1)) == list(range(5))
    assert log.messages == []


@pytest.mark.parametrize("total", [None, 0])
def test_an_unknown_total_is_reported_by_the_clock(total, log, monkeypatch):
    monkeypatch.setattr("sts_dino.hub.messages.SECONDS_BETWEEN_LINES", 0.01)
    rows = (number for number in range(3))
    for _ in ProgressBar(rows, total=total, desc="run", unit="row", mininterval=0, miniters=1):
        time.sleep(0.02)
    assert log.messages
    assert all(line.startswith("run: ") and line.endswith(" rows") for line in log.messages)


def test_a_terminal_shows_a_bar(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressBar(total=10, desc="run", unit="row", line_format="never") as bar:
        bar.update(10)
    assert "100%|" in terminal.getvalue() and "never" not in terminal.getvalue()


def test_a_fork_that_is_killed_while_it_draws_blocks_no_other_bar():
    """Tests kill forks at any moment (conftest.py gives tqdm a lock that forks do not share)."""
    context = multiprocessing.get_context("fork")
    has_lock = context.Event()

    def draw():
        list(ProgressBar(range(5), desc="run", unit="row"))

    def hold_lock():
        with ProgressBar.get_lock():
            has_lock.set()
            time.sleep(600)

    draw()  # the lock is made before the fork
    fork = context.Process(target=hold_lock)
    fork.start()
    assert has_lock.wait(60)
    fork.kill()
    fork.join()
    drawing = threading.Thread(target=draw, daemon=True)
    drawing.start()
    drawing.join(60)
    assert not drawing.is_alive()

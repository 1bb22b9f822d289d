"""Answers survive kill -9, a full disk and two processes; the history stays; other data and other files are refused."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from annotation_examples import inferred, scored

from eval.audit.survey import FILE, AnswerLockedError, AnswerStore
from hub.errors import InputError, RunError

EXAMPLES = scored(["0", "0.1", "0.5", "0.9"])
WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from annotation_examples import scored
from eval.audit.survey import AnswerStore
store = AnswerStore(Path(sys.argv[1]), scored(["0", "0.1", "0.5", "0.9"]))
for row in range(int(sys.argv[3])):
    store.add(sys.argv[2], row, "0.5")
    print(row, flush=True)
"""


def writer(folder, name, answers, **options):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), name, str(answers)], stdout=subprocess.PIPE, text=True, **options
    )


def test_the_last_answer_counts_and_the_history_stays(tmp_path):
    store = AnswerStore(tmp_path, EXAMPLES)
    for name, row, label in [("Ann", 2, "0"), ("Bob", 2, "0.9"), ("Ann", 0, "0.5"), ("Ann", 2, "0.1")]:
        store.add(name, row, label)
    again = AnswerStore(tmp_path, EXAMPLES)
    assert again.answers("Ann") == {2: "0.1", 0: "0.5"} and again.answers("Bob") == {2: "0.9"}
    assert again.annotators() == ["Ann", "Bob"] and again.answers("ann") == {}
    history = again.history()
    assert [answer.label for answer in history] == ["0", "0.9", "0.5", "0.1"] and history[0].time.endswith("+00:00")


def test_names_are_values_and_never_paths_or_statements(tmp_path):
    store = AnswerStore(tmp_path / "answers", EXAMPLES)
    names = ["../../etc/x", "a'); DROP TABLE answers; --", "/", "名前", "\\", "NULL"]
    for name in names:
        store.add(name, 1, "0")
    assert store.annotators() == names and [path.name for path in tmp_path.rglob("*")] == ["answers", FILE]


def test_final_answers_cannot_be_changed_and_later_ones_can(tmp_path):
    store = AnswerStore(tmp_path, EXAMPLES)
    store.add("Ann", 0, "0")
    store.finish("Ann")
    store.add("Bob", 0, "0.9")
    with pytest.raises(AnswerLockedError, match="final"):
        store.add("Ann", 0, "0.5")
    store.add("Ann", 1, "0.5")  # a row of a larger sample
    store.add("Ann", 1, "0.9")
    assert store.final("Ann") == {0} and store.final("Bob") == set() and store.answers("Ann") == {0: "0", 1: "0.9"}


def test_answers_about_other_rows_are_refused(tmp_path):
    AnswerStore(tmp_path, EXAMPLES)
    for other in (scored(["0", "0.1", "0.5", "0.5"]), inferred(["neutral"])):
        with pytest.raises(InputError, match=r"holds answers about other rows .*--out"):
            AnswerStore(tmp_path, other)


def test_another_file_is_refused_and_left_alone(tmp_path):
    (tmp_path / FILE).write_text("my notes, not a database, and long enough to be looked at as one " * 20)
    with pytest.raises(InputError, match="is no file of answers"):
        AnswerStore(tmp_path, EXAMPLES)
    assert (tmp_path / FILE).read_text().startswith("my notes")


def test_a_folder_that_cannot_be_written_is_a_run_error(tmp_path):
    (tmp_path / FILE).mkdir()
    with pytest.raises(RunError, match="cannot be read or written"):
        AnswerStore(tmp_path, EXAMPLES)


def test_every_answer_that_was_confirmed_survives_kill_9_while_another_process_writes(tmp_path):
    killed, other = writer(tmp_path, "Ann", 10**6), writer(tmp_path, "Bob", 40)
    confirmed = [int(killed.stdout.readline()) for _ in range(25)]
    killed.send_signal(signal.SIGKILL)
    confirmed += [int(line) for line in killed.communicate()[0].splitlines() if line.strip().isdigit()]
    assert other.wait(60) == 0
    store = AnswerStore(tmp_path, EXAMPLES)
    assert set(confirmed) <= store.answers("Ann").keys() and len(store.answers("Ann")) <= len(confirmed) + 1
    assert store.answers("Bob") == dict.fromkeys(range(40), "0.5")


def test_a_killed_half_transaction_is_undone(tmp_path):
    store = AnswerStore(tmp_path, EXAMPLES)
    store.add("Ann", 0, "0.9")
    process = os.fork()
    if process == 0:  # dies with pages of the file changed and the journal on the disk
        database = sqlite3.connect(store.path, isolation_level=None)
        database.execute("PRAGMA cache_size = 1")
        database.execute("BEGIN")
        long = "x" * 5000
        for number in range(50):
            database.execute(
                "INSERT INTO answers (annotator, row, label, time) VALUES (?, 0, '0', '')", [f"{long}{number}"]
            )
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    assert (tmp_path / f"{FILE}-journal").stat().st_size > 0
    assert [answer.label for answer in AnswerStore(tmp_path, EXAMPLES).history()] == ["0.9"]


def test_a_full_disk_refuses_the_answer_and_keeps_the_others(tmp_path):
    store = AnswerStore(tmp_path, EXAMPLES)
    store.add("Ann", 0, "0.9")
    script = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({store.path.stat().st_size + 8192},) * 2)\n"
    ) + WRITER.replace('"0.5")\n    print', '"0.5" * 999)\n    print')
    done = subprocess.run([sys.executable, "-c", script, tmp_path, "Bob", "1000"], capture_output=True, text=True)
    assert done.returncode == 1 and "RunError" in done.stderr and "no earlier answer is lost" in done.stderr
    kept = done.stdout.split()
    assert kept and list(store.answers("Bob")) == list(range(len(kept))) and store.answers("Ann") == {0: "0.9"}
    store.add("Bob", 999, "0")
    assert store.answers("Bob")[999] == "0"


def test_threads_wait_for_one_another(tmp_path):
    store = AnswerStore(tmp_path, EXAMPLES)
    threads = [
        threading.Thread(target=lambda name=name: [store.add(name, row, "0") for row in range(15)]) for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: len(store.answers(name)) for name in "abcd"} == dict.fromkeys("abcd", 15)


def test_a_writer_that_holds_the_file_too_long_is_a_run_error(tmp_path, monkeypatch):
    store = AnswerStore(tmp_path, EXAMPLES)
    monkeypatch.setattr("eval.audit.survey._WAIT", 0.1)
    holder = sqlite3.connect(store.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    start = time.monotonic()
    with pytest.raises(RunError, match="database is locked"):
        store.add("Ann", 0, "0")
    assert time.monotonic() - start < 30
    holder.close()
    store.add("Ann", 0, "0")

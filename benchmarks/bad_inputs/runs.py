"""Run directories that the commands after ``write`` and ``train`` cannot use."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bad_inputs.case import Box, Case


def _unfinished(box: Box) -> None:
    _manifest(box.run(), complete=False)


def _manifest(run: Path, **changes: object) -> None:
    path = run / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def _cut(box: Box) -> None:
    path = box.run() / "manifest.json"
    path.write_bytes(path.read_bytes()[:500])


def _damaged(box: Box) -> None:
    shard = min(box.run().glob("data/postprocessed/*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-10])


@contextmanager
def _taken(box: Box) -> Iterator[dict[str, str]]:
    """Another process listens on ``{port}``."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {"port": str(server.getsockname()[1])}


RUNS = (
    Case("a run without a manifest", "card .", (".: is not a run directory (no manifest.json)", "run the stage")),
    Case("a manifest that was cut", "card run", ("run/manifest.json: not a manifest", "restore it"), _cut),
    Case(
        "a manifest of a later version",
        "card run",
        ("run/manifest.json", "'origin'", "a later version"),
        lambda box: _manifest(box.run(), origin="later"),
    ),
    Case("an unfinished run", "fidelity run", ("run: ", "not finished"), _unfinished),
    Case(
        "a run to measure that is not there",
        "fidelity no-run",
        ("no-run: is not a run directory", "run the stage that makes it first"),
    ),
    Case("a judge that is not there", "fidelity run --encoder no-encoder", ("no-encoder: ",), lambda box: box.run()),
    Case(
        "a misspelt config",
        "quality run --config postprocesed",
        ("'postprocesed'", "did you mean 'postprocessed'?"),
        lambda box: box.run(),
    ),
    Case("a shard that was cut", "quality run", ("run", ".parquet is missing or not what its manifest says"), _damaged),
    Case(
        "a misspelt evaluation set",
        "decontaminate run --sets sts99",
        ("--sets", "sts99", "allowed: "),
        lambda box: box.run(),
    ),
    Case(
        "evaluation data that are not there",
        "decontaminate run --sts-data no-data",
        ("no-data: has no evaluation data", "check --senteval-data and --sts-data"),
        lambda box: box.run(),
    ),
    Case("an unfinished run to annotate", "annotate run", ("run: ", "not finished"), _unfinished),
    Case(
        "a taken port",
        "annotate run --sample 5 --port {port} --out answers",
        ("port ", "Address already in use", "--port"),
        lambda box: box.run(),
        code=1,
        during=_taken,
    ),
    Case("a port that is none", "annotate run --port 99999", ("--port", "99999"), lambda box: box.run()),
    Case(
        "a report of no answers",
        "annotate run --sample 5 --report --out answers",
        ("answers: holds no answers", "run without --report first"),
        lambda box: box.run(),
    ),
    Case(
        "a taken port for the Hub",
        "hub serve --root root --port {port}",
        ("--port ", ": is in use", "--port 0"),
        during=_taken,
    ),
    Case(
        "a file as the Hub's folder",
        "hub serve --root root --port 0",
        ("root", "give --root a folder"),
        lambda box: box.file("root", "mine"),
    ),
    Case("a misspelt command of the Hub", "hub serv", ("'serv'", "did you mean 'serve'?", "sts-dino hub --help")),
    Case("no wheels of a language model", "lm --wheels no-wheels --out lm", ("no-wheels", "wheels")),
    Case(
        "somebody's folder for a language model",
        "lm --out lm",
        ("lm: ", "--out"),
        lambda box: box.file("lm/thesis.tex", "mine"),
    ),
)

"""Stages of an experiment forked from one process that imported the libraries: 0.1 s each to start in place of 6 s."""

import multiprocessing
import runpy
import sys
import time

import typer

_CONTEXT = multiprocessing.get_context("forkserver")  # one server imports the libraries, once for all stages
_CONTEXT.set_forkserver_preload(
    [
        "forked_stages",
        "generation.run",
        "generation.decoding.engine",
        "sentence_transformers",
        "training.loop.train",
        "eval.runs.evaluate",
        "transformers.models.llama.modeling_llama",
    ]
)


def run_stage(_steps, words, _note) -> float:
    """In place of ``Steps._run``: ``python -m WORDS`` in a forked process; the seconds that it took."""
    started = time.monotonic()
    process = _CONTEXT.Process(target=_stage, args=(words,))
    process.start()
    process.join()
    if process.exitcode:
        raise typer.Exit(process.exitcode)
    return time.monotonic() - started


def _stage(words: list[str]) -> None:
    sys.argv = [words[0], *words[1:]]
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)

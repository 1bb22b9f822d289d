"""Language models, run directories and disks that ``write``, ``estimate`` and ``explain`` cannot use."""

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock

from benchmarks.bad_inputs.case import Box, Case, Make


def _lm(*without: str, **config: object) -> Make:
    """A recipe by a copy of the built-in model without some files, or with other keys in its config."""

    def make(box: Box) -> None:
        folder = box.lm(*without)
        box.dataset(f"model.path={folder}")
        if config:
            tree = json.loads((folder / "config.json").read_text("utf-8"))
            (folder / "config.json").write_text(json.dumps(tree | config), "utf-8")

    return make


def _pickle(box: Box) -> None:
    _lm("*.safetensors")(box)
    (box.folder / "lm" / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def _other_run(box: Box) -> None:
    box.run()
    box.dataset("seed=7")


@contextmanager
def _at_work(box: Box) -> Iterator[dict[str, str]]:
    """Another process holds the run directory."""
    with FileLock(box.folder / "out.lock"):
        yield {}


def _damaged(box: Box) -> None:
    shard = min(box.run().glob("data/raw/*.parquet"))
    content = bytearray(shard.read_bytes())
    content[100:200] = bytes(100)
    shard.write_bytes(content)


WRITING = (
    Case(
        "a model folder that is not there",
        "write recipe.yaml",
        ("recipe.yaml:model.path: no-lm: no such file or folder", "looked beside the recipe"),
        lambda box: box.dataset("model.path=no-lm"),
    ),
    Case(
        "a GGUF file as the model's folder",
        "write recipe.yaml",
        ("model.gguf", "gguf_file"),
        lambda box: box.dataset(f"model.path={box.file('model.gguf', b'GGUF')}"),
    ),
    Case(
        "a GGUF file that was cut",
        "write recipe.yaml",
        ("model.gguf: cannot be read as a GGUF file", "again"),
        lambda box: (
            box.file("gguf/model.gguf", b"GGUF\3\0\0\0\2"),
            box.dataset(f"model.path={box.folder / 'gguf'}", "model.gguf_file=model.gguf"),
        ),
        model=True,
        own_process=True,
    ),
    Case(
        "a model folder without weights",
        "write recipe.yaml",
        ("lm", "has no weights", "allowed: *.safetensors"),
        _lm("*.safetensors"),
    ),
    Case("a model whose weights are a pickle", "write recipe.yaml", ("lm", "pickle", "safetensors"), _pickle),
    Case(
        "a model that brings code of its own",
        "write recipe.yaml",
        ("lm", "code"),
        _lm(model_type="planted", auto_map={"AutoConfig": "planted.Config", "AutoModelForCausalLM": "planted.Model"}),
        model=True,
        own_process=True,
    ),
    Case(
        "a file as the run directory",
        "write recipe.yaml --out out",
        ("out: ", "choose another"),
        lambda box: (box.dataset(), box.file("out", "mine")),
    ),
    Case(
        "somebody's folder as the run directory",
        "write recipe.yaml --out out",
        ("out: is not empty and not a run directory", "choose another --out"),
        lambda box: (box.dataset(), box.file("out/thesis.tex", "mine")),
    ),
    Case(
        "another run's directory",
        "write recipe.yaml --out run",
        ("run: ", "seed", "--out"),
        _other_run,
    ),
    Case(
        "a place that cannot be written",
        "write recipe.yaml --out /proc/none/run",
        ("/proc/none", "choose another folder"),
        lambda box: box.dataset(),
        code=1,
    ),
    Case(
        "a run that another process works on",
        "write recipe.yaml --out out",
        ("out: another process is working on this run", "wait for it"),
        lambda box: box.dataset(),
        code=1,
        during=_at_work,
    ),
    Case(
        "a disk that takes no more",
        "write recipe.yaml --out out",
        ("ulimit -f", "run the same command again"),
        lambda box: box.dataset(),
        code=1,
        file_limit=2048,
        own_process=True,
        model=True,
    ),
    Case(
        "a source with a broken line",
        "write recipe.yaml",
        ("texts.jsonl:2: is not JSON",),
        lambda box: (
            box.file("texts.jsonl", ['{"text": "one two three"}', '{"text": ']),
            box.dataset(f"source.path={box.folder / 'texts.jsonl'}", "source.columns=[text]"),
        ),
        model=True,
    ),
    Case(
        "an estimate from no texts",
        "estimate recipe.yaml --limit 0",
        ("--limit", "0", "sts-dino estimate --help"),
        lambda box: box.dataset(),
    ),
    Case(
        "an estimate from texts that are all too long",
        "estimate recipe.yaml",
        ("texts.txt: has no usable first text", "length"),
        lambda box: box.dataset("premise_tokens=[1, 2]"),
        model=True,
        own_process=True,
    ),
    Case("a run to explain that is not there", "explain no-run 000001/1/0", ("no-run: ", "sts-dino write")),
    Case(
        "a row that the run does not have",
        "explain run 000077/1/0 --set model.path={lm}",
        ("000077/1/0", "run"),
        lambda box: box.run(),
    ),
    Case(
        "an address of a row that is none",
        "explain run 77 --set model.path={lm}",
        ("row id '77'", "allowed: SOURCE_ID/TARGET/ATTEMPT"),
        lambda box: box.run(),
    ),
    Case(
        "a row of a damaged shard",
        "explain run 000000/1/0 --set model.path={lm}",
        ("data/raw/", "run the stage that makes it again"),
        _damaged,
    ),
)

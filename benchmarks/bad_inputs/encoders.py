"""Encoders, tasks and evaluations that ``score``, ``compare`` and ``value`` cannot use."""

import pickle

from benchmarks.bad_inputs.case import Box, Case


def _pickled(box: Box) -> None:
    box.file("encoder/modules.json", "[]")
    box.file("encoder/config.json", "{}")
    box.file("encoder/pytorch_model.bin", pickle.dumps({}))


ENCODERS = (
    Case(
        "a misspelt task",
        "score --model encoder --tasks stsb/cosin",
        ("stsb/cosin", "did you mean 'stsb/cosine'?"),
        lambda box: (box.folder / "encoder").mkdir(),
    ),
    Case("nothing to score", "score", ("--model: names no encoder", "or a recipe")),
    Case(
        "an encoder that is not there",
        "score --model no-encoder --tasks stsb/cosine",
        ("no-encoder: no such model folder",),
    ),
    Case(
        "an encoder whose weights are a pickle",
        "score --model encoder --tasks stsb/cosine --no-cache",
        ("encoder", "pickle", "safetensors"),
        _pickled,
        own_process=True,
    ),
    Case(
        "tasks whose data are not here",
        "score --model encoder --tasks transfer",
        ("--senteval-data", "data"),
        lambda box: (box.folder / "encoder").mkdir(),
        environment={"STS_DINO_DATA": ""},
    ),
    Case(
        "data in a folder that is not there",
        "score --model encoder --tasks transfer --senteval-data no-data",
        ("no-data", "no such"),
        lambda box: (box.folder / "encoder").mkdir(),
    ),
    Case(
        "a trial on no rows",
        "score --model encoder --tasks stsb/cosine --limit 0",
        ("--limit", "0"),
    ),
    Case(
        "a comparison of one evaluation",
        "compare ten",
        ("needs two evaluations or more, 1 given", "sts-dino score"),
        lambda box: box.evaluation("ten"),
    ),
    Case(
        "an evaluation that is not there",
        "compare ten no-evaluation",
        ("no-evaluation: ", "sts-dino score"),
        lambda box: box.evaluation("ten"),
    ),
    Case(
        "a comparison of different rows",
        "compare ten twenty",
        ("stsb/cosine", "10", "20"),
        lambda box: (box.evaluation("ten"), box.evaluation("twenty")),
    ),
    Case(
        "results that are no JSON",
        "compare ten other",
        ("other/results.json", "sts-dino score"),
        lambda box: (box.evaluation("ten"), box.file("other/results.json", '{"model": ')),
    ),
    Case("a dataset to value that is not there", "value no-run --split validation", ("no-run: ", "sts-dino write")),
    Case(
        "seeds that are no numbers",
        "value run --seeds a,b",
        ("--seeds 'a,b'", "allowed: e.g. 42,43,44"),
        lambda box: box.run(),
    ),
    Case(
        "a value without the data of its tasks",
        "value run",
        ("--senteval-data", "--split validation"),
        lambda box: box.run(),
        environment={"STS_DINO_DATA": ""},
    ),
)

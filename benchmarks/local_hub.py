"""The embedded Hub: a commit of many small files, the pages of their list, an upload at 50 kB/s; seconds and memory."""

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from huggingface_hub import HfApi, get_session

from benchmarks.trials import spread, write_results
from hub import cli
from hub_server.process import LocalHub

app = cli.new_app(__doc__)
FILES, ROUNDS = 24_900, 3  # small files, in folders of 1,000
SLOW, UPLOAD, PATIENCE, REPO = 50_000, 1_500_000, "10", "demo/files"  # bytes in a second; bytes; seconds


@app.command(no_args_is_help=False)
def main(
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/local_hub.json"),
) -> None:
    """Measure, print medians, write a JSON file with every round. Each part has a server of its own."""
    many, runs = {f"data/{one // 1000}/{one}.txt": f"{one:099}\n" for one in range(FILES)}, list[dict[str, float]]()
    for _ in range(ROUNDS):
        runs.append({})
        with tempfile.TemporaryDirectory() as root:
            for part in ("commit", "first page", "all pages", "slow upload"):
                with LocalHub(root, options=["--patience", PATIENCE]) as hub:
                    began, server = time.perf_counter(), psutil.Process(hub.process.pid if hub.process else None)
                    if part == "commit":
                        _post(hub, "repos/create", json={"type": "dataset", "name": REPO.partition("/")[2]})
                        _commit(hub, many, 2**30)
                    elif part == "slow upload":
                        _commit(hub, {"slow.txt": "x" * UPLOAD}, SLOW)
                    else:
                        pages = HfApi(hub.endpoint, hub.token).list_repo_tree(REPO, repo_type="dataset", recursive=True)
                        assert next(iter(pages)) and (part == "first page" or sum(1 for _ in pages) >= FILES)
                    status = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
                    runs[-1][f"{part}: seconds"] = time.perf_counter() - began
                    runs[-1][f"{part}: CPU seconds"] = sum(server.cpu_times()[:2])
                    runs[-1][f"{part}: peak MB"] = int(status.split("VmHWM:")[1].split()[0]) / 1000
    summary = {name: spread([run[name] for run in runs]) for name in runs[0]}
    write_results(out, {"files": FILES, "upload": UPLOAD, "summary": summary, "rounds": runs}, ("uvicorn", "h11"))
    print("\n".join(f"{name}: {found['median']}" for name, found in summary.items()))


def _commit(hub: LocalHub, files: dict[str, str], pace: int) -> None:
    """Send files in one commit, at so many bytes in a second."""
    values = [{"path": path, "content": content, "encoding": "utf-8"} for path, content in files.items()]
    lines = [("header", {"summary": "files"}), *(("file", value) for value in values)]
    body = b"".join(json.dumps({"key": key, "value": value}).encode() + b"\n" for key, value in lines)

    def paced() -> Iterator[bytes]:
        for start in range(0, len(body), 1 << 14):
            time.sleep((1 << 14) / pace)
            yield body[start : start + (1 << 14)]

    _post(hub, f"datasets/{REPO}/commit/main", content=paced())


def _post(hub: LocalHub, path: str, **body: Any) -> None:
    names = {"Authorization": f"Bearer {hub.token}"}
    get_session().post(f"{hub.endpoint}/api/{path}", headers=names, timeout=600, **body).raise_for_status()

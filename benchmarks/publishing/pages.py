"""How long the embedded Hub's pages of a large dataset take: python -m benchmarks.publishing.pages --rows 1000000

A dataset of random STS pairs, six to a first text, is uploaded to an embedded Hub and its pages are asked for over
HTTP, each with words or a page number that no other request had, so that none is remembered. Milliseconds to the last
byte, and the most memory that the reader of rows needed for a search of everything.
"""

import http.client
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from benchmarks.trials import FreshProcesses, spread, write_results
from hub.cli import new_app, run, say
from hub.contract.schema import STS
from hub.contract.shards import shard_path
from hub_server.process import LocalHub

app = new_app(__doc__)
ORG, NAME = "acme", "large"
CARD = "---\nconfigs:\n- {config_name: default, data_files: 'data/*/train-*.parquet'}\n---\n# Large\n"
WORDS = 20_000  # of the vocabulary
PER_FIRST, SENTENCE = 6, 12  # second texts of a first one; words of a text
SCORES = np.repeat([0.9, 0.5, 0.1], 2)


@app.command(no_args_is_help=False)
def main(
    rows: Annotated[int, typer.Option(min=600, help="Rows of the dataset")] = 1_000_000,
    shards: Annotated[int, typer.Option(min=1, help="Parquet files")] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="How often each kind of page is asked for")] = 5,
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/pages.json"),
) -> None:
    """Make the dataset, upload it, ask for its pages; write a JSON file."""
    load = os.getloadavg()[0]  # of others: this command has not begun
    with tempfile.TemporaryDirectory() as work:
        files = make_shards(Path(work) / NAME, rows, shards)
        with LocalHub(Path(work) / "hub", orgs=[ORG]) as hub:
            upload(hub, Path(work) / NAME)
            say(f"{rows:,} rows in {shards} files, {sum(file.stat().st_size for file in files):,} bytes")
            found: dict[str, list[float]] = {kind: [] for kind in addresses(0, rows, shards)}
            for number in range(rounds + 1):  # the first starts the reader, and is left out
                for kind, address in addresses(number, rows, shards).items():
                    found[kind].append(milliseconds(hub, address))
        peak = FreshProcesses([])(peak_of_search, [str(file) for file in files])
    result = {
        "rows": rows,
        "shards": shards,
        "load_average_before": round(load, 2),
        "first_page_of_all_ms": round(next(iter(found.values()))[0]),
        "ms": {kind: spread(values[1:]) for kind, values in found.items()},
        "peak_mb_of_a_search": peak,
    }
    print(json.dumps(result, indent=2))
    write_results(out, result, ("pyarrow", "starlette", "uvicorn"))


def make_shards(folder: Path, rows: int, shards: int) -> list[Path]:
    """Files of random pairs, the columns of ``STS`` and a source id."""
    rng = np.random.default_rng(7)
    vocabulary = np.array([f"{chr(97 + n % 26)}{n:x}" for n in range(WORDS)])
    files = []
    for shard in range(shards):
        count = rows // shards
        first = np.repeat(sentences(rng, vocabulary, -(-count // PER_FIRST)), PER_FIRST)[:count]
        scores = np.resize(SCORES, count).astype(np.float32)
        sources = [f"{shard}-{n // PER_FIRST}" for n in range(count)]
        columns = [first, sentences(rng, vocabulary, count), scores, sources]
        path = folder / shard_path("postprocessed", "train", shard, shards)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns, [*STS.columns, "source_id"]), path, compression="zstd")
        files.append(path)
    return files


def sentences(rng: np.random.Generator, vocabulary: np.ndarray, count: int) -> np.ndarray:
    """``count`` texts of random words."""
    return np.array([" ".join(words) for words in vocabulary[rng.integers(0, WORDS, (count, SENTENCE))]], dtype=object)


def upload(hub: LocalHub, folder: Path) -> None:
    """Commit the files and a card, as a user does."""
    (folder / "README.md").write_text(CARD, encoding="utf-8")
    client = Path(sys.executable).with_name("hf")
    command = [str(client), "upload", f"{ORG}/{NAME}", str(folder), ".", "--repo-type=dataset"]
    subprocess.run(command, env=hub.client_environment(), stdout=subprocess.DEVNULL, check=True)  # noqa: S603


def addresses(number: int, rows: int, shards: int) -> dict[str, str]:
    """Kind of page → an address that only this round asks for."""
    page = f"/datasets/{ORG}/{NAME}"
    shard = shard_path("postprocessed", "train", 0, shards)
    return {
        "an early page of all rows": f"{page}?page={number + 1}",
        "a late page of all rows": f"{page}?page={rows // 50 - number}",
        "a late page, all columns": f"{page}?page={rows // 50 - number}&view=table",
        "one label, its first pages": f"{page}?label=0.5&page={number + 1}",
        "a word that many rows have": f"{page}?q={'abcdefgh'[number % 8]}1{number:x}",
        "words that no row has": f"{page}?q=nowhere{number}",
        "one file": f"{page}/blob/main/{quote(shard)}?page={number + 1}",
        "the list of files": f"{page}/tree/main?round={number}",
    }


def milliseconds(hub: LocalHub, address: str) -> float:
    """Time to the last byte of a page."""
    connection = http.client.HTTPConnection(hub.endpoint.removeprefix("http://"), timeout=60)
    began = time.perf_counter()
    connection.request("GET", address, headers={"Accept": "text/html"})
    answer = connection.getresponse()
    body = answer.read()
    elapsed = time.perf_counter() - began
    connection.close()
    assert answer.status == http.client.OK and b"took more than" not in body, (address, answer.status)
    return 1000 * elapsed


def peak_of_search(files: list[str]) -> int:
    """Peak memory of a search of all rows, in 10⁶ bytes, in the process that calls this."""
    from hub_server.pages.readers import Question
    from hub_server.pages.row_scan import Split, facts_of, find

    find(Question(files=tuple(files), words="nowhere"), facts_of(Split(tuple(files))))
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)


if __name__ == "__main__":
    run(app)

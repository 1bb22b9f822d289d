"""The local Hub under the unpatched client libraries, each in a process and a cache of its own."""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from local_hub import Log

pytest_plugins = ["local_hub"]
CONFIG = """- config_name: NAME
  data_files:
  - {split: train, path: data/NAME/train-*.parquet}
  - {split: test, path: data/NAME/test-*.parquet}
"""
CARD = f"""---
configs:
{CONFIG.replace("NAME", "pairs")}  default: true
{CONFIG.replace("NAME", "triplets")}---
# A test
"""


@pytest.fixture
def client(local_hub, tmp_path):
    """Runs a script with default settings in an empty cache; the script's last line of output is JSON."""

    def run(script: str, name: str = "home"):
        home = tmp_path / name
        home.mkdir()
        environment = local_hub.client_environment(home)
        assert not any("XET" in key for key in environment)
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, cwd=home, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.slow("a fresh process without our code, and a Hub")
def test_load_dataset_and_streaming(hub_api, repo, client, local_hub, tmp_path):
    """Two configs with two splits of two shards, as this project publishes them."""
    for config, split, shard in product(("pairs", "triplets"), ("train", "test"), (0, 1)):
        first = 100 * (split == "test") + shard * 3
        rows = pa.table({"text": [f"{config} {split} {first + row}" for row in range(3)]})
        path = tmp_path / "source" / "data" / config / f"{split}-{shard:05d}-of-00002.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path, compression="zstd")
    (tmp_path / "source" / "README.md").write_text(CARD)
    hub_api.upload_folder(repo_id=repo, folder_path=tmp_path / "source", repo_type="dataset")
    log = Log(local_hub)
    found = client(f"""
import json
from datasets import get_dataset_config_names, load_dataset
repo = {repo!r}
whole = load_dataset(repo)
found = {{
    "configs": get_dataset_config_names(repo),
    "default": {{split: rows["text"] for split, rows in whole.items()}},
    "triplets": load_dataset(repo, "triplets", split="test")["text"],
    "streamed": [row["text"] for row in load_dataset(repo, "triplets", split="train", streaming=True)],
}}
print(json.dumps({{key: value if not hasattr(value, "tolist") else value.tolist() for key, value in found.items()}},
      default=list))
""")
    assert found["configs"] == ["pairs", "triplets"]
    assert found["default"]["train"] == [f"pairs train {row}" for row in range(6)]
    assert found["default"]["test"] == [f"pairs test {100 + row}" for row in range(6)]
    assert found["triplets"] == [f"triplets test {100 + row}" for row in range(6)]
    assert found["streamed"] == [f"triplets train {row}" for row in range(6)]
    assert any(" 206 " in line for line in log.lines("GET"))  # streaming read ranges, not whole files


def test_push_to_hub_and_cards(client, hub_api):
    found = client("""
import json
from datasets import Dataset, DatasetDict, Features, List, Value, load_dataset
from huggingface_hub import DatasetCard
features = Features({"text": Value("string"), "marks": List(Value("int32"))})
def made(word, count):
    return Dataset.from_dict({"text": [f"{word} {n}" for n in range(count)], "marks": [[n] for n in range(count)]},
                             features=features)
both = DatasetDict(train=made("a", 30), test=made("b", 2))
both.push_to_hub("acme/pushed", "one", num_shards={"train": 3, "test": 1}, set_default=True, private=True)
DatasetDict(train=made("c", 4)).push_to_hub("acme/pushed", "two")
made("d", 3).push_to_hub("acme/pushed", "one", split="extra", revision="branch")
made("e", 3).push_to_hub("acme/pushed", "two", data_dir="other")
card = DatasetCard.load("acme/pushed")
card.data.license = "apache-2.0"
card.text += "\\nMore words.\\n"
card.validate()
card.push_to_hub("acme/pushed")
one = load_dataset("acme/pushed")
print(json.dumps({
    "rows": {split: len(rows) for split, rows in one.items()},
    "first": one["train"][0],
    "same": one["train"].features == features,
    "two": len(load_dataset("acme/pushed", "two", split="train", download_mode="force_redownload")),
    "license": DatasetCard.load("acme/pushed").data.license,
}))
""")
    assert found == {
        "rows": {"train": 30, "test": 2},
        "first": {"text": "a 0", "marks": [0]},
        "same": True,
        "two": 3,
        "license": "apache-2.0",
    }
    info = hub_api.dataset_info("acme/pushed", files_metadata=True)
    parquet = [file for file in info.siblings if file.rfilename.endswith(".parquet")]
    assert info.private and len([file for file in parquet if file.rfilename.startswith("one/train-")]) == 3
    assert all(file.lfs for file in parquet) and "license:apache-2.0" in info.tags


@pytest.mark.slow("a fresh process without our code, and a Hub")
def test_sentence_transformer(client, hub_api):
    found = client("""
import json
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers
words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "cat": 2}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
model = SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=4)], device="cpu")
model.push_to_hub("demo/static")
again = SentenceTransformer("demo/static", device="cpu")
print(json.dumps(float(abs(model.encode("a cat") - again.encode("a cat")).max())))
""")
    assert found == 0.0
    info = hub_api.model_info("demo/static")
    assert info.library_name == "sentence-transformers" and "model.safetensors" in str(info.siblings)


FOLDER = """
import json, os
from pathlib import Path
from huggingface_hub import CommitOperationAdd, HfApi, constants
assert not constants.HF_HUB_DISABLE_XET
api, repo = HfApi(), {repo!r}
api.create_repo(repo, repo_type={kind!r})
large = {{f"w/{{n}}.safetensors": os.urandom(300_000 + n) for n in range(3)}}
files = large | {{"config.json": b"{{}}", "empty.bin": b"", "deep/a/b.txt": b"b" * 1000}}
for path, content in files.items():
    Path("source", path).parent.mkdir(parents=True, exist_ok=True)
    Path("source", path).write_bytes(content)
api.upload_folder(repo_id=repo, repo_type={kind!r}, folder_path="source")
twice = api.upload_folder(repo_id=repo, repo_type={kind!r}, folder_path="source")
api.create_commit(repo, [CommitOperationAdd("x.bin", os.urandom(10))], commit_message="one", repo_type={kind!r})
api.create_tag(repo, tag="v1", repo_type={kind!r})
got = Path(api.snapshot_download(repo, repo_type={kind!r}, revision="v1"))
same = all((got / path).read_bytes() == content for path, content in files.items())
sums = api.verify_repo_checksums(repo, repo_type={kind!r}, local_dir=got, revision="v1")
titles = [commit.title for commit in api.list_repo_commits(repo, repo_type={kind!r})]
print(json.dumps([same, sums.mismatches == [], len(titles)]))
"""
FILE_SYSTEM = """
import json
from huggingface_hub import HfApi, HfFileSystem
HfApi().create_repo({repo!r}, repo_type="dataset")
fs, root = HfFileSystem(), "datasets/" + {repo!r}
with fs.open(f"{{root}}/data/a.bin", "wb") as file:
    file.write(bytes(range(250)) * 1000)
fs.pipe_file(f"{{root}}/data/b.txt", b"text")
fs.cp_file(f"{{root}}/data/a.bin", f"{{root}}/copy.bin")
with fs.open(f"{{root}}/copy.bin", "rb", block_size=1000) as file:
    file.seek(249_990)
    tail = list(file.read())
fs.rm_file(f"{{root}}/data/b.txt")
print(json.dumps({{
    "ls": sorted(path.removeprefix(root) for path in fs.ls(root, detail=False)),
    "find": [path.removeprefix(root) for path in fs.find(root)],
    "glob": [path.removeprefix(root) for path in fs.glob(root + "/**/*.bin")],
    "tail": tail,
    "cat": len(fs.cat_file(f"{{root}}/data/a.bin", start=10, end=30)),
    "tree": sorted(row["size"] for row in fs.ls(root + "/data", expand_info=True)),
}}))
"""
SCHEDULER = """
import json
from pathlib import Path
from huggingface_hub import CommitScheduler, HfApi
folder = Path("watched")
with CommitScheduler(repo_id={repo!r}, repo_type="dataset", folder_path=folder, every=1000) as scheduler:
    with scheduler.lock:
        (folder / "log.jsonl").write_text("first\\n")
    scheduler.trigger().result()
    with scheduler.lock, (folder / "log.jsonl").open("a") as file:
        file.write("second\\n")
        (folder / "x.bin").write_bytes(b"large" * 100)
api = HfApi()
log = api.hf_hub_download({repo!r}, "log.jsonl", repo_type="dataset")
print(json.dumps([Path(log).read_text(), sorted(api.list_repo_files({repo!r}, repo_type="dataset"))]))
"""
COMMAND_LINE = """
import json, subprocess, sys
from pathlib import Path
def hf(*words):
    done = subprocess.run([str(Path(sys.executable).with_name("hf")), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout
Path("up").mkdir()
Path("up/x.bin").write_bytes(b"by hand" * 10_000)
hf("repos", "create", {repo!r}, "--type", "model")
hf("upload", {repo!r}, "up", ".", "--commit-message", "by hand")
hf("repos", "tag", "create", {repo!r}, "v1")
hf("download", {repo!r}, "x.bin", "--local-dir", "down", "--revision", "v1")
print(json.dumps([Path("down/x.bin").read_bytes() == b"by hand" * 10_000, "demo" in hf("auth", "whoami")]))
"""


@pytest.mark.slow("a fresh process without our code, and a Hub")
def test_official_clients_side_by_side(client, local_hub):
    """One process each, at the same time, as a user has them: default settings and an empty cache."""
    log = Log(local_hub)
    jobs = {
        "models": FOLDER.format(repo="demo/side-folder", kind="model"),
        "datasets": FOLDER.format(repo="acme/side-folder", kind="dataset"),
        "file system": FILE_SYSTEM.format(repo="demo/side-fs"),
        "scheduler": SCHEDULER.format(repo="demo/side-scheduler"),
        "hf": COMMAND_LINE.format(repo="demo/side-cli"),
    }
    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = {name: pool.submit(client, script, name) for name, script in jobs.items()}
        found = {name: future.result() for name, future in futures.items()}
    assert found["models"] == found["datasets"] == [True, True, 3]
    assert found["file system"] == {
        "ls": ["/.gitattributes", "/copy.bin", "/data"],
        "find": ["/.gitattributes", "/copy.bin", "/data/a.bin"],
        "glob": ["/copy.bin", "/data/a.bin"],
        "tail": list(range(240, 250)),
        "cat": 20,
        "tree": [250_000],
    }
    assert found["scheduler"] == ["first\nsecond\n", [".gitattributes", "log.jsonl", "x.bin"]]
    assert found["hf"] == [True, True]
    assert any("/v1/xorbs/" in line for line in log.lines("POST"))
    assert not re.search(r" 5\d\d \d+ ms", local_hub.log_file.read_text())

"""The local Hub under the unpatched client libraries, each in a process and a cache of its own."""

import json
import re
import subprocess
import sys

import pytest
from local_hub import Log

pytest_plugins = ["local_hub"]
FRAME = """
import json, os, subprocess, sys
from pathlib import Path
repo, kind = {repo!r}, {kind!r}
{script}
print(json.dumps(answer, default=list))
"""


@pytest.fixture
def client(local_hub, tmp_path):
    """Runs a script with default settings in an empty cache; returns its variable ``answer``."""

    def run(script: str, repo: str = "", kind: str = "dataset"):
        home = tmp_path / f"{repo or 'home'}-{kind}".replace("/", "-")
        home.mkdir()
        environment = local_hub.client_environment(home)
        assert not any("XET" in key for key in environment)
        command = [sys.executable, "-c", FRAME.format(script=script, repo=repo, kind=kind)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=home, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_push_to_hub_load_dataset_and_cards(client, local_hub, hub_api):
    script = """
from datasets import Dataset, DatasetDict, Features, List, Value, get_dataset_config_names, load_dataset
from huggingface_hub import DatasetCard
features = Features({"text": Value("string"), "marks": List(Value("int32"))})
def made(word, count):
    columns = {"text": [f"{word} {n}" for n in range(count)], "marks": [[n] for n in range(count)]}
    return Dataset.from_dict(columns, features=features)
both = DatasetDict(train=made("a", 30), test=made("b", 2))
both.push_to_hub(repo, "one", num_shards={"train": 3, "test": 1}, set_default=True, private=True)
DatasetDict(train=made("c", 4)).push_to_hub(repo, "two")
made("d", 3).push_to_hub(repo, "one", split="extra", revision="branch")
made("e", 3).push_to_hub(repo, "two", data_dir="other")
card = DatasetCard.load(repo)
card.data.license = "apache-2.0"
card.text += "\\nMore words.\\n"
card.validate()
card.push_to_hub(repo)
one = load_dataset(repo)
two = load_dataset(repo, "two", split="train", download_mode="force_redownload")
streamed = [row["text"] for row in load_dataset(repo, "one", split="train", streaming=True)]
names, same = get_dataset_config_names(repo), one["train"].features == features
answer = [len(one["train"]), len(one["test"]), one["train"][0], same, len(two), streamed, names]
"""
    log, texts = Log(local_hub), [f"a {number}" for number in range(30)]
    answer = client(script, "acme/pushed")
    assert answer == [30, 2, {"text": "a 0", "marks": [0]}, True, 3, texts, ["one", "two"]]
    assert any(" 206 " in line for line in log.lines("GET"))  # streaming read ranges, not whole files
    info = hub_api.dataset_info("acme/pushed", files_metadata=True)
    parquet = [file for file in info.siblings if file.rfilename.endswith(".parquet")]
    assert info.private and len([file for file in parquet if file.rfilename.startswith("one/train-")]) == 3
    assert all(file.lfs for file in parquet) and "license:apache-2.0" in info.tags


@pytest.mark.slow("a fresh process without our code, and a Hub")
def test_sentence_transformer(client, hub_api):
    script = """
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers
words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "cat": 2}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
model = SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=4)], device="cpu")
model.push_to_hub(repo)
again = SentenceTransformer(repo, device="cpu")
answer = float(abs(model.encode("a cat") - again.encode("a cat")).max())
"""
    assert client(script, "demo/static") == 0.0
    info = hub_api.model_info("demo/static")
    assert info.library_name == "sentence-transformers" and "model.safetensors" in str(info.siblings)


FOLDER = """
from huggingface_hub import CommitOperationAdd, HfApi, constants
assert not constants.HF_HUB_DISABLE_XET
api, where = HfApi(), {"repo_id": repo, "repo_type": kind}
api.create_repo(**where)
files = {f"w/{n}.safetensors": os.urandom(300_000 + n) for n in range(3)}
files |= {"config.json": b"{}", "empty.bin": b"", "deep/a/b.txt": b"b" * 1000}
for path, content in files.items():
    Path("source", path).parent.mkdir(parents=True, exist_ok=True)
    Path("source", path).write_bytes(content)
for _ in range(2):
    api.upload_folder(**where, folder_path="source")
api.create_commit(**where, operations=[CommitOperationAdd("x.bin", os.urandom(10))], commit_message="one")
api.create_tag(**where, tag="v1")
got = Path(api.snapshot_download(**where, revision="v1"))
same = all((got / path).read_bytes() == content for path, content in files.items())
sums = api.verify_repo_checksums(**where, local_dir=got, revision="v1")
answer = [same, sums.mismatches == [], len(api.list_repo_commits(**where))]
"""


@pytest.mark.slow("a fresh process without our code, and a Hub")
def test_upload_folder_with_default_settings(client, local_hub):
    """Through Xet, with an empty cache."""
    log = Log(local_hub)
    assert client(FOLDER, "demo/side", "model") == [True, True, 3]
    assert any("/v1/xorbs/" in line for line in log.lines("POST"))
    assert not re.search(r" 5\d\d \d+ ms", local_hub.log_file.read_text())

"""The local Hub under the unpatched client libraries, each in a process and a cache of its own."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from local_hub import Log

pytest_plugins = ["local_hub"]
CARD = """---
language: en
configs:
- config_name: pairs
  default: true
  data_files:
  - split: train
    path: data/pairs/train-*.parquet
  - split: test
    path: data/pairs/test-*.parquet
- config_name: triplets
  data_files:
  - split: train
    path: data/triplets/train-*.parquet
  - split: test
    path: data/triplets/test-*.parquet
---
# A test
"""


@pytest.fixture
def client(local_hub, tmp_path):
    """Runs a script in an empty cache; the script's last line of output is JSON."""

    def run(script: str, *, may_fail: bool = False):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=local_hub.client_environment(tmp_path / "home"),
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert may_fail or done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def published(hub_api, repo, tmp_path):
    """Two configs with two splits of two shards, as this project publishes them."""
    source = tmp_path / "source"
    for config in ("pairs", "triplets"):
        for split, base in (("train", 0), ("test", 100)):
            for shard in range(2):
                rows = pa.table({"text": [f"{config} {split} {base + shard * 3 + row}" for row in range(3)]})
                path = source / "data" / config / f"{split}-{shard:05d}-of-00002.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(rows, path, compression="zstd")
    (source / "README.md").write_text(CARD)
    hub_api.upload_folder(repo_id=repo, folder_path=source, repo_type="dataset")
    return repo


def test_load_dataset_and_streaming(published, client, local_hub):
    log = Log(local_hub)
    found = client(f"""
import json
from datasets import get_dataset_config_names, load_dataset
repo = {published!r}
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


def test_xet_client_is_told_what_to_do(local_hub, hub_api, repo, client):
    found = client(
        f"""
import os, json
os.environ["HF_HUB_DISABLE_XET"] = "0"
from huggingface_hub import HfApi
try:
    HfApi().upload_file(path_or_fileobj=b"x" * 1000, path_in_repo="x.bin", repo_id={repo!r}, repo_type="dataset")
except Exception as error:
    print(json.dumps(repr(error)))
""",
        may_fail=True,
    )
    assert "404" in found

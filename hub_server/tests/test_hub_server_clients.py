"""The local Hub under the unpatched client libraries, each in a process and a cache of its own."""

import pytest
from local_hub import Log, run_client

pytest_plugins = ["local_hub"]


def test_push_to_hub_load_dataset_and_cards(local_hub, hub_api, tmp_path):
    script = """
import json, sys
from datasets import Dataset, DatasetDict, Features, List, Value
from datasets import get_dataset_config_names, load_dataset
from huggingface_hub import DatasetCard
repo, features = sys.argv[1], Features({"text": Value("string"), "marks": List(Value("int32"))})
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
print(json.dumps([len(one["train"]), len(one["test"]), one["train"][0], same, len(two), streamed, names]))
"""
    log, texts = Log(local_hub), [f"a {number}" for number in range(30)]
    answer = run_client(local_hub, tmp_path / "home", script, "acme/pushed")
    assert answer == [30, 2, {"text": "a 0", "marks": [0]}, True, 3, texts, ["one", "two"]]
    # streaming read ranges, not whole files
    assert any(" 206 " in line for line in log.lines("GET"))
    info = hub_api.dataset_info("acme/pushed", files_metadata=True)
    parquet = [file for file in info.siblings if file.rfilename.endswith(".parquet")]
    assert (
        info.private
        and len([file for file in parquet if file.rfilename.startswith("one/train-")]) == 3
    )
    assert all(file.lfs for file in parquet) and "license:apache-2.0" in info.tags


@pytest.mark.slow("a fresh process without our code, and a Hub")
def test_sentence_transformer(local_hub, hub_api, tmp_path):
    script = """
import sys
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers
words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "cat": 2}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
model = SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=4)], device="cpu")
model.push_to_hub(sys.argv[1])
again = SentenceTransformer(sys.argv[1], device="cpu")
print(float(abs(model.encode("a cat") - again.encode("a cat")).max()))
"""
    assert run_client(local_hub, tmp_path / "home", script, "demo/static") == 0.0
    info = hub_api.model_info("demo/static")
    assert info.library_name == "sentence-transformers" and "model.safetensors" in str(
        info.siblings
    )

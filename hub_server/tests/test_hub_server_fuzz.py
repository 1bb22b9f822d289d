"""Whatever is sent to any route of the local Hub, it answers, stays up, and keeps nobody else waiting."""

import os
import random
from pathlib import Path

import pytest
from hub_fuzz import OPTIONS, fuzz, prepare
from hub_fuzz_requests import Fuzzer
from huggingface_hub import HfApi, hf_hub_download
from local_hub import ask

from hub_server.handlers import routes
from hub_server.process import LocalHub

REQUESTS = int(os.environ.get("STS_DINO_FUZZ_REQUESTS", "1600"))  # thousands more: python tests/hub_fuzz.py
SEED = int(os.environ.get("STS_DINO_FUZZ_SEED", "7"))


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with LocalHub(tmp_path_factory.mktemp("fuzzed"), orgs=["acme"], options=[*OPTIONS, "--patience", "5"]) as started:
        yield started


@pytest.mark.slow("waits for slow clients, large stores or old uploads")
def test_every_request_is_answered_and_nobody_waits(hub, tmp_path):
    process = hub.process.pid
    found = fuzz(hub, REQUESTS, SEED)
    print(found)
    assert not found.wrong, f"{len(found.wrong)}: {found.wrong[:5]}"
    assert found.classes["2xx"] > REQUESTS / 20 and found.classes["4xx"] > REQUESTS / 3 and not found.classes["5xx"]
    assert found.classes.total() == REQUESTS // 4 * 4  # no worker died
    assert found.polls > 20 and found.longest_poll < 2
    assert hub.process.poll() is None and hub.process.pid == process
    assert "Traceback" not in hub.log_file.read_text(errors="replace")
    api = HfApi(endpoint=hub.endpoint, token=hub.token)
    repo = api.create_repo("demo/afterwards", repo_type="dataset").repo_id
    content = os.urandom(200_000)
    api.upload_file(path_or_fileobj=content, path_in_repo="x.bin", repo_id=repo, repo_type="dataset")
    path = hf_hub_download(repo, "x.bin", repo_type="dataset", endpoint=hub.endpoint, cache_dir=tmp_path)
    assert Path(path).read_bytes() == content


def test_addresses_reach_the_handlers_of_all_routes(hub):
    """Those drawn from a route's pattern lead to it often enough, be it new or old."""
    fuzzer = Fuzzer(prepare(hub), random.Random(1))
    for _, pattern, handler in routes._ROUTES:
        drawn = [fuzzer.address(pattern) for _ in range(40)]
        assert sum(bool(pattern.fullmatch(address)) for address in drawn) >= 20, handler
    assert ask(hub, "GET", "/").status == 200

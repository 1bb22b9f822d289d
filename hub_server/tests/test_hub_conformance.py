"""What docs/hub_server.md says of every method of HfApi, held against the client library and a running Hub."""

import inspect
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from hub_calls import FILES, SERVED, Scene
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError

pytest_plugins = ["local_hub"]
PAGE = Path(__file__).parents[2] / "docs" / "hub_server.md"
# Arguments of the methods that are not served, by the names of their parameters; "x" for all others.
_ID = "0" * 24
ARGUMENTS: dict[str, object] = {
    "bucket_id": "demo/bucket", "collection_slug": f"demo/a-{_ID}", "command": ["ls"], "discussion_num": 1,
    "expose": [80], "files": [("x", "x")], "from_id": "demo/conformance", "hardware": "cpu-basic", "id": "2301.00001",
    "item_id": "demo/conformance", "item_object_id": _ID, "item_type": "model", "job_id": _ID, "labels": {"a": "b"},
    "private": True, "repo_id": "demo/conformance", "resource_group_id": _ID, "schedule": "@hourly",
    "scheduled_job_id": _ID, "sleep_time": 3600, "title": "A title", "to_id": "demo/other", "volumes": [],
    "webhook_id": _ID,
}  # fmt: skip
# Options without which a method sends nothing.
OPTIONS: dict[str, dict[str, object]] = {
    "batch_bucket_files": {"delete": ["x"]},
    "sync_job_volume": {"source": ".", "mount_path": "/data", "namespace": "demo"},
    "permanently_delete_lfs_files": {"lfs_files": [SimpleNamespace(file_oid="0" * 64)]},
    **{f"{verb}_access_request": {"user": "alice"} for verb in ("accept", "reject", "cancel")},
    "change_discussion_status": {"new_status": "closed"},
    "upload_attachment": {"path": "picture.png"},
    "create_webhook": {"url": "http://127.0.0.1:1/", "watched": []},
    "sync_bucket": {"source": "hf://buckets/demo/bucket", "dest": "."},
    **{name: {"namespace": "demo"} for name in ("list_jobs", "list_scheduled_jobs")},
}


def promised(section: str) -> list[str]:
    """The methods that the page names in the first column of a section's table."""
    text = PAGE.read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


PAGES = {section: promised(section) for section in ("Served", "Not served", "Not sent to a Hub")}


def test_the_page_names_each_method_once():
    methods = {name for name, member in inspect.getmembers(HfApi, callable) if not name.startswith("_")}
    named = [name for names in PAGES.values() for name in names]
    assert len(named) == len(set(named)), sorted(name for name in set(named) if named.count(name) > 1)
    version, new, gone = huggingface_hub.__version__, sorted(methods - set(named)), sorted(set(named) - methods)
    hint = "name them in docs/hub_server.md and, when they are served, use them in hub_server/tests/hub_calls.py"
    assert not new, f"huggingface_hub {version} has methods that docs/hub_server.md does not know: {new}; {hint}"
    assert not gone, f"huggingface_hub {version} no longer has {gone}: strike them from docs/hub_server.md"
    assert SERVED.keys() == set(PAGES["Served"]), "each served method needs a check in hub_server/tests/hub_calls.py"


@pytest.fixture(scope="module")
def scene(hub_api, tmp_path_factory) -> Iterator[Scene]:
    """With a cache of its own."""
    folder = tmp_path_factory.mktemp("conformance")
    made = Scene(hub_api, folder / "upload")
    hub_api.create_repo(made.repo)
    hub_api.create_repo(made.repo, repo_type="dataset")
    operations = [CommitOperationAdd(path, content) for path, content in FILES.items()]
    hub_api.create_commit(made.repo, operations, commit_message="files")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "cache"))
        yield made


@pytest.mark.parametrize("method", PAGES["Served"])
@pytest.mark.filterwarnings("ignore:Hidden comments:UserWarning")
def test_served(scene, method):
    assert SERVED[method](scene)


@pytest.mark.parametrize("method", PAGES["Not served"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_not_served(scene, method, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("picture.png").write_bytes(b"a picture")
    call = getattr(scene.api, method)
    options = OPTIONS.get(method, {})
    wanted = [
        name
        for name, parameter in inspect.signature(call).parameters.items()
        if parameter.default is parameter.empty and name not in options
    ]
    with pytest.raises(HfHubHTTPError) as refused:
        answer = call(**{name: ARGUMENTS.get(name, "x") for name in wanted}, **options)
        if isinstance(answer, Iterator):
            list(islice(answer, 3))
    status, words = refused.value.response.status_code, str(refused.value)
    assert (status, "This local Hub serves models and datasets" in words) == (404, True) or (
        status == 400 and "should be 'model' or 'dataset'" in words
    ), (status, words)

"""The methods of HfApi in docs/hub_server.md agree with the client library and a running Hub."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from hub_calls import FILES, SERVED, Scene
from huggingface_hub import CommitOperationAdd, HfApi

pytest_plugins = ["local_hub"]
PAGE = Path(__file__).parents[2] / "docs" / "hub_server.md"


def promised(section: str) -> list[str]:
    """The methods that the page names in the first column of a section's table."""
    text = PAGE.read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


PAGES = {section: promised(section) for section in ("Served", "Not served", "Not sent to a Hub")}


def test_the_page_names_each_method_once():
    methods = {
        name for name, member in inspect.getmembers(HfApi, callable) if not name.startswith("_")
    }
    named = [name for names in PAGES.values() for name in names]
    assert len(named) == len(set(named)), sorted(
        name for name in set(named) if named.count(name) > 1
    )
    version, new, gone = (
        huggingface_hub.__version__,
        sorted(methods - set(named)),
        sorted(set(named) - methods),
    )
    hint = (
        "name them in docs/hub_server.md and, when they are served, "
        "use them in hub_server/tests/hub_calls.py"
    )
    assert not new, (
        f"huggingface_hub {version} has methods that docs/hub_server.md does not know: "
        f"{new}; {hint}"
    )
    assert not gone, (
        f"huggingface_hub {version} no longer has {gone}: strike them from docs/hub_server.md"
    )
    assert SERVED.keys() == set(PAGES["Served"]), (
        "each served method needs a check in hub_server/tests/hub_calls.py"
    )


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

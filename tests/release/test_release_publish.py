"""What a published encoder says of its datasets: version, tag and commit by the rows, and the card."""

from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from card_runs import TRAINED_ON, edit, model_run
from published_run import finished_run

from sts_dino.hub.client.plan import CARD
from sts_dino.hub.client.publish import Options as Publication
from sts_dino.hub.client.publish import Release, publish_run
from sts_dino.hub.client.repository import Repository
from sts_dino.hub.client.retry import RetryPolicy
from sts_dino.hub.contract.run_dir import Manifest, require_complete
from sts_dino.hub.errors import InputError
from sts_dino.release import publish as publish_module
from sts_dino.release.options import PublishOptions
from sts_dino.release.publish import (
    find_published_datasets,
    find_published_rows,
    format_command,
    write_card,
)

pytest_plugins = ["local_hub"]
CONFIG = "postprocessed"


def local_dataset(path: str) -> dict:
    """A model's record of a dataset that it read from a folder."""
    facts = {"config": CONFIG, "example_type": "sts", "loss": "CosineSimilarityLoss"}
    facts["license"] = "cc0-1.0"
    return {"path": path, "commit": None, "splits": {"train": 2}, **facts}


def hash_rows(directory: Path) -> str:
    return require_complete(directory).hash_shards(CONFIG)


def publish_dataset(api, directory: Path, version: str, text: str = "A") -> str:
    """Publish two rows as a version of a dataset; return the digest of the rows."""
    publish_run(api, finished_run(directory, version, text=text), "acme", yes=True)
    return hash_rows(directory)


@pytest.fixture
def hub(hub_api, monkeypatch):
    """The local Hub, which the module under test reads, too."""
    monkeypatch.setattr("sts_dino.release.publish.HfApi", lambda: hub_api)
    return hub_api


def test_the_proposed_command_keeps_the_options_and_an_empty_owner_is_refused():
    options = PublishOptions(org="acme", public=True, longest=60)
    command = format_command([Path("a run")], options)
    assert command == "sts-dino publish 'a run' --org acme --public --patience 60 --yes"
    assert format_command([Path("run")], PublishOptions()) == "sts-dino publish run --yes"
    with pytest.raises(InputError, match="--org: is empty"):  # of "$ORG" without a value
        PublishOptions(org="")


def test_the_question_for_the_user_is_asked_again_after_a_lost_connection(tmp_path, monkeypatch):
    answers = [httpx2.ReadTimeout("slow"), SimpleNamespace(name="somebody")]

    def fetch_account(api):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(publish_module, "fetch_account", fetch_account)
    monkeypatch.setattr(publish_module, "install_patience", lambda _: RetryPolicy(scale=0.001))
    directory = model_run(tmp_path / "run")
    write_card(directory, PublishOptions())
    assert 'SentenceTransformer("somebody/' in (directory / CARD).read_text(encoding="utf-8")


def test_of_versions_with_the_same_rows_the_latest_is_named(hub, tmp_path):
    directory = tmp_path / "two-tags"
    digests = {publish_dataset(hub, directory, version) for version in ("0.9.0", "0.10.0")}
    (digest,) = digests
    for name in ("v-next", "v0.11"):  # of a person
        hub.create_tag("acme/two-tags", tag=name, repo_type="dataset")
    found = find_published_rows(hub, "acme", ["absent", "two-tags"], CONFIG, digest)
    tags = Repository(hub, "acme/two-tags", "dataset").list_tags()
    commit = tags["v0.10.0"]
    assert found == {"repo_id": "acme/two-tags", "revision": "v0.10.0", "commit": commit}
    assert find_published_rows(hub, "acme", ["two-tags"], CONFIG, "0" * 64) == {}


def test_two_folders_of_one_name_are_two_datasets(hub, tmp_path):
    first = publish_dataset(hub, tmp_path / "same-name", "0.1.0", "first")
    second = publish_dataset(hub, tmp_path / "same-name", "0.2.0", "second")
    assert first != second
    paths = ("same-name", "same-name", "same-name.csv", "same-name", "same-name")
    inputs = {
        f"dataset:same-name:{CONFIG}": second,
        f"dataset:same-name:{CONFIG}#2": first,
        f"dataset:same-name.csv:{CONFIG}": first,
        f"dataset:same-name:{CONFIG}#3": "0" * 64,
    }  # the fourth folder has no digest
    manifest = Manifest(
        kind="model",
        name="of-two-folders",
        version="0.1.0",
        fingerprint="f" * 64,
        inputs=inputs,
        provenance={"datasets": [local_dataset(path) for path in paths]},
    )
    found = find_published_datasets(manifest, "acme", ["same-name"])
    assert [entry.get("revision") for entry in found] == ["v0.2.0", "v0.1.0", None, None, None]
    # the same once the datasets' places are recorded
    recorded = manifest.model_copy(update={"provenance": {"datasets": found}})
    assert find_published_datasets(recorded, "acme", ["same-name"]) == found


def test_a_card_that_an_interruption_left_behind_is_written_again(hub, tmp_path, monkeypatch):
    digest = publish_dataset(hub, tmp_path / "of-a-model", "0.1.0")
    dataset = {
        key: value for key, value in TRAINED_ON.items() if key not in ("repo_id", "revision")
    }
    directory = model_run(tmp_path / "model", datasets=[{**dataset, "path": "of-a-model"}])
    edit(
        directory,
        inputs={f"dataset:of-a-model:{CONFIG}": digest},
        provenance={"datasets": [local_dataset("of-a-model")]},
    )
    write_card(directory, PublishOptions(org="acme"))
    before = (directory / CARD).read_text()
    assert "acme/of-a-model" not in before

    options = PublishOptions(org="acme", yes=True)
    with monkeypatch.context() as patch:
        patch.setattr("sts_dino.release.publish.write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_card(directory, options)
    (recorded,) = require_complete(directory).provenance["datasets"]
    assert recorded["revision"] == "v0.1.0" and (directory / CARD).read_text() == before

    write_card(directory, options)
    assert "acme/of-a-model" in (directory / CARD).read_text()
    manifest = require_complete(directory)
    repository = Repository(hub, "acme/tiny-encoder", "model")
    Release(repository, directory, manifest, Publication()).check_card()

    # a card of these facts stays as it is
    with monkeypatch.context() as patch:
        patch.setattr("sts_dino.release.publish.write", interrupt)
        write_card(directory, options)


def test_a_card_that_is_no_text_counts_as_edited_and_stays(tmp_path):
    directory = model_run(tmp_path / "model")
    (directory / CARD).write_bytes(b"\xff")
    write_card(directory, PublishOptions(org="acme"))
    assert (directory / CARD).read_bytes() == b"\xff"


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt

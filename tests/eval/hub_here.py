"""The local Hub as the client in this process sees it, with an empty cache: ``pytest_plugins =
[..., "hub_here"]``.
"""

import pytest


@pytest.fixture
def hub_here(local_hub, tmp_path, monkeypatch):
    """Returns what puts the client offline."""
    address = local_hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", local_hub.endpoint)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", local_hub.endpoint)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache" / "datasets"))
    return lambda: monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

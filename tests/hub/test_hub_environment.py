"""hub.environment: a bad variable is named in one line by what needs it, without the passwords in it."""

import os

import pytest

from hub.environment import require_usable, set_aside
from hub.errors import InputError

BAD = {
    "ALL_PROXY": ["socks5://127.0.0.1:1", "http://me:secret@[::1"],
    "https_proxy": ["http://me:secret@127.0.0.1:99999", "ftp://x"],
    "HF_ENDPOINT": ["http://127.0.0.1: 80", "http://[::1", "ftp://x", "hub", "https://me:secret@hub", "http://me@hub"],
    "HF_HUB_ETAG_TIMEOUT": ["abc"],
    "HF_HUB_DOWNLOAD_TIMEOUT": ["1.5"],
    "HF_TOKEN": ["hf_secret\xe4", "hf_secret\nx"],
    "SSL_CERT_FILE": ["/nonexistent.pem", __file__],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_variable_is_named_by_what_needs_it(name, value, monkeypatch):
    monkeypatch.setenv("STS_DINO_SET_ASIDE", "")
    monkeypatch.setenv(name, value)
    set_aside()  # what follows here may import any library
    with pytest.raises(InputError, match=f"^{name}: ") as error:
        require_usable(of_hub=True)
    assert "secret" not in str(error.value) and "\n" not in str(error.value)
    of_others = not name.startswith("HF_")
    if of_others:
        with pytest.raises(InputError, match=f"^{name}: "):
            require_usable()
    else:
        require_usable()
    assert of_others or name == "HF_TOKEN" or os.environ.get(name) in (None, "https://hub.invalid")


@pytest.mark.parametrize(
    ("name", "value"),
    [("HTTP_PROXY", "http://me:pw@proxy:3128"), ("HTTPS_PROXY", "proxy:3128"), ("HF_ENDPOINT", "http://[::1]:80/hub")],
)
def test_a_usable_variable_stays(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    set_aside()
    require_usable(of_hub=True)
    assert os.environ[name] == value


def test_a_number_that_no_command_needs_is_ignored_with_a_warning(monkeypatch, capsys):
    monkeypatch.setenv("TQDM_MININTERVAL", "abc")
    set_aside()
    assert capsys.readouterr().err == "warning: TQDM_MININTERVAL: is ignored, it is not a number ('abc')\n"
    assert "TQDM_MININTERVAL" not in os.environ

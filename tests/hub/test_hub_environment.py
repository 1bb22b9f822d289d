"""sts_dino.hub.process: a bad variable is named in one line by what needs it, without the
passwords in it.
"""

import os
import subprocess
import sys

import pytest

from sts_dino.__main__ import main
from sts_dino.hub.errors import InputError
from sts_dino.hub.process import remove_unusable_values, require_usable

BAD = {
    "ALL_PROXY": ["socks5://127.0.0.1:1", "http://me:secret@[::1"],
    "https_proxy": ["http://me:secret@127.0.0.1:99999", "ftp://x"],
    "HF_ENDPOINT": [
        "http://127.0.0.1: 80",
        "http://[::1",
        "ftp://x",
        "hub",
        "https://me:secret@hub",
        "http://me@hub",
    ],
    "HF_HUB_ETAG_TIMEOUT": ["abc"],
    "HF_HUB_DOWNLOAD_TIMEOUT": ["1.5"],
    "HF_TOKEN": ["hf_secret\xe4", "hf_secret\nx"],
    "SSL_CERT_FILE": ["/nonexistent.pem", __file__],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_a_bad_variable_is_named_by_what_needs_it(name, value, monkeypatch):
    monkeypatch.setenv("STS_DINO_SET_ASIDE", "")
    monkeypatch.setenv(name, value)
    remove_unusable_values()  # what follows here may import any library
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
    [
        ("HTTP_PROXY", "http://me:pw@proxy:3128"),
        ("HTTPS_PROXY", "proxy:3128"),
        ("HF_ENDPOINT", "http://[::1]:80/hub"),
    ],
)
def test_a_usable_variable_stays(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    remove_unusable_values()
    require_usable(of_hub=True)
    assert os.environ[name] == value


def test_the_command_lets_threads_sleep_while_they_wait_unless_the_user_says_otherwise():
    """OpenMP prints the policy that it read when torch loads it."""
    script = "import sys; sys.argv[1:] = ['--help']\nfrom sts_dino.__main__ import main\n"
    script += "try:\n    main()\nexcept SystemExit:\n    pass\nimport torch\n"
    for chosen, used in [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "active"}, "ACTIVE")]:
        environment = {
            name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"
        }
        environment |= chosen | {"OMP_DISPLAY_ENV": "true"}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True
        )
        assert f"OMP_WAIT_POLICY = '{used}'" in done.stderr


def test_a_number_that_no_command_needs_is_ignored_with_a_warning(monkeypatch):
    monkeypatch.setenv("TQDM_MININTERVAL", "abc")
    warnings = remove_unusable_values()
    assert warnings == ["TQDM_MININTERVAL: is ignored, it is not a number ('abc')"]
    assert "TQDM_MININTERVAL" not in os.environ


def test_the_command_line_prints_the_warning(monkeypatch, capsys):
    monkeypatch.setenv("TQDM_MININTERVAL", "abc")
    monkeypatch.setattr("sys.argv", ["sts-dino", "--version"])
    main()
    printed = capsys.readouterr().err
    assert printed == "warning: TQDM_MININTERVAL: is ignored, it is not a number ('abc')\n"

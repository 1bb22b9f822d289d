"""No test may leave this machine, nor see what its user set, downloaded or made."""

import ipaddress
import logging
import os
import socket
import sys
import threading
from pathlib import Path

import pytest
from tqdm import tqdm

HERE = Path(__file__).parent
ROOT = HERE.parent
LOCAL_NAMES = (None, "", "localhost", socket.gethostname())
NO_MACHINES = (".invalid", ".test", ".example")  # names that never have an address (RFC 2606)
sys.path[:0] = [
    str(HERE),
    str(ROOT / "hub_server" / "tests"),
    *(str(folder) for folder in sorted(HERE.iterdir()) if folder.is_dir()),
]

from isolation import isolate_environment  # noqa: E402 - its folder is on the path now

isolate_environment()
if sys.platform == "linux":
    # without it gloo looks up this machine's name, which a machine without a network may not know
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
# tqdm's own lock is shared with forks: one that is killed while it draws would block all others
tqdm.set_lock(threading.RLock())
if "STS_DINO_DATA" in os.environ:
    os.environ["STS_DINO_DATA"] = str(Path(os.environ["STS_DINO_DATA"]).absolute())
os.chdir(ROOT)  # tests name recipes and assets from here


LONGEST_FILE = (
    "test_readme.py"  # its route takes minutes: begun last, it would run alone at the end
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest file; the others keep their order."""
    items.sort(key=lambda item: item.path.name != LONGEST_FILE)


class FailurePrinter:
    """Prints a failed test's name at once: a run that is ended early has no summary."""

    def __init__(self, config: pytest.Config):
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            *_, reason = ["", *report.longreprtext.splitlines()]
            terminal.write(f"\nfailed: {report.nodeid}: {reason}\n")


def pytest_configure(config: pytest.Config) -> None:
    """Let the process that prints the results name failed tests."""
    if not hasattr(config, "workerinput"):  # pytest-xdist's workers have it
        config.pluginmanager.register(FailurePrinter(config))


@pytest.fixture(scope="session", autouse=True)
def names_of_other_machines():
    """Names of other machines that a test looked up: none has an address, as without a network."""
    names: list[str] = []
    find_addresses = socket.getaddrinfo

    def find_local_addresses(host, *arguments, **options):
        name = host.decode() if isinstance(host, bytes) else host
        if name in LOCAL_NAMES or _is_address(name):
            return find_addresses(host, *arguments, **options)
        names.append(name)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", find_local_addresses)
        yield names


@pytest.fixture(autouse=True)
def stay_on_this_machine(request, names_of_other_machines):
    """Fail a fast test that asks another machine: without a network it waits for minutes."""
    names_of_other_machines.clear()
    yield
    asked = [name for name in names_of_other_machines if not name.endswith(NO_MACHINES)]
    if asked and request.node.get_closest_marker("slow") is None:
        pytest.fail(f"the test asks {asked[0]}; give it the fixture 'offline' or 'local_hub'")


@pytest.fixture
def forked(monkeypatch):
    """Fork stages from a process that has imported the libraries."""
    from forked_python import python_in

    monkeypatch.setattr(sys, "executable", python_in(dict(os.environ)))


@pytest.fixture
def offline(monkeypatch):
    """Let the Hub client read its cache alone, as with HF_HUB_OFFLINE=1."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def _is_address(name: str) -> bool:
    """Return whether a host is given as an IP address."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


@pytest.fixture(scope="session", autouse=True)
def hide_downloaded_models():
    """Hide the models that ``sts-dino lm`` put into the clone; a test's own folder has its own."""
    from sts_dino.hub.contract.packaged import PackagedModel

    find_model = PackagedModel.is_here.fget

    def is_in_a_tests_folder(model: PackagedModel) -> bool:
        return find_model(model) and not model.folder.resolve().is_relative_to(ROOT / "artifacts")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackagedModel, "is_here", property(is_in_a_tests_folder))
        yield


@pytest.fixture(autouse=True)
def print_messages(monkeypatch):
    """Print the library's messages as the command line does, so that a test reads them on stderr."""
    from sts_dino.hub.cli import TerminalHandler

    library = logging.getLogger("sts_dino")
    monkeypatch.setattr(library, "handlers", [TerminalHandler()])
    monkeypatch.setattr(library, "level", logging.INFO)
    monkeypatch.setattr(library, "propagate", False)

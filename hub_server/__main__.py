"""``python -m hub_server serve|token|gc``."""

from hub.cli import run
from hub_server.server import app

run(app, ends_on_sigterm=True)

"""``python -m hub.local serve|token|gc``."""

from hub.cli import run
from hub.local.server import app

run(app, ends_on_sigterm=True)

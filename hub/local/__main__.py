"""``python -m hub.local serve|token|gc``."""

from hub.cli import run
from hub.local.cli import app

run(app)

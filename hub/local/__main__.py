"""``python -m hub.local serve|token``."""

from hub.cli import run
from hub.local.cli import app

run(app)

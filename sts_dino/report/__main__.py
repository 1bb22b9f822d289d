"""``python -m sts_dino.report``."""

from hub import cli
from sts_dino.report.run import app

if __name__ == "__main__":
    cli.run(app)

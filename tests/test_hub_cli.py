"""hub.cli: the command that a card prints."""

import shlex
from pathlib import Path

import pytest

from hub.cli import command_line


@pytest.mark.parametrize(
    ("recipe", "limit", "settings", "line"),
    [
        ("recipes/a.yaml", None, [], "python -m generation.run recipes/a.yaml"),
        ("/home/me/a.yaml", 20, [], "python -m generation.run a.yaml --limit 20"),
        ("a b.yaml", None, ["seed=1", "x=$(y)"], "python -m generation.run 'a b.yaml' --set seed=1 --set 'x=$(y)'"),
    ],
)
def test_the_command_is_whole_and_safe_to_paste(recipe, limit, settings, line):
    assert command_line("generation.run", Path(recipe), limit, settings) == line


def test_a_shell_reads_every_setting_back():
    setting = "source={kind: file, path: it's.tsv}\n; rm x"
    assert shlex.split(command_line("m", Path("r.yaml"), None, [setting]))[-2:] == ["--set", setting]

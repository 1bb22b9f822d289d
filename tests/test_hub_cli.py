"""hub.cli: the command that a card prints."""

import shlex
from pathlib import Path

import pytest

from hub.cli import command_line, new_app, run


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


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted; run the same command again to go on\n"),
        (OSError(28, "full", "/d/f"), 1, "error: /d/f: no space left on the disk; free some"),
        (NotADirectoryError(20, "no", "/d/f"), 1, "error: /d/f: cannot be written or read here; choose another folder"),
    ],
)
def test_ctrl_c_and_disks_end_a_command_in_one_line(error, code, said, capsys, monkeypatch):
    app = new_app("a command")

    @app.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr("sys.argv", ["command"])
    with pytest.raises(SystemExit) as end:
        run(app)
    lines = capsys.readouterr().err
    assert end.value.code == code and lines.startswith(said) and lines.count("\n") == 1

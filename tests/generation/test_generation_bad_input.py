"""What a recipe of better pairs may name and cannot be used: one line, exit code 2, and nothing that looks finished."""

from pathlib import Path

import pytest
import yaml
from small_runs import small_recipe, small_run

from generation.run import app
from hub.cli import run
from hub.contract.run_dir import read_manifest, require_complete

DEMO = yaml.safe_load(Path("recipes/demo/sts-dino-x2.yaml").read_text(encoding="utf-8"))
HEAD = "text1\t1\t0.5\t0\n"
ROW = "A man cooks.\tSomebody cooks.\tA man eats.\tIt rains.\n"


def few_shot(folder, content=None, shots=1, **examples):
    if content is not None:
        (folder / "shown.tsv").write_text(content, encoding="utf-8")
        examples |= {"kind": "hand", "path": str(folder / "shown.tsv")}
    return {"few_shot": {"shots": [shots], "sets": 1, "examples": {"description": "d", "license": "mit", **examples}}}


def gguf(folder, content):
    (folder / "model.gguf").write_bytes(content)
    return {"model": {"path": str(folder), "gguf_file": "model.gguf", "license": "cc-by-nc-sa-4.0"}}


def own(folder, **examples):
    small_run(folder / "own", small_recipe("sts"))
    return few_shot(folder, kind="own", path=str(folder / "own"), **examples)


X2 = DEMO["labels"]
CASES = {
    "a text under the name of a GGUF": (lambda d: gguf(d, b"hello"), "model.gguf: cannot be read as a GGUF file"),
    "a GGUF that was cut": (lambda d: gguf(d, b"GGUF\3\0\0\0\2"), "is the file whole? Download it again"),
    "an empty GGUF": (lambda d: gguf(d, b""), "model.gguf: cannot be read as a GGUF file"),
    "an unknown label": (
        lambda d: few_shot(d, HEAD.replace("0.5", "0.7") + ROW),
        "shown.tsv: column '0.7': is no label; allowed: text1, 1, 0.5, 0; did you mean '0.5'?",
    ),
    "too few good rows of an own run": (
        lambda d: own(d, rank_by="log_prob", top=9000),
        "are wanted; lower top, or write more rows in the first round",
    ),
    "too few rows for the shots": (
        lambda d: own(d, rank_by="log_prob", top=2) | {"seed": 1},
        "or write more rows in the first round",
    ),
    "an own run of other labels": (
        lambda d: {**own(d), "labels": [{**X2[0], "name": "9"}]},
        "has 0 usable examples of '9'",
    ),
    "no such own run": (
        lambda d: few_shot(d, kind="own", path=str(d / "nowhere")),
        "nowhere: is not a run directory (no manifest.json); run the stage that makes it first",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_one_line_and_nothing_is_left_that_looks_finished(case, tmp_path, monkeypatch, capsys):
    changes, problem = CASES[case]
    found = changes(tmp_path)
    if case == "too few rows for the shots":
        found["few_shot"]["shots"] = [8]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**DEMO, **found}), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["generation.run", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        run(app)
    said = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and len(said) == 1, said
    assert said[0].startswith("error: ") and problem in said[0]
    manifest = read_manifest(tmp_path / "out")
    assert manifest is None or not (manifest.complete or manifest.files)
    assert not [path for path in (tmp_path / "out").glob("*") if path.name not in ("manifest.json", "recipe.yaml")]


def test_a_corrected_file_needs_no_other_place(tmp_path, monkeypatch, capsys):
    """What bad input stopped holds nothing yet: with the file mended, the same command goes past it."""
    words = ["generation.run", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "out"), "--limit", "6"]
    monkeypatch.setattr("sys.argv", words)
    for content in (HEAD.replace("0.5", "0.7") + ROW, HEAD + ROW):
        tree = {**DEMO, **few_shot(tmp_path, content)}
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
        with pytest.raises(SystemExit) as ended:
            run(app)
    assert ended.value.code == 0, capsys.readouterr().err
    assert require_complete(tmp_path / "out").counts["sources"] == 6

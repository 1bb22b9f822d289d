import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.generation import fidelity
from benchmarks.generation.throughput import worker
from hub.errors import InputError


def rows(label: str, *cosines: float | None) -> list[dict]:
    """A text for each first text; its cosine stands in its words."""
    return [
        {"x1": f"x{n}", "label": label, "x2": str(c), "problem": None if c is not None else "not_closed"}
        for n, c in enumerate(cosines)
    ]


def encode(texts: list[str]) -> np.ndarray:
    angles = np.arccos([1.0 if text.startswith("x") else float(text) for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def test_means_intervals_and_paired_differences_by_label():
    values = np.random.default_rng(0).uniform(0.2, 0.8, 60)
    found = fidelity.compared(
        {
            "float32": rows("1", *values) + rows("0", *[0.5] * 59, None),
            "bfloat16": rows("1", *(values + 0.01)) + rows("0", *[0.1] * 60),
        },
        encode,
    )
    one, zero = found["labels"]["1"], found["labels"]["0"]
    assert one["float32"]["mean"] == pytest.approx(values.mean(), abs=1e-4)
    assert one["float32"]["low"] < values.mean() < one["float32"]["high"]
    assert one["bfloat16 overlaps float32"]
    assert one["bfloat16 - float32"] == {"mean": 0.01, "low": 0.01, "high": 0.01}  # pairs differ by the same
    assert zero["bfloat16 - float32"]["mean"] == -0.4
    assert not zero["bfloat16 overlaps float32"]
    assert zero["float32"]["texts"] == 59
    assert found["closed"] == {"float32": round(119 / 120, 4), "bfloat16": 1.0}
    assert "| 0 | 0.500 [0.500, 0.500] | 0.100 [0.100, 0.100] | -0.400 [-0.400, -0.400] | no |" in fidelity.told(found)


def test_intervals_are_over_first_texts_not_over_texts():
    """Ten equal texts of a first text tell no more than one."""
    values = [0.0, 1.0] * 10
    once = fidelity._interval({str(n): [value] for n, value in enumerate(values)})
    often = fidelity._interval({str(n): [value] * 10 for n, value in enumerate(values)})
    assert (once["low"], once["high"]) == (often["low"], often["high"])


def test_pieces_cover_all_first_texts_and_are_told_apart(tmp_path):
    model = tmp_path / "lm"
    model.mkdir()
    pieces = fidelity.parts("sts-x2", model, "float32", 45, 96, tmp_path)
    assert [(piece.start, piece.count) for piece in pieces] == [(0, 20), (20, 20), (40, 5)]
    folders = {Path(piece.place).parent for piece in pieces}
    (model / "model.safetensors").write_bytes(b"weights")
    others = [
        fidelity.parts(kind, model, dtype, 45, number, tmp_path)[0]
        for kind, dtype, number in (("sts-x2", "float32", 96), ("sts-x2", "bfloat16", 96), ("sts-x2", "float32", 48))
    ]
    assert len(folders | {Path(piece.place).parent for piece in others}) == 4


def test_what_is_written_is_read_again(tmp_path):
    folder = tmp_path / "gpt2-tiny"
    worker.make_model("gpt2-tiny", folder, [3, 5])
    piece = fidelity.parts("sts-x2", folder, "float32", 2, 24, tmp_path)[0]
    fidelity.write(piece)
    kept = json.loads(Path(piece.place).read_text())
    assert [row["label"] for row in kept] == ["1", "1", "0.5", "0.5", "0", "0"] * 2
    assert len({row["x1"] for row in kept}) == 2 and all(row["x2"] for row in kept)

    def alone(*asked: object) -> None:
        raise AssertionError("written twice")

    assert fidelity._written(alone, [piece]) == kept  # type: ignore[arg-type]


def test_a_folder_without_a_model_is_refused(tmp_path):
    result = CliRunner().invoke(fidelity.app, [str(tmp_path)])
    assert isinstance(result.exception, InputError) and "make lm" in str(result.exception)
    (tmp_path / "config.json").write_text("{}")
    for options, allowed in ((["--dtypes", "int8"], "float32, bfloat16"), (["--kind", "sts"], "sts-x2, sts-x2-8shot")):
        refused = CliRunner().invoke(fidelity.app, [str(tmp_path), *options])
        assert isinstance(refused.exception, InputError) and allowed in str(refused.exception)


def test_a_label_without_closed_texts_is_one_clear_line():
    none = rows("1", None, None)
    with pytest.raises(InputError, match="no closed text"):
        fidelity.compared({"float32": none, "bfloat16": none}, encode)

import json

from typer.testing import CliRunner

from benchmarks.generation import eight_bit


def test_every_kind_of_weights_is_near_the_float32_result():
    done = CliRunner().invoke(eight_bit.app, ["--quick", "--rows", "32", "--trials", "1"])
    found = json.loads(done.stdout)["milliseconds"]
    assert set(found) == {"layer", "output layer"}
    for kinds in found.values():
        assert {"float32", "bfloat16", "float32, packed", "bfloat16, packed"} <= set(kinds)
        assert kinds["float32"]["error"] == 0 and kinds["bfloat16"]["error"] > 0
        assert all(kind["error"] < 0.03 and 0 < kind["best"] <= kind["worst"] for kind in kinds.values())

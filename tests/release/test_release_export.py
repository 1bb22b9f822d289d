"""The export's comparison, refusals and copy; the converter and ONNX Runtime, which no test needs,
are replaced.
"""

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from planted_models import edit
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tiny_bases import make_mlm

from sts_dino.eval.tasks.rows import Rows
from sts_dino.hub.errors import InputError, RunError
from sts_dino.release import export

PAIRS = Rows.from_tuples(
    [
        (f"A man plays {name}.", f"A {name} is played.", float(n))
        for n, name in enumerate("abcdefgh")
    ]
)


@pytest.fixture
def saved(tmp_path):
    transformer = Transformer(str(make_mlm(tmp_path / "base")))
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), "mean"), Normalize()]
    SentenceTransformer(modules=modules).save_pretrained(
        str(tmp_path / "encoder"), create_model_card=False
    )
    (tmp_path / "encoder/onnx").mkdir()
    (tmp_path / "encoder/onnx/model.onnx").write_text("another's")
    return tmp_path / "encoder"


@pytest.fixture
def converted(monkeypatch):
    """Stand in for ONNX: its vectors are torch's plus ``noise`` in the first component, by network."""
    noise = {"model.onnx": 0.0, "model_qint8_dynamic.onnx": 0.0}

    def convert(encoder, folder, int8):
        for name in list(noise)[: 1 + int8]:
            (folder / name).write_text("network")

    def served(encoder, path):
        return lambda texts: (
            encoder.embed(texts) + noise[path.name] * np.eye(1, encoder.dimension, dtype=np.float32)
        )

    source = SimpleNamespace(load=lambda *_: {"validation": PAIRS})
    for name, value in {
        "PACKAGES": (),
        "convert_to_onnx": convert,
        "replace_network": served,
        "Source": lambda: source,
    }.items():
        monkeypatch.setattr(export, name, value)
    return noise


def test_agreement_is_the_cosine_of_rows_and_spearman_of_pairs():
    pairs = Rows.from_tuples([("a", "b", 1.0), ("a", "c", 0.0), ("b", "c", 0.5)])
    torch = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    # cosines of rows 1, 0.6, 1; of pairs 0.6, 0, 0.8
    onnx = np.array([[2, 0], [3, 4], [0, 1]], np.float32)
    found = export.measure_agreement(pairs, ["a", "b", "c"], torch, onnx)
    assert found == {
        "mean_cosine": pytest.approx(2.6 / 3, abs=1e-6),
        "minimum_cosine": 0.6,
        "spearman": 50.0,
    }


def test_an_export_is_a_copy_that_sentence_transformers_5_and_6_load(
    saved, converted, tmp_path, capsys
):
    edit(saved / "config_sentence_transformers.json", prompts={"query": "query: "})
    converted["model_qint8_dynamic.onnx"] = 0.5  # int8 is reported, whatever it loses
    out = tmp_path / "new/folder/out"  # its parents are made, too
    export.main(str(saved), out, int8=True)
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    facts = json.loads((out / "onnx/equality.json").read_text())
    assert (
        facts["networks"]["float32"]["minimum_cosine"]
        == 1
        > facts["networks"]["int8"]["minimum_cosine"]
    )
    assert {path.name for path in (out / "onnx").iterdir()} == {
        *export.NETWORK_FILES.values(),
        export.EQUALITY_FILE,
    }
    types = [module["type"] for module in json.loads((out / "modules.json").read_text())]
    assert types == [
        f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Normalize")
    ]
    assert SentenceTransformer(str(out)).prompts["query"] == "query: "
    assert "float32" in capsys.readouterr().out and "float32" in (out / "README.md").read_text()


def test_warnings_are_silent_during_the_conversion_alone(caplog):
    logger = export.logger
    with caplog.at_level("INFO"), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(RunError), export.silence_warnings():
            logger.warning("of the exporter")
            warnings.warn("of the exporter", stacklevel=1)
            raise RunError("here", "failed")
        logger.info("encoding 5 sentences")
        warnings.warn("of the tokenizer", stacklevel=1)
    assert caplog.messages == ["encoding 5 sentences"]
    assert [str(warning.message) for warning in seen] == ["of the tokenizer"]


def test_a_network_that_differs_is_refused_and_leaves_nothing(saved, converted, tmp_path):
    converted["model.onnx"] = 0.5
    with pytest.raises(RunError, match=r"minimum cosine 0\.\d+"):
        export.main(str(saved), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"base", "encoder"}
    assert (saved / "onnx/model.onnx").read_text() == "another's"


def test_the_copy_lies_outside_of_the_encoder_and_has_its_name(
    saved, converted, tmp_path, monkeypatch
):
    monkeypatch.chdir(saved)
    with pytest.raises(InputError, match="encoder-onnx lies in the encoder's folder"):
        export.main(".")  # the copy would hold itself
    # an "@" in a folder's path is no revision
    folder = saved.rename(tmp_path / "me@work")
    monkeypatch.chdir(tmp_path)
    export.main(str(folder))
    assert (tmp_path / "me@work-onnx/onnx/model.onnx").is_file()


def test_an_encoder_that_was_loaded_onto_a_gpu_is_converted_on_the_cpu(tmp_path, monkeypatch):
    devices = []
    model = SimpleNamespace(transformers_model="network", to=devices.append)
    monkeypatch.setattr(export, "load_encoder", lambda *_, **__: SimpleNamespace(model=model))
    export.load_transformer(tmp_path, "encoder")
    assert devices == ["cpu"]


def test_it_says_which_package_to_install_and_takes_a_new_folder_alone(
    saved, converted, tmp_path, monkeypatch
):
    with pytest.raises(InputError, match="exists already"):
        export.main(str(saved), saved)
    (saved / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="is an adapter; export its merged form"):
        export.main(str(saved), tmp_path / "out")
    monkeypatch.setattr(export, "PACKAGES", ("no_such_package",))
    with pytest.raises(
        InputError, match=r'no_such_package is not installed; pip install "sts-dino\[onnx\]"'
    ):
        export.main(str(saved), tmp_path / "out")

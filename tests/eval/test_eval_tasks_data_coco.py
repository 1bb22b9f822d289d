"""COCO features are pickles: read when they are what the toolkit ships, refused when they are anything more."""

import os
import pickle
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from eval.tasks.coco import coco, load_arrays
from eval.tasks.files import DataFile
from hub.errors import InputError

FEATURES = np.arange(6, dtype=np.float32).reshape(2, 3)


def content(features=FEATURES, captions: int = 6, ids=None) -> dict:
    """Two images with six captions each, as the toolkit's files hold them."""
    ids = ids or {image: [captions * image + number for number in range(captions)] for image in range(2)}
    texts = {key: {"cleaned_caption": f"caption  {key}", "imgid": image} for image, keys in ids.items() for key in keys}
    return {"features": features, "image_to_caption_ids": ids, "captions": texts}


def read(data: bytes):
    return coco([DataFile("COCO/train.pkl", data)])


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize(
    "features",
    [FEATURES, FEATURES.astype(">f8"), np.asfortranarray(FEATURES), list(FEATURES), FEATURES.tolist()],
    ids=["float32", "big-endian", "columns-first", "rows", "lists"],
)
def test_five_captions_an_image_with_a_full_stop(protocol, features):
    rows = read(pickle.dumps(content(features), protocol=protocol))
    assert rows.features.dtype == np.float32 and rows.features.tolist() == FEATURES.tolist()
    assert rows.text == tuple(f"caption {key} ." for key in (0, 1, 2, 3, 4, 6, 7, 8, 9, 10))
    assert rows.image_of.tolist() == [0] * 5 + [1] * 5
    assert rows.sha256 == read(pickle.dumps(content())).sha256
    assert rows.sha256 != read(pickle.dumps(content(FEATURES + 1))).sha256


def test_ids_may_be_numpy_numbers_and_arrays():
    ids = {image: np.arange(6 * image, 6 * image + 6) for image in range(2)}
    plain = content()
    for keys in (ids, {image: list(of) for image, of in ids.items()}, [list(range(6)), list(range(6, 12))]):
        rows = read(pickle.dumps(plain | {"image_to_caption_ids": keys}, protocol=2))
        assert rows.sha256 == read(pickle.dumps(plain)).sha256


def test_a_pickle_of_python_2_is_read():
    """The toolkit's own files: arrays whose bytes are Python 2 strings, which no Python 3 writes."""
    numbers = FEATURES.tobytes()
    dtype = b"cnumpy\ndtype\n(U\x02f4I0\nI1\ntR(I3\nU\x01<NNNI-1\nI-1\nI0\ntb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01btR"
        + b"(I1\n(I2\nI3\nt" + dtype + b"I00\nT" + struct.pack("<i", len(numbers)) + numbers + b"tb"
    )  # fmt: skip
    rest = content()
    del rest["features"]
    mapping = pickle.dumps(rest, protocol=2)[2:-1]  # without the protocol's mark and the stop
    rows = read(b"\x80\x02" + mapping + b"U\x08features" + array + b"s.")
    assert rows.sha256 == read(pickle.dumps(content())).sha256


class Runs:
    """Unpickled, it calls what it was made with."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_runs_nothing(protocol, tmp_path, capfd):
    target, poem = tmp_path / "owned", sys.modules.pop("this", None)
    attacks = (
        Runs(os.system, f"touch {target}"),
        Runs(eval, f"open({str(target)!r}, 'w')"),
        Runs(exec, f"open({str(target)!r}, 'w')"),
        Runs(Path.touch, target),
        Runs(np.load, str(target)),
        Runs(np.save, str(target), [1]),
        Runs(getattr, {}, "clear"),
        Runs(__import__, "this"),
    )
    for attack in attacks:
        for data in (attack, content() | {"more": [attack]}):
            with pytest.raises(InputError, match=r"COCO/train\.pkl: is no safe pickle of features: it asks for"):
                read(pickle.dumps(data, protocol=protocol))
    assert not target.exists() and "this" not in sys.modules and poem is None
    assert capfd.readouterr().out == ""


HOSTILE = {
    "an object array": pickle.dumps(np.array([{"a": 1}], dtype=object), protocol=2),
    "an array larger than its bytes": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01btR"
    b"(I1\n(I99\ntcnumpy\ndtype\n(U\x02f4I0\nI1\ntR(I3\nU\x01<NNNI-1\nI-1\nI0\ntbI00\nU\x04abcdtb.",
    "a state for a function": b"cnumpy.core.multiarray\n_reconstruct\n}(U\x08__code__Nub.",
    "a state for a class": b"cnumpy\nndarray\n}(U\x01ANub.",
    "a dtype with fields": pickle.dumps(np.zeros(2, dtype=[("a", "f4")]), protocol=2),
    "another encoding": b"c_codecs\nencode\n(U\x01aU\x03hextR.",
    "a persistent id": b"Pcommand\n.",
    "an extension": b"\x82\x01.",
    "cut short": pickle.dumps(content())[:-20],
    "nothing": b"",
    "no pickle": b"features\n1 2 3\n",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_pickle_of_numbers_is_one_clear_error(data):
    with pytest.raises(InputError, match=r"COCO/train\.pkl: is no safe pickle of features") as raised:
        load_arrays(DataFile("COCO/train.pkl", data))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "data",
    [
        [1, 2],
        {"features": FEATURES},
        content(np.zeros(3)),
        content(np.full((2, 3), np.nan)),
        content("abc"),
        content() | {"captions": {}},
        content() | {"image_to_caption_ids": [[1]]},
        content() | {"captions": dict.fromkeys(range(12), "text")},
    ],
    ids=["a list", "no captions", "a vector", "NaN", "text", "no texts", "too few images", "captions as text"],
)
def test_another_form_is_one_clear_error(data):
    with pytest.raises(InputError, match=r"COCO/train\.pkl: is not in the form of SentEval's COCO files"):
        read(pickle.dumps(data))


def test_an_image_with_too_few_captions_is_named():
    with pytest.raises(InputError, match="image 0 has 4 captions; allowed: at least five an image"):
        read(pickle.dumps(content(captions=4)))

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from generation.sources import given_texts
from hub.errors import InputError
from hub.recipe import DatasetRecipe
from hub.recipe_file import load_recipe

X2 = "recipes/demo/sts-dino-x2.yaml"


def recipe(path, column="text", **more) -> DatasetRecipe:
    from pathlib import Path

    overrides = [f"source.path={path}", f"source.column={column}", *(f"{key}={value}" for key, value in more.items())]
    return load_recipe(Path(X2), DatasetRecipe, overrides)


def texts(found) -> list[str]:
    return [first.text for first in found]


def count_words(text: str) -> int:
    return len(text.split())


def test_every_kind_of_file_gives_the_same_texts(tmp_path):
    wanted = ["A man.", "Ein Mädchen, zwei.", "C"]
    (tmp_path / "a.txt").write_text("\n".join(wanted) + "\n")
    (tmp_path / "a.tsv").write_text("id\ttext\n" + "".join(f"{i}\t{text}\n" for i, text in enumerate(wanted)))
    (tmp_path / "a.csv").write_text("id,text\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(wanted)))
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in wanted))
    pq.write_table(pa.table({"text": wanted}), tmp_path / "a.parquet")
    for path in sorted(tmp_path.iterdir()):
        column = "null" if path.suffix == ".txt" else "text"
        assert texts(given_texts(recipe(path, column), count_words)[0]) == wanted, path


def test_what_cannot_be_used_is_counted_by_reason(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('text\nfine\n\nfine\nhe said "no"\n  fine  \ntwo words\nthree words here\n')
    found, skipped = given_texts(recipe(path, premise_tokens="[1, 2]"), count_words)
    assert texts(found) == ["fine", "two words"]
    assert [first.source_id for first in found] == ["000000", "000005"]
    assert skipped == {"duplicate": 2, "empty": 1, "length": 1, "quotation_mark": 1}


def test_limit(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\na\nb\nc\n")
    assert texts(given_texts(recipe(path, **{"source.limit": 2}), count_words)[0]) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.tsv", None, "no such file"),
        ("empty.tsv", b"", "is empty"),
        ("latin1.tsv", "text\nM\xe4dchen\n".encode("latin-1"), "not UTF-8"),
        ("column.tsv", b"txt\tid\nA\t1\n", "not in the file; allowed: txt, id; did you mean 'txt'"),
        ("ragged.tsv", b"text\tid\nA\n", "ragged.tsv:2: has 1 columns"),
        ("column.csv", b"txt,id\nA,1\n", "not in the file; allowed: txt, id"),
        ("bad.jsonl", b'{"text": "a"}\n{text}\n', "bad.jsonl:2: is not JSON"),
        ("list.jsonl", b'["a"]\n', "list.jsonl:1: is not a JSON object"),
        ("column.jsonl", b'{"txt": "a"}\n', "did you mean 'txt'"),
        ("bad.parquet", b"PAR1 no", "is not a parquet file"),
        ("a.docx", b"x", "unknown kind of file '.docx'"),
        ("only.tsv", b'text\n"\n', "has no usable first text; .*quotation_mark"),
    ],
)
def test_bad_files_are_one_clear_input_error(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        given_texts(recipe(path), count_words)
    assert name in str(caught.value) and caught.value.exit_code == 2

"""A user's own files as a yardstick: what is read, scores as sentence-transformers', the verdict on
two encoders.
"""

import json
import os
import re
import shlex
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from command_outcomes import outcome_of
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from senteval_layout import bag_of_words
from tiny_lm import make_tokenizer

from sts_dino.cli import convert_encoder
from sts_dino.eval import run as scoring
from sts_dino.eval.encoders.load import wrap
from sts_dino.eval.runs.job import Request, list_own_entries, prepare_job
from sts_dino.eval.runs.records import Records
from sts_dino.eval.runs.score import require_rising_scores, score_encoder
from sts_dino.eval.scoring.bootstrap import EvaluationSettings
from sts_dino.eval.tasks.own import OwnFiles, read_own
from sts_dino.eval.tasks.sources import Source, read_shipped
from sts_dino.hub.cli import FileOptions
from sts_dino.hub.contract.results import read_results
from sts_dino.hub.errors import InputError
from sts_dino.hub.text_files import split_columns

QUICK = EvaluationSettings(bootstrap_samples=20, limit=200)
TEXTS = [f"word{n} word{n + 1} word{n // 3}" for n in range(30)]


def write(path, header, rows, delimiter=","):
    lines = [delimiter.join(map(str, row)) for row in (header, *rows)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def own_pairs(folder, header=("sentence1", "sentence2", "score"), name="mine.csv", rows=12):
    return write(
        folder / name,
        header,
        [(TEXTS[n], f"word{n} word{2 * n}", (n + 2) % 5) for n in range(rows)],
    )


def words(texts):
    return bag_of_words(texts)


def lengths(texts):
    return np.array([[len(text), 1.0] for text in texts])


words.revision = lengths.revision = "1"


def test_stsb_as_own_pairs_has_the_score_of_stsb(tmp_path):
    cells = [line.split("\t") for line in read_shipped("sts-dev.csv").split_lines()]
    path = write(tmp_path / "dev.tsv", ("Sentence 1", "Sentence_2", "Similarity Score"), [], "\t")
    rows = "".join(f"\n{one[5]}\t{one[6]}\t{one[4]}" for one in cells)
    path.write_text(path.read_text(encoding="utf-8") + rows, encoding="utf-8")
    source = Source(own=read_own(OwnFiles(path)))
    settings = EvaluationSettings(bootstrap_samples=20)
    of_stsb, _, own = score_encoder(wrap(words, "words"), ["stsb/cosine"], source, settings).scores
    assert (own.task, own.n, of_stsb.n) == ("dev.tsv/cosine", 1497, 1500)  # three pairs stand twice

    # the score is Spearman's of the distinct pairs
    distinct = {frozenset((one[5].casefold(), one[6].casefold())): one for one in cells}
    first, second = (words([one[side] for one in distinct.values()]) for side in (5, 6))
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(axis=1) / np.maximum(norms, 1e-12)
    gold = [float(one[4]) for one in distinct.values()]
    expected = 100 * spearmanr(cosines.round(12), gold).statistic
    assert len(gold) == own.n and own.main_score == pytest.approx(expected, abs=1e-6)


def test_repeated_rows_are_one_pair_of_their_mean_score(tmp_path, capsys):
    rows = [(f"word{n} one", f"word{n} two", n % 5) for n in range(12)]
    again = [(f"Word{n}  TWO", f"word{n} one", n % 5) for n in range(12)]  # exchanged, other case
    once = read_own(OwnFiles(write(tmp_path / "once.csv", ("text1", "text2", "score"), rows)))
    path = write(tmp_path / "twenty.csv", ("text1", "text2", "score"), (rows + again) * 10)
    twenty = read_own(OwnFiles(path))
    assert (
        twenty.rows["twenty.csv/pairs"]["test"].sha256 == once.rows["once.csv/pairs"]["test"].sha256
    )
    assert "twenty.csv: 12 distinct pairs of 240 (" in capsys.readouterr().err

    # other scores of one pair; a query and its passage exchanged are another pair
    path = write(tmp_path / "two.csv", ("text1", "text2", "score"), [*rows, (*rows[0][:2], 3)])
    pairs = read_own(OwnFiles(path)).rows[f"{path.name}/pairs"]
    assert pairs["test"].target[0] == 1.5
    assert (
        "pairs with different scores in several rows: 1; their mean counts"
        in capsys.readouterr().err
    )
    path = write(tmp_path / "search.csv", ("query", "passage", "score"), rows + again)
    pairs = read_own(OwnFiles(path)).rows[f"{path.name}/pairs"]
    assert len(pairs["test"]) == 24


def test_pairs_that_look_alike_are_one_pair(tmp_path, capsys):
    rows = [(f"caf\u00e9 {n}", f"\u00dcber {n}", n % 5) for n in range(12)]
    again = [(f"cafe\u0301 {n}", f"\ufeffU\u0308ber\u200b {n}", n % 5) for n in range(12)]
    path = write(tmp_path / "alike.csv", ("text1", "text2", "score"), rows + again)
    pairs = read_own(OwnFiles(path)).rows["alike.csv/pairs"]["test"]
    assert len(pairs) == 12 and "12 distinct pairs of 24 (" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("scores", "count"),
    [([5] * 29 + [1], 1), ([0] * 28 + [4, 5], 2), ([3] * 30, 0)],
)
def test_a_correlation_that_rests_on_two_pairs_is_refused(scores, count, tmp_path):
    rows = [(f"one {n}", f"two {n}", score) for n, score in enumerate(scores)]
    path = write(tmp_path / "few.csv", ("text1", "text2", "score"), rows)
    problem = f"all but {count} of 30 scores are" if count else "all 30 scores are 3"
    with pytest.raises(InputError, match=problem):
        read_own(OwnFiles(path))


@pytest.mark.parametrize(
    ("scores", "mark"),
    [
        ([0, 1, 2, -1], "-1"),
        ([1.5, 2, 4, 5, 999], "999"),
        ([1, 2, 3, -999], "-999"),
        ([0, 1], None),
        ([-1, 0, 1], None),
        ([-0.5, 0.2, 0.9, 1], None),
        ([0, 3, 4, 5], None),
        ([1, 2, 3, 4, 5], None),
    ],
)
def test_a_mark_for_no_judgement_is_noticed(scores, mark, tmp_path, capsys):
    rows = [(f"one {n}", f"two {n}", scores[n % len(scores)]) for n in range(40)]
    read_own(OwnFiles(write(tmp_path / "marks.csv", ("text1", "text2", "score"), rows)))
    said = capsys.readouterr().err
    assert ("means no judgement, empty these cells" in said) == (mark is not None)
    assert mark is None or f"rows have the score {mark}, the others" in said


def test_a_repeated_pair_hides_no_mark(tmp_path, capsys):
    """The mean of a pair with the classes 0 and 1 is no class, but the file still has classes."""
    rows = [(f"one {n}", f"two {n}", (0, 1, 2, -1)[n % 4]) for n in range(40)]
    path = write(tmp_path / "marks.csv", ("text1", "text2", "score"), [*rows, (*rows[0][:2], 1)])
    read_own(OwnFiles(path))
    assert "10 rows have the score -1, the others 0 to 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("header", "sides"),
    [
        (("text_a", "Text_B", "label"), None),
        (("premise", "hypothesis", "gold"), None),
        (("query", "passage", "relevance"), ("query", "document")),
        (("question1", "question2", "is_duplicate"), None),
    ],
)
def test_usual_names_of_columns_are_known(tmp_path, capsys, header, sides):
    (task,) = read_own(OwnFiles(own_pairs(tmp_path, header))).tasks
    assert task.sides == sides
    assert f"12 pairs ({', '.join(header)}), scores 0 to 4" in capsys.readouterr().err


@pytest.fixture
def collection(tmp_path):
    queries = write(tmp_path / "q.csv", ("_id", "text"), [(n, TEXTS[n]) for n in range(16)])
    corpus = write(
        tmp_path / "c.csv",
        ("_id", "title", "text"),
        [(f"d{n}", f"word{n}", TEXTS[-n]) for n in range(30)],
    )
    judged = [
        (n, f"d{(7 * n + k) % 30}", 1 if k else 0) for n in range(16) for k in range(n % 4 + 1)
    ]
    return (
        queries,
        corpus,
        write(tmp_path / "r.tsv", ("query-id", "corpus-id", "score"), judged, "\t"),
        judged,
    )


def test_search_is_scored_as_by_sentence_transformers_with_the_encoders_prompts(
    tmp_path, collection, capsys
):
    """Pairs of one kind get no prompt, and a line reports that."""
    *files, judged = collection
    encoder = SentenceTransformer(
        modules=[StaticEmbedding(make_tokenizer(), embedding_dim=16)],
        prompts={"query": "ask: ", "passage": "passage: "},
    )
    encoder.save_pretrained(str(tmp_path / "encoder"), create_model_card=False)
    source = Source(own=read_own(OwnFiles(own_pairs(tmp_path), *files)))
    _, *scores = score_encoder(
        str(tmp_path / "encoder"), [], source, EvaluationSettings(bootstrap_samples=20)
    ).scores
    said = capsys.readouterr().err
    assert (
        "12 queries with 24 relevant judgements of 30 documents; passed over: 4 without a relevant "
        "document" in said
    )
    assert "pairs of one kind are encoded without its prompts (query, passage)" in said
    assert (
        "a query is encoded with the prompt 'ask: '" in said
        and "a document is encoded with" in said
    )
    relevant: dict = {}
    for query, document, grade in judged:
        relevant.setdefault(str(query), set()).update([str(document)] if grade else [])
    queries, documents = (
        {str(n): TEXTS[n] for n in range(16)},
        {f"d{n}": f"word{n} {TEXTS[-n]}" for n in range(30)},
    )
    prompts = {"query_prompt": "ask: ", "corpus_prompt": "passage: "}
    theirs = InformationRetrievalEvaluator(
        queries, documents, relevant, write_csv=False, **prompts
    )(encoder)
    for score, name in zip(scores, ("ndcg@10", "recall@10"), strict=True):
        assert (score.task, score.n, score.unit) == (f"q.csv/{name}", 12, "queries")
        assert (
            score.main_score == pytest.approx(100 * theirs[f"cosine_{name}"])
            and score.low < score.high
        )


def test_another_encoder_is_tested_on_the_same_rows_and_few_are_called_few(tmp_path, collection):
    options = [
        "--pairs",
        own_pairs(tmp_path),
        "--set",
        "bootstrap_samples=50",
        "--out",
        tmp_path / "out",
    ]
    options += [
        word
        for pair in zip(("--queries", "--corpus", "--qrels"), collection, strict=False)
        for word in pair
    ]
    here = f"python:{__name__}"
    done = outcome_of(scoring, "--model", f"{here}:words", "--compare", f"{here}:lengths", *options)
    assert done.code == 0, done.stderr
    verdict, power, of_search, _ = done.printed.splitlines()[-4:]
    assert verdict.startswith(("better than", "not decided")) and "on your 12 pairs: " in verdict
    assert (
        "needs very roughly " in power
        and power.endswith(" judged pairs to be significant (80 % power); there are 12")
        and "on your 12 queries" in of_search
        and of_search.endswith("keep that one until more queries decide")
    )
    alone = outcome_of(scoring, "--model", f"{here}:words", *options[:4], "--out", tmp_path / "b")
    assert alone.printed.splitlines()[-1].startswith("12 pairs are few: the interval reaches ")
    other = read_results(tmp_path / "out" / "compared" / "results.json")
    assert [score.task for score in other.scores] == [
        "mine.csv/cosine",
        "q.csv/ndcg@10",
        "q.csv/recall@10",
    ]


def write_reversed_pairs(folder):
    """Write 40 pairs whose scores count the words that differ: 0 means the same."""
    rows = []
    for number in range(40):
        different = number % 5
        words_kept = [f"word{number + n}" for n in range(5 - different)]
        words_changed = [f"other{number + n}" for n in range(different)]
        first = " ".join(f"word{number + n}" for n in range(5))
        rows.append((first, " ".join(words_kept + words_changed), different))
    return write(folder / "distance.csv", ("premise", "hypothesis", "label"), rows)


def test_scores_that_fall_where_texts_are_alike_stop_the_verdict(tmp_path):
    path = write_reversed_pairs(tmp_path)
    here = f"python:{__name__}"
    options = ["--pairs", path, "--set", "bootstrap_samples=50", "--out", tmp_path / "out"]
    done = outcome_of(scoring, "--model", f"{here}:lengths", "--compare", f"{here}:words", *options)
    assert done.code == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "distance.csv: its scores fall where texts are more alike: Spearman x 100 of -" in line
    assert "allowed: scores where higher means more alike" in line
    assert not (tmp_path / "out" / "results.json").exists()

    # a later score of other pairs does not bring the refused ones back
    options[1] = own_pairs(tmp_path)
    done = outcome_of(scoring, "--model", f"{here}:lengths", *options)
    assert done.code == 0, done.stderr
    (score,) = read_results(tmp_path / "out" / "results.json").scores
    assert score.task == "mine.csv/cosine"


def test_reversed_scores_are_refused_in_python_too(tmp_path):
    source = Source(own=read_own(OwnFiles(write_reversed_pairs(tmp_path))))
    settings = EvaluationSettings(bootstrap_samples=50)
    with pytest.raises(InputError, match="higher means more alike"):
        score_encoder(wrap(words, "words"), [], source, settings)


GERMAN = ("frage_a", "frage_b", "bewertung")


def write_german_export(folder):
    """A German Excel's .csv: Windows-1252, semicolons, decimal commas, own names of columns."""
    rows = [
        (f"Wie weit fährt Bus {n} über Köln?", f"Wohin führt Linie {2 * n}?", f"{n % 5},5")
        for n in range(20)
    ]
    path = folder / "pairs_german.csv"
    path.write_bytes("".join(f"{';'.join(row)}\r\n" for row in (GERMAN, *rows)).encode("cp1252"))
    return path


def test_a_german_excel_export_is_scored_with_one_command(tmp_path):
    path = write_german_export(tmp_path)
    options = ("--model", f"python:{__name__}:lengths", "--out", tmp_path / "out", "--no-cache")
    refused = outcome_of(scoring, *options, "--pairs", path)
    assert refused.code == 2 and refused.error.endswith(f"name yours: --columns {','.join(GERMAN)}")
    options += ("--pairs", path, "--columns", ",".join(GERMAN), "--set", "bootstrap_samples=20")
    done = outcome_of(scoring, *options)
    assert done.code == 0, done.stderr
    assert "is read as cp1252 ('Wie weit fährt Bus 0 über Köln?;" in refused.stderr
    assert "columns are separated by ';'" in refused.stderr
    assert f"20 pairs ({', '.join(GERMAN)}), scores 0.5 to 4.5" in done.stderr


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("frage_a,frage_b", "--columns: 'frage_a,frage_b' names 2 columns; allowed: two texts"),
        ("frage_a,frage_a,bewertung", "names the column 'frage_a' twice"),
        ("frage_a,frage_c,bewertung", "column 'frage_c': not in the data; allowed: frage_a,"),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path, columns, problem):
    with pytest.raises(InputError) as caught:
        read_own(OwnFiles(write_german_export(tmp_path)), FileOptions(columns))
    assert problem in str(caught.value)


@pytest.mark.parametrize("header", [("Satz 1", "Satz 2, neu", "Note"), ('ein "A"', "b", "c")])
def test_the_proposed_columns_can_be_pasted(tmp_path, header):
    rows = [dict(zip(header, (f"a{n}", f"b{n}", n), strict=True)) for n in range(12)]
    path = write_objects(tmp_path / "odd.jsonl", rows)
    with pytest.raises(InputError) as caught:
        read_own(OwnFiles(path))
    option, columns = shlex.split(str(caught.value).partition("name yours: ")[2])
    assert option == "--columns" and split_columns(columns) == list(header)
    assert len(read_own(OwnFiles(path), FileOptions(columns)).rows["odd.jsonl/pairs"]["test"]) == 12


def test_a_folder_or_a_pipe_is_not_called_absent(tmp_path):
    with pytest.raises(InputError, match="is a folder; allowed: a file"):
        read_own(OwnFiles(tmp_path))
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InputError, match=r"pipe\.csv: is a pipe, a socket or a device"):
        read_own(OwnFiles(tmp_path / "pipe.csv"))


def test_equal_scores_of_a_repeated_pair_stay_ties(tmp_path):
    """The rounded mean of 0.1, 0.1 and 0.1 is another number than 0.1."""
    rows = [(f"a{n}", f"b{n}", (n % 5) / 10) for n in range(12)]
    path = write(tmp_path / "mine.csv", ("text1", "text2", "score"), rows + rows[:6] * 2)
    scores = read_own(OwnFiles(path)).rows["mine.csv/pairs"]["test"].target
    assert scores.tolist() == [score for _, _, score in rows]


def test_columns_need_pairs_and_two_columns_of_one_plain_name_are_refused(tmp_path):
    with pytest.raises(InputError, match="--columns: names the columns of --pairs"):
        read_own(OwnFiles(), FileOptions("a,b,c"))
    header = ("Text 1", "text2", "score", "text_1")
    path = write(tmp_path / "two.csv", header, [("a", "b", n, "c") for n in range(12)])
    with pytest.raises(InputError, match="the columns 'Text 1' and 'text_1' differ only in letter"):
        read_own(OwnFiles(path))


def write_objects(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


DOCUMENTS = [{"_id": f"d{n}", "text": text} for n, text in enumerate(TEXTS)]
QUERIES = [{"_id": f"q{n}", "text": TEXTS[n]} for n in range(12)]
TREC_LINES = "".join(f"q{n} 0 d{n} 1\n" for n in range(12))


def measure_search(folder, documents=DOCUMENTS, queries=QUERIES, qrels=TREC_LINES, name="q.txt"):
    """Return nDCG@10 of the bag of words, whose query finds its own text first."""
    files = OwnFiles(
        queries=write_objects(folder / "queries.jsonl", queries),
        corpus=write_objects(folder / "corpus.jsonl", documents),
        qrels=folder / name,
    )
    files.qrels.write_text(qrels, encoding="utf-8")
    source = Source(own=read_own(files))
    settings = EvaluationSettings(bootstrap_samples=20)
    return score_encoder(wrap(words, "words"), [], source, settings).scores[0].main_score


def test_search_is_scored_as_beir_scores_it(tmp_path, capsys):
    """Every form of one collection has the same score."""
    best = measure_search(tmp_path)
    assert best > 90

    # titles of later rows, _id before id, queries among the documents
    titled = [{"_id": row["_id"], "text": "-", "title": row["text"]} for row in DOCUMENTS]
    titled[0] = DOCUMENTS[0]
    for row in titled[1:]:
        row["text"] = ""
    assert measure_search(tmp_path, titled) == best
    two_ids = [{"id": n + 100, **row} for n, row in enumerate(QUERIES)]
    assert measure_search(tmp_path, queries=two_ids) == best
    capsys.readouterr()
    assert measure_search(tmp_path, [*QUERIES, *DOCUMENTS]) == best
    assert "12 documents have the id of a query; a query does not find" in capsys.readouterr().err

    # judgements of TREC under any ending, and of BEIR
    assert measure_search(tmp_path, qrels=TREC_LINES.replace(" ", "\t"), name="q.tsv") == best
    of_beir = "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(12))
    assert measure_search(tmp_path, qrels=of_beir, name="q.tsv") == best
    without_header = of_beir.partition("\n")[2]
    with pytest.raises(InputError, match=r"q\.tsv: has no header: its first row is q0, d0, 1; all"):
        measure_search(tmp_path, qrels=without_header, name="q.tsv")
    with pytest.raises(InputError, match=r"q\.txt:13: is not a line of TREC's judgements: q1 d1"):
        measure_search(tmp_path, qrels=f"{TREC_LINES}q1 d1\n")
    unknown_ids = "q1 0 x 1\nq2 0 x 1\ny 0 d1 1\n"
    unknown = r"q\.txt:13: names the id 'x', which corpus\.jsonl lacks; 2 such ids in all"
    with pytest.raises(InputError, match=unknown):
        measure_search(tmp_path, qrels=f"{TREC_LINES}{unknown_ids}")

    # empty documents and queries are counted
    capsys.readouterr()
    measure_search(tmp_path, [*DOCUMENTS, {"_id": "e1"}, {"_id": "e2", "text": "\u3164"}])
    assert "corpus.jsonl: 2 of 32 documents have no text" in capsys.readouterr().err
    more = [*QUERIES, {"_id": "q12", "text": ""}, {"_id": "q13", "text": "x"}]
    assert measure_search(tmp_path, queries=more, qrels=f"{TREC_LINES}q12 0 d1 1\n") == best
    said = capsys.readouterr().err
    assert "passed over: 1 without a text, 1 without a relevant document" in said
    with pytest.raises(InputError, match=r"corpus\.jsonl:31: has no _id"):
        measure_search(tmp_path, [*DOCUMENTS, {"text": "no id"}])


def test_an_encoder_is_named_alike_as_argument_and_as_option(tmp_path, monkeypatch):
    encoder = SentenceTransformer(
        modules=[StaticEmbedding(make_tokenizer(), embedding_dim=16)], device="cpu"
    )
    monkeypatch.chdir(tmp_path)
    encoder.save("artifacts/models/mine")
    assert convert_encoder("mine", [])[:2] == ["--model", "artifacts/models/mine"]
    request = Request(tasks=["stsb/cosine"], model="mine")
    assert prepare_job(request, Source()).model == "artifacts/models/mine"

    # a folder that the user names is that folder
    encoder.save("mine")
    for name in ("mine", "./mine"):
        assert convert_encoder(name, [])[:2] == ["--model", name]
        assert prepare_job(replace(request, model=name), Source()).model == name


def fake_start(folder, task, low, high):
    """Return an encoder with a score on ``task``, and a folder of records."""
    score = SimpleNamespace(
        task=task.name, main_score=(low + high) / 2, interval=lambda: (low, high)
    )
    record = SimpleNamespace(key=(task.name, "test"), score=score)
    encoder = SimpleNamespace(name=folder.name)
    return SimpleNamespace(encoder=encoder, records=[record], store=Records(folder))


def test_pairs_are_refused_only_where_every_start_encoder_falls(tmp_path):
    own = read_own(OwnFiles(own_pairs(tmp_path)))
    entries = list_own_entries(Source(own=own))
    falls = fake_start(tmp_path / "falls", own.tasks[0], -80.0, -20.0)
    rises = fake_start(tmp_path / "rises", own.tasks[0], 20.0, 80.0)
    require_rising_scores([falls, rises], entries, [falls, rises])
    require_rising_scores([rises], entries, [falls, rises])
    for starts in ([falls], [falls, falls]):
        with pytest.raises(InputError, match=r"-50.00 \[-80.00, -20.00\] by falls"):
            require_rising_scores(starts, entries, starts)


def test_a_long_file_name_in_another_script_is_kept_and_found_again(tmp_path, capsys):
    names = [f"{'句' * 40}{number}.csv" for number in (1, 2)]
    for number, name in enumerate(names):
        path = own_pairs(tmp_path, name=name, rows=12 + number)
        source = Source(own=read_own(OwnFiles(path)))
        for note in (r"\d.\d s", "kept"):
            score_encoder(wrap(words, "words"), [], source, QUICK, tmp_path / "out")
            assert re.search(rf"{12 + number} pairs \({note}\)", capsys.readouterr().err)
    assert len(Records(tmp_path / "out").list_records()) == 2

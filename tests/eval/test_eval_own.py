"""A user's own files as a yardstick: what is read, scores as sentence-transformers', the verdict on two encoders."""

import numpy as np
import pytest
from command_outcomes import outcome_of
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from senteval_layout import bag_of_words
from tiny_lm import make_tokenizer

from eval import run as scoring
from eval.encoders.load import wrap
from eval.runs.score import score_encoder
from eval.statistics.bootstrap import EvaluationSettings
from eval.tasks.own import OwnFiles, read_own
from eval.tasks.sources import Source, shipped
from hub.contract.results import read_results

QUICK = EvaluationSettings(bootstrap_samples=20, limit=200)
TEXTS = [f"word{n} word{n + 1} word{n // 3}" for n in range(30)]


def write(path, header, rows, delimiter=","):
    lines = [delimiter.join(map(str, row)) for row in (header, *rows)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def own_pairs(folder, header=("sentence1", "sentence2", "score"), name="mine.csv", rows=12):
    return write(folder / name, header, [(TEXTS[n], f"word{n} word{2 * n}", n % 5) for n in range(rows)])


def words(texts):
    return bag_of_words(texts)


def lengths(texts):
    return np.array([[len(text), 1.0] for text in texts])


words.revision = lengths.revision = "1"


def test_stsb_as_own_pairs_has_the_score_of_stsb(tmp_path):
    cells = [line.split("\t") for line in shipped("sts-dev.csv").lines()]
    path = write(tmp_path / "dev.tsv", ("Sentence 1", "Sentence_2", "Similarity Score"), [], "\t")
    rows = "".join(f"\n{one[5]}\t{one[6]}\t{one[4]}" for one in cells)
    path.write_text(path.read_text(encoding="utf-8") + rows, encoding="utf-8")
    source = Source(own=read_own(OwnFiles(path)))
    of_stsb, _, own = score_encoder(wrap(words, "words"), ["stsb/cosine"], source, QUICK).scores
    assert (own.task, own.n, own.data_sha256) == ("dev.tsv/cosine", 200, of_stsb.data_sha256)
    assert (own.main_score, own.low, own.high) == (of_stsb.main_score, of_stsb.low, of_stsb.high)


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
    corpus = write(tmp_path / "c.csv", ("_id", "title", "text"), [(n, f"word{n}", TEXTS[-n]) for n in range(30)])
    judged = [(n, (7 * n + k) % 30, 1 if k else 0) for n in range(16) for k in range(n % 4 + 1)]
    return queries, corpus, write(tmp_path / "r.tsv", ("query-id", "corpus-id", "score"), judged, "\t"), judged


def test_search_is_scored_as_by_sentence_transformers_with_the_encoders_prompts(tmp_path, collection, capsys):
    """Pairs of one kind get no prompt, and a line reports that."""
    *files, judged = collection
    encoder = SentenceTransformer(
        modules=[StaticEmbedding(make_tokenizer(), embedding_dim=16)],
        prompts={"query": "ask: ", "passage": "passage: "},
    )
    encoder.save_pretrained(str(tmp_path / "encoder"), create_model_card=False)
    source = Source(own=read_own(OwnFiles(own_pairs(tmp_path), *files)))
    _, *scores = score_encoder(str(tmp_path / "encoder"), [], source, EvaluationSettings(bootstrap_samples=20)).scores
    said = capsys.readouterr().err
    assert "12 queries with 24 relevant judgements of 30 documents; passed over: 4 without a relevant document" in said
    assert "pairs of one kind are encoded without its prompts (query, passage)" in said
    assert "a query is encoded with the prompt 'ask: '" in said and "a document is encoded with" in said
    relevant: dict = {}
    for query, document, grade in judged:
        relevant.setdefault(str(query), set()).update([str(document)] if grade else [])
    queries, documents = {str(n): TEXTS[n] for n in range(16)}, {str(n): f"word{n} {TEXTS[-n]}" for n in range(30)}
    prompts = {"query_prompt": "ask: ", "corpus_prompt": "passage: "}
    theirs = InformationRetrievalEvaluator(queries, documents, relevant, write_csv=False, **prompts)(encoder)
    for score, name in zip(scores, ("ndcg@10", "recall@10"), strict=True):
        assert (score.task, score.n, score.unit) == (f"q.csv/{name}", 12, "queries")
        assert score.main_score == pytest.approx(100 * theirs[f"cosine_{name}"]) and score.low < score.high


def test_another_encoder_is_tested_on_the_same_rows_and_few_are_called_few(tmp_path, collection):
    options = ["--pairs", own_pairs(tmp_path), "--set", "bootstrap_samples=50", "--out", tmp_path / "out"]
    options += [word for pair in zip(("--queries", "--corpus", "--qrels"), collection, strict=False) for word in pair]
    here = f"python:{__name__}"
    done = outcome_of(scoring, "--model", f"{here}:words", "--compare", f"{here}:lengths", *options)
    assert done.code == 0, done.stderr
    verdict, few, of_search, _ = done.printed.splitlines()[-4:]
    assert verdict.startswith(("better than", "not better than")) and "on your 12 pairs: " in verdict
    assert few.startswith("12 pairs are few: the interval reaches ") and "on your 12 queries" in of_search
    other = read_results(tmp_path / "out" / "compared" / "results.json")
    assert [score.task for score in other.scores] == ["mine.csv/cosine", "q.csv/ndcg@10", "q.csv/recall@10"]

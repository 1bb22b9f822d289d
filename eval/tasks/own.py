"""A user's own yardstick as tasks: pairs with a score, and queries with judged documents in BEIR's layout."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

from eval.tasks.rows import Rows
from eval.tasks.task import Metric, Side, Task
from hub.cli import say
from hub.errors import InputError
from hub.text_files import as_text, is_blank, open_rows

EXAMPLE = "e.g. sentence1, sentence2, score (docs/protocols.md)"
FEWEST = 10  # pairs or queries: with fewer an interval says nothing
OWN = "own"  # the tasks' group
SPLIT, CORPUS, QRELS = "test", "corpus", "qrels"
ALIKE = (
    *((f"{kind}1", f"{kind}2") for kind in ("sentence", "text", "sent", "question", "s", "q")),
    *((f"{kind}a", f"{kind}b") for kind in ("sentence", "text", "")),
    *(("premise", "hypothesis"), ("anchor", "positive"), ("source", "target"), ("first", "second")),
)
SEARCHED = tuple(product(("query", "question"), ("passage", "document", "answer", "text")))
SCORES = (
    *("score", "similarity", "similarityscore", "gold", "goldscore", "goldlabel", "label", "rating", "relatedness"),
    *("relatednessscore", "relevance", "humanscore", "meanscore", "isduplicate"),
)
IDS = {"query": ("queryid", "qid", "id"), "document": ("corpusid", "docid", "documentid", "passageid", "pid", "id")}
BODIES = {"query": ("text", "query", "question"), "document": ("text", "passage", "document", "contents", "body")}
GRADES = ("score", "relevance", "rel", "grade", "label")


def _file(name: str, words: str) -> Any:
    return typer.Option(name, metavar="FILE", help=words)


@dataclass(frozen=True)
class OwnFiles:
    """Options that name a user's own yardstick."""

    pairs: Annotated[Path | None, _file("--pairs", "Your own pairs: two texts and a score a row")] = None
    queries: Annotated[Path | None, _file("--queries", "Your own queries, in BEIR's layout (_id, text)")] = None
    corpus: Annotated[Path | None, _file("--corpus", "The documents that they search (_id, title, text)")] = None
    qrels: Annotated[Path | None, _file("--qrels", "The judgements (query-id, corpus-id, score)")] = None


@dataclass(frozen=True)
class OwnData:
    """Tasks of a user's files, the leading one of each yardstick first, and the rows of their data sets by split."""

    tasks: tuple[Task, ...] = ()
    rows: Mapping[str, Mapping[str, Rows]] = field(default_factory=dict)

    @property
    def texts(self) -> int:
        """How many texts an encoder reads: both of a pair, queries and documents."""
        return sum(len(splits[SPLIT]) + len(splits.get(CORPUS, splits[SPLIT])) for splits in self.rows.values())


def read_own(files: OwnFiles) -> OwnData:
    """Read a user's files, and print what was read and passed over.

    Raises InputError for files without the columns, ids or scores that they need, and for fewer than ``FEWEST`` rows.
    """
    queries, corpus, qrels = files.queries, files.corpus, files.qrels
    given = {"--queries": queries, "--corpus": corpus, "--qrels": qrels}
    absent = [option for option, path in given.items() if path is None]
    if 0 < len(absent) < len(given):
        raise InputError(absent[0], "is needed, too", allowed=f"{', '.join(given)} together")
    tasks, rows = list[Task](), dict[str, Mapping[str, Rows]]()
    if files.pairs is not None:
        task, found = _pairs(files.pairs)
        tasks.append(task)
        rows[task.dataset] = {SPLIT: found}
    if queries is not None and corpus is not None and qrels is not None:
        rows[f"{queries.name}/search"] = _search(queries, corpus, qrels)
        tasks += [_search_task(queries.name, metric) for metric in ("ndcg@10", "recall@10")]
    return OwnData(tuple(tasks), rows)


def _pairs(path: Path) -> tuple[Task, Rows]:
    columns, rows = _opened(path)
    texts = next((pair for pair in (*ALIKE, *SEARCHED) if columns.keys() >= set(pair)), None)
    score = next((name for name in SCORES if name in columns and name not in (texts or ())), None)
    if texts is None or score is None:
        raise _lacking(path, "two columns of texts" if texts is None else "a column of scores", columns, EXAMPLE)
    names, over = [columns[name] for name in (*texts, score)], Counter[str]()
    kept = list[tuple[str, str, float]]()
    for place, row in rows:
        first, second = (as_text(row.get(name), place, name) for name in names[:2])
        value = row.get(names[2])
        if value is None or not str(value).strip():
            over["without a score"] += 1
        elif is_blank(first) or is_blank(second):
            over["without a text"] += 1
        else:
            kept.append((first, second, _number(place, names[2], value)))
    _require(path, len(kept), "pairs", over)
    scores = [score for *_, score in kept]
    alike = f"all {len(kept)} pairs are two equal texts" if all(one == two for one, two, _ in kept) else ""
    if same := f"all {len(kept)} scores are {scores[0]:g}" if len(set(scores)) == 1 else alike:
        raise InputError(path, same, hint="a correlation needs scores and texts that differ")
    is_search = texts in SEARCHED
    say(f"{path}: {len(kept):,} pairs ({', '.join(names)}), scores {min(scores):g} to {max(scores):g}{_passed(over)}")
    sides = "; the first with the encoder's prompt for queries, the second with its prompt for documents"
    task = Task(
        name=f"{path.name}/cosine",
        dataset=f"{path.name}/pairs",
        group=OWN,
        family="sts",
        protocol="own pairs: Spearman correlation x 100 between the cosine of two text embeddings and the score, over "
        f"all pairs; no model is fitted on top{sides if is_search else ''}",
        metric="spearman",
        sides=("query", "document") if is_search else None,
    )
    return task, Rows.of(kept)


def _search_task(name: str, metric: Metric) -> Task:
    return Task(
        name=f"{name}/{metric}",
        dataset=f"{name}/search",
        group=OWN,
        family="search",
        protocol=f"own queries: {metric} x 100 of the documents ranked by cosine, as trec_eval computes it, mean over "
        "queries with a relevant document; the encoder's own prompts for queries and documents",
        metric=metric,
        unit="queries",
        fitted_on=(CORPUS, QRELS),
        sides=("query", "document"),
    )


def _search(queries: Path, corpus: Path, qrels: Path) -> dict[str, Rows]:
    """The judged queries (id, text; number of relevant documents), the corpus (id, text) and the judgements."""
    asked, documents = _by_id(queries, "query"), _by_id(corpus, "document")
    columns, rows = _opened(qrels)
    query, document, grade = (_column(qrels, columns, *names) for names in (IDS["query"], IDS["document"], GRADES))
    judged, unknown = dict[tuple[str, str], float](), list[tuple[str, str]]()
    for place, row in rows:
        ids = as_text(row.get(query), place, query), as_text(row.get(document), place, document)
        if ids in judged:
            raise InputError(place, f"judges query {ids[0]!r} and document {ids[1]!r} twice")
        for name, known, file in zip(ids, (asked, documents), (queries, corpus), strict=True):
            if name not in known:
                unknown.append((place, f"names the id {name!r}, which {file.name} lacks"))
        value = _number(place, grade, row.get(grade))
        if value != int(value):
            raise InputError(place, f"its score is {value:g}", allowed="whole numbers; above 0 is relevant")
        judged[ids] = max(value, 0.0)
    if unknown:
        raise InputError(*unknown[0], hint=f"{len(unknown)} such ids in all; give files of one collection")
    relevant = Counter(query for (query, _), value in judged.items() if value > 0)
    if not relevant:
        raise InputError(qrels, f"none of its {len(judged)} judgements is relevant", allowed="a score above 0")
    over = Counter({"without a relevant document": sum(name not in relevant for name in asked)})
    _require(queries, len(relevant), "queries", over)
    found = f"{relevant.total():,} relevant judgements of {len(documents):,} documents{_passed(over)}"
    say(f"{queries}: {len(relevant):,} queries with {found}")
    return {
        SPLIT: Rows.of([(name, text, float(relevant[name])) for name, text in asked.items() if name in relevant]),
        CORPUS: Rows.of([(name, text, 0.0) for name, text in documents.items()]),
        QRELS: Rows.of([(*ids, value) for ids, value in judged.items()]),
    }


def _by_id(path: Path, kind: Side) -> dict[str, str]:
    """The texts of queries or documents by id; a document's title stands before its text, as in BEIR."""
    columns, rows = _opened(path)
    names = [_column(path, columns, *IDS[kind]), _column(path, columns, *BODIES[kind])]
    titles = [columns["title"]] if kind == "document" and "title" in columns else []
    found = dict[str, str]()
    for place, row in rows:
        name, *parts = (as_text(row.get(column), place, column) for column in (names[0], *titles, names[1]))
        if name in found:
            raise InputError(place, f"the id {name!r} stands twice", hint="each text needs an id of its own")
        found[name] = " ".join(parts).strip()
    return found


def _opened(path: Path) -> tuple[dict[str, str], Iterator[tuple[str, Mapping[str, Any]]]]:
    """Columns by their plain names (``Sentence_1`` is sentence1), and rows with their places."""
    if not path.is_file():
        raise InputError(path, "no such file")
    names, rows = open_rows(path, path)
    plain = {"".join(filter(str.isalnum, name.casefold())): name for name in names}
    return plain, ((f"{path}:{line}", row) for line, row in rows)


def _column(path: Path, columns: Mapping[str, str], *names: str) -> str:
    found = next((columns[name] for name in names if name in columns), None)
    if found is None:
        raise _lacking(path, "a column", columns, f"one of {', '.join(names)}")
    return found


def _lacking(path: Path, what: str, columns: Mapping[str, str], allowed: str) -> InputError:
    return InputError(path, f"lacks {what} (columns {', '.join(columns.values())})", allowed=allowed)


def _number(place: str, column: str, value: object) -> float:
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(place, f"its {column} is {value!r}", allowed="a number, e.g. 4.2") from None
    if not isfinite(found):
        raise InputError(place, f"its {column} is {found}", allowed="a number; an empty one passes the row over")
    return found


def _require(path: Path, count: int, unit: str, over: Counter[str]) -> None:
    if count < FEWEST:
        raise InputError(path, f"has {count} {unit}{_passed(over)}", allowed=f"{FEWEST} or more")


def _passed(over: Counter[str]) -> str:
    """How many rows were passed over and why, as the end of a sentence."""
    said = [f"{count:,} {why}" for why, count in over.items() if count]
    return f"; passed over: {', '.join(said)}" if said else ""

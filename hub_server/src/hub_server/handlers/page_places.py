"""Where a page stands, a repo at a revision and the addresses of its pages; and the rows that a query asks for."""

from typing import NamedTuple
from urllib.parse import quote, urlencode

from hub_server.http.call import Call
from hub_server.pages.cards import Config
from hub_server.pages.rows import MOST_FILES, MOST_WORDS, Question, window
from hub_server.storage.repos import Commit, Repo, list_refs, resolve
from hub_server.storage.trees import File, find_file

REPORT = "report.html"  # a self-contained page that a run directory may hold


class Place(NamedTuple):
    """A repo at a revision as a visitor named it. ``revision`` is percent-encoded; ``report``: whether it has one."""

    repo: Repo
    commit: Commit
    revision: str
    name: str
    tags: list[str]
    report: bool

    @property
    def home(self) -> str:
        """The repo's page."""
        return f"/{self.repo.url_path}"

    def at(self, kind: str, path: str = "") -> str:
        """The address of a page (blob, tree, commits, report) or of a content (resolve) at this revision."""
        return f"{self.home}/{kind}/{self.revision}" + (f"/{quote(path)}" if path else "")

    @property
    def here(self) -> str:
        """The repo's page at this revision."""
        return self.home if self.name == "main" else self.at("commit")

    @property
    def content(self) -> str:
        """Where the files of this very commit lie, with a slash at the end."""
        return f"{self.home}/resolve/{self.commit.oid}/"


def place(call: Call) -> Place:
    """The repo and the revision of a page's path, main without one. Raises HubError."""
    repo, name = call.repo(), call.args.get("revision", "main")
    with call.hub.database.reading() as db:
        commit = resolve(db, repo.id, name)
        refs = [ref for ref, _ in list_refs(db, repo.id)]
        report = find_file(db, commit.tree, REPORT) is not None and not repo.gated
    tags = [ref.removeprefix("refs/tags/") for ref in refs if ref.startswith("refs/tags/")]
    return Place(repo, commit, quote(name, safe=""), name, tags[::-1], report)


def rows_view(call: Call, here: str, configs: list[Config], files: dict[str, File]) -> dict[str, object]:
    """What the template ``rows.html`` shows: the rows that the query asks for, and the addresses of the pages around.

    A config or a split that does not exist is the first one, so that the form works from any config to any other.
    """
    asked = {name: call.query.get(name, "") for name in ("config", "split", "label", "q", "view")}
    config = next((config for config in configs if config.name == asked["config"]), configs[0])
    split = asked["split"] if asked["split"] in config.splits else next(iter(config.splits))
    paths = config.splits[split]
    words, grouped = asked["q"].strip()[:MOST_WORDS], asked["view"] != "table"
    shown = window(
        Question(
            files=tuple(str(call.hub.blobs.path(files[path].sha256)) for path in paths[:MOST_FILES]),
            label=asked["label"],
            words=words,
            page=call.number("page", 1),
            grouped=grouped,
        )
    )
    label = asked["label"] if asked["label"] in dict(shown.labels) else ""
    kept = {"config": config.name, "split": split, "label": label, "q": words, "view": "" if grouped else "table"}

    def address(**changes: object) -> str:
        query = {name: value for name, value in {**kept, **changes}.items() if value}
        return f"{here}?{urlencode(query)}#rows"

    return {
        "shown": shown,
        "asked": kept,
        "configs": [(config.name, config.name) for config in configs],
        "splits": [(name, name) for name in dict.fromkeys(name for config in configs for name in config.splits)],
        "labels": [("", "all"), *((name, f"{name} ({count:,} rows)") for name, count in shown.labels)],
        "here": here,
        "path": paths[shown.broken or 0],
        "more_files": max(0, len(paths) - MOST_FILES),
        "others": {
            title: address(page=number)
            for title, number in {
                "First": 1,
                "Previous": shown.page - 1,
                "Next": shown.page + 1,
                "Last": shown.pages,
            }.items()
            if 1 <= number <= shown.pages and number != shown.page
        },
        "other_view": address(view="table" if grouped else "", page=shown.page),
        "all_rows": address(label="", q="") if label or words else "",
    }

"""One API call as handlers see it: the actor, the repo, query parameters and the body."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel
from starlette.datastructures import Headers, QueryParams

from hub_server.storage.blobs import BlobStore, Body
from hub_server.storage.credentials import Actor, Signer
from hub_server.storage.database import Database
from hub_server.storage.errors import HubError, make_missing_repo_error, make_not_served_error
from hub_server.storage.repos import KINDS, Repo, find_repo

Model = TypeVar("Model", bound=BaseModel)
# A page of a list in an answer: commits, repos or files with texts that clients chose
MAX_PAGE_BYTES = 4 << 20


class Hub(NamedTuple):
    """The state that all calls share: the index, the blobs, the signer of upload URLs.

    ``part_bytes``: the size in bytes above which a large file is uploaded in parts.
    """

    database: Database
    blobs: BlobStore
    signer: Signer
    part_bytes: int


@dataclass
class Call:
    """One request.

    Attributes:
        hub: the Hub's state.
        method: the HTTP method.
        path: the path as received, percent-encoded, without the query.
        args: the decoded parts of the path, by their names in the route.
        query: the query parameters.
        headers: the headers.
        endpoint: this server's address, for absolute URLs.
        actor: the authenticated user; None without a token.
        content: the body; empty until the handler runs.
        body_limit: the limit of the body in bytes.
    """

    hub: Hub
    method: str
    path: str
    args: dict[str, str]
    query: QueryParams
    headers: Headers
    endpoint: str
    actor: Actor | None
    content: Body
    body_limit: int = 0

    @property
    def user(self) -> Actor:
        """The authenticated actor. Raises HubError 401 without a token."""
        if self.actor is None:
            raise HubError(401, "Invalid username or password.")
        return self.actor

    def get_repo(self, *, write: bool = False) -> Repo:
        """Return the repo that the path names.

        Args:
            write: whether the actor has to have the right to write.

        Raises:
            HubError: 404 (401 without a token) for a missing repo and for one that the actor may
                not see; 404 for a kind that this Hub does not serve; 401 or 403 without the right
                to write; 400 to write to a pull request.
        """
        kind = KINDS.get(self.args["kind"])
        if kind is None:
            raise make_not_served_error("RepoNotFound")
        with self.hub.database.begin_read() as db:
            repo = find_repo(db, kind, self.args["namespace"], self.args["name"])
        if repo is None or not repo.is_visible_to(self.actor):
            raise make_missing_repo_error(anonymous=self.actor is None)
        if write:
            self.user.require_write(repo.namespace)
            if self.has_flag("create_pr"):
                raise HubError(400, "This local Hub has no pull requests: commit to a branch")
        return repo

    def read_body(self) -> bytes:
        """Return the whole body in one piece."""
        return b"".join(self.content.iter_chunks())

    def parse_body(self, model: type[Model]) -> Model:
        """Return the JSON body as ``model``; an empty body is ``{}``. Raises ValidationError."""
        return model.model_validate_json(self.read_body() or b"{}")

    def get_options(self, name: str) -> list[str]:
        """Return the values of a query parameter, spelt ``name`` or ``name[]``."""
        return self.query.getlist(name) + self.query.getlist(f"{name}[]")

    def has_flag(self, name: str) -> bool:
        """Whether a boolean query parameter is true."""
        return is_on(self.query.get(name))

    def parse_number(self, name: str, default: int = 0, most: int = 10**9) -> int:
        """Return an integer query parameter such as a page size, at most ``most``.

        Return ``default`` for a missing parameter, and for other text than a positive number of at
        most nine digits without leading zeros.
        """
        text = self.query.get(name, "")
        if re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII) is None:
            return default
        return min(int(text), most)

    def make_next_link(self, **changes: object) -> dict[str, str]:
        """Return the Link header to the next page: this call's URL with ``changes`` in its query.

        The URL is absolute, because clients request it as it is.
        """
        items = [(key, value) for key, value in self.query.multi_items() if key not in changes]
        url = f"{self.endpoint}{self.path}?{urlencode([*items, *changes.items()])}"
        return {"Link": f'<{url}>; rel="next"'}


def take_page(items: Iterable[dict], most: int) -> list[dict]:
    """Return the first items of a list: at most ``most``, and at most ``MAX_PAGE_BYTES`` of JSON.

    The page of a list that is not empty has at least one item, however large. At most one item
    beyond the page is taken from ``items``, so a generator computes no more.
    """
    page: list[dict] = []
    page_bytes = 0
    for item in items:
        page_bytes += len(json.dumps(item, ensure_ascii=False).encode("utf-8", "replace"))
        if len(page) == most or (page and page_bytes > MAX_PAGE_BYTES):
            break
        page.append(item)
    return page


def is_on(value: object) -> bool:
    """Return whether a parameter is true; clients write true, True or 1."""
    return str(value).lower() in ("true", "1")

"""One API call as handlers see it: the actor, the repo, query parameters and the body."""

import re
from dataclasses import dataclass
from typing import NamedTuple, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel
from starlette.datastructures import Headers, QueryParams

from hub_server.storage.blobs import BlobStore, Body
from hub_server.storage.credentials import Actor, Signer
from hub_server.storage.database import Database
from hub_server.storage.errors import HubError, not_served, repo_not_found
from hub_server.storage.repos import KINDS, Repo, find_repo

Model = TypeVar("Model", bound=BaseModel)


class Hub(NamedTuple):
    """The state that all calls share: the index, the blobs, the key that signs URLs."""

    database: Database
    blobs: BlobStore
    signer: Signer
    part_bytes: int


@dataclass
class Call:
    """One API call. ``args``: the decoded groups of the path; ``content`` is empty until the handler runs."""

    hub: Hub
    method: str
    path: str
    args: dict[str, str]
    query: QueryParams
    headers: Headers
    endpoint: str
    actor: Actor | None
    content: Body

    @property
    def user(self) -> Actor:
        """The authenticated actor, else 401."""
        if self.actor is None:
            raise HubError(401, "Invalid username or password.")
        return self.actor

    def repo(self, *, write: bool = False) -> Repo:
        """Return the repo in the path. Raises HubError when the actor may not see (as if missing) or ``write`` it."""
        if self.args["kind"] not in KINDS:
            raise not_served("RepoNotFound")
        wanted = KINDS[self.args["kind"]], self.args["namespace"], self.args["name"]
        with self.hub.database.reading() as db:
            found = find_repo(db, *wanted)
        if found is None or not found.visible_to(self.actor):
            raise repo_not_found(anonymous=self.actor is None)
        if write:
            self.user.require_write(found.namespace)
            if self.flag("create_pr"):
                raise HubError(400, "This local Hub has no pull requests: commit to a branch")
        return found

    def body(self) -> bytes:
        """Return the body."""
        return b"".join(self.content.chunks())

    def read(self, model: type[Model]) -> Model:
        """The JSON body as ``model``."""
        return model.model_validate_json(self.body() or b"{}")

    def options(self, name: str) -> list[str]:
        """The values of a query parameter in both of its spellings, ``name`` and ``name[]``."""
        return self.query.getlist(name) + self.query.getlist(f"{name}[]")

    def flag(self, name: str) -> bool:
        """A boolean query parameter."""
        return is_on(self.query.get(name))

    def number(self, name: str, default: int = 0, most: int = 10**9) -> int:
        """An integer query parameter such as a page size; ``default`` when it is missing, 0 or no number."""
        asked = self.query.get(name, "")
        return min(int(asked), most) if re.fullmatch(r"[1-9]\d{0,8}", asked, re.ASCII) else default

    def next_link(self, **changes: object) -> dict[str, str]:
        """The Link header of pagination; clients want an absolute URL."""
        kept = [(key, value) for key, value in self.query.multi_items() if key not in changes]
        url = f"{self.endpoint}{self.path}?{urlencode([*kept, *changes.items()])}"
        return {"Link": f'<{url}>; rel="next"'}


def is_on(value: object) -> bool:
    """Whether a parameter is true, as clients spell it: true, True, 1."""
    return str(value).lower() in ("true", "1")

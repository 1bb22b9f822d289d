"""One request as the handlers see it: who asks, for which repo, with which body."""

import re
from dataclasses import dataclass
from typing import NamedTuple, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel
from starlette.datastructures import Headers, QueryParams

from hub.local.access import Actor, Signer
from hub.local.blobs import BlobStore
from hub.local.bodies import Body
from hub.local.database import Database
from hub.local.replies import HubError, gated_repo, not_served, repo_not_found
from hub.local.repos import KINDS, Repo, find_moved, find_repo, is_let_in

Model = TypeVar("Model", bound=BaseModel)


class Hub(NamedTuple):
    """What all requests share."""

    database: Database
    blobs: BlobStore
    signer: Signer
    part_bytes: int


@dataclass
class Call:
    """One request. ``args`` are the decoded parts of the path; ``content`` is empty until the handler runs."""

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
        """Whoever asks, else 401."""
        if self.actor is None:
            raise HubError(401, "Invalid username or password.")
        return self.actor

    def repo(self, *, write: bool = False) -> Repo:
        """The repo in the path, if the actor may see it (else as if missing) and, when asked for, write to it."""
        if self.args["kind"] not in KINDS:
            raise not_served("RepoNotFound")
        wanted = KINDS[self.args["kind"]], self.args["namespace"], self.args["name"]
        with self.hub.database.reading() as db:
            found = find_repo(db, *wanted)
            moved = None if found else find_moved(db, *wanted)
        if moved and moved.visible_to(self.actor):
            found = self._follow(moved)
        if found is None or not found.visible_to(self.actor):
            raise repo_not_found(anonymous=self.actor is None)
        if write:
            self.user.require_write(found.namespace)
        return found

    def readable(self) -> Repo:
        """The repo in the path, if the actor may read its files: those of a gated one are for whom it lets in."""
        found = self.repo()
        if found.gated:
            with self.hub.database.reading() as db:
                let_in = is_let_in(db, found, self.actor)
            if not let_in:
                raise gated_repo(f"{found.kind} {found.full_name}", anonymous=self.actor is None)
        return found

    def _follow(self, moved: Repo) -> Repo:
        """Send readers to the new name of a repo; writers do not follow redirects and are served at once."""
        old, new = f"/{self.args['namespace']}/{self.args['name']}", f"/{moved.full_name}"
        if self.method in ("GET", "HEAD") and old in self.path:
            target = self.path.replace(old, new, 1) + (f"?{self.query}" if self.query else "")
            raise HubError(307, f"This repo is now {moved.full_name}", headers={"Location": target})
        return moved

    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.content.chunks())

    def read(self, model: type[Model]) -> Model:
        """The JSON body as ``model``."""
        return model.model_validate_json(self.body() or b"{}")

    def options(self, name: str) -> list[str]:
        """The values of a query parameter in both of its spellings, ``name`` and ``name[]``."""
        return self.query.getlist(name) + self.query.getlist(f"{name}[]")

    def flag(self, name: str) -> bool:
        """Whether a query parameter is switched on."""
        return is_on(self.query.get(name))

    def number(self, name: str, default: int = 0, most: int = 10**9) -> int:
        """A query parameter such as a page size or number; ``default`` when it is missing, 0 or no number."""
        asked = self.query.get(name, "")
        return min(int(asked), most) if re.fullmatch(r"[1-9]\d{0,8}", asked, re.ASCII) else default

    def next_link(self, **changes: object) -> dict[str, str]:
        """The header that leads to the next page; clients want an absolute address."""
        kept = [(key, value) for key, value in self.query.multi_items() if key not in changes]
        url = f"{self.endpoint}{self.path}?{urlencode([*kept, *changes.items()])}"
        return {"Link": f'<{url}>; rel="next"'}


def is_on(value: object) -> bool:
    """How clients spell yes: true, True, 1."""
    return str(value).lower() in ("true", "1")

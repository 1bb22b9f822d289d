"""One request as the handlers see it: who asks, for which repo, with which body."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from starlette.datastructures import Headers, QueryParams

from hub.local.access import Actor, Signer, require_write
from hub.local.blobs import BlobStore
from hub.local.database import Database
from hub.local.replies import HubError, repo_not_found
from hub.local.repos import KINDS, Repo, find_moved, find_repo

JSON_LIMIT = 2 << 20


@dataclass(frozen=True)
class Hub:
    """What all requests share."""

    root: Path
    database: Database
    blobs: BlobStore
    signer: Signer
    part_bytes: int


@dataclass
class Call:
    """One request. ``args`` are the decoded parts of the path, ``chunks`` the body as it arrives."""

    hub: Hub
    method: str
    path: str
    args: dict[str, str]
    query: QueryParams
    headers: Headers
    endpoint: str
    actor: Actor | None
    chunks: Iterator[bytes]

    def body(self, limit: int = JSON_LIMIT) -> bytes:
        """The whole body, or 413."""
        content = bytearray()
        for chunk in self.limited(limit):
            content += chunk
        return bytes(content)

    def limited(self, limit: int) -> Iterator[bytes]:
        """The body's chunks; 413 as soon as they exceed ``limit`` bytes."""
        announced = self.headers.get("content-length", "0")
        size = int(announced) if announced.isdigit() else 0
        if size <= limit:
            size = 0
            for chunk in self.chunks:
                size += len(chunk)
                if size > limit:
                    break
                yield chunk
        if size > limit:
            raise HubError(413, f"The request body is larger than {limit} bytes")

    def json(self) -> dict:
        """The body as a JSON object, or 400."""
        return json_object(self.body() or b"{}")

    def flag(self, name: str) -> bool:
        """Whether a query parameter is switched on."""
        return is_on(self.query.get(name))

    def page(self, default: int, most: int) -> int:
        """The page size asked for."""
        asked = self.query.get("limit", "")
        return min(int(asked), most) if re.fullmatch(r"[1-9]\d{0,8}", asked, re.ASCII) else default

    def number(self, name: str) -> int:
        """A page number or offset in the query; 0 when there is none."""
        asked = self.query.get(name, "")
        return int(asked) if re.fullmatch(r"\d{1,9}", asked, re.ASCII) else 0

    def next_link(self, **changes: object) -> dict[str, str]:
        """The header that leads to the next page; clients want an absolute address."""
        kept = [(key, value) for key, value in self.query.multi_items() if key not in changes]
        url = f"{self.endpoint}{self.path}?{urlencode([*kept, *changes.items()])}"
        return {"Link": f'<{url}>; rel="next"'}

    def _follow(self, moved: Repo) -> Repo:
        """Send readers to the new name of a repo; writers do not follow redirects and are served at once."""
        old, new = f"/{self.args['namespace']}/{self.args['name']}", f"/{moved.full_name}"
        if self.method in ("GET", "HEAD") and old in self.path:
            target = self.path.replace(old, new, 1) + (f"?{self.query}" if self.query else "")
            raise HubError(307, f"This repo is now {moved.full_name}", headers={"Location": target})
        return moved

    def repo(self, *, write: bool = False) -> Repo:
        """The repo in the path, if the actor may see it (else as if missing) and, when asked for, write to it."""
        found = None
        if self.args["kind"] in KINDS:
            with self.hub.database.reading() as db:
                wanted = KINDS[self.args["kind"]], self.args["namespace"], self.args["name"]
                found = find_repo(db, *wanted)
                moved = None if found else find_moved(db, *wanted)
            if moved and moved.visible_to(self.actor):
                found = self._follow(moved)
        if found is None or not found.visible_to(self.actor):
            raise repo_not_found(anonymous=self.actor is None)
        if write:
            require_write(self.actor, found.namespace)
        return found


def is_on(value: object) -> bool:
    """How clients spell yes: true, True, 1."""
    return str(value).lower() in ("true", "1")


def json_object(content: bytes) -> dict:
    """``content`` as a JSON object, or 400."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise HubError(400, "The request body is not valid JSON") from error
    if not isinstance(value, dict):
        raise HubError(400, "The request body is not a JSON object")
    return value

"""Users, organisations, access tokens and signed URLs, and the secret files behind them.

Tokens are random and kept only as sha256; the plain text exists only in files that their owner can
read. LFS clients send file contents without a token, so a signed upload address is the permission.
"""

import hashlib
import hmac
import os
import secrets
import sqlite3
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from hub_server.storage.database import Database
from hub_server.storage.errors import CommandError, HubError
from hub_server.storage.rules import NAME_RULES, is_namespace


class Actor(NamedTuple):
    """The authenticated user of a request: name, the token's role, organisations."""

    name: str
    role: str
    orgs: tuple[str, ...] = ()

    def is_member_of(self, namespace: str) -> bool:
        """Return whether ``namespace``, in any case, is the actor's own or one of its orgs."""
        return namespace.lower() in [name.lower() for name in (self.name, *self.orgs)]

    def require_write(self, namespace: str) -> None:
        """Raise HubError 403 unless the actor may write under ``namespace``."""
        if self.role != "write":
            raise HubError(
                403, "This token has the role 'read'; writing needs a token with the role 'write'"
            )
        if not self.is_member_of(namespace):
            raise HubError(
                403, f'You don\'t have the rights to write under the namespace "{namespace}"'
            )


def authenticate(database: Database, header: str | None) -> Actor | None:
    """Return the actor of an ``Authorization`` header; None without a header.

    Raises HubError 401 for an unknown token, and for another scheme than ``Bearer``.
    """
    if not header:
        return None
    scheme, _, token = header.partition(" ")
    with database.begin_read() as db:
        query = "SELECT user, role FROM tokens WHERE hash = ?"
        row = db.execute(query, (_hash_token(token.strip()),)).fetchone()
        if scheme.lower() != "bearer" or row is None:
            raise HubError(401, "Invalid credentials in Authorization header")
        query = "SELECT org FROM members WHERE user = ? ORDER BY org"
        orgs = db.execute(query, (row["user"],)).fetchall()
    return Actor(row["user"], row["role"], tuple(org["org"] for org in orgs))


def add_user(database: Database, name: str, orgs: tuple[str, ...] = ()) -> None:
    """Create the user and its organisations where missing, and make the user their member.

    Raises CommandError for a bad name, and for a user's name that is already an organisation's or
    the reverse.
    """
    with database.begin_write() as db:
        _add_namespace(db, name, is_org=False)
        for org in orgs:
            _add_namespace(db, org, is_org=True)
            db.execute("INSERT OR IGNORE INTO members VALUES (?, ?)", (org, name))


def _add_namespace(db: sqlite3.Connection, name: str, *, is_org: bool) -> None:
    """Create a user or an organisation where missing. Raises CommandError as ``add_user``."""
    kind = "organisation" if is_org else "user"
    if not is_namespace(name):
        raise CommandError(
            f"{kind} {name!r}: cannot be a name on the Hub; allowed: {NAME_RULES}; "
            "it must not be an address of the Hub, such as 'api'"
        )
    db.execute("INSERT OR IGNORE INTO namespaces VALUES (?, ?)", (name, is_org))
    row = db.execute("SELECT is_org FROM namespaces WHERE name = ?", (name,)).fetchone()
    if row["is_org"] != is_org:
        owner = "a user" if is_org else "an organisation"
        raise CommandError(f"{kind} {name!r}: the name is taken by {owner}")


def ensure_token(database: Database, path: Path, user: str, role: str) -> None:
    """Make the file ``path`` hold a valid token of ``user`` with ``role``.

    A valid token in the file stays; otherwise a new token replaces the file's content.
    """
    token = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
    with database.begin_write() as db:
        query = "SELECT 1 FROM tokens WHERE hash = ? AND user = ? AND role = ?"
        if not db.execute(query, (_hash_token(token), user, role)).fetchone():
            token = f"hf_{secrets.token_hex(17)}"
            db.execute("INSERT INTO tokens VALUES (?, ?, ?)", (_hash_token(token), user, role))
            write_secret(path, token.encode())


def write_secret(path: Path, content: bytes) -> None:
    """Write a file durably, readable by its owner alone; replace an earlier file atomically."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Signer:
    """Signs URLs and tokens (HMAC-SHA256) with the key in ``key_file``, created on first use."""

    def __init__(self, key_file: Path):
        if not key_file.exists():
            write_secret(key_file, os.urandom(32))
        self._key = key_file.read_bytes()

    def sign(self, purpose: str, subject: str, expires: int | str) -> str:
        """Return a permission for a purpose and a subject, valid until ``expires`` (Unix seconds).

        The permission is ``EXPIRES-SIGNATURE``; the signature covers all three arguments.
        """
        signature = hmac.new(self._key, f"{purpose} {subject} {expires}".encode(), hashlib.sha256)
        return f"{expires}-{signature.hexdigest()}"

    def verify(self, permission: str, purpose: str, subject: str) -> bool:
        """Return whether ``permission`` is valid for this purpose and subject.

        It is valid if ``sign`` made it with the same key, and until it expires.
        """
        expires = permission.partition("-")[0]  # untrusted text until the signature is checked
        signature = self.sign(purpose, subject, expires)
        is_genuine = hmac.compare_digest(signature.encode(), permission.encode())
        return is_genuine and int(expires) >= time.time()

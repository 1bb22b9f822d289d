"""Who may do what: users, organisations, tokens, signed addresses, and the secret files behind them.

Tokens are random and kept only as sha256; the plain text exists in files that their owner alone can read. LFS clients
send file contents without a token, so an upload's address is itself the permission, and signed.
"""

import hashlib
import hmac
import os
import secrets
import sqlite3
import string
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from hub.errors import InputError
from hub.local.database import Database
from hub.local.names import is_namespace
from hub.local.replies import HubError, unauthorized

VALID_SECONDS = 6 * 3600


@dataclass(frozen=True)
class Actor:
    """Whoever sent a request with a valid token."""

    name: str
    role: str
    orgs: tuple[str, ...] = ()

    def owns(self, namespace: str) -> bool:
        """Whether ``namespace`` is the actor's own or one of its organisations (case does not matter)."""
        return namespace.lower() in {self.name.lower(), *(org.lower() for org in self.orgs)}


def require_actor(actor: Actor | None) -> Actor:
    """``actor``, or 401."""
    if actor is None:
        raise unauthorized()
    return actor


def require_write(actor: Actor | None, namespace: str) -> Actor:
    """``actor`` when it may write under ``namespace``, else 401 or 403."""
    actor = require_actor(actor)
    if actor.role != "write":
        raise HubError(403, "This token has the role 'read'; writing needs a token with the role 'write'")
    if not actor.owns(namespace):
        raise HubError(403, f'You don\'t have the rights to write under the namespace "{namespace}"')
    return actor


def authenticate(database: Database, header: str | None) -> Actor | None:
    """The actor of an ``Authorization`` header; None without one, 401 for a wrong one."""
    if not header:
        return None
    scheme, _, token = header.partition(" ")
    with database.reading() as db:
        row = db.execute("SELECT user, role FROM tokens WHERE hash = ?", (_hash(token.strip()),)).fetchone()
        if scheme.lower() != "bearer" or row is None:
            raise HubError(401, "Invalid credentials in Authorization header")
        orgs = db.execute("SELECT org FROM members WHERE user = ? ORDER BY org", (row["user"],)).fetchall()
    return Actor(row["user"], row["role"], tuple(org["org"] for org in orgs))


def add_user(database: Database, name: str, orgs: tuple[str, ...] = ()) -> None:
    """Make the user and its organisations exist."""
    with database.writing() as db:
        _add_namespace(db, name, is_org=False)
        for org in orgs:
            _add_namespace(db, org, is_org=True)
            db.execute("INSERT OR IGNORE INTO members VALUES (?, ?)", (org, name))


def _add_namespace(db: sqlite3.Connection, name: str, *, is_org: bool) -> None:
    kind = "organisation" if is_org else "user"
    if not is_namespace(name):
        raise InputError(f"{kind} {name!r}", "cannot be a name on the Hub", allowed="letters, digits, '-', '_', '.'")
    found = db.execute("SELECT is_org FROM namespaces WHERE name = ?", (name,)).fetchone()
    if found is not None and bool(found["is_org"]) != is_org:
        raise InputError(f"{kind} {name!r}", f"the name is taken by {'a user' if is_org else 'an organisation'}")
    db.execute("INSERT OR IGNORE INTO namespaces VALUES (?, ?)", (name, int(is_org)))


def keep_token(database: Database, path: Path, user: str, role: str) -> None:
    """Leave a valid token of ``user`` in the file ``path``: the one it holds, else a new one."""
    if path.exists():
        with database.reading() as db:
            query = "SELECT 1 FROM tokens WHERE hash = ? AND user = ? AND role = ?"
            if db.execute(query, (_hash(path.read_text().strip()), user, role)).fetchone():
                path.chmod(0o600)
                return
    alphabet = string.ascii_letters + string.digits
    token = "hf_" + "".join(secrets.choice(alphabet) for _ in range(34))
    with database.writing() as db:
        db.execute("INSERT INTO tokens VALUES (?, ?, ?)", (_hash(token), user, role))
    write_secret(path, token.encode())


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Signer:
    """Signs (method, path, expiry) with the key in ``key_file``, which is made on first use."""

    def __init__(self, key_file: Path):
        if not key_file.exists():
            write_secret(key_file, os.urandom(32))
        key_file.chmod(0o600)
        self._key = key_file.read_bytes()

    def sign(self, method: str, path: str, now: float | None = None) -> str:
        """``path`` with an expiry and a signature that only fit this method and this path."""
        expires = int(time.time() if now is None else now) + VALID_SECONDS
        return f"{path}?expires={expires}&signature={self.signature(method, path, str(expires))}"

    def check(self, method: str, path: str, expires: str, signature: str) -> None:
        """403 unless the address was signed here and is still valid."""
        if not self.fits(signature, method, path, expires):
            raise HubError(403, "The signature does not fit this upload address, or has expired: ask for a new one")

    def fits(self, signature: str, purpose: str, subject: str, expires: str) -> bool:
        """Whether the signature was made here and has not expired."""
        expected = self.signature(purpose, subject, expires)
        return hmac.compare_digest(expected.encode(), signature.encode()) and int(expires) >= time.time()

    def signature(self, purpose: str, subject: str, expires: str) -> str:
        """The signature itself; whoever checks it must check the expiry (seconds since 1970), too."""
        return hmac.new(self._key, f"{purpose} {subject} {expires}".encode(), hashlib.sha256).hexdigest()

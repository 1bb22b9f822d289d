"""Refuses credentials in the URL of an object store: it is printed, handed on and kept in a shell's history."""

import re

from hub.errors import InputError

_SECRET = re.compile(r"[^:]+://([^/@]*:.*@|[^/@]+@|[^?]*\?)")  # user:password@, token@, a query


def require_no_secret(url: str) -> None:
    """Raise InputError for a URL with a user, a password or a query in it."""
    if _SECRET.match(url):
        hint = "give them the way its package reads them: environment variables, a file in the home folder, a login"
        raise InputError(
            f"store {url.partition(':')[0]}://…", "the URL must not hold users, passwords or keys", hint=hint
        )

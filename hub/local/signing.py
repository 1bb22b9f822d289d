"""Signed upload addresses: LFS clients send file contents without a token, so the address itself is the permission."""

import hashlib
import hmac
import os
import time
from pathlib import Path

from hub.local.access import write_secret
from hub.local.replies import HubError

VALID_SECONDS = 6 * 3600


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
        return f"{path}?expires={expires}&signature={self._signature(method, path, str(expires))}"

    def check(self, method: str, path: str, expires: str, signature: str) -> None:
        """403 unless the address was signed here and is still valid."""
        expected = self._signature(method, path, expires)
        if not hmac.compare_digest(expected.encode(), signature.encode()):
            raise HubError(403, "The signature does not fit this upload address")
        if int(expires) < time.time():
            raise HubError(403, "This upload address has expired: ask for a new one")

    def _signature(self, method: str, path: str, expires: str) -> str:
        return hmac.new(self._key, f"{method} {path} {expires}".encode(), hashlib.sha256).hexdigest()

"""The git checkout that a job installs: its commit, its public clone URL, and the recipes in it."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hub import cli
from hub.errors import InputError


@dataclass(frozen=True)
class Checkout:
    """A clean working tree of git."""

    root: Path
    commit: str

    @classmethod
    def here(cls) -> "Checkout":
        """The checkout of the working directory. Raises InputError when there is none, or one with changes."""
        root = git("rev-parse", "--show-toplevel")
        commit = root and git("rev-parse", "--verify", "--quiet", "HEAD", at=Path(root))
        if not root or not commit:
            hint = "clone the project, commit your recipe, and run this in the clone"
            raise InputError(Path.cwd(), "is no git checkout with a commit, and a job installs one", hint=hint)
        changed = git("status", "--porcelain", at=Path(root)).splitlines()
        if changed:
            more = f" and {len(changed) - 1} more" if changed[1:] else ""
            hint = "commit and push it, or `git stash --include-untracked`"
            raise InputError(root, f"has changes that no commit has: {changed[0][3:]}{more}", hint=hint)
        return cls(Path(root), commit)

    def tracked(self, path: Path) -> str:
        """A file's path in the commit. Raises InputError when the commit does not have it."""
        whole = path.resolve()
        inside = whole.relative_to(self.root.resolve()).as_posix() if whole.is_relative_to(self.root.resolve()) else ""
        if not inside or not git("ls-files", "--", inside, at=self.root):
            hint = "put it into the checkout, commit and push it"
            raise InputError(path, f"is no file of the commit {self.commit[:12]} that the job installs", hint=hint)
        return inside

    def url(self, given: str | None) -> str:
        """Where to clone: ``given``, or the remote ``origin``. Raises InputError where the job could not clone it."""
        url = given or git("remote", "get-url", "origin", at=self.root)
        if not url:
            hint = "name where the commit can be cloned: --code https://HOST/PATH"
            raise InputError(self.root, "has no remote named origin", hint=hint)
        found = public(url)
        if not given and not git("branch", "--remotes", "--contains", self.commit, at=self.root):
            hint = "`git push`, or name where it is with --code"
            raise InputError(f"commit {self.commit[:12]}", "is on no branch of a remote", hint=hint)
        return found


def public(url: str) -> str:
    """``url`` as anybody may see it, without a user, a password or a query. Raises InputError unless it is https."""
    parts = urlsplit(url)
    _, at, host = parts.netloc.rpartition("@")
    if parts.scheme != "https" or not host or not parts.path.strip("/"):  # not shown: it may hold a secret
        hint = "the job has no key or password of yours: name a public copy with --code https://HOST/PATH"
        raise InputError("the code's URL", "cannot be cloned by the job", allowed="https://HOST/PATH", hint=hint)
    if at or parts.query or parts.fragment:
        cli.say(f"user, password and query of the code's URL are left out: the job clones https://{host}{parts.path}")
    return f"https://{host}{parts.path}"


def git(*words: str, at: Path | None = None) -> str:
    """What a git command prints, nothing when it fails. Raises InputError without git."""
    try:
        done = subprocess.run(["git", *words], cwd=at, capture_output=True, text=True, check=False)  # noqa: S603, S607
    except FileNotFoundError:
        raise InputError("git", "is not installed, and a job installs a commit", hint="install git") from None
    return done.stdout.strip("\n") if done.returncode == 0 else ""

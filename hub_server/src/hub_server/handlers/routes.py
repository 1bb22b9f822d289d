"""The route table: method and path of every call to its handler.

Matched on the raw path, before percent-decoding: ``refs%2Fpr%2F1`` is one segment, ``a%2Fb/c`` in a tree listing is not
ambiguous.
"""

import re
from collections.abc import Callable
from urllib.parse import unquote

from starlette.responses import Response

from hub_server.handlers import files, history, lfs, pages, repos, xet
from hub_server.handlers.call import Call
from hub_server.storage.errors import HubError, not_served, repo_not_found

Handler = Callable[[Call], Response | dict | list]
JSON_LIMIT = 2 << 20


def no_such_repo(call: Call) -> Response:
    """404 for repo ids without a namespace: none exists here."""
    raise repo_not_found(anonymous=call.actor is None)


def no_such_service(call: Call) -> Response:
    """404 for services of the Hub that are not served here."""
    raise not_served()


_PATTERNS = {
    "{api}": r"/api/(?P<kind>models|datasets|spaces|kernels)/(?P<namespace>[^/]+)/(?P<name>[^/]+)",
    "{web}": r"/(?:(?P<kind>datasets|spaces|kernels)/)?(?P<namespace>[^/]+)/(?P<name>[^/]+?)",
    "{owner}": r"/(?!(?:api|models|datasets|spaces|kernels|buckets|papers|uploads|lfs-upload|xet|-)(?:/|$))"
    r"(?P<namespace>[^/]+)",
    "{page}": r"/(?:(?P<kind>datasets)/)?(?!api/|lfs-upload/|xet/|papers/)(?P<namespace>[^/]+)/(?P<name>[^/]+)",
    "{rev}": r"(?P<revision>[^/]+)",
    "{ref}": r"(?P<ref>[^/]+)",
    "{xet}": r"/xet/(?P<space>[0-9a-f]{32})",
    "{upload}": r"/lfs-upload/(?P<repo>\d+)/(?P<oid>[0-9a-f]{64})/(?P<size>\d+)/(?P<part_bytes>\d+)"
    r"/(?P<upload>[0-9a-f]{32})",
}
_TABLE: list[tuple[str, str, Handler]] = [
    ("GET", r"/", pages.front),
    ("GET", r"/api/whoami-v2", repos.whoami),
    ("POST", r"/api/repos/create", repos.create),
    ("DELETE", r"/api/repos/delete", repos.delete),
    ("POST", r"/api/validate-yaml", repos.validate_yaml),
    ("GET", r"/api/(?P<kind>models|datasets|spaces|kernels)", repos.listing),
    ("GET", r"{api}", repos.info),
    ("GET", r"{api}/revision/{rev}", repos.info),
    ("PUT", r"{api}/settings", repos.settings),
    ("GET", r"{api}/tree/{rev}(?:/(?P<path>.+))?", files.tree),
    ("POST", r"{api}/paths-info/{rev}", files.paths_info),
    ("POST", r"{api}/preupload/{rev}", files.preupload),
    ("POST", r"{api}/commit/{rev}", history.commit),
    ("GET", r"{api}/commits/{rev}", history.commits),
    ("GET", r"{api}/refs", history.refs),
    ("POST", r"{api}/branch/{ref}", history.create_branch),
    ("DELETE", r"{api}/branch/{ref}", history.delete_branch),
    ("POST", r"{api}/tag/{ref}", history.create_tag),
    ("DELETE", r"{api}/tag/{ref}", history.delete_tag),
    ("GET", r"{api}/xet-write-token/{rev}", xet.write_token),
    ("POST", r"{xet}/v1/xorbs/default/(?P<hash>[0-9a-f]{64})", xet.put_xorb),
    ("POST", r"{xet}/v1/shards", xet.put_shard),
    ("POST", r"{web}\.git/info/lfs/objects/batch", lfs.batch),
    ("PUT", r"{upload}/(?P<number>\d+)", lfs.put),
    ("POST", r"{upload}", lfs.complete),
    ("GET", r"{web}/resolve/{rev}/(?P<path>.+)", files.download),
    ("GET", r"{owner}", pages.owner),
    ("GET", r"{page}(?:/commit/{rev})?", pages.repo),
    ("GET", r"{page}/tree/{rev}(?:/(?P<path>.+))?", pages.tree),
    ("GET", r"{page}/blob/{rev}/(?P<path>.+)", pages.blob),
    ("GET", r"{page}/report/{rev}", pages.report),
    ("*", r"{api}(?:/.*)?", repos.not_found),
    ("*", r"/api/(?:models|datasets)/[^/]+(?:/(?:revision|tree|refs|commits)/.+)?", no_such_repo),
    ("GET", r"/(?:(?:datasets|spaces|kernels)/)?[^/]+/resolve/.+", no_such_repo),
    ("*", r"/(?:api|papers|uploads|buckets)(?:/.+)?", no_such_service),
]


# Called before the body is fetched: its limit in bytes, or a refusal.
_BODY_LIMITS: dict[Handler, Callable[[Call], int]] = {
    history.commit: history.body_limit_of_commit,
    lfs.put: lfs.body_limit_of_upload,
    xet.put_shard: xet.body_limit,
    xet.put_xorb: xet.body_limit,
}


# Answers that read untrusted text and may take a second or more: few of a kind at a time.
SLOW: tuple[Handler, ...] = (pages.repo, pages.blob, repos.validate_yaml)


def body_limit(handler: Handler, call: Call) -> int:
    """Body limit of a call in bytes; raises HubError when its handler would refuse any body."""
    return _BODY_LIMITS.get(handler, lambda _: JSON_LIMIT)(call)


def _expand(pattern: str) -> re.Pattern[str]:
    for name, regex in _PATTERNS.items():
        pattern = pattern.replace(name, regex)
    return re.compile(pattern)


_ROUTES = [(method, _expand(pattern), handler) for method, pattern, handler in _TABLE]


def name_of(handler: Handler) -> str:
    """Module and name of a handler, e.g. "history.commit"."""
    return f"{handler.__module__.rpartition('.')[2]}.{handler.__name__}"


REQUESTS = tuple(dict.fromkeys(name_of(handler) for _, _, handler in _ROUTES))


def match(method: str, raw_path: str) -> tuple[Handler, dict[str, str]]:
    """The handler of a request and the decoded parts of its path; 404 without a code for all that is not served."""
    for allowed, pattern, handler in _ROUTES:
        fits = allowed in ("*", "GET" if method == "HEAD" else method)
        found = pattern.fullmatch(raw_path) if fits else None
        if found:
            args = {key: unquote(value, errors="strict") for key, value in found.groupdict().items() if value}
            args.setdefault("kind", "models")  # only models lie at the root of the endpoint
            return handler, args
    raise HubError(404, "Sorry, we can't find the page you are looking for.")

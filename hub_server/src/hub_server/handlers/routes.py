"""The route table: method and path of every call to its handler.

Matched on the raw path, before percent-decoding: ``refs%2Fpr%2F1`` is one segment, ``a%2Fb/c`` in a
tree listing is not ambiguous.
"""

import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote

from starlette.responses import Response

from hub_server.handlers import files, history, lfs, pages, repos, xet
from hub_server.handlers.call import Call
from hub_server.storage.errors import HubError, make_missing_repo_error, make_not_served_error

Handler = Callable[[Call], Response | dict | list]
JSON_LIMIT = 2 << 20


def refuse_short_repo_id(call: Call) -> Response:
    """Raise HubError 404 (401 without a token) for a repo id without a namespace."""
    raise make_missing_repo_error(anonymous=call.actor is None)


def refuse_unserved_path(call: Call) -> Response:
    """Raise HubError 404 for a service of the Hub that does not exist here."""
    raise make_not_served_error()


class Route(NamedTuple):
    """One call: its method, the pattern of its raw path, its name for tests, its handler."""

    method: str
    pattern: re.Pattern[str]
    name: str
    handler: Handler


_PATTERNS = {
    "{api}": r"/api/(?P<kind>models|datasets|spaces|kernels)/(?P<namespace>[^/]+)/(?P<name>[^/]+)",
    "{web}": r"/(?:(?P<kind>datasets|spaces|kernels)/)?(?P<namespace>[^/]+)/(?P<name>[^/]+?)",
    "{owner}": r"/(?!(?:api|models|datasets|spaces|kernels|buckets|papers|uploads|lfs-upload|xet|-)"
    r"(?:/|$))(?P<namespace>[^/]+)",
    "{page}": r"/(?:(?P<kind>datasets)/)?(?!api/|lfs-upload/|xet/|papers/)"
    r"(?P<namespace>[^/]+)/(?P<name>[^/]+)",
    "{rev}": r"(?P<revision>[^/]+)",
    "{ref}": r"(?P<ref>[^/]+)",
    "{xet}": r"/xet/(?P<space>[0-9a-f]{32})",
    "{upload}": r"/lfs-upload/(?P<repo>\d+)/(?P<oid>[0-9a-f]{64})/(?P<size>\d+)/(?P<part_bytes>\d+)"
    r"/(?P<upload>[0-9a-f]{32})",
}


def _compile_pattern(template: str) -> re.Pattern[str]:
    """Return the regular expression of a path template with names of ``_PATTERNS`` in it."""
    for name, regex in _PATTERNS.items():
        template = template.replace(name, regex)
    return re.compile(template)


# Tests use the names, so they stay when a handler is renamed.
_TABLE: list[tuple[str, str, str, Handler]] = [
    ("GET", r"/", "pages.front", pages.show_front),
    ("GET", r"/api/whoami-v2", "repos.whoami", repos.describe_user),
    ("POST", r"/api/repos/create", "repos.create", repos.create),
    ("DELETE", r"/api/repos/delete", "repos.delete", repos.delete),
    ("POST", r"/api/validate-yaml", "repos.validate_yaml", repos.validate_yaml),
    (
        "GET",
        r"/api/(?P<kind>models|datasets|spaces|kernels)",
        "repos.listing",
        repos.list_matching_repos,
    ),
    ("GET", r"{api}", "repos.info", repos.show_info),
    ("GET", r"{api}/revision/{rev}", "repos.info", repos.show_info),
    ("PUT", r"{api}/settings", "repos.settings", repos.update_settings),
    ("GET", r"{api}/tree/{rev}(?:/(?P<path>.+))?", "files.tree", files.list_folder),
    ("POST", r"{api}/paths-info/{rev}", "files.paths_info", files.describe_paths),
    ("POST", r"{api}/preupload/{rev}", "files.preupload", files.plan_upload),
    ("POST", r"{api}/commit/{rev}", "history.commit", history.create_commit),
    ("GET", r"{api}/commits/{rev}", "history.commits", history.list_commits),
    ("GET", r"{api}/refs", "history.refs", history.list_branches_and_tags),
    ("POST", r"{api}/branch/{ref}", "history.create_branch", history.create_branch),
    ("DELETE", r"{api}/branch/{ref}", "history.delete_branch", history.delete_branch),
    ("POST", r"{api}/tag/{ref}", "history.create_tag", history.create_tag),
    ("DELETE", r"{api}/tag/{ref}", "history.delete_tag", history.delete_tag),
    ("GET", r"{api}/xet-write-token/{rev}", "xet.write_token", xet.create_write_token),
    ("POST", r"{xet}/v1/xorbs/default/(?P<hash>[0-9a-f]{64})", "xet.put_xorb", xet.store_xorb),
    ("POST", r"{xet}/v1/shards", "xet.put_shard", xet.store_shard),
    ("POST", r"{web}\.git/info/lfs/objects/batch", "lfs.batch", lfs.plan_transfers),
    ("PUT", r"{upload}/(?P<number>\d+)", "lfs.put", lfs.store_upload),
    ("POST", r"{upload}", "lfs.complete", lfs.finish_upload),
    ("GET", r"{web}/resolve/{rev}/(?P<path>.+)", "files.download", files.download),
    ("GET", r"{owner}", "pages.owner", pages.show_owner),
    ("GET", r"{page}(?:/commit/{rev})?", "pages.repo", pages.show_repo),
    ("GET", r"{page}/tree/{rev}(?:/(?P<path>.+))?", "pages.tree", pages.show_folder),
    ("GET", r"{page}/blob/{rev}/(?P<path>.+)", "pages.blob", pages.show_file),
    ("GET", r"{page}/report/{rev}", "pages.report", pages.show_report),
    ("*", r"{api}(?:/.*)?", "repos.not_found", repos.refuse_unknown_path),
    (
        "*",
        r"/api/(?:models|datasets)/[^/]+(?:/(?:revision|tree|refs|commits)/.+)?",
        "routes.no_such_repo",
        refuse_short_repo_id,
    ),
    (
        "GET",
        r"/(?:(?:datasets|spaces|kernels)/)?[^/]+/resolve/.+",
        "routes.no_such_repo",
        refuse_short_repo_id,
    ),
    (
        "*",
        r"/(?:api|papers|uploads|buckets)(?:/.+)?",
        "routes.no_such_service",
        refuse_unserved_path,
    ),
]
_ROUTES = [
    Route(method, _compile_pattern(pattern), name, handler)
    for method, pattern, name, handler in _TABLE
]
REQUESTS = tuple(dict.fromkeys(route.name for route in _ROUTES))

# Called before the body is fetched: its limit in bytes, or a refusal.
_BODY_LIMITS: dict[Handler, Callable[[Call], int]] = {
    history.create_commit: history.get_commit_body_limit,
    lfs.store_upload: lfs.get_upload_body_limit,
    xet.store_shard: xet.get_body_limit,
    xet.store_xorb: xet.get_body_limit,
}

# Handlers that may take a second or more, or much memory, over a client's content: few run at once.
SLOW: tuple[Handler, ...] = (
    pages.show_repo,
    pages.show_file,
    repos.validate_yaml,
    xet.store_shard,
)


def get_body_limit(handler: Handler, call: Call) -> int:
    """Return a call's body limit in bytes. Raises HubError when its handler refuses any body."""
    if handler in _BODY_LIMITS:
        return _BODY_LIMITS[handler](call)
    return JSON_LIMIT


def match_route(method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
    """Return the first route that fits a request, and the decoded parts of its path by name.

    Raises HubError 404 without an X-Error-Code when no route fits, UnicodeError for a part that is
    not UTF-8.
    """
    method = "GET" if method == "HEAD" else method
    for route in _ROUTES:
        match = route.pattern.fullmatch(raw_path)
        if match is None or route.method not in ("*", method):
            continue
        groups = {key: value for key, value in match.groupdict().items() if value}
        args = {key: unquote(value, errors="strict") for key, value in groups.items()}
        args.setdefault("kind", "models")  # only models lie at the root of the endpoint
        return route, args
    raise HubError(404, "Sorry, we can't find the page you are looking for.")

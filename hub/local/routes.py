"""The table of addresses.

Matched on the raw path, before percent-decoding: ``refs%2Fpr%2F1`` is one segment, ``a%2Fb/c`` in a tree listing is not
ambiguous.
"""

import re
from collections.abc import Callable
from urllib.parse import unquote

from starlette.responses import Response

from hub.local import (
    api_access,
    api_discussions,
    api_files,
    api_history,
    api_lfs_files,
    api_repos,
    lfs,
    pages,
    xet,
    xet_reads,
)
from hub.local.call import Call
from hub.local.replies import HubError, not_served, repo_not_found

Handler = Callable[[Call], Response | dict | list]
JSON_LIMIT = 2 << 20


def no_such_repo(call: Call) -> Response:
    """Repo ids without a namespace: none of them exists here."""
    raise repo_not_found(anonymous=call.actor is None)


def no_such_service(call: Call) -> Response:
    """What the Hub has besides repos, and spaces and kernels."""
    raise not_served()


_PATTERNS = {
    "{discussion}": r"{api}/discussions/(?P<num>[1-9]\d{0,8})",
    "{comment}": r"(?P<comment>0{9}[0-9a-f]{15})",
    "{api}": r"/api/(?P<kind>models|datasets|spaces|kernels)/(?P<namespace>[^/]+)/(?P<name>[^/]+)",
    "{web}": r"/(?:(?P<kind>datasets|spaces|kernels)/)?(?P<namespace>[^/]+)/(?P<name>[^/]+?)",
    "{page}": r"/(?:(?P<kind>datasets)/)?(?!api/|lfs-upload/|xet/|papers/)(?P<namespace>[^/]+)/(?P<name>[^/]+)",
    "{rev}": r"(?P<revision>[^/]+)",
    "{ref}": r"(?P<ref>[^/]+)",
    "{xet}": r"/xet/(?P<space>[0-9a-f]{32}(?:/by/[^/]+)?)",
    "{upload}": r"/lfs-upload/(?P<repo>\d+)/(?P<oid>[0-9a-f]{64})/(?P<size>\d+)/(?P<part_bytes>\d+)"
    r"/(?P<upload>[0-9a-f]{32})",
}
_TABLE: list[tuple[str, str, Handler]] = [
    ("GET", r"/", pages.front),
    ("GET", r"/api/whoami-v2", api_repos.whoami),
    ("POST", r"/api/repos/create", api_repos.create),
    ("DELETE", r"/api/repos/delete", api_repos.delete),
    ("POST", r"/api/repos/move", api_repos.move),
    ("POST", r"/api/validate-yaml", api_repos.validate_yaml),
    ("GET", r"/api/(?P<kind>models|datasets|spaces|kernels)", api_repos.listing),
    ("GET", r"{api}", api_repos.info),
    ("GET", r"{api}/revision/{rev}", api_repos.info),
    ("PUT", r"{api}/settings", api_access.settings),
    ("GET", r"{api}/auth-check(?P<write>/write)?", api_access.auth_check),
    ("GET", r"{api}/user-access-request/(?P<status>accepted|pending|rejected)", api_access.requests),
    ("POST", r"{api}/user-access-request/grant", api_access.grant),
    ("POST", r"{api}/user-access-request/handle", api_access.handle),
    ("GET", r"{api}/tree/{rev}(?:/(?P<path>.+))?", api_files.tree),
    ("POST", r"{api}/paths-info/{rev}", api_files.paths_info),
    ("POST", r"{api}/preupload/{rev}", api_files.preupload),
    ("POST", r"{api}/commit/{rev}", api_history.commit),
    ("GET", r"{api}/commits/{rev}", api_history.commits),
    ("POST", r"{api}/super-squash/{ref}", api_history.super_squash),
    ("GET", r"{api}/refs", api_history.refs),
    ("POST", r"{api}/branch/{ref}", api_history.create_branch),
    ("DELETE", r"{api}/branch/{ref}", api_history.delete_branch),
    ("POST", r"{api}/tag/{ref}", api_history.create_tag),
    ("DELETE", r"{api}/tag/{ref}", api_history.delete_tag),
    ("GET", r"{api}/xet-write-token/{rev}", xet.write_token),
    ("GET", r"{api}/discussions", api_discussions.listing),
    ("POST", r"{api}/discussions", api_discussions.create),
    ("GET", r"{discussion}", api_discussions.show),
    ("POST", r"{discussion}/comment", api_discussions.comment),
    ("POST", r"{discussion}/comment/{comment}/edit", api_discussions.edit),
    ("POST", r"{discussion}/comment/{comment}/hide", api_discussions.hide),
    ("POST", r"{discussion}/title", api_discussions.rename),
    ("POST", r"{discussion}/status", api_discussions.change_status),
    ("POST", r"{discussion}/merge", api_discussions.merge),
    ("GET", r"{api}/lfs-files", api_lfs_files.listing),
    ("POST", r"{api}/lfs-files/batch", api_lfs_files.delete),
    ("POST", r"{api}/lfs-files/duplicate", api_lfs_files.duplicate),
    ("GET", r"{api}/xet-read-token/{rev}", xet_reads.read_token),
    ("POST", r"{xet}/v1/xorbs/default/(?P<hash>[0-9a-f]{64})", xet.put_xorb),
    ("POST", r"{xet}/v1/shards", xet.put_shard),
    ("GET", r"{xet}/v(?P<version>[12])/reconstructions/(?P<hash>[0-9a-f]{64})", xet_reads.reconstruction),
    ("GET", r"{xet}/v1/xorbs/(?P<sha256>[0-9a-f]{64})/(?P<number>\d{1,9})", xet_reads.xorb),
    ("POST", r"{web}\.git/info/lfs/objects/batch", lfs.batch),
    ("PUT", r"{upload}/(?P<number>\d+)", lfs.put),
    ("POST", r"{upload}", lfs.complete),
    ("GET", r"{web}/resolve/{rev}/(?P<path>.+)", api_files.download),
    ("GET", r"{page}(?:/(?:tree|commit)/{rev})?", pages.repo),
    ("*", r"{api}(?:/.*)?", api_repos.not_found),
    ("*", r"/api/(?:models|datasets)/[^/]+(?:/(?:revision|tree|refs|commits)/.+)?", no_such_repo),
    ("GET", r"/(?:(?:datasets|spaces|kernels)/)?[^/]+/resolve/.+", no_such_repo),
    ("*", r"/(?:api|papers|uploads|buckets)(?:/.+)?", no_such_service),
]


# What these say before the body is fetched: how many bytes it may have, or that it is not wanted.
_ROOM: dict[Handler, Callable[[Call], int]] = {
    api_history.commit: api_history.room_for_commit,
    lfs.put: lfs.room_for_upload,
    xet.put_shard: xet.room_for_shard,
    xet.put_xorb: xet.room_for_xorb,
}


# Answers to anybody that may take a second or more, since they read a stranger's words: few of a kind at a time.
SLOW: tuple[Handler, ...] = (pages.repo, api_repos.validate_yaml)


def room(handler: Handler, call: Call) -> int:
    """The largest body that ``handler`` takes for this call; raises HubError when it would refuse any."""
    return _ROOM.get(handler, lambda _: JSON_LIMIT)(call)


def _expand(pattern: str) -> re.Pattern[str]:
    for name, regex in _PATTERNS.items():
        pattern = pattern.replace(name, regex)
    return re.compile(pattern)


_ROUTES = [(method, _expand(pattern), handler) for method, pattern, handler in _TABLE]


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

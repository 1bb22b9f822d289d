"""Words of the requests of ``hub_fuzz``: content of the fuzzed repos, and words that are wrong anywhere."""

from typing import Any

OID = "ab" * 32
# Right values, by the name of the part of an address or the key of a body; all others are drawn by type.
RIGHT: dict[str, list[str]] = {
    "kind": ["models", "datasets", "datasets", "datasets"],
    "type": ["model", "dataset", "dataset"],
    "namespace": ["demo"] * 8 + ["acme"],
    "organization": ["demo", "acme"],
    "name": ["fuzz"] * 8 + ["other"],
    "revision": ["main", "main", "v1"],
    "ref": ["main", "v1", "side"],
    "path": ["README.md", "data/x.bin", "data", "a.txt"],
    "paths": ["README.md", "data/x.bin", "data"],
    "tag": ["v1", "v2"],
    "oid": [OID],
    "content": ["# Title\n", "---\nlicense: mit\n---\n", "eA=="],
    "encoding": ["utf-8", "base64"],
    "parentCommit": [""] * 5 + ["0" * 40],
    "startingPoint": ["main"],
    "gitIgnore": ["*.tmp\n!a/**/b\n", "*a" * 30, "[[:alpha:]]"],
    "transfers": ["basic", "multipart"],
    "visibility": ["public"],  # a private repo would answer most requests with 404
}
TEXTS = [
    "", "\0", "a\0b", "\x1b[2J", "\r\nX-Evil: 1", "\x85", "\u202e", "é", "\U0001f600", "..", "../../token", ".git ",
    "git~1", "/", "//", "\\", "C:x", "a" * 300, "a" * 5000, "x/" * 200, "%00", "%2e%2e", "*a" * 17, "[" * 1000,
    "{a: " * 1000, "- " * 1000, "---\n&a [*a]\n---\n", "---\na: &a {x: 1}\nb: {<<: [*a, *a]}\n---\n", "9" * 400, "-1",
    "1e999", "null", "refs/heads/main", "0" * 40, "' OR 1=1 --", "<script>", "nan", "hf_" + "a" * 34,
]  # fmt: skip
JSON: list[Any] = [None, True, 0, -1, 1 << 63, 1 << 70, 10**400, 1.5, 1e308, [], {}, [[]], {"a": None}, *TEXTS]
PIECES = [
    "", "%00", "a%00b", "%0d%0aX-Evil:1", "%1b[2J", "..", "%2e%2e", "%2e%2e%2f%2e%2e%2ftoken", "%2F", "%5c", "%ff",
    "%", "%zz", "%c3%a9", "%e2%80%8b", "%ed%a0%80", "a" * 300, "x/" * 300, "-1", "0", "9" * 30, "9" * 5000, "main%20",
    ".git", "git~1", "*", "~", "%2a" * 40, "refs%2Fheads%2Fmain", "refs%2Ftags%2Fv1", "refs%2Fpr%2F1", "0" * 40,
    "deadbeef", "'%20OR%201=1", "%3Cscript%3E",
]  # fmt: skip
RANGES = [
    "bytes=0-0", "bytes=-1", "bytes=5-", "bytes=9-1", "bytes=" + "9" * 5000 + "-", "bytes=0-" + "9" * 400,
    "bytes=a-b", "bytes", "bytes=" + ",".join(["0-1"] * 500), "lines=0-1", "bytes=-0", "bytes=0-0,-1", "bytes=٣-٤",
    "", "=", "bytes=--1",
]  # fmt: skip
METHODS = ["OPTIONS", "TRACE", "PATCH", "CONNECT", "get", "X" * 500, "HEAD", "GET", "POST", "PUT", "DELETE"]
UNROUTED = [
    "/demo/fuzz.git/info/refs?service=git-upload-pack", "/datasets/demo/fuzz.git/git-receive-pack",
    "/datasets/demo/fuzz.git/HEAD", "/datasets/demo/fuzz/raw/main/README.md", "/api/datasets/demo/fuzz/parquet",
    "/xet/" + "0" * 32, "/xet/" + "0" * 32 + "/v1/chunks/a/b", "/api", "/api/", "//", "/.",
    "/%2e%2e/%2e%2e/etc/passwd", "*", "http://evil.example/", "/?", "/#", "/" + "a" * 9000, "/" + "a/" * 4000,
]  # fmt: skip
ODD_HEADERS = {
    "Range": RANGES,
    "If-Range": ['"x"', "", "Thu, 01 Jan 1970 00:00:00 GMT", "\xff"],
    "Content-Type": ["application/json", "application/x-www-form-urlencoded", "multipart/form-data", "\xff"],
    "Accept": ["text/plain", "*/*", "a" * 500],
    "X-Request-Id": ["a" * 900, "\x80\xff", ""],
    "Expect": ["100-continue", "x"],
    "Connection": ["close", "upgrade", "keep-alive"],
    "Upgrade": ["websocket", "h2c"],
}
GARBAGE = [
    "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "\r\n" * 50, "GET / HTTP/1.1\r\nHost\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\nHost: HOST\r\nX: " + "a" * 20_000 + "\r\n\r\n",
    "GET / HTTP/1.1\r\n" + "A: b\r\n" * 500, "GET / HTTP/1.1\r\nHost: HOST\r\nContent-Length: -1\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
]  # fmt: skip

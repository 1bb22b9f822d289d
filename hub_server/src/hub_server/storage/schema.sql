CREATE TABLE IF NOT EXISTS namespaces(name TEXT PRIMARY KEY COLLATE NOCASE, is_org INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members(
    org TEXT NOT NULL COLLATE NOCASE, user TEXT NOT NULL COLLATE NOCASE, PRIMARY KEY(org, user)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tokens(
    hash TEXT PRIMARY KEY, user TEXT NOT NULL COLLATE NOCASE, role TEXT NOT NULL) WITHOUT ROWID;
-- AUTOINCREMENT: an upload URL signed for a deleted repo must never fit a later one.
CREATE TABLE IF NOT EXISTS repos(
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, namespace TEXT NOT NULL COLLATE NOCASE,
    name TEXT NOT NULL COLLATE NOCASE, private INTEGER NOT NULL, created INTEGER NOT NULL,
    UNIQUE(kind, namespace, name));
CREATE TABLE IF NOT EXISTS commits(
    repo INTEGER NOT NULL REFERENCES repos(id) ON DELETE CASCADE, oid TEXT NOT NULL, tree TEXT NOT NULL,
    parent TEXT, author TEXT NOT NULL, date INTEGER NOT NULL, title TEXT NOT NULL, message TEXT NOT NULL,
    PRIMARY KEY(repo, oid)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refs(
    repo INTEGER NOT NULL REFERENCES repos(id) ON DELETE CASCADE, name TEXT NOT NULL, oid TEXT NOT NULL,
    PRIMARY KEY(repo, name)) WITHOUT ROWID;
-- The answer to each commit request: a request sent again after a lost answer changes nothing.
CREATE TABLE IF NOT EXISTS receipts(
    repo INTEGER NOT NULL, ref TEXT NOT NULL, digest TEXT NOT NULL, oid TEXT NOT NULL, PRIMARY KEY(repo, ref, digest),
    FOREIGN KEY(repo, ref) REFERENCES refs(repo, name) ON DELETE CASCADE) WITHOUT ROWID;
-- Folders and files by git id, shared by all repos: reachable only through a commit of a readable repo.
CREATE TABLE IF NOT EXISTS entries(
    tree TEXT NOT NULL, name TEXT NOT NULL, oid TEXT NOT NULL, is_folder INTEGER NOT NULL,
    PRIMARY KEY(tree, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files(
    oid TEXT PRIMARY KEY, sha256 TEXT NOT NULL, size INTEGER NOT NULL, lfs INTEGER NOT NULL) WITHOUT ROWID;
-- The large files that authorised users uploaded to a repo: a known sha256 gives no right to the bytes.
CREATE TABLE IF NOT EXISTS lfs_objects(
    repo INTEGER NOT NULL REFERENCES repos(id) ON DELETE CASCADE, sha256 TEXT NOT NULL, size INTEGER NOT NULL,
    PRIMARY KEY(repo, sha256)) WITHOUT ROWID;
-- Each repo's own Xet address; a new one makes clients forget what they know of the xorbs of the old one.
CREATE TABLE IF NOT EXISTS xet_spaces(
    repo INTEGER PRIMARY KEY REFERENCES repos(id) ON DELETE CASCADE, space TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS xorbs(
    repo INTEGER NOT NULL REFERENCES repos(id) ON DELETE CASCADE, hash TEXT NOT NULL, sha256 TEXT NOT NULL,
    PRIMARY KEY(repo, hash)) WITHOUT ROWID;

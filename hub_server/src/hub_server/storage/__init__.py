"""Repositories on disk: the SQLite index, blobs by sha256, git trees and commits, accounts."""

"""A dataset repository that holds SentEval's (or the organisers') layout, as files or as one ``senteval.tar``.

SimCSE's authors publish such an archive: ``princeton-nlp/datasets-for-simcse``. Files are read at one commit, and are
checked against the same pins as a directory's. An archive is never unpacked: its members are read in place, so that
no name in it can reach a file of this machine.
"""

import tarfile
from functools import cached_property
from pathlib import Path, PurePosixPath

from eval.tasks.rows import DataFile, names_in_layout
from hub.errors import InputError

ARCHIVE = "senteval.tar"


class Repository:
    """The files of a dataset repository at a revision, downloaded one by one when they are read."""

    def __init__(self, repo_id: str, revision: str):
        self._repo_id, self._revision = repo_id, revision
        self._archive: Path | None = None

    @classmethod
    def parse(cls, text: str) -> "Repository":
        """From ``ORG/NAME@REVISION``. Raises InputError for a repository without a revision."""
        repo_id, _, revision = text.partition("@")
        if repo_id.count("/") != 1 or not revision:
            hint = "name a commit or tag: data that change under a score make it worthless; mteb/NAME downloads MTEB's"
            raise InputError("--hub-data", f"{text!r} is not pinned", allowed="ORG/NAME@REVISION", hint=hint)
        return cls(repo_id, revision)

    def read(self, name: str) -> DataFile:
        """The file from the repository or from its archive. Raises InputError when neither has it."""
        if self._archive is None:
            for candidate in names_in_layout(name):
                path = self._download(candidate)
                if path is not None:
                    return DataFile(f"{self._place}: {candidate}", path.read_bytes())
            self._archive = self._download(ARCHIVE)
            if self._archive is None:
                hint = f"the repository needs SentEval's layout, or {ARCHIVE} with it"
                raise InputError(f"{self._place}: {name}", "no such data file at this revision", hint=hint)
        return in_archive(self._archive, f"{self._place}: {ARCHIVE}", name)

    @cached_property
    def _commit(self) -> str:
        from hub.client.connection import reading
        from hub.client.offline import commit_of

        with reading(f"dataset {self._repo_id}", self._revision):
            return commit_of(self._repo_id, self._revision)

    @cached_property
    def _place(self) -> str:
        return f"dataset {self._repo_id}@{self._commit[:12]}"

    def _download(self, name: str) -> Path | None:
        """The file in the client's cache, or None when the repository has none of this name. A commit never changes, so
        what the cache knows of one, files and their absence, is not asked again and works offline.
        """
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        from hub.client.connection import reading

        known = try_to_load_from_cache(self._repo_id, name, repo_type="dataset", revision=self._commit)
        if known is not None:
            return Path(known) if isinstance(known, str) else None
        with reading(f"dataset {self._repo_id}", self._revision):
            try:
                return Path(hf_hub_download(self._repo_id, name, repo_type="dataset", revision=self._commit))
            except LocalEntryNotFoundError:
                raise
            except EntryNotFoundError:
                return None


def in_archive(path: Path, place: str, name: str) -> DataFile:
    """The member of an uncompressed tar whose path ends like ``name``, read in place.

    Raises InputError when it is absent, doubled or no plain file, or the archive is damaged.
    """
    wanted, hint = names_in_layout(name), "use a whole archive with one layout of plain files"
    try:
        with tarfile.open(path, "r:") as tar:
            found = [one for one in tar if any(PurePosixPath(one.name).match(candidate) for candidate in wanted)]
            if len(found) != 1:
                named = f": {', '.join(one.name for one in found[:3])}" if found else ""
                raise InputError(f"{place}: {name}", f"is there {len(found)} times in the archive{named}", hint=hint)
            stream = tar.extractfile(found[0]) if found[0].isfile() else None
            if stream is None:
                raise InputError(f"{place}: {found[0].name}", "is not a plain file", hint=hint)
            return DataFile(f"{place}: {found[0].name}", stream.read())
    except tarfile.TarError as error:
        raise InputError(place, f"cannot be read as a tar archive: {error}", hint=hint) from error

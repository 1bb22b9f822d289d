"""Publish a run directory: python -m hub.publish artifacts/datasets/sts-dino-x2 --org ORG --yes

The run directory is copied to the Hub in one atomic commit that is made on the parent it was planned on, and tagged
with its version. Files the Hub has already are not sent; files that are not part of the artefact any more are deleted
in the same commit. The only module that writes to a Hub.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile

from hub import cli, run_dir
from hub.errors import InputError, RunError
from hub.remote import hub_errors
from hub.run_dir import MANIFEST, RECIPE, Manifest
from hub.shards import sha256_file

CARD = "README.md"
BESIDE = (CARD, RECIPE, MANIFEST, "results.json", ".eval_results/*.yaml", "assets/*.png")  # published, not in manifest
KEPT = (".gitattributes",)  # the Hub's own

app = cli.new_app(__doc__)


@dataclass(frozen=True)
class Plan:
    """What a publication would change: paths to add, to replace and to delete, on which commit, and the tag to set."""

    repo_id: str
    repo_type: str
    parent: str | None  # None: the repository is not there yet
    added: tuple[str, ...]
    replaced: tuple[str, ...]
    deleted: tuple[str, ...]
    tag: str | None  # None: the tag is there and marks these bytes

    @property
    def commits(self) -> bool:
        """Whether any file changes."""
        return bool(self.added or self.replaced or self.deleted)

    def __str__(self) -> str:
        lines = [f"{self.repo_type} {self.repo_id}" + ("" if self.parent else " (new)")]
        for mark, paths in (("+", self.added), ("~", self.replaced), ("-", self.deleted)):
            lines += [f"  {mark} {path}" for path in paths]
        if not self.commits:
            lines.append("  no file changes")
        if self.tag:
            lines.append(f"  tag {self.tag}")
        return "\n".join(lines)


@app.command()
def main(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run directory with its card")],
    org: Annotated[str | None, typer.Option("--org", help="User or organisation [default: the token's user]")] = None,
    yes: Annotated[bool, typer.Option("--yes/--dry-run", help="Act, or only print the plan")] = False,
    private: Annotated[bool, typer.Option("--private", help="Create the repository as a private one")] = False,
) -> None:
    """Publish a finished dataset or model to the Hub that HF_ENDPOINT names. Without --yes only the plan is printed.

    One atomic commit and the tag v<version>; what the Hub has already is not sent again, and a tag is never moved.

    Examples:

      python -m hub.publish artifacts/datasets/sts-dino-x2 --org my-org

      python -m hub.publish artifacts/datasets/sts-dino-x2 --org my-org --yes
    """
    with hub_errors(f"publish {directory}"):
        print(publish(HfApi(), directory, org, yes, private))


def publish(api: HfApi, directory: Path, org: str | None, yes: bool, private: bool = False) -> Plan:
    """Plan the publication of a run directory and, with ``yes``, carry it out.

    Raises:
        InputError: the run is unfinished, has no card, or its files are not those its manifest names.
        RunError: the version's tag exists and marks other bytes.
        HfHubHTTPError: the Hub refused.
    """
    manifest = checked(directory)
    repo_id = f"{org or api.whoami()['name']}/{manifest.name}"
    plan = make_plan(api, directory, manifest, repo_id)
    if not yes:
        return plan
    if plan.parent is None:
        api.create_repo(repo_id, repo_type=plan.repo_type, private=private, exist_ok=True)
        plan = make_plan(api, directory, manifest, repo_id)
    if plan.commits:
        _commit(api, directory, manifest, plan)
    if plan.tag:
        api.create_tag(repo_id, tag=plan.tag, repo_type=plan.repo_type)
    return plan


def checked(directory: Path) -> Manifest:
    """The manifest of a run directory that is ready to be published. Raises InputError otherwise."""
    manifest = run_dir.require_complete(directory)
    changed = run_dir.changed_files(directory, manifest)
    if changed:
        raise InputError(
            directory, f"files differ from the manifest: {', '.join(changed[:5])}", hint="run the stage that made them"
        )
    if not (directory / CARD).is_file():
        raise InputError(directory / CARD, "no card", hint=f"run: python -m model_cards.render {directory}")
    return manifest


def local_files(directory: Path, manifest: Manifest) -> list[str]:
    """Paths of the artefact inside its directory, sorted: the manifest's files and the fixed ones beside them."""
    beside = {path.relative_to(directory).as_posix() for pattern in BESIDE for path in directory.glob(pattern)}
    return sorted(beside | {file.path for file in manifest.files})


def make_plan(api: HfApi, directory: Path, manifest: Manifest, repo_id: str) -> Plan:
    """Compare the run directory with the repository's main branch by content hashes."""
    local = local_files(directory, manifest)
    tag = f"v{manifest.version}"
    try:
        info = api.repo_info(repo_id, repo_type=manifest.kind)
    except RepositoryNotFoundError:
        return Plan(repo_id, manifest.kind, None, tuple(local), (), (), tag)
    tree = api.list_repo_tree(repo_id, repo_type=manifest.kind, recursive=True, revision=info.sha)
    remote = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
    added = tuple(path for path in local if path not in remote)
    replaced = tuple(path for path in local if path in remote and not _same(directory / path, remote[path]))
    deleted = tuple(path for path in sorted(remote) if path not in local and path not in KEPT)
    tagged = {ref.name: ref.target_commit for ref in api.list_repo_refs(repo_id, repo_type=manifest.kind).tags}
    if tag in tagged and (added or replaced or deleted or tagged[tag] != info.sha):
        what = ", ".join((*added, *replaced, *deleted)[:5]) or "an older commit"
        raise RunError(
            f"{repo_id}: tag {tag}", f"exists and marks other content ({what})", hint="raise `version` in the recipe"
        )
    return Plan(repo_id, manifest.kind, info.sha, added, replaced, deleted, None if tag in tagged else tag)


def _same(path: Path, remote: RepoFile) -> bool:
    if remote.lfs is not None:
        return remote.lfs.sha256 == sha256_file(path)
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() == remote.blob_id


def _commit(api: HfApi, directory: Path, manifest: Manifest, plan: Plan) -> None:
    adds = [CommitOperationAdd(path, directory / path) for path in (*plan.added, *plan.replaced)]
    deletes = [CommitOperationDelete(path) for path in plan.deleted]
    api.create_commit(
        plan.repo_id,
        [*adds, *deletes],
        repo_type=plan.repo_type,
        parent_commit=plan.parent,
        commit_message=f"{manifest.name} v{manifest.version}",
    )


if __name__ == "__main__":
    cli.run(app)

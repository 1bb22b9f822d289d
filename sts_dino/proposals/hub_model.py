"""A language model or an encoder of a Hub, pinned at the commit that its revision stands for now."""

from hub.cli import say
from hub.client.failures import reading
from release.preflight import PIN


def pinned(repo_id: str, revision: str) -> str:
    """The revision where it cannot move, else its commit; "" is the main branch.

    Raises InputError when there is no such repository or revision, RunError when the Hub cannot be read.
    """
    if PIN.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi

    with reading(repo_id, revision or None):
        commit = HfApi().model_info(repo_id, revision=revision or None).sha
    assert commit is not None
    if commit != revision:
        say(f"{repo_id}: {revision or 'its main branch'} is {commit} now; the recipe pins that")
    return commit

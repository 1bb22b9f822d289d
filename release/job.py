"""A release as a job of Hugging Face: sts-dino job RECIPE --org ORG --flavor l4x1

The job installs the commit of this git checkout and runs ``sts-dino release``. After a failed attempt the next one
resumes from the Hub. Without --yes the same ``hf jobs run`` is printed and nothing is sent.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from hub import cli
from hub.client.connection import hub_errors
from hub.client.retry import LONGEST_SECONDS, RetryPolicy
from hub.contract.published_paths import git
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import load_recipe, recipe_files
from hub.errors import InputError
from release.options import LocalWorkers, PublicOption, RecipeOverrides, words_of
from release.run import is_model, refuse_baselines

if TYPE_CHECKING:
    from huggingface_hub import HfApi, JobInfo

IMAGE = "python:3.11"  # the tested version, with git; torch's wheels bring CUDA
SECRET = "HF_TOKEN"  # noqa: S105 - its name
_DURATION = re.compile(r"\d+(\.\d+)?[smhd]?")
_ON_THE_MACHINE = (  # $1: where the code is, $2: its commit, $3: what to install, then the command
    "set -eu; export GIT_TERMINAL_PROMPT=0; "
    'cd "$(mktemp -d)"; git clone --quiet --no-checkout "$1" code; cd code; git checkout --quiet --detach "$2"; '
    'pip install --quiet --no-cache-dir -c constraints.txt -e "$3"; shift 3; exec "$@"'
)
app = cli.new_app(__doc__)


def command(url: str, commit: str, extras: list[str], words: list[str]) -> list[str]:
    """The job's command: install the commit with its extras, then become ``words``, which so get its signals."""
    install = f".[{','.join(extras)}]" if extras else "."
    return ["bash", "-c", _ON_THE_MACHINE, "job", url, commit, install, *words]


@dataclass(frozen=True)
class HubJob:
    """A job by the names of ``HfApi.run_job``, but for its one secret, which only ``submit`` ever reads."""

    name: str
    image: str
    command: list[str]
    flavor: str
    timeout: str
    attempts: int
    namespace: str | None

    def command_line(self) -> str:
        """The same job as an ``hf jobs run`` command, whose ``--secrets NAME`` reads the value for itself."""
        words = ["hf", "jobs", "run", "--detach", "--name", self.name, "--flavor", self.flavor]
        words += ["--timeout", self.timeout, "--attempts", str(self.attempts), "--secrets", SECRET]
        words += ["--namespace", self.namespace] if self.namespace else []
        return shlex.join([*words, "--", self.image, *self.command])

    def submit(self, api: "HfApi", org: str, patience: RetryPolicy | None = None) -> "JobInfo":
        """Start the job, which publishes to ``org``.

        Raises InputError without a token or when it may not write there, RunError when the Hub refuses.
        """
        from huggingface_hub import get_token

        from release import preflight

        token = get_token()
        if token is None:
            raise InputError(SECRET, "no token: the job publishes with it", hint="run `hf auth login` or set HF_TOKEN")
        with hub_errors("ask who the token belongs to"):
            preflight.namespace(api, org, True, patience or RetryPolicy())  # now: the machine's time is paid for
        with hub_errors(f"start the job {self.name}"):
            return api.run_job(**vars(self), secrets={SECRET: token})


@app.command()
@cli.option_groups
def main(
    recipe: cli.RecipeArgument,
    org: Annotated[str, typer.Option(help="User or organisation to publish to")],
    flavor: Annotated[str, typer.Option(help="The machine: `hf jobs hardware` lists them, with prices")],
    workers: LocalWorkers,
    overrides: RecipeOverrides,
    timeout: Annotated[str, typer.Option(help="The longest that it may run, with s, m, h or d")] = "12h",
    attempts: Annotated[int, typer.Option(min=1, help="How often it is tried, the first included")] = 3,
    public: PublicOption = None,
    code: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the commit is [default: the remote origin]")
    ] = None,
    image: Annotated[str, typer.Option(help="Docker image with git and Python 3.11 or newer")] = IMAGE,
    namespace: Annotated[str | None, typer.Option(help="Who pays [default: the token's user]")] = None,
    longest: cli.PatienceOption = LONGEST_SECONDS,
    yes: Annotated[bool, typer.Option("--yes/--dry-run", help="Start the job, or print its command")] = False,
) -> None:
    """Run a release on Hugging Face's machines: a dataset that grows on the Hub, or a model.

    Examples:

      sts-dino job recipes/datasets/sts-dino-x2.yaml --org my-org --flavor l4x1

      sts-dino job recipes/datasets/auto-nli.yaml --org my-org --flavor l4x4 --workers 4 --timeout 2d --yes
    """
    if not _DURATION.fullmatch(timeout):
        raise InputError(f"--timeout {timeout}", "is not a duration", allowed="a number with s, m, h or d, such as 12h")
    name, extras = checked(recipe, org, overrides, workers)
    checkout = Checkout.here()
    inside, *_ = [checkout.tracked(path) for path in recipe_files(recipe)]  # those that it extends, too
    words = ["sts-dino", "release", inside, "--org", org, "--yes"]
    words += [*overrides.words, *words_of(workers)]
    words += [] if public is None else ["--public" if public else "--private"]
    whole = command(checkout.url(code), checkout.commit, extras, words)
    job = HubJob(name, image, whole, flavor, timeout, attempts, namespace)
    if yes:
        from huggingface_hub import HfApi

        started = job.submit(HfApi(), org, RetryPolicy(longest))
        print(started.url)
        cli.say(f"hf jobs logs --follow {started.owner.name}/{started.id}")
    else:
        print(job.command_line())
        cli.say("not started: --yes starts it, and so does this command")


def checked(path: Path, org: str, overrides: RecipeOverrides, workers: LocalWorkers) -> tuple[str, list[str]]:
    """Name and extras of a recipe that ``sts-dino release`` would take. Raises InputError for what it would refuse."""
    from release import preflight

    recipe: DatasetRecipe | ModelRecipe
    if is_model(path):
        recipe = load_recipe(path, ModelRecipe, overrides.keys("limit"))
        refuse_baselines([path])
    else:
        recipe = load_recipe(path, DatasetRecipe, overrides.keys("source.limit"))
        preflight.check_dtype(path, recipe)
    from model_cards.render import require_card

    require_card(recipe, f"{org}/{recipe.name}")
    if isinstance(recipe, ModelRecipe):
        preflight.check_pins(path, recipe)
        workers.require_datasets(0)
        return recipe.name, ["train", "eval"]
    backend = recipe.model.backend
    return recipe.name, [*(["ray"] if words_of(workers) else []), *([backend] if backend != "engine" else [])]


@dataclass(frozen=True)
class Checkout:
    """A clean working tree of git."""

    root: Path
    commit: str

    @classmethod
    def here(cls) -> "Checkout":
        """The checkout of the working directory. Raises InputError outside a checkout, and for one with changes."""
        root = git(Path(), "rev-parse", "--show-toplevel")
        commit = root and git(Path(root), "rev-parse", "--verify", "--quiet", "HEAD")
        if not root or not commit:
            hint = "install git, clone the project, commit your recipe, and run this in the clone"
            raise InputError(Path.cwd(), "is not a git checkout with a commit; a job installs one", hint=hint)
        branch, *changed = git(Path(root), "status", "--porcelain", "--branch").splitlines() or [""]
        if not branch:
            raise InputError(root, "git status gives no answer", hint="run it there, then this command again")
        if changed:
            more = f" and {len(changed) - 1} more" if changed[1:] else ""
            hint = "commit and push it, or `git stash --include-untracked`"
            raise InputError(root, f"has changes that no commit has: {changed[0][3:]}{more}", hint=hint)
        return cls(Path(root), commit)

    def tracked(self, path: Path) -> str:
        """A file's path in the commit. Raises InputError when the commit does not have it."""
        whole = path.resolve()
        inside = whole.relative_to(self.root.resolve()).as_posix() if whole.is_relative_to(self.root.resolve()) else ""
        if not inside or not git(self.root, "ls-files", "--", inside):
            hint = "put it into the checkout, commit and push it"
            raise InputError(path, f"is not in the commit {self.commit[:12]} that the job installs", hint=hint)
        return inside

    def url(self, given: str | None) -> str:
        """Where to clone: ``given``, or the remote ``origin``. Raises InputError where the job could not clone it."""
        url = given or git(self.root, "remote", "get-url", "origin")
        if not url:
            hint = "name where the commit can be cloned: --code https://HOST/PATH"
            raise InputError(self.root, "has no remote named origin", hint=hint)
        found = public(url)
        if not given and not git(self.root, "branch", "--remotes", "--contains", self.commit):
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

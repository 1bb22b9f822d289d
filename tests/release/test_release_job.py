"""A release as a job of Hugging Face: what is sent, what is printed instead, and what the machine then does."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from serving import Reply, ordered_server

from hub import cli
from hub.contract import published_paths
from hub.errors import InputError, RunError
from release import job
from release.job import HubJob, app, command, public

ROOT = Path.cwd()
RECIPE = "recipes/demo/sts-dino-x2.yaml"
TOKEN = "hf_" + "s3cret" * 4
URL = "https://code.example/acme/sts-dino.git"
IDENTITY = {f"GIT_{who}_{what}": "x@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def started(body: dict, number: int) -> Reply:
    """The answer of a Hub that starts a job."""
    owner = {"id": "1", "name": "payer", "type": "org"}
    job = {"id": "j1", "status": {"stage": "RUNNING", "message": None}, "owner": owner, "flavor": body["flavor"]}
    return 200, {}, json.dumps(job)


def git(at: Path, *words: str) -> str:
    options = {"cwd": at, "env": os.environ | IDENTITY, "text": True, "stderr": subprocess.DEVNULL}
    return subprocess.check_output(["git", *words], **options).strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A clean clone of a project, pushed, in which the test stands."""
    root = tmp_path / "project"
    for name in (RECIPE, "recipes/demo/demo-sts-dino.yaml", "recipes/models/bert-base-mean.yaml"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    git(tmp_path, "init", "--quiet", str(root))
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "one")
    git(root, "remote", "add", "origin", URL.replace("://", f"://ci:{TOKEN}@"))
    git(root, "update-ref", "refs/remotes/origin/main", "HEAD")
    monkeypatch.chdir(root)
    return root


def asked(capsys, monkeypatch, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["job", *words, "--org", "acme", "--flavor", "l4x4"])
    with pytest.raises(SystemExit) as end:
        cli.run(app)
    return end.value.code, *capsys.readouterr()


@pytest.mark.slow("starts command after command")
def test_what_is_printed_and_what_is_sent_are_one_job_and_the_token_is_a_secret_of_it(checkout, capsys, monkeypatch):
    words = [RECIPE, "--workers", "4", "--timeout", "36h", "--attempts", "5", "--namespace", "payer", "--private"]
    words += ["--set", "source.limit=7"]
    home = {"HF_HOME": str(checkout.parent / "home"), "PYTHONPATH": str(ROOT)}
    code, printed, _ = asked(capsys, monkeypatch, *words)
    client, *rest = shlex.split(printed)
    assert code == 0
    with ordered_server(started) as jobs:
        url = jobs.base_url.removesuffix("/v1")
        environment = os.environ | home | {"HF_ENDPOINT": url, "HF_TOKEN": TOKEN}

        def run(*line: str) -> subprocess.CompletedProcess[str]:
            done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0 and TOKEN not in done.stdout + done.stderr, done.stderr
            return done

        done = run(sys.executable, "-m", "sts_dino", "job", *words, "--org", "acme", "--flavor", "l4x4", "--yes")
        assert done.stdout == f"{url}/jobs/payer/j1\n"
        assert done.stderr.splitlines()[-1] == "hf jobs logs --follow payer/j1"
        run(str(Path(sys.executable).with_name(client)), *rest)
    body, theirs = jobs.bodies
    assert body == theirs and jobs.paths == ["/api/jobs/payer"] * 2
    assert [headers["authorization"] for headers in jobs.headers] == [f"Bearer {TOKEN}"] * 2
    assert body.pop("secrets") == {"HF_TOKEN": TOKEN} and TOKEN not in json.dumps(body)
    assert (body["flavor"], body["timeoutSeconds"], body["attempts"]) == ("l4x4", 36 * 3600, 5)
    line = f"sts-dino release {RECIPE} --org acme --yes --set source.limit=7 --workers 4 --private"
    assert body["command"][4:] == [URL, git(checkout, "rev-parse", "HEAD"), ".[ray]", *line.split()]


def test_the_machine_installs_that_commit_and_becomes_the_release(checkout, tmp_path):
    first = git(checkout, "rev-parse", "HEAD")
    (checkout / "later").touch()
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "two")
    for name, code in (("pip", "[ -e recipes ] && [ ! -e later ]"), ("sts-dino", "echo $$")):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n{code}\n')
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}

    def run(commit: str) -> tuple[int, list[str], int]:
        words = command(str(checkout), commit, ["ray"], ["sts-dino", "release", "a recipe.yaml"])
        process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return process.wait(), process.communicate()[0].splitlines(), process.pid

    code, lines, pid = run(first)
    install = "pip install --quiet --no-cache-dir -c constraints.txt -e .[ray]"
    assert (code, lines) == (0, [install, "sts-dino release a recipe.yaml", str(pid)])  # the same process
    assert run(git(checkout, "rev-parse", "HEAD"))[:2] == (1, [install])  # nothing runs after a failed installation
    assert run("0" * 40)[1] == []


def test_a_job_installs_what_its_recipe_needs(checkout, capsys, monkeypatch):
    encoder = ["recipes/demo/demo-sts-dino.yaml", "--limit", "9"]
    for words, extras in (([RECIPE], "."), ([RECIPE, "--workers", "2"], ".[ray]"), (encoder, ".[train,eval]")):
        code, out, err = asked(capsys, monkeypatch, *words)
        assert code == 0 and extras in shlex.split(out) and TOKEN not in out + err
        assert "user, password and query of the code's URL are left out" in err and "not started" in err


def test_a_job_is_refused_before_it_is_paid_for(checkout, capsys, monkeypatch):
    def refused(said: str, *words: str) -> None:
        code, out, err = asked(capsys, monkeypatch, *words)
        assert code == 2 and not out and said in err.splitlines()[-1] and TOKEN not in err

    refused("--timeout 3x: is not a duration", RECIPE, "--timeout", "3x")
    refused("is a baseline, which is not published", "recipes/models/bert-base-mean.yaml")
    refused(f"{ROOT / RECIPE}: is not in the commit", str(ROOT / RECIPE))
    (checkout / ".git/info/exclude").write_text("own.yaml\n")  # git does not report it as a change
    (checkout / "recipes/own.yaml").write_text("extends: demo/sts-dino-x2.yaml\n")
    refused("recipes/own.yaml: is not in the commit", "recipes/own.yaml")
    (checkout / "recipes/demo/extending.yaml").write_text("extends: ../own.yaml\n")
    git(checkout, "add", "recipes/demo/extending.yaml")
    git(checkout, "commit", "--quiet", "--message", "extends what is not committed")
    refused("own.yaml: is not in the commit", "recipes/demo/extending.yaml")
    git(checkout, "reset", "--quiet", "--hard", "HEAD~")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    refused("HF_TOKEN: no token: the job publishes with it; run `hf auth login`", RECIPE, "--yes")
    answer = published_paths.git
    with monkeypatch.context() as slow:
        slow.setattr(job, "git", lambda root, *words: "" if "status" in words else answer(root, *words))
        refused("git status gives no answer", RECIPE)
    (checkout / "note").touch()
    refused("has changes that no commit has: note; commit and push it", RECIPE)
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "not pushed")
    refused("is on no branch of a remote; `git push`", RECIPE)
    git(checkout, "remote", "remove", "origin")
    refused("has no remote named origin; name where the commit can be cloned: --code", RECIPE)
    monkeypatch.chdir(checkout.parent)
    refused("is not a git checkout with a commit", str(ROOT / RECIPE))


def test_code_that_the_job_could_not_clone_is_refused_without_showing_it():
    assert public(f"https://u:p@h:8443/a/b.git?token={TOKEN}#{TOKEN}") == "https://h:8443/a/b.git"
    for url in ("git@code.example:a/b.git", f"ssh://x:{TOKEN}@h/p", f"file:///{TOKEN}", "https:///a", TOKEN):
        with pytest.raises(InputError, match="allowed: https://HOST/PATH") as refusal:
            public(url)
        assert TOKEN not in str(refusal.value) and "@" not in str(refusal.value)


def test_a_hub_that_refuses_a_job_says_why(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    job = HubJob("x", "python:3.11", ["true"], "cpu-basic", "1h", 1, "acme")
    answers = {402: "402: pay first", 403: "403: pay first; the token may not do"}
    with ordered_server(lambda body, number: (402 + number, {}, '{"error": "pay first"}')) as jobs:
        for said in answers.values():
            with pytest.raises(RunError) as refusal:
                job.submit(HfApi(endpoint=jobs.base_url.removesuffix("/v1")), "acme")
            assert said in str(refusal.value) and TOKEN not in str(refusal.value)

"""Files of docs/deploy/ for Slurm and Kubernetes: our commands, and tested versions."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from sts_dino.hub.contract.published_paths import run_git
from sts_dino.release.run import app

SCRIPT = Path("docs/deploy/slurm/release.sbatch").resolve()
JOBS = Path("docs/deploy/jobs/release.sh").resolve()
KUBERAY, IMAGE = Path("docs/deploy/kuberay/release.yaml"), Path("docs/deploy/kuberay/Dockerfile")
TESTED = dict(re.findall(r"^([\w.-]+)==(\S+)$", Path("constraints.txt").read_text(), re.MULTILINE))

# Fake commands of a Slurm node: each logs its call, and Ray only opens its port.
FAKES = {
    "bin/srun": """while [[ "$1" == --* ]]; do echo "srun $1" >> calls; shift; done
SLURM_CPUS_ON_NODE=3 exec "$@"
""",
    "bin/scontrol": 'echo "scontrol $*" >> calls',
    ".venv/bin/ray": """echo "ray $* [$RAY_AUTH_MODE ${#RAY_AUTH_TOKEN}]" >> calls
[[ -n "$NO_HEAD" ]] && exit
port=$(sed 's/.*--port=\\([0-9]*\\).*/\\1/' <<< "$*")
[[ "$*" == *--head* ]] && exec python3 -m http.server --bind 127.0.0.1 "$port"
exec sleep 60""",
    ".venv/bin/python": """[[ "$2" == *secrets* ]] && { echo a-token; exit; }
[[ "$2" == *ray* ]] && { echo 127.0.0.1; exit; }
echo "python $*" >> calls
until [[ $(grep -c '^ray ' calls) == 2 ]]; do sleep 0.02; done
trap 'exit 143' TERM; echo at work > working; sleep ${WORK:-0} & wait; exit $CODE""",
}
RUN = ["recipes/demo/sts-dino-x2.yaml", "--org", "acme", "--yes"]


@pytest.fixture
def node(tmp_path):
    for name, code in FAKES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/bash\n{code}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def started(node: Path, **more: str) -> subprocess.Popen[str]:
    slurm = {"SUBMIT_DIR": str(node), "JOB_ID": str(os.getpid()), "JOB_NUM_NODES": "3"}
    environment = (
        os.environ
        | {f"SLURM_{name}": value for name, value in slurm.items()}
        | {"SLURMD_NODENAME": "n1"}
    )
    environment |= {
        "PATH": f"{node / 'bin'}:{os.environ['PATH']}",
        "TMPDIR": str(node),
        "CODE": "0",
        "NO_HEAD": "",
    }
    return subprocess.Popen(
        [SCRIPT, *RUN], env=environment | more, stderr=subprocess.PIPE, text=True
    )


def calls(node: Path) -> list[str]:
    return (node / "calls").read_text().splitlines()


def test_slurm_starts_ray_on_every_node_with_a_token_of_the_job_and_the_release_on_the_first(node):
    process = started(node, CODE="7")
    assert process.wait(timeout=60) == 7  # the release's own
    said, port = calls(node), 20000 + os.getpid() % 10000
    first, others = [line for line in said if line.startswith("ray ")]
    assert (
        f"--head --node-ip-address=127.0.0.1 --port={port} --include-dashboard=false [token 7]"
        in first
    )
    assert "--num-cpus=3" in first and others.endswith(f"--address=127.0.0.1:{port} [token 7]")
    assert {"srun --nodes=2", "srun --ntasks=2", "srun --exclude=n1", "srun --nodelist=n1"} <= set(
        said
    )
    (line,) = [line for line in said if line.startswith("python ")]
    words = line.removeprefix("python -m sts_dino release ").split()
    assert words == [*RUN, "--ray", f"127.0.0.1:{port}"]
    get_command(app).make_context("run", words)
    assert "a-token" not in "".join(said) and not [
        line for line in said if line.startswith("scontrol")
    ]


@pytest.mark.parametrize(
    ("number", "queued_again"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)]
)
def test_slurm_ends_the_release_cleanly_and_queues_it_again_only_when_its_time_is_over(
    number, queued_again, node
):
    process = started(node, WORK="60")
    deadline = time.monotonic() + 60
    while not (node / "working").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(timeout=60) == 143
    assert (f"scontrol requeue {os.getpid()}" in calls(node)) is queued_again
    assert not list(node.glob("tmp.*"))  # Ray's folders of the nodes


def test_slurm_stops_when_ray_does_not_start(node):
    process = started(node, NO_HEAD="1")
    assert process.wait(timeout=60) == 1
    assert (
        "error: Ray's head ended on n1" in process.stderr.read() and not (node / "working").exists()
    )


def test_kubernetes_runs_a_release_of_ours_on_ray_of_the_tested_version():
    job = yaml.safe_load(KUBERAY.read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == TESTED["ray"]
    bases = re.findall(r"rayproject/ray:(\S+)", IMAGE.read_text())
    assert bases and all(base.split("-")[:2] == [TESTED["ray"], "py311"] for base in bases)
    folder = re.search(r"^WORKDIR (\S+)$", IMAGE.read_text(), re.MULTILINE)[1]
    # KubeRay puts it into a shell command of its own
    shell, flag, script = shlex.split(job["spec"]["entrypoint"])
    enter, run = script.split(" && ")
    assert (shell, flag) == ("bash", "-c")
    assert enter == f"cd {folder}" and run.startswith("exec sts-dino release ")
    context = get_command(app).make_context("run", shlex.split(run)[3:])
    assert context.params["ray"] == "auto" and all(
        path.is_file() for path in context.params["recipes"]
    )
    gpus = sum(
        group["maxReplicas"]
        * int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
        for group in cluster["workerGroupSpecs"]
    )
    assert context.params["workers"] == gpus


def test_kubernetes_gets_tokens_as_secrets_and_asks_for_ray_s_own():
    cluster = yaml.safe_load(KUBERAY.read_text())["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    keys, groups = [], [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for container in (one for group in groups for one in group["template"]["spec"]["containers"]):
        assert container["image"] == "REGISTRY/sts-dino:COMMIT"
        (token,) = [entry for entry in container["env"] if entry["name"] == "HF_TOKEN"]
        assert "value" not in token
        keys.append(token["valueFrom"]["secretKeyRef"]["key"])
    assert keys == ["write", "read"]  # only the driver may write
    assert re.findall(r"--from-file=(\w+)=", KUBERAY.read_text()) == keys


def test_a_job_of_hugging_face_gets_the_commit_and_the_words_of_a_release(tmp_path):
    checkout = tmp_path / "checkout"
    place = checkout / "docs/deploy/jobs"
    place.mkdir(parents=True)
    shutil.copy(JOBS, place)
    for words in (
        ["init"],
        ["add", "."],
        ["commit", "-m", "one"],
        ["remote", "add", "origin", "URL"],
    ):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", checkout, *identity, *words], check=True, capture_output=True)
    client = tmp_path / "bin" / "hf"
    client.parent.mkdir()
    client.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    client.chmod(0o755)
    environment = {**os.environ, "PATH": f"{client.parent}:{os.environ['PATH']}"}
    command = [place / "release.sh", "recipes/datasets/auto-nli.yaml", "--org", "acme", "--yes"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    commit = run_git(checkout, "rev-parse", "HEAD")
    assert done.stdout.splitlines()[-6:] == ["URL", commit, *command[1:]]
    assert "exec sts-dino release" in done.stdout and "--secrets\nHF_TOKEN\n" in done.stdout

#!/usr/bin/env bash
# An example, not run yet: a release as a job of Hugging Face (`hf jobs hardware` lists flavors and prices).
#
#   docs/deploy/jobs/release.sh recipes/datasets/auto-nli.yaml --org YOU --workers 4 --yes
#
# The job clones this checkout's commit, which must be pushed and public, and runs `sts-dino release`. The token is the
# job's secret. A job that failed resumes from the Hub when you start it again.
set -euo pipefail
cd "$(dirname "$0")/../../.."
[ -z "$(git status --porcelain)" ] || { echo "error: commit and push your changes first" >&2; exit 2; }
code='set -eu; git clone --quiet "$1" code; cd code; git checkout --quiet --detach "$2"; shift 2
pip install --quiet -c constraints.txt ./hub_server ".[train,eval,ray]"; exec sts-dino release "$@"'
exec hf jobs run --detach --flavor "${FLAVOR:-l4x4}" --timeout "${TIMEOUT:-2d}" --secrets HF_TOKEN -- \
  python:3.11 bash -c "$code" job "$(git remote get-url origin)" "$(git rev-parse HEAD)" "$@"

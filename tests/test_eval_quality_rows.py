"""A Hub dataset gives the rows that its run directory gives, at the commit of its tag."""

import json
import os
import subprocess
import sys

from small_runs import small_recipe, small_run

from eval.dataset_rows import find_rows
from hub.run_dir import read_manifest

pytest_plugins = ["local_hub"]
READ = """
import json, sys
from eval.dataset_rows import find_rows
found = find_rows(sys.argv[1])
drawn = [list(zip(*batch.pairs())) for batch in found.batches(20, seed=1)]
print(json.dumps([found.config, found.form, found.splits, found.labelled_by, found.revision, drawn]))
try:
    find_rows(sys.argv[1], "postproces")
except Exception as error:
    print(json.dumps(str(error)))
"""


def test_a_hub_dataset_gives_the_same_rows(tmp_path, local_hub, hub_api, repo):
    small_run(tmp_path / "sts", small_recipe("sts"))
    commit = hub_api.upload_folder(repo_id=repo, repo_type="dataset", folder_path=tmp_path / "sts").oid
    hub_api.create_tag(repo, repo_type="dataset", tag="v1.0.0")
    hub_api.upload_file(path_or_fileobj=b"later", path_in_repo="note.txt", repo_id=repo, repo_type="dataset")
    places = {"HF_ENDPOINT": local_hub.endpoint, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": "."}
    command = [sys.executable, "-c", READ, f"{repo}@v1.0.0"]
    printed = subprocess.run(command, env={**os.environ, **places}, capture_output=True, text=True, check=True).stdout
    published, refused = (json.loads(line) for line in printed.splitlines())
    local = find_rows(str(tmp_path / "sts"))
    drawn = [list(map(list, zip(*batch.pairs(), strict=True))) for batch in local.batches(20, seed=1)]
    assert published == ["postprocessed", "sts", local.splits, "target", commit, drawn]
    assert local.revision == read_manifest(tmp_path / "sts").fingerprint
    assert "did you mean 'postprocessed'" in refused

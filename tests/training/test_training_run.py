"""sts_dino.training.run end to end on a tiny random encoder: its files, resuming after a kill, and
refusals.
"""

import json
import re
import resource
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from command_outcomes import outcome_of
from safetensors import SafetensorError
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from tiny_bases import make_llama
from training_inputs import STS_DATA, sts_rows, triplet_data, write_dataset, write_recipe
from transformers import TrainerState

from sts_dino.hub.contract.published_paths import describe_clone
from sts_dino.hub.contract.recipe import ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import find_changed_files, lock_run, require_complete
from sts_dino.hub.errors import InputError, RunError
from sts_dino.training import run as command
from sts_dino.training.encoder.encoder import build_encoder
from sts_dino.training.loop.files import (
    convert_disk_errors,
    find_newest_usable,
    mark_complete,
    remove_old_checkpoints,
)
from sts_dino.training.loop.job import prepare
from sts_dino.training.loop.train import ROOT, merge_with_base, verify_encoder
from sts_dino.training.run import main

IN_BATCH = "MultipleNegativesRankingLoss"
CUT = {"path": "lm", "modules": "static", "license": "mit", "vocabulary": {"path": "texts.txt"}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    main(write_recipe(folder), out=folder / "out")
    return folder


def test_a_run_directory_holds_the_model_and_nothing_else(trained):
    out = trained / "out"
    manifest = require_complete(out)
    named = {file.path for file in manifest.files}
    on_disk = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert on_disk == named | {"manifest.json", "recipe.yaml"}
    assert find_changed_files(out, manifest) == []
    assert not (trained / "out.checkpoints").exists()
    assert (trained / "out.base" / "model.safetensors").is_file()
    assert load_recipe(out / "recipe.yaml", ModelRecipe).threads == 1


def test_a_finished_encoder_is_trained_further_with_its_own_modules(
    offline, trained, tmp_path, capsys
):
    lm, pairs = {"license": "apache-2.0", "path": str(trained / "lm")}, str(trained / "pairs")
    given = {"datasets": [], "arguments": {}, "base": {**lm, "pooling": "lasttoken"}}
    main(write_recipe(tmp_path, **given), out=tmp_path / "start")
    start = SentenceTransformer(str(tmp_path / "start"))
    start.append(Normalize())
    start.prompts |= {"query": "query: "}
    start.save(str(tmp_path / "normal"))
    base = {"path": str(tmp_path / "normal"), "license": "mit", "modules": "sentence-transformer"}
    data = {**STS_DATA, "path": pairs, "license": "mit"}
    recipe = write_recipe(tmp_path, base={**base, "max_seq_length": "16"}, datasets=[data])
    main(recipe, out=tmp_path / "out", settings=["arguments.max_steps=2", "merge=0.5"])
    assert (
        "base normal: is trained without its prompts (query), on the texts as they are"
        in capsys.readouterr().err
    )
    start.default_prompt_name = "query"
    start.save(str(tmp_path / "normal"))
    again = ["arguments.max_steps=1"]
    main(recipe, out=tmp_path / "prompted", settings=again)
    said = capsys.readouterr().err
    assert "base normal: is trained with its default prompt 'query: '" in said
    assert SentenceTransformer(str(tmp_path / "prompted")).default_prompt_name == "query"
    assert require_complete(tmp_path / "out").provenance["training"]["merge"] == {"share": 0.5}
    found = SentenceTransformer(str(tmp_path / "out"))
    assert [type(module).__name__ for module in found] == ["Transformer", "Pooling", "Normalize"]
    assert found[1].pooling_mode == "lasttoken" and found.max_seq_length == 16
    weights = [next(one.parameters()) for one in (start, found)]
    assert not torch.equal(*weights)


@pytest.mark.parametrize("wanted", ["0.25", "1.5", "auto"])
def test_a_merge_multiplies_what_the_training_changed(trained, tmp_path, wanted):
    job, built = (
        prepare(trained / "recipe.yaml", trained / "out", None, [f"merge={wanted}"]),
        tmp_path / "built",
    )
    shutil.copytree(trained / "out", built)
    merge = merge_with_base(job, built, "cpu")
    share, scores = merge["share"], merge.get("validation_scores", {})
    first, last, found = (
        load_file(at / "model.safetensors") for at in (trained / "out.base", trained / "out", built)
    )
    assert all(
        torch.equal(found[key], (1 - share) * first[key] + share * last[key]) for key in last
    )
    if wanted == "auto":
        assert list(scores) == ["0.25", "0.5", "0.75", "1"]
        assert scores[f"{share:g}"] == max(scores.values())
    else:
        assert (share, scores) == (float(wanted), {})
    score = job.evaluator(SentenceTransformer(str(built)))["sequential_score"]
    assert scores.get(f"{share:g}", score) == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"merge": "2.5"}, "above 0, up to 2, or auto"),
        ({"merge": "0.5", "datasets": [], "arguments": {}}, "merge is for training"),
        ({"merge": "0.5", "lora": {"r": "4", "alpha": "8"}}, "a released adapter"),
        ({"merge": "0.5", "base": CUT}, "merge: base.vocabulary cuts the base"),
        (
            {
                "merge": "auto",
                "datasets": [STS_DATA | {"example_type": "self-pair", "loss": IN_BATCH}],
            },
            "have none",
        ),
    ],
)
def test_a_merge_that_cannot_be_is_refused_before_training(tmp_path, changes, problem):
    base = (
        {"repo_id": "org/lm", "revision": "v1"}
        if "lora" in changes
        else {"path": str(tmp_path / "lm")}
    )
    given = {"base": base | {"license": "mit"}, **changes}
    given["datasets"] = [
        {"path": str(tmp_path / "pairs"), **item} for item in changes.get("datasets", [STS_DATA])
    ]
    done = outcome_of(
        command, write_recipe(tmp_path, **given), "--out", tmp_path / "out", "--dry-run"
    )
    assert done.code == 2 and re.search(problem, done.error) and "merge" in done.error, done.error


def test_the_manifest_says_where_the_weights_come_from(trained):
    manifest = require_complete(trained / "out")
    assert manifest.counts["training_rows"] == 96
    (dataset,) = manifest.provenance["datasets"]
    assert dataset["splits"] == {"train": 96, "validation": 24}
    training = manifest.provenance["training"]
    assert training["steps"] == 18
    assert [step for step, _ in training["validation_curve"]] == [6, 12, 18]
    assert training["best_step"] == max(training["validation_curve"], key=lambda point: point[1])[0]
    assert training["arguments"]["learning_rate"] == 1e-3
    assert "/" not in manifest.provenance["command"]
    assert manifest.provenance.get("code", {}) == describe_clone(ROOT)
    timing = json.loads((trained / "out.timing.json").read_text())
    assert timing["samples_per_second"] > 0
    assert timing["resumed_from_step"] == 0


def test_a_damaged_file_is_made_again(trained):
    weights = trained / "out" / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-8])
    main(trained / "recipe.yaml", out=trained / "out")
    assert weights.read_bytes() == good
    assert require_complete(trained / "out")


def test_a_run_directory_is_refused_to_another_recipe_and_to_a_second_process(trained):
    with pytest.raises(InputError, match=r"holds a run of another recipe"):
        main(
            trained / "recipe.yaml", out=trained / "out", settings=["arguments.learning_rate=1e-4"]
        )
    with (
        lock_run(trained / "out"),
        pytest.raises(RunError, match=r"another process is working on this run"),
    ):
        main(trained / "recipe.yaml", out=trained / "out")


def test_a_finished_run_is_not_trained_again(trained, capsys):
    before = [
        (trained / "out" / name).stat().st_mtime_ns
        for name in ("model.safetensors", "manifest.json")
    ]
    main(trained / "recipe.yaml", out=trained / "out")
    assert [
        (trained / "out" / name).stat().st_mtime_ns
        for name in ("model.safetensors", "manifest.json")
    ] == before
    printed = capsys.readouterr()
    assert "already finished" in printed.err and "96 rows, 18 steps" in printed.out


@pytest.mark.parametrize(
    ("form", "loss", "arguments", "message"),
    [
        ("sts", "CoSENTLoss", {"logging_steps": "1000"}, r"the (loss|norm of the gradient) is nan"),
        ("sts", "CosineSimilarityLoss", {"max_steps": "1"}, "the embeddings are not finite"),
    ],
)
def test_a_run_that_diverges_ends_in_one_line_and_leaves_no_model(
    tmp_path, form, loss, arguments, message
):
    write_dataset(tmp_path / "pairs", {"train": sts_rows(64)})
    large = {
        "learning_rate": "1e30",
        "max_grad_norm": "0",
        "warmup_steps": "0",
        "report_to": "none",
    }
    data = {
        "path": str(tmp_path / "pairs"),
        "config": "postprocessed",
        "example_type": form,
        "loss": loss,
    }
    recipe = write_recipe(
        tmp_path, datasets=[data], arguments=large | {"logging_steps": "2"} | arguments
    )
    done = outcome_of(command, recipe, "--out", tmp_path / "out")
    assert (
        done.code == 1
        and re.search(message, done.error)
        and "lower arguments.learning_rate" in done.error
    )
    assert not json.loads((tmp_path / "out" / "manifest.json").read_text())["complete"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"manifest.json", "recipe.yaml"}
    assert not (tmp_path / "out.timing.json").exists()


@pytest.mark.parametrize(
    ("off", "half", "same"),
    [(5e-5, False, True), (1e-3, False, False), (1e-3, True, True), (1e-2, True, False)],
)
def test_the_chosen_weights_must_score_what_they_scored(trained, off, half, same):
    """In half precision a score may differ when texts are batched otherwise."""
    job = prepare(trained / "recipe.yaml", trained / "other", None, [])
    job.arguments.bf16 = half
    encoder = SentenceTransformer(str(trained / "out"))
    best = job.evaluator(encoder)["sequential_score"] + off
    with nullcontext() if same else pytest.raises(RunError, match="the saved weights score"):
        verify_encoder(SimpleNamespace(model=encoder, state=TrainerState(best_metric=best)), job)


def test_a_seed_that_numpy_does_not_take_is_refused_before_training(tmp_path):
    path = write_recipe(tmp_path)
    done = outcome_of(command, path, "--dry-run", "--set", f"seed={1 << 32}")
    assert done.code == 2 and "seed: Input should be less than 4294967296" in done.error
    assert outcome_of(command, path, "--dry-run", "--set", f"seed={(1 << 32) - 1}").code == 0


def checkpoint(directory, step, best, fingerprint="f"):
    folder = directory / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    state = {"best_model_checkpoint": str(directory / f"checkpoint-{best}") if best else None}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    (folder / "model.safetensors").write_bytes(b"weights")
    mark_complete(folder, fingerprint)
    return folder


def test_resuming_needs_whole_checkpoints_with_their_best_and_of_the_same_run(tmp_path):
    old, cut = checkpoint(tmp_path, 2, 2), checkpoint(tmp_path, 10, 2)
    (cut / "model.safetensors").write_bytes(b"weig")
    assert find_newest_usable(tmp_path, "f") == old
    assert not cut.exists()
    without_files = b'{"fingerprint": "f", "files": []}'
    for damage in (b"\xff\xfe", b"null", b"{}", b"", without_files):
        (checkpoint(tmp_path, 10, 2) / "whole.json").write_bytes(damage)
        assert find_newest_usable(tmp_path, "f") == old
    other = tmp_path / "other"
    checkpoint(other, 10, 4)
    assert find_newest_usable(other, "f") is None
    checkpoint(other, 4, 4, fingerprint="other")
    assert find_newest_usable(other, "f") is None and list(other.iterdir()) == []


def test_a_users_copy_of_a_checkpoint_is_left_alone(tmp_path):
    usable = checkpoint(tmp_path, 4, 4)
    copies = [tmp_path / "checkpoint-best", tmp_path / "checkpoint-4 (1)"]
    for folder in copies:
        folder.mkdir()
    assert find_newest_usable(tmp_path, "f") == usable
    remove_old_checkpoints(tmp_path, 1)
    assert all(folder.exists() for folder in (usable, *copies))


def test_what_a_kept_checkpoint_needs_is_kept(tmp_path):
    """If the last save was cut by a power failure, the one before it is of use only with its own
    best.
    """
    kept = [checkpoint(tmp_path, 4, 4), checkpoint(tmp_path, 12, 4), checkpoint(tmp_path, 16, 16)]
    old = checkpoint(tmp_path, 8, 4)
    remove_old_checkpoints(tmp_path, 2)
    assert all(folder.exists() for folder in kept)
    assert not old.exists()
    remove_old_checkpoints(tmp_path, 1)
    assert list(tmp_path.iterdir()) == kept[2:]


def test_a_full_disk_is_told_as_such(tmp_path):
    with (
        pytest.raises(RunError, match="no space left on the disk"),
        convert_disk_errors(tmp_path / "m"),
    ):
        raise SafetensorError("I/O error: No space left on device (os error 28)")
    with (
        pytest.raises(RunError, match=r"cannot be written: .*File too large"),
        convert_disk_errors(tmp_path / "m"),
    ):
        raise SafetensorError("Error while serializing: I/O error: File too large (os error 27)")
    with pytest.raises(RuntimeError, match="shape mismatch"), convert_disk_errors(tmp_path / "m"):
        raise RuntimeError("shape mismatch")


@pytest.mark.parametrize("limit", [0, 4096])  # bytes; torch has another message for each
def test_a_quota_stops_torch_save_with_a_run_error(limit, tmp_path):
    """A limit on file sizes acts as a quota: the disk still has free space."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        with (
            pytest.raises(RunError, match="cannot be written: "),
            convert_disk_errors(tmp_path / "m"),
        ):
            torch.save(torch.zeros(10_000), tmp_path / "optimizer.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_dry_run_tells_the_plan_without_the_weights(tmp_path, capsys):
    """The weights' file does not exist: nothing can have read it."""
    base = make_llama(tmp_path / "llama")
    (base / "model.safetensors").write_bytes(b"no weights")
    recipe = write_recipe(
        tmp_path,
        base={
            "path": str(base),
            "pooling": "lasttoken",
            "prompt": 'It: "[X]" is:"',
            "license": "mit",
        },
        lora={"r": "4", "alpha": "8", "release": "merged"},
        datasets=[triplet_data(tmp_path, loss="CachedMultipleNegativesRankingLoss")],
        validation=[{"path": "assets/stsb/sts-dev.csv"}],
        arguments={
            "eval_strategy": "steps",
            "save_strategy": "steps",
            "eval_steps": "5",
            "save_steps": "5",
        },
    )
    before = sorted(tmp_path.iterdir())
    main(recipe, out=tmp_path / "out", dry_run=True)
    plan = capsys.readouterr().out
    for line in (
        'prompt     I | t | : | Ġ" | [ | X | ] | " | Ġ | is | : | "',
        "adapter    rank 4 on all linear layers; released: merged",
        "70 train; CachedMultipleNegativesRankingLoss",
        "steps      5 of 16 rows",
        "checkpoint the best by Spearman's correlation on 1 set(s), "
        "evaluated every 5 steps and at the last",
    ):
        assert line in plan, plan
    shares = ["arguments.eval_steps=0.5", "arguments.save_steps=0.5"]
    main(recipe, out=tmp_path / "out", settings=shares, dry_run=True)
    assert "evaluated every 50 % of the steps and at the last" in capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == before


def test_a_baseline_is_written_as_it_is_with_nothing_beside_it(tmp_path, capsys):
    recipe = write_recipe(
        tmp_path, datasets=[], arguments={}, base={"path": str(tmp_path / "lm"), "license": "mit"}
    )
    main(recipe, out=tmp_path / "runs" / "out")
    manifest = require_complete(tmp_path / "runs" / "out")
    assert manifest.provenance["training"] is None and manifest.provenance["datasets"] == []
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"out"}
    job = prepare(recipe, None, None, [])
    text = ["A man plays."]
    written = SentenceTransformer(str(tmp_path / "runs" / "out")).encode(text)
    assert (written == build_encoder(job.recipe.base, job.base).encode(text)).all()
    main(recipe, out=tmp_path / "runs" / "out")
    assert "already finished" in capsys.readouterr().err
    main(recipe, out=tmp_path / "dry", dry_run=True)
    assert "training   none" in capsys.readouterr().out

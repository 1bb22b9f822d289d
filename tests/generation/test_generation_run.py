"""The generation command as a user runs it: a process, its exit code, what it leaves on disk."""

import errno
import json
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from command_outcomes import outcome_of
from commit_history import contents
from killing import killed
from seeded_writer import rows_of
from tiny_lm import make_closing, make_lm
from transformers import AutoTokenizer
from typer.testing import CliRunner

from sts_dino.generation import run
from sts_dino.generation.inputs.sources import SourceSentence
from sts_dino.generation.pipeline import code_digest as versions
from sts_dino.generation.pipeline import job, reporting, source_sentences
from sts_dino.generation.pipeline.directory import DatasetRun
from sts_dino.generation.pipeline.finish import LENGTH_IN_WORDS
from sts_dino.generation.pipeline.source_sentences import Scratch
from sts_dino.hub import cli, durable
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe import DatasetRecipe, LanguageModel
from sts_dino.hub.contract.recipe_file import compute_fingerprint, load_recipe
from sts_dino.hub.errors import InputError, RunError

X2, X1X2, NLI = (
    Path(f"recipes/demo/{name}.yaml") for name in ("sts-dino-x2", "sts-dino-x1x2", "auto-nli")
)
SMALL = ["decoding.max_new_tokens=6", "shard_size=4", "decoding.max_attempts=3"]


def small(lm: Path, *more: str) -> list[str]:
    return [f"model.path={lm}", "source.limit=12", *SMALL, *more]


def arguments(lm: Path, out: Path, *more: str, recipe: Path = X2) -> list[str]:
    settings = [word for setting in small(lm, *more) for word in ("--set", setting)]
    return [str(recipe), "--out", str(out), *settings]


def generate(lm: Path, directory: Path, *more: str, recipe: Path = X2) -> run_dir.Manifest:
    with run_dir.lock_run(directory):
        return job.generate(load_recipe(recipe, DatasetRecipe, small(lm, *more)), directory, "test")


@pytest.fixture(scope="module")
def whole(lm, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "whole"
    generate(lm, directory)
    return directory


def test_a_log_file_has_a_line_of_progress_now_and_then_and_stdout_the_json_alone(
    lm, tmp_path, monkeypatch
):
    monkeypatch.setattr(reporting, "UPDATE_SECONDS", 0.0)
    done = outcome_of(run, *arguments(lm, tmp_path / "run"), "--json")
    lines = re.findall(r"^sts-dino-x2: (\d+) of 72 texts, \d\d:\d\d left$", done.stderr, re.M)
    assert 2 < len(lines) <= 20 and lines == sorted(lines, key=int) and lines[-1] == "72"
    assert done.code == 0 and json.loads(done.printed)["sources"] == 12


def test_the_current_folder_is_a_run_directory_if_it_is_empty(lm, tmp_path, monkeypatch):
    words = arguments(lm, Path(), recipe=X2.resolve())
    words += ["--set", f"source.path={Path('assets/demo-data/x1.tsv').resolve()}"]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    done = outcome_of(run, *words)
    assert (done.code, run_dir.require_complete(tmp_path / "here").name) == (0, "sts-dino-x2")


def test_lengths_are_counted_in_tokens_and_behind_a_server_in_words_unless_its_tokenizer_is_needed(
    whole, lm
):
    lengths = run_dir.require_complete(whole).counts["token_lengths"]
    assert (lengths["unit"], lengths["tokenizer"]) == ("tokens", lm.name)
    tokenizer, rows = AutoTokenizer.from_pretrained(lm), rows_of(whole, "postprocessed")
    for label, found in lengths["by_label"].items():
        texts = [row["sentence2"] for row in rows if row["target"] == label]
        counted = Counter(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
        assert found == {str(size): n for size, n in sorted(counted.items())}
    server = {
        "backend": "openai",
        "server": {"base_url": "http://127.0.0.1:1/v1", "model": "m"},
        "license": "mit",
    }
    model = LanguageModel.model_validate({**server, "repo_id": "org/lm", "revision": "a" * 40})
    recipe = load_recipe(NLI, DatasetRecipe).model_copy(update={"model": model})
    assert job.choose_text_length(recipe, len).tokenizer == "org/lm"
    assert (
        job.choose_text_length(recipe.model_copy(update={"premise_tokens": None}), len)
        is LENGTH_IN_WORDS
    )


def test_running_again_does_nothing_and_another_run_or_shard_history_gives_the_same_bytes(
    whole, lm, tmp_path, capsys
):
    before = contents(whole)
    generate(lm, whole)
    assert contents(whole) == before and "already complete" in capsys.readouterr().err
    generate(lm, tmp_path / "again")
    assert contents(tmp_path / "again") == before
    (tmp_path / "again" / "data/raw/train-00001-of-00003.parquet").write_bytes(b"rubbish")
    generate(lm, tmp_path / "again")
    assert contents(tmp_path / "again") == before


def there(wanted: Path, count: int = 1) -> Callable[[], bool]:
    """Whether so many files of a path (it may be a pattern) are there."""
    return lambda: len(list(wanted.parent.glob(wanted.name))) >= count


def interrupted(lm: Path, out: Path) -> Scratch:
    """A run that ended after its first shard; its scratch folder."""

    def interrupt(self, *arguments):
        written(self, *arguments)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        written = DatasetRun.add_shard
        patch.setattr(DatasetRun, "add_shard", interrupt)
        generate(lm, out)
    notes = out.parent / f"{out.name}.scratch" / "notes.json"
    return Scratch(out, json.loads(notes.read_text())["key"])


def test_scratch_that_is_damaged_or_of_an_earlier_run_is_rebuilt(whole, lm, tmp_path):
    out, scratch = tmp_path / "run", tmp_path / "run.scratch"
    other = [SourceSentence("000000", "Something else.")]
    for damage in (
        lambda kept: (scratch / "source-sentences.parquet").write_bytes(b"PAR1"),
        lambda kept: (scratch / "source-sentences.parquet").unlink(),
        lambda kept: (scratch / "notes.json").write_text("{"),
        # of an earlier run of the same name
        lambda kept: (shutil.rmtree(out), kept.store_sentences(other, 4, {})),
    ):
        shutil.rmtree(out, ignore_errors=True)
        damage(interrupted(lm, out))
        generate(lm, out)
        assert contents(out) == contents(whole)


def test_a_damaged_record_of_seconds_is_one_line(tmp_path):
    damages = (
        *('{"seconds": 1', '{"seconds": 1}', "[]", '{"seconds": null, "rows": 1}'),
        '{"seconds": 1, "rows": Infinity}',
    )
    for content in damages:
        (tmp_path / "run.timing.json").write_text(content)
        with pytest.raises(InputError, match=r"run\.timing\.json: is damaged; remove it"):
            reporting.Progress("small", 1, 0, tmp_path / "run", lambda: 0.0)


def test_a_source_that_changed_under_an_unfinished_run_is_refused(lm, tmp_path):
    out = tmp_path / "run"
    interrupted(lm, out).store_sentences([SourceSentence("000000", "Something else.")], 4, {})
    with pytest.raises(
        InputError, match=r"x1.tsv: has other source sentences than when this run began; pin"
    ):
        generate(lm, out)


def test_the_manifest_names_the_whole_command_of_the_first_start(whole, lm, tmp_path):
    out = tmp_path / "run"
    interrupted(lm, out)
    job.generate(load_recipe(X2, DatasetRecipe, small(lm)), out, "the same recipe in other words")
    assert contents(out) == contents(whole)
    assert (
        CliRunner().invoke(run.app, [*arguments(lm, tmp_path / "own"), "--limit", "8"]).exit_code
        == 0
    )
    said = shlex.split(run_dir.require_complete(tmp_path / "own").provenance["command"])
    settings = [
        word for setting in small(lm) for word in ("--set", setting.replace(str(lm), lm.name))
    ]
    assert said == ["sts-dino", "write", str(X2), "--limit", "8", *settings]


def test_a_run_begun_by_other_code_is_not_finished_by_ours(whole, lm, tmp_path, monkeypatch):
    out = tmp_path / "run"
    interrupted(lm, out)
    monkeypatch.setattr(versions, "compute_code_digest", lambda: "0123456789abcdef")
    with pytest.raises(
        InputError,
        match=r"begun by other versions \(sts-dino code [0-9a-f]+, now 0123456789abcdef\)",
    ):
        generate(lm, out)
    assert generate(lm, whole).complete, "a finished run stays what it is"


@pytest.mark.parametrize("full_at", [5, 17, 36])  # notes on inputs, a shard, the finished configs
def test_a_full_disk_is_one_error_and_leaves_nothing_half_written(
    full_at, whole, lm, tmp_path, monkeypatch, capsys
):
    calls = []

    def full(path: Path) -> None:
        calls.append(path)
        if len(calls) == full_at:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable, "sync_to_disk", full)
    with pytest.raises(SystemExit) as caught:
        cli.run_app(lambda: generate(lm, tmp_path / "full"))
    said = capsys.readouterr().err.splitlines()[-1]
    assert caught.value.code == 1 and re.match(
        f"error: {tmp_path}/full[/.].*: no space left on the disk", said
    ), said
    assert not list((tmp_path / "full").rglob("*.tmp"))
    manifest = run_dir.read_manifest(tmp_path / "full")
    assert (
        manifest is not None
        and not manifest.complete
        and not run_dir.find_changed_files(tmp_path / "full", manifest)
    )
    monkeypatch.undo()
    generate(lm, tmp_path / "full")
    assert contents(tmp_path / "full") == contents(whole)


WRITING = ("decoding.max_new_tokens=8", "decoding.top_k=0", "decoding.max_attempts=9")


@pytest.fixture(scope="module")
def closing(tmp_path_factory) -> Path:
    """A random language model that closes its quotation marks soon, with room for examples."""
    return make_closing(tmp_path_factory.mktemp("lm") / "closing")


@pytest.fixture(scope="module")
def source_sentences_whole(closing, tmp_path_factory) -> Path:
    """A run whose source sentences the model wrote, in several rounds."""
    directory = tmp_path_factory.mktemp("runs") / "x1x2"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_sentences, "choose_round_size", lambda limit: 4)
        generate(closing, directory, *WRITING, recipe=X1X2)
    return directory


@pytest.mark.parametrize("lost", ["raw", "sources", "postprocessed"])
def test_a_lost_file_of_a_finished_run_is_rebuilt(
    lost, source_sentences_whole, closing, tmp_path, monkeypatch
):
    monkeypatch.setattr(source_sentences, "choose_round_size", lambda limit: 4)
    out = shutil.copytree(source_sentences_whole, tmp_path / "copy")
    manifest = run_dir.require_complete(out)
    (out / manifest.shards(lost)[0].path).unlink()
    generate(closing, out, *WRITING, recipe=X1X2)
    assert contents(out) == contents(source_sentences_whole)


@pytest.mark.slow("kills a run again and again, to the same bytes")
def test_killed_anywhere_it_goes_on_to_the_same_bytes(
    source_sentences_whole, closing, tmp_path, monkeypatch
):
    """kill -9 in rounds of source sentences, between and in shards, and in the finished configs;
    then it may end.
    """
    out, rounds = tmp_path / "killed", tmp_path / "killed.scratch"
    given = arguments(closing, out, *WRITING, recipe=X1X2)
    killed(given, there(rounds / "round-*.json", 2), round_size=4)
    first = min(rounds.glob("round-*.json"))
    written = first.stat().st_mtime_ns
    sorted(rounds.glob("round-*.json"))[1].write_bytes(b"rubbish")  # it is written again
    killed(given, there(rounds / "round-*.json", 4), round_size=4)
    assert first.stat().st_mtime_ns == written, "a whole round is kept"
    (rounds / ".source-sentences.parquet.1.tmp").write_bytes(b"half")
    killed(given, there(out / "data/raw/train-00000-of-00003.parquet"), round_size=4)
    # the last one had begun
    killed(given, there(out / "data/raw/train-00001-of-00003.parquet"), round_size=4)
    (out / "data/raw/.train-00002-of-00003.parquet.1.tmp").write_bytes(b"half")
    killed(given, there(out / "data/postprocessed/train-00000-of-00001.parquet"), round_size=4)
    monkeypatch.setattr(source_sentences, "choose_round_size", None)  # they are not written again
    generate(closing, out, *WRITING, recipe=X1X2)
    left, right = contents(out), contents(source_sentences_whole)
    assert left.pop("manifest.json") and right.pop("manifest.json") and left == right
    manifests = [run_dir.read_manifest(directory) for directory in (out, source_sentences_whole)]
    for manifest in manifests:  # they differ in the command line alone, on purpose
        assert manifest.provenance.pop("command")
    assert manifests[0] == manifests[1] and not rounds.exists()


def test_too_few_source_sentences_are_a_warning_and_a_true_count(closing, tmp_path, capsys):
    settings = (
        "decoding.max_new_tokens=2",
        "decoding.top_k=0",
        "decoding.max_attempts=3",
        "source.limit=40",
    )
    try:
        counts = generate(closing, tmp_path / "few", *settings, recipe=X1X2).counts
    except RunError:  # so few that a label has none left: the count is there all the same
        counts = run_dir.read_manifest(tmp_path / "few").counts
    asked = counts["sources"] + sum(counts["sources_rejected"].values())
    assert (
        asked == 120
        and 0 < counts["sources"] < 40
        and "not_needed" not in counts["sources_rejected"]
    )
    made = f"the model generated {counts['sources']} of the 40 source sentences"
    assert f"warning: sts-dino-x1x2: {made}" in capsys.readouterr().err


def test_texts_with_control_tokens_are_counted_and_the_tokens_are_shown(lm, tmp_path):
    (tmp_path / "texts.txt").write_text("The end<|end|>of it.\nHe said <|im_end|> and left.\n" * 2)
    words = arguments(
        lm, tmp_path / "out", f"source.path={tmp_path / 'texts.txt'}", "source.columns=[]"
    )
    shown = outcome_of(run, *words, "--set", "premise_tokens=null", "--dry-run").printed
    assert "source sentences: 1 (skipped: 2 control_token, 1 duplicate)" in shown
    assert shown.count("    as tokens: 'T") == 3 and "model: tried: " in shown


SAYING = 'labels.0.instruction=\'Say <|end|> of "<X1>" again: "\''
HAND = (
    "few_shot={{shots: [1], sets: 1, "
    "examples: {{kind: hand, path: {}/few.tsv, description: d, license: cc0-1.0}}}}"
)


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        (
            [SAYING],
            0,
            "warning: label 1: its instruction holds a control token of the model; "
            "it is read as that",
        ),
        (
            [SAYING, "model.chat_template=true"],
            2,
            "label 1: its instruction holds a control token of the model, which",
        ),
        (
            [HAND],
            2,
            "few_shot.examples: an example holds a control token of the model: 'Tea<|end|>.'",
        ),
        (
            [HAND.replace("few.tsv", "first.tsv")],
            2,
            "few_shot.examples: an example holds a control token of the model: 'A<|end|>.'",
        ),
    ],
    ids=["instruction", "message", "example", "source sentence of an example"],
)
def test_a_control_token_of_the_recipe_is_said_or_refused(settings, code, says, lm, tmp_path):
    rows = {"few.tsv": "A cup.\tTea<|end|>.\tMilk.\tA car.", "first.tsv": "A<|end|>.\tB.\tC.\tD."}
    for name, row in rows.items():
        (tmp_path / name).write_text(f"text1\t1\t0.5\t0\n{row}\n")
    words = arguments(lm, tmp_path / "out", *(setting.format(tmp_path) for setting in settings))
    outcome = outcome_of(run, *words, "--dry-run")
    assert outcome.code == code and says in outcome.stderr, outcome.stderr


UNSERVABLE = yaml.safe_load(Path("tests/support/unservable.yaml").read_text())


@pytest.mark.parametrize("name", [*UNSERVABLE, "added tokens"])
def test_a_model_that_cannot_serve_is_one_line_before_anything_is_written(name, tmp_path):
    found = {
        "kind": name,
        **UNSERVABLE.get(
            name, {"kind": "llama", "says": r"ids beyond the 330 rows .* 330 \(ferry"}
        ),
    }
    says, folder = found.pop("says"), make_lm(tmp_path / "lm", **found)
    if name == "added tokens":
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.add_tokens(["ferry", "bread"])
        tokenizer.save_pretrained(folder)
    for more in (["--dry-run"], []):
        outcome = outcome_of(run, *arguments(folder, tmp_path / "out"), *more)
        assert outcome.code == 2 and re.search(says, outcome.error), outcome.error
        assert not (tmp_path / "out").exists()


def test_auto_is_resolved_before_the_run_is_named_and_recorded(lm, tmp_path, monkeypatch):
    dtype = "bfloat16"
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"amx_bf16": True})
    manifest = generate(lm, tmp_path / "auto", "model.dtype=auto")
    named = load_recipe(X2, DatasetRecipe, small(lm, f"model.dtype={dtype}"))
    assert load_recipe(tmp_path / "auto" / run_dir.RECIPE, DatasetRecipe).model.dtype == dtype
    assert manifest.fingerprint == compute_fingerprint(named, manifest.inputs)
    recorded = manifest.provenance["model"]
    assert recorded["attention"] == "shared" and "own attention" in recorded["attention_reason"]
    assert generate(lm, tmp_path / "auto", f"model.dtype={dtype}") == manifest
    monkeypatch.setattr("torch.cpu.get_capabilities", dict)
    # of another machine
    with pytest.raises(InputError, match=r"model.dtype 'bfloat16' there, 'float32"):
        generate(lm, tmp_path / "auto", "model.dtype=auto")

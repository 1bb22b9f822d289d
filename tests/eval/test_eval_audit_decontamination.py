"""Planted evaluation sentences are found; the ledger counts them; the dropped dataset is a whole
run.
"""

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from datasketch import MinHash, MinHashLSH
from senteval_layout import write_originals, write_senteval
from small_runs import small_recipe, small_run
from training_inputs import PROVENANCE, data_spec, write_dataset
from typer.testing import CliRunner

from sts_dino.eval.audit.decontaminate import (
    CLEAN_NAME_SUFFIX,
    MatchCounter,
    app,
    drop_rows,
    format_command,
    format_ledger,
    make_clean_recipe,
)
from sts_dino.eval.audit.evaluation_sentences import (
    MINHASH_SCHEME,
    MINHASH_SEED,
    Banding,
    EvaluationSet,
    EvaluationTexts,
    NearIndex,
    SentenceIndex,
    compute_signatures,
    normalize_text,
    read_evaluation_sets,
)
from sts_dino.eval.audit.source import find_rows
from sts_dino.hub.contract.measured import DROPPED_ROWS_INPUT, LEDGER, MATCH_KINDS, Dropped, Ledger
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import compute_fingerprint, format_recipe, load_recipe
from sts_dino.hub.contract.run_dir import (
    RECIPE,
    find_changed_files,
    has_current_recipe,
    lock_run,
    require_complete,
    write_manifest,
)
from sts_dino.hub.errors import InputError, RunError
from sts_dino.model_cards.render import render
from sts_dino.training.data.training_sets import load_training_sets


@pytest.fixture(scope="module")
def shipped():
    """The STS Benchmark's validation and test splits, which the repository ships, and an index of
    them.
    """
    evaluation = read_evaluation_sets()
    return evaluation, SentenceIndex(evaluation.sets)


def texts_of_test(evaluation) -> list[str]:
    texts = (
        text
        for one in evaluation.sets
        if one.split == "test"
        for side in one.sides
        for text in side
    )
    return list(dict.fromkeys(texts))


def edited(text: str, word: str, draw: random.Random) -> str:
    """One word changed, added or removed, or other case."""
    tokens = text.split()
    place = draw.randrange(len(tokens))
    before, after = tokens[:place], tokens[place + 1 :]
    case = [token.swapcase() for token in tokens]
    return " ".join(
        draw.choice(
            [[*before, word, *after], [*before, word, *tokens[place:]], before + after, case]
        )
    )


def test_all_planted_sentences_and_nearly_all_light_edits_are_found(shipped):
    evaluation, sentences = shipped
    draw = random.Random(0)
    chosen = draw.sample(texts_of_test(evaluation), 400)
    edits = [
        edited(text, word.split()[0], draw)
        for text, word in zip(chosen[200:], chosen, strict=False)
    ]
    for texts, kinds, least in (
        (chosen[:200], {"exact"}, 200),
        (edits, {"exact", "normal", "near"}, 190),
    ):
        assert (
            sum(
                any(one.kind in kinds for one in matches)
                for matches in sentences.find_matches(texts)
            )
            >= least
        )


def test_other_forms_and_short_texts_have_kinds_of_their_own():
    texts = ("I don't think it's over, said Ms. O'Neill.", "a good film", "a man is dancing there")
    sentences = SentenceIndex([EvaluationSet("stsb/test", "stsb", (texts,), "0")])
    asked = {
        texts[0]: ["exact"],
        "i do n't think it 's over , said ms . o'neill .": ["normal"],
        "A good film!": ["short"],
        "a good filn": [],
        "A man is dancing here": ["near"],
        "": [],
        "…": [],
    }
    assert [[match.kind for match in one] for one in sentences.find_matches([*asked])] == [
        *asked.values()
    ]


def test_the_two_forms_of_a_set_are_one_place():
    plain = EvaluationSet("sts12/test", "sts12-original", (("A dog's bone is here.",),), "0")
    tokens = EvaluationSet("sts12/test", "sts12", (("a dog 's bone is here .",),), "1")
    sentences = SentenceIndex([plain, tokens])
    for (match,) in sentences.find_matches(["A dog's bone is here.", "a dog 's bone is here ."]):
        assert (match.kind, *match.location) == ("exact", "sts12/test", 0, 1)
    assert len(sentences) == 1


def test_candidates_are_those_of_datasketch(shipped):
    forms = list(dict.fromkeys(normalize_text(text) for text in texts_of_test(shipped[0])))[:600]
    banding = Banding(bands=16, rows=3)
    index, library = NearIndex(forms, banding), MinHashLSH(num_perm=48, params=(16, 3))
    sketches = [
        MinHash(48, hashvalues=one, seed=MINHASH_SEED, scheme=MINHASH_SCHEME)
        for one in compute_signatures(forms, banding)
    ]
    for number, sketch in enumerate(sketches):
        library.insert(number, sketch)
    ours = set(zip(*index.find_candidates(forms), strict=True))
    assert ours == {
        (number, place) for number, sketch in enumerate(sketches) for place in library.query(sketch)
    }
    assert len(ours) > len(forms)


OWN = [f"An ordinary sentence of our own with number {number * 7919} in it" for number in range(40)]
SETS = (
    EvaluationSet(
        "sts12/test",
        "sts12",
        (("A man is slicing a large onion.",), ("Nobody cooks in that room.",)),
        "a",
    ),
    EvaluationSet(
        "stsb/train", "stsb", (("Two dogs are running over the snow.",), ("A cat sleeps.",)), "b"
    ),
    EvaluationSet("mr/all", "mr", (("good film",),), "c"),
)


def scored(first: str, second: str, target: str = "1") -> dict:
    return {
        "sentence1": first,
        "sentence2": second,
        "score": float(target),
        **PROVENANCE,
        "target": target,
    }


ROWS = [
    scored("A man is slicing a large onion.", OWN[0]),  # exact
    # normal, and near
    scored("a man is slicing a large onion", "A man is slicing the large onion", "0"),
    scored(OWN[1], "Nobody cooks in this room.", "0"),  # near
    scored("Two dogs are running over the snow.", OWN[2]),  # of a train split
    scored("Good film!", OWN[3]),  # short
    *(scored(OWN[n], OWN[n + 1], str(n % 2)) for n in range(4, 20)),
]


def planted(directory: Path, splits: dict) -> Path:
    """A finished run of these rows, with a recipe."""
    write_dataset(directory, splits)
    (directory / RECIPE).write_text(
        format_recipe(small_recipe("sts", name="pairs", version="0.1.0"))
    )
    return directory


@pytest.fixture
def checked(tmp_path):
    """A planted dataset, and its matches."""
    directory = planted(tmp_path / "run", {"train": ROWS, "validation": ROWS[:1] + ROWS[-3:]})
    counter = MatchCounter(SentenceIndex(SETS), EvaluationTexts(SETS, ("snli/train",)))
    counter.match_config(find_rows(str(directory)))
    return directory, counter


def test_the_ledger_counts_what_was_planted_and_holds_no_text(checked):
    _, counter = checked
    ledger, hits = counter.make_ledger(), counter.drop_reasons["postprocessed"]
    counted = ledger.configs["postprocessed"]
    assert counted.splits == {"train": 21, "validation": 4}
    assert (
        counted.kinds == {"exact": 2, "normal": 1, "near": 1, "short": 1}
        and counted.train_only == 1
    )
    assert counted.columns == {
        "sentence1": {"exact": 2, "normal": 1, "near": 0, "short": 1},
        "sentence2": {"exact": 0, "normal": 0, "near": 2, "short": 0},
    }
    assert counted.labels == {
        "0": {"exact": 0, "normal": 1, "near": 1, "short": 0},
        "1": {"exact": 2, "normal": 0, "near": 0, "short": 1},
    }
    assert ledger.checked["sts12/test"].rows == {"exact": 2, "normal": 1, "near": 1, "short": 0}
    assert ledger.checked["sts12/test"].found == {"exact": 1, "normal": 1, "near": 2, "short": 0}
    assert (
        ledger.checked["sts12/test"].texts == 2 and ledger.checked["stsb/train"].rows["exact"] == 1
    )
    assert ledger.not_checked == ("snli/train",)
    reasons = [
        (int(row), MATCH_KINDS[hits["train"][row] - 1]) for row in hits["train"].nonzero()[0]
    ]
    assert reasons == [(0, "exact"), (1, "normal"), (2, "near")] and hits["validation"].nonzero()[
        0
    ].tolist() == [0]
    first = next(
        one for one in ledger.examples if one.kind == "exact" and one.place == "sts12/test"
    )
    assert (first.split, first.row, first.column, first.place_row, first.place_side) == (
        "train",
        0,
        "sentence1",
        0,
        1,
    )
    assert "onion" not in ledger.model_dump_json() and "onion" not in format_ledger(ledger)
    assert ledger.settings["recall"] == 0.9904 and ledger.settings["banding"] == {
        "bands": 72,
        "rows": 4,
        "grams": 3,
    }
    assert "of pairs at 0.5, 99.0 % are expected to be found, and more above" in format_ledger(
        ledger
    )


def test_the_dropped_dataset_is_a_run_that_training_reads(checked, tmp_path):
    directory, counter = checked
    clean, recipe, before = (
        tmp_path / "clean",
        make_clean_recipe(directory),
        require_complete(directory),
    )
    (tmp_path / "clean.partial" / "data").mkdir(parents=True)  # of a killed run, or another process
    (tmp_path / "clean.partial" / "data" / "old").write_text("")
    with lock_run(clean), pytest.raises(RunError, match="another process is working on this run"):
        drop_rows(directory, clean, recipe, counter)
    assert (tmp_path / "clean.partial" / "data" / "old").exists()
    manifest = drop_rows(directory, clean, recipe, counter)
    assert not (tmp_path / "clean.partial").exists() and not (clean / "data" / "old").exists()
    assert manifest == require_complete(clean) and find_changed_files(clean, manifest) == []
    assert (
        manifest.name == before.name + CLEAN_NAME_SUFFIX
        and manifest.fingerprint != before.fingerprint
    )
    reported = manifest.provenance["decontamination"]
    assert manifest.inputs == {
        **before.inputs,
        DROPPED_ROWS_INPUT: Dropped.model_validate(reported).compute_digest(),
    }
    assert manifest.fingerprint == compute_fingerprint(
        load_recipe(clean / RECIPE, DatasetRecipe), manifest.inputs
    )
    assert (
        has_current_recipe(clean, manifest)
        and reported["dataset"]["fingerprint"] == before.fingerprint
    )
    assert reported["rows"]["postprocessed"]["train"] == {
        "kept": 18,
        "dropped": {"exact": 1, "normal": 1, "near": 1},
    }
    assert reported["evaluation"]["sts12/test"] == {"sts12": "a"}
    train, validation = (
        pq.read_table(clean / file.path) for file in manifest.shards("postprocessed")
    )
    originals = pq.read_table(directory / before.shards("postprocessed")[0].path)
    assert train.schema == originals.schema and train.to_pylist() == originals.to_pylist()[3:]
    (loaded,) = load_training_sets((data_spec(clean),), None)
    assert (loaded.rows, len(loaded.validation), validation.num_rows) == (18, 3, 3)


def test_only_a_new_folder_is_written_and_only_when_rows_are_left(checked, tmp_path):
    directory, counter = checked
    with pytest.raises(InputError, match="is there already"):
        drop_rows(directory, directory, make_clean_recipe(directory), counter)
    counter.drop_reasons["postprocessed"]["train"][:] = 1
    with pytest.raises(InputError, match=r"every row of train is in evaluation data.*--sets"):
        drop_rows(directory, tmp_path / "none", make_clean_recipe(directory), counter)
    assert not (tmp_path / "none").exists()


def test_rows_that_changed_after_the_check_are_not_dropped(checked, tmp_path):
    directory, counter = checked
    manifest = require_complete(directory)
    write_manifest(directory, manifest.model_copy(update={"fingerprint": "0" * 64}))
    with pytest.raises(RunError, match="its rows changed while they were measured"):
        drop_rows(directory, tmp_path / "clean", make_clean_recipe(directory), counter)
    assert not (tmp_path / "clean").exists()


def test_a_data_set_without_files_names_options_of_this_command():
    with pytest.raises(InputError) as caught:
        read_evaluation_sets(names=["mrpc"])
    assert str(caught.value).startswith("mrpc/train: no source of its data is given; give ")
    assert str(caught.value).endswith("--senteval-data DIR, or leave mrpc out of --sets")


def test_an_unknown_data_set_is_refused_before_the_dataset_is_read():
    words = ["no-such/dataset@v1", "--sets", "stbs"]
    with pytest.raises(InputError, match="--sets: unknown name 'stbs'"):
        CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize("option", ["--drop-kinds", "--drop-splits"])
def test_a_drop_of_nothing_is_refused(checked, tmp_path, option):
    words = [str(checked[0]), "--drop", str(tmp_path / "clean"), option, ","]
    with pytest.raises(InputError, match=f"{option}: names nothing to drop"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_the_kept_rows_never_take_the_name_and_version_of_the_checked_dataset(checked):
    directory, _ = checked
    named = make_clean_recipe(directory, "pairs-clean", "0.3.0")
    assert (named.name, named.version) == ("pairs-clean", "0.3.0")
    assert make_clean_recipe(directory, "pairs", "0.2.0").version == "0.2.0"
    for version in (None, "0.1.0", "0.0.9"):
        with pytest.raises(InputError, match=r"published rows are never changed: give a later one"):
            make_clean_recipe(directory, "pairs", version)
    for wrong in (("No Name", None), (None, "1.0")):
        with pytest.raises(InputError, match=r"--drop-name, --drop-version:(name|version): "):
            make_clean_recipe(directory, *wrong)


def test_all_splits_that_are_there_are_read(tmp_path):
    roots = write_senteval(tmp_path / "s", rows=6), write_originals(tmp_path / "o", rows=6)
    for name in ("labels.train", "s1.train", "s2.train"):
        (roots[0] / "downstream/SNLI" / name).unlink(missing_ok=True)
    whole = read_evaluation_sets(*roots, pins={})
    places = {one.name for one in whole.sets}
    assert {
        "sts12/test",
        "sts16/test",
        "stsb/train",
        "sick/test",
        "mr/all",
        "sst2/train",
        "mrpc/test",
    } <= places
    assert not any(place.startswith(("sentlen", "sick-e")) for place in places)
    assert whole.absent == ("snli/train",)
    assert {one.form for one in whole.sets if one.name == "stsb/test"} == {
        "stsb",
        "stsb-tokenised",
    }
    (roots[0] / "downstream/SNLI/s1.test").unlink()
    with pytest.raises(InputError, match=r"s1\.test: no such data file"):
        read_evaluation_sets(*roots, pins={})
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InputError, match="nothing: has no evaluation data"):
        read_evaluation_sets(tmp_path / "nothing", roots[1], pins={})
    for names, splits in (
        (["bshift"], ("train", "validation", "test")),
        (["mrpc"], ("train", "test")),
    ):
        named = read_evaluation_sets(*roots, names=names, pins={})  # all of these, and nothing else
        assert {one.name for one in named.sets} == {f"{names[0]}/{split}" for split in splits}


def test_the_command_checks_against_what_ships_and_drops(tmp_path, monkeypatch):
    line = Path("assets/stsb/sts-test.csv").read_text(encoding="utf-8").split("\n")[0].split("\t")
    rows = [scored(line[5], OWN[0]), *(scored(OWN[n], OWN[n + 1]) for n in range(1, 5))]
    words = [str(planted(tmp_path / "run", {"train": rows})), "--out", str(tmp_path / "out")]
    words += [
        "--drop",
        str(tmp_path / "clean"),
        "--drop-kinds",
        "exact,near",
        "--drop-splits",
        "test",
    ]
    reported = CliRunner().invoke(app, words, catch_exceptions=False)
    ledger = Ledger.model_validate_json((tmp_path / "out" / "ledger.json").read_bytes())
    assert list(ledger.checked) == ["stsb/validation", "stsb/test"]
    assert (
        ledger.configs["postprocessed"].kinds["exact"] == 1 and "without 1 rows" in reported.stderr
    )
    assert reported.stdout == (tmp_path / "out" / "ledger.md").read_text()
    provenance = require_complete(tmp_path / "clean").provenance
    assert (
        provenance["decontamination"]["kinds"] == ["exact", "near"]
        and str(tmp_path) not in provenance["command"]
    )
    assert "--drop-kinds exact,near --drop-splits test --drop OUT" in provenance["command"]
    with pytest.raises(InputError, match="is there already"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    # the current folder, where it is empty
    words[0], words[2] = [str(Path(word).resolve()) for word in (words[0], words[2])]
    words[4] = "."
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    CliRunner().invoke(app, words, catch_exceptions=False)
    assert require_complete(tmp_path / "here").counts == require_complete(tmp_path / "clean").counts


def test_with_card_the_counts_stand_on_the_datasets_card(tmp_path):
    run = tmp_path / "run"
    manifest = small_run(run, small_recipe("sts"))
    assert "Overlap with evaluation data" not in render(run)["DETAILS.md"].decode()
    words = [str(run), "--card", "--out", str(tmp_path / "out")]
    assert "next: sts-dino card" in CliRunner().invoke(app, words, catch_exceptions=False).output
    assert (run / LEDGER).read_bytes() == (tmp_path / "out" / "ledger.json").read_bytes()
    ledger = Ledger.read(run, manifest)
    planted_kinds = ledger.configs["postprocessed"].kinds | {"exact": 7}
    config = ledger.configs["postprocessed"].model_copy(update={"kinds": planted_kinds})
    changed = {"configs": {"postprocessed": config}, "not_checked": ("snli/train",)}
    (run / LEDGER).write_text(ledger.model_copy(update=changed).model_dump_json())
    card = render(run)["DETAILS.md"].decode()
    rows = sum(ledger.configs["postprocessed"].splits.values())
    assert f"| `postprocessed` | {rows:,} | 7 | 0 | 0 | 0 | 0 |" in card
    assert (
        "`stsb/validation`, `stsb/test`" in card
        and "because their files were missing: `snli/train`." in card
    )
    (run / LEDGER).write_text(ledger.model_copy(update={"revision": "other"}).model_dump_json())
    with pytest.raises(
        InputError, match=r"on other rows than .* measure again: sts-dino decontaminate .* --card"
    ):
        render(run)


@pytest.mark.parametrize(
    "own", ["/home/jane/secret", "../jane/secret", "~/secret", "data/../../secret"]
)
def test_the_command_on_a_card_tells_of_no_folder_of_ones_own(own):
    reported = format_command(
        f"{own}/x", {"--senteval-data": Path(own), "--sts-data": Path("data/sts"), "--config": None}
    )
    expected = "artifacts/datasets/x --senteval-data secret --sts-data data/sts --drop OUT"
    assert reported == f"sts-dino decontaminate {expected}"

"""Untrusted models: none of their code runs whatever is answered on the terminal, and no pickle is
opened.
"""

import ast
import json
from pathlib import Path

import pytest
import yaml
from command_outcomes import outcome_of
from marker_nli import make_marker_nli
from planted_models import edit, plant_config, plant_module, plant_pickle, plant_tokenizer, planted
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
from test_layout import FILES
from tiny_bases import make_mlm
from tiny_lm import make_lm
from training_inputs import sts_rows, write_dataset, write_recipe

import sts_dino.generation.run
import sts_dino.training.run
from sts_dino.eval import run as evaluation
from sts_dino.eval.audit import quality

STS_RECIPE = "recipes/demo/sts-dino-x2.yaml"
LOADERS = {"from_pretrained", "from_config", "SentenceTransformer", "CrossEncoder", "SparseEncoder"}
REFUSES = {"NO_CODE", "NO_PICKLES"}
# what training has just saved, put on a base in memory; it takes no argument
OUR_ADAPTER = "PeftModel.from_pretrained"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A language model, a masked one, an encoder of it with a Dense module, a cross-encoder, and
    scored pairs.
    """
    folder = tmp_path_factory.mktemp("models")
    make_lm(folder / "lm")
    transformer = Transformer(str(make_mlm(folder / "mlm")))
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), "mean"), Dense(32, 8)]
    SentenceTransformer(modules=modules).save_pretrained(
        str(folder / "encoder"), create_model_card=False
    )
    CrossEncoder(str(make_marker_nli(folder / "marker"))).save_pretrained(str(folder / "nli"))
    write_dataset(folder / "pairs", {"train": sts_rows(48), "validation": sts_rows(24, seed=1)})
    return folder


def model_recipe(folder: Path, models: Path, model: Path, **changes) -> Path:
    for name in ("pairs", "lm"):
        (folder / name).symlink_to(models / name)
    return write_recipe(folder, base={"path": str(model), "license": "mit", **changes})


def write(model: Path, folder: Path, models: Path):
    return outcome_of(
        sts_dino.generation.run, STS_RECIPE, "--set", f"model.path={model}", "--dry-run"
    )


def train(model: Path, folder: Path, models: Path):
    return outcome_of(
        sts_dino.training.run, model_recipe(folder, models, model), "--out", folder / "out"
    )


def take_a_baseline(model: Path, folder: Path, models: Path):
    recipe = model_recipe(folder, models, model, modules="sentence-transformer")
    recipe.write_text(
        yaml.safe_dump({**yaml.safe_load(recipe.read_text()), "datasets": [], "arguments": {}})
    )
    return outcome_of(sts_dino.training.run, recipe, "--out", folder / "out")


def score(model: Path, folder: Path, models: Path):
    options = ["--tasks", "stsb/cosine", "--limit", 20, "--no-cache", "--out", folder / "out"]
    return outcome_of(evaluation, "--model", model, *options)


def judge(model: Path, folder: Path, models: Path):
    return outcome_of(quality, models / "pairs", "--nli", model, "--out", folder / "out")


COMMANDS = {write: "lm", train: "mlm", take_a_baseline: "encoder", score: "encoder", judge: "nli"}


OPENED = [take_a_baseline, score, judge]
REFUSED = {
    "code": ((plant_config, plant_tokenizer), COMMANDS, ""),
    "pickle": ((plant_pickle,), [write, train, *OPENED], "safetensors"),
    "module": ((plant_module,), OPENED, "planted_code.Module"),
}
CASES = [
    pytest.param(kind, one, id=f"{kind}-{one.__name__}")
    for kind in REFUSED
    for one in REFUSED[kind][1]
]


@pytest.mark.parametrize(("kind", "command"), CASES)
def test_what_an_untrusted_model_brings_is_not_run_and_refused(
    kind, command, models, tmp_path, monkeypatch
):
    plants, _, said = REFUSED[kind]
    model, marker = planted(models / COMMANDS[command], tmp_path / "planted", *plants)
    if kind == "module":
        monkeypatch.syspath_prepend(str(model))  # as when the command is started in the folder
    outcome = command(model, tmp_path, models)
    assert not marker.exists()
    assert outcome.code == 2
    assert (said or str(model)) in outcome.error


@pytest.mark.parametrize("command", [write, train, score], ids=lambda command: command.__name__)
def test_a_tokenizer_with_code_of_its_own_is_a_stock_one_or_refused(command, models, tmp_path):
    model, marker = planted(models / COMMANDS[command], tmp_path / "planted", plant_tokenizer)
    outcome = command(model, tmp_path, models)
    assert not marker.exists()
    assert outcome.code == 0 or (outcome.code == 2 and outcome.error)


def test_a_saved_config_cannot_ask_for_pickles_kernels_or_code(models, tmp_path, monkeypatch):
    model, marker = planted(models / "encoder", tmp_path / "planted", plant_config)
    for weights in model.glob("*.safetensors"):
        weights.unlink()
    edit(model / "config.json", model_type="roberta", architectures=["RobertaModel"])
    wishes = {"trust_remote_code": True, "use_safetensors": False, "allow_all_kernels": True}
    edit(
        model / "sentence_bert_config.json",
        model_kwargs=wishes,
        config_kwargs=wishes,
        processor_kwargs=wishes,
    )
    asked = {}

    def refuse(name, **given):
        asked.update(given)
        raise ValueError("seen enough")

    monkeypatch.setattr("transformers.AutoModel.from_pretrained", refuse)
    assert score(model, tmp_path, models).code == 2
    assert not marker.exists()
    assert (asked["use_safetensors"], asked["allow_all_kernels"]) == (True, False)
    assert asked.get("trust_remote_code") is not True


CUT = ("model.safetensors", b"\x10\x00\x00\x00\x00\x00\x00\x00{")
DAMAGED = {
    "lm": CUT,
    "mlm": ("tokenizer.json", b'{"version": "1.0"}'),
    "encoder": ("config.json", b"[" * 100_000),
    "nli": ("config.json", b'{"model_type": "llama", "hidden_size": "many"}'),
}


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [*((name, *found) for name, found in DAMAGED.items()), ("nli", *CUT)],
)
def test_damaged_files_are_reported_in_a_line(name, file, content, models, tmp_path):
    command = next(command for command, wanted in COMMANDS.items() if wanted == name)
    model, _ = planted(models / name, tmp_path / "damaged")
    (model / file).write_bytes(content)
    outcome = command(model, tmp_path, models)
    assert outcome.code == 2
    assert str(model) in outcome.error


@pytest.mark.parametrize(
    "command", [write, train, score, judge], ids=lambda command: command.__name__
)
def test_a_regular_expression_that_takes_too_long_is_reported_in_a_line(command, models, tmp_path):
    model, _ = planted(models / COMMANDS[command], tmp_path / "planted")
    pattern = {"Regex": "([ -~▁]+)+[^ -~▁\\n]"}  # of a line of text: exponential in its length
    slow = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    edit(model / "tokenizer.json", pre_tokenizer=slow)
    outcome = command(model, tmp_path, models)
    assert outcome.code == 2 and "retry-limit-in-match" in outcome.error


@pytest.mark.parametrize("command", [take_a_baseline, score], ids=lambda command: command.__name__)
@pytest.mark.parametrize(
    ("found", "said"), [([{}] * 20_000, "lists 20,000 modules"), ({}, "is a dict")]
)
def test_a_list_of_modules_without_end_is_refused(command, found, said, models, tmp_path):
    model, _ = planted(models / "encoder", tmp_path / "planted")
    (model / "modules.json").write_text(json.dumps(found))
    outcome = command(model, tmp_path, models)
    assert outcome.code == 2 and said in outcome.error and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no') }}", "{% if", "{{ ''.__class__.__mro__ }}"]
)
def test_a_chat_template_that_fails_is_told_in_a_line(template, models, prompted, tmp_path):
    model, _ = planted(prompted, tmp_path / "planted")
    (model / "chat_template.jinja").write_text(template)
    assert "its chat template fails: " in score(model, tmp_path, models).error
    assert "cannot read a sentence: " in take_a_baseline(model, tmp_path, models).error


@pytest.fixture(scope="module")
def prompted(models, tmp_path_factory) -> Path:
    """An encoder whose prompt is its tokenizer's chat template, as anybody's model."""
    folder = tmp_path_factory.mktemp("prompted")
    recipe = model_recipe(
        folder, models, models / "lm", prompt='This sentence : "[X]" means in one word:"'
    )
    recipe.write_text(
        yaml.safe_dump({**yaml.safe_load(recipe.read_text()), "datasets": [], "arguments": {}})
    )
    assert outcome_of(sts_dino.training.run, recipe, "--out", folder / "out").code == 0
    (folder / "out" / "manifest.json").unlink()
    return folder / "out"


def calls(path: Path):
    """Every call of a loader in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if name in LOADERS:
                yield node


def test_every_loader_says_that_no_code_is_run():
    seen = 0
    for path in FILES:
        for call in calls(path):
            said = {
                keyword.arg or ast.unparse(keyword.value): ast.unparse(keyword.value)
                for keyword in call.keywords
            }
            # nothing is read, or what is ours
            if "modules" in said or ast.unparse(call.func) == OUR_ADAPTER:
                continue
            assert said.get("trust_remote_code") == "False" or said.keys() & REFUSES, (
                f"{path}:{call.lineno}"
            )
            seen += 1
    assert seen >= 15


def test_nothing_is_unpickled_but_by_the_reader_of_arrays():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("torch.load", "pickle.load", "pickle.loads", "joblib.load"), (
                f"{path}:{node.lineno}"
            )
            if called == "np.load":
                assert any(
                    k.arg == "allow_pickle" and k.value.value is False for k in node.keywords
                ), path

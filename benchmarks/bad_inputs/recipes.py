"""Recipes that ``sts-dino check`` and ``write`` refuse."""

from benchmarks.bad_inputs.case import Case, Make

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)


def _dataset(*settings: str, without: str = "") -> Make:
    return lambda box: box.dataset(*settings, without=without)


def _model(*settings: str) -> Make:
    return lambda box: box.model(*settings)


def _with_line(line: str) -> Make:
    return lambda box: box.file("recipe.yaml", box.dataset().read_text("utf-8") + line)


RECIPES = (
    Case("a misspelt recipe", "check recipe.yaml", ("recipe.yaml: no such recipe", "look in")),
    Case(
        "a folder for a recipe", "write folder", ("folder: is a folder",), lambda box: (box.folder / "folder").mkdir()
    ),
    Case("a folder without recipes", "check .", (".: ", "no recipe")),
    Case(
        "a file of bytes as the recipe",
        "check recipe.yaml",
        ("recipe.yaml: is not UTF-8",),
        lambda box: box.file("recipe.yaml", bytes(range(256))),
    ),
    Case(
        "a recipe in Latin-1",
        "check recipe.yaml",
        ("recipe.yaml: is not UTF-8", "save it as UTF-8"),
        lambda box: box.file("recipe.yaml", "pretty_name: Schön".encode("latin-1")),
    ),
    Case(
        "an empty recipe",
        "check recipe.yaml",
        ("recipe.yaml: is empty", "docs/recipe_reference.md"),
        lambda box: box.file("recipe.yaml", ""),
    ),
    Case(
        "a recipe with tabs",
        "check recipe.yaml",
        ("recipe.yaml:2: not valid YAML", "indent with spaces"),
        lambda box: box.file("recipe.yaml", "kind: dataset\n\tname: x\n"),
    ),
    Case(
        "a recipe whose aliases unfold to 400 million values",
        "check recipe.yaml",
        ("recipe.yaml:", "more than 20000"),
        lambda box: box.file("recipe.yaml", BOMB),
    ),
    Case(
        "a key that stands twice",
        "check recipe.yaml",
        ("recipe.yaml:", "key 'seed' stands twice"),
        _with_line("seed: 1\n"),
    ),
    Case(
        "a misspelt key",
        "check recipe.yaml",
        ("recipe.yaml:decoding.top_q: unknown key", "allowed: ", "did you mean 'top_p'?"),
        _dataset("decoding.top_q=0.9"),
    ),
    Case("a word for a number in a recipe", "check recipe.yaml", ("recipe.yaml:seed", "'many'"), _dataset("seed=many")),
    Case(
        "a missing key",
        "check recipe.yaml",
        ("recipe.yaml:labels: missing", "docs/recipe_reference.md"),
        _dataset(without="labels"),
    ),
    Case("no kind of recipe", "check recipe.yaml", ("recipe.yaml:kind: ", "dataset, model"), _dataset(without="kind")),
    Case(
        "an unknown kind of recipe",
        "check recipe.yaml",
        ("recipe.yaml:kind", "'datasets'", "dataset"),
        _dataset("kind=datasets"),
    ),
    Case(
        "decoding that is not a number",
        "check recipe.yaml",
        ("recipe.yaml:decoding.decay_constant", "nan"),
        _dataset("decoding.decay_constant=.nan"),
    ),
    Case(
        "a negative number of samples",
        "check recipe.yaml",
        ("recipe.yaml:decoding.samples", "greater than"),
        _dataset("decoding.samples=-2"),
    ),
    Case(
        "a counter-label that is none",
        "check recipe.yaml",
        ("recipe.yaml", "'0.7'"),
        _dataset("labels.1.counter_labels=['0.7']"),
    ),
    Case(
        "a licence that the parts do not allow",
        "check recipe.yaml",
        ("license", "'mit'", "allowed: "),
        _dataset("license=mit"),
    ),
    Case(
        "an unknown licence of the source",
        "check recipe.yaml",
        ("source.license", "'mitt'", "did you mean 'mit'?"),
        _dataset("source.license=mitt"),
    ),
    Case(
        "a source that is not there",
        "check recipe.yaml",
        ("nowhere.txt: no such file", "source.path"),
        _dataset("source.path=nowhere.txt"),
    ),
    Case(
        "a setting without a value",
        "check recipe.yaml --set seed",
        ("--set seed: cannot be read", "KEY.KEY=VALUE"),
        _dataset(),
    ),
    Case(
        "a setting that leads nowhere",
        "check recipe.yaml --set labels.7.score=1",
        ("--set labels.7.score=1", "'7'"),
        _dataset(),
    ),
    Case(
        "a learning rate that is not a number",
        "train recipe.yaml --dry-run",
        ("arguments.learning_rate", "nan"),
        _model("arguments.learning_rate=nan"),
    ),
    Case(
        "a negative learning rate",
        "train recipe.yaml --dry-run",
        ("arguments.learning_rate", "-0.001"),
        _model("arguments.learning_rate=-0.001"),
    ),
    Case("a batch of none", "train recipe.yaml --dry-run", ("recipe.yaml:batch_size", "0"), _model("batch_size=0")),
    Case(
        "a misspelt argument of the trainer",
        "train recipe.yaml --dry-run",
        ("arguments.learning_rat", "did you mean 'learning_rate'?"),
        _model("arguments.learning_rat=1e-3"),
    ),
    Case(
        "an unknown loss",
        "train recipe.yaml --dry-run",
        ("datasets.0.loss", "'CosineLoss'", "did you mean"),
        _model("datasets.0.loss=CosineLoss"),
    ),
    Case(
        "a dataset recipe to train",
        "train recipe.yaml",
        ("recipe.yaml:kind", "'dataset'", "sts-dino write"),
        _dataset(),
    ),
    Case("a model recipe to write", "write recipe.yaml", ("recipe.yaml:kind", "'model'", "sts-dino train"), _model()),
    Case(
        "a model recipe whose dataset is not there",
        "train recipe.yaml",
        ("no-run", "sts-dino write"),
        _model("datasets.0.path=no-run"),
    ),
)

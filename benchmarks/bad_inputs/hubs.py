"""What goes wrong with a Hub: no Hub, no token, somebody else's place."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bad_inputs.case import Box, Case, Make

NOBODY = "hf_" + "x" * 34


@contextmanager
def _served(box: Box) -> Iterator[dict[str, str]]:
    """The embedded Hub with the user demo, the organisation acme, and the dataset acme/sts-dino-x2 of somebody else."""
    from huggingface_hub import HfApi

    from hub.client.plan import CARD, Changes, Content
    from hub.client.repository import MAIN, Repository
    from hub_server.process import LocalHub

    with LocalHub(box.folder / "hub", orgs=["acme"]) as hub:
        repository = Repository(HfApi(endpoint=hub.endpoint, token=hub.token), "acme/sts-dino-x2", "dataset")
        card = {CARD: Content(b"# Somebody's own dataset\n")}
        repository.commit(repository.create(private=False), MAIN, Changes(added=(CARD,)), card, "A card by hand")
        yield {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub.token}


@contextmanager
def _refusing(box: Box) -> Iterator[dict[str, str]]:
    """The embedded Hub, and a token that it does not know."""
    with _served(box) as given:
        yield {**given, "HF_TOKEN": NOBODY}


@contextmanager
def _anonymous(box: Box) -> Iterator[dict[str, str]]:
    """The embedded Hub, and no token."""
    with _served(box) as given:
        yield {**given, "HF_TOKEN": ""}


def _card_for(org: str) -> Make:
    """A run with the card for a place of ``org``."""

    def make(box: Box) -> None:
        from model_cards.render import render, write

        run = box.run()
        write(run, render(run, f"{org}/sts-dino-x2"))

    return make


def _hub_data(box: Box) -> Path:
    return box.model(
        "datasets=[{repo_id: org/data, revision: v1, config: postprocessed, example_type: sts, "
        "loss: CosineSimilarityLoss, license: mit}]"
    )


HUBS = (
    Case(
        "a publication without a token",
        "publish run --org demo --patience 0 --yes",
        ("token", "hf auth login"),
        _card_for("demo"),
        code=1,
        during=_anonymous,
        own_process=True,
    ),
    Case(
        "a publication with a wrong token",
        "publish run --org acme --patience 0",
        ("token", "HF_TOKEN"),
        lambda box: box.run(),
        code=1,
        during=_refusing,
        own_process=True,
    ),
    Case(
        "a Hub that does not answer",
        "publish run --org acme --patience 0",
        ("127.0.0.1:9", "again"),
        lambda box: box.run(),
        code=1,
        environment={"HF_TOKEN": NOBODY},
        own_process=True,
    ),
    Case(
        "an organisation of others",
        "publish run --org nobodys --patience 0 --yes",
        ("nobodys", "write access to the organisation"),
        _card_for("nobodys"),
        code=1,
        during=_served,
        own_process=True,
    ),
    Case(
        "a repository that somebody else made",
        "publish run --org acme --patience 0 --yes",
        ("acme/sts-dino-x2: was changed by hand", "README.md", "--force"),
        lambda box: box.run(),
        code=1,
        during=_served,
        own_process=True,
    ),
    Case(
        "a damaged run",
        "publish run --org acme",
        ("run", "files differ from the manifest"),
        lambda box: min(box.run().glob("data/raw/*.parquet")).write_bytes(b"PAR1"),
    ),
    Case("a release of no recipe", "release nowhere.yaml --org acme", ("nowhere.yaml: ", "recipe")),
    Case("a release of a folder without recipes", "release . --org acme", (".: ", "no recipe")),
    Case(
        "a dataset of the Hub that does not answer",
        "train recipe.yaml --dry-run",
        ("org/data", "again"),
        _hub_data,
        code=1,
        own_process=True,
        model=True,
    ),
    Case(
        "a language model of a Hub that does not answer",
        "write recipe.yaml",
        ("read the language model's tokenizer at http://127.0.0.1:9", "Run the same command again later"),
        lambda box: box.dataset("model={repo_id: org/lm, revision: v1, license: mit}", "license=mit"),
        code=1,
        own_process=True,
        model=True,
    ),
    Case(
        "an encoder of a Hub that does not answer",
        "score --model org/encoder@v1 --tasks stsb/cosine --no-cache",
        ("org/encoder", "again"),
        code=1,
        own_process=True,
        model=True,
    ),
)

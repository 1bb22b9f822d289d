"""The licence of a dataset or model follows from its parts; what does not follow stops the card."""

from pathlib import Path

import pytest
from card_runs import (
    card_of,
    dataset_run,
    edit,
    front,
    model_provenance,
    model_run,
)

from hub_server.pages.cards import LICENCES
from sts_dino.hub.contract.licences import (
    find_dataset_licences,
    find_model_licences,
    load_licences,
    resolve_model_licence,
)
from sts_dino.hub.errors import InputError
from sts_dino.model_cards.metadata import make_license_fields

SOURCE = {"kind": "file", "path": "x.txt", "description": "sentences"}


def verdict(source: str, generator: str, examples: str | None = None) -> tuple[str, ...]:
    parts = [load_licences()[examples]] if examples else []
    return find_dataset_licences(load_licences()[source], load_licences()[generator], parts, "here")


@pytest.mark.parametrize(
    ("parts", "allowed"),
    [
        # later versions are named by the licence itself
        (("cc-by-sa-3.0", "mit"), ("cc-by-sa-3.0", "cc-by-sa-4.0")),
        (("cc-by-nc-4.0", "mit"), ("cc-by-nc-4.0", "cc-by-nc-sa-4.0")),
        (
            ("cc-by-3.0", "mit"),
            tuple(
                one for one in load_licences() if one[:5] == "cc-by" and load_licences()[one].grant
            ),
        ),
        (("llama2", "llama2"), ("llama2",)),
        (
            ("cc0-1.0", "mit"),
            tuple(
                one
                for one in load_licences()
                if load_licences()[one].grant and not load_licences()[one].terms
            ),
        ),
        # non-commercial examples bind
        (("cc-by-sa-4.0", "mit", "cc-by-nc-4.0"), ("mixed-non-commercial",)),
        (("cc-by-sa-4.0", "mit", "snli-and-multinli"), ("cc-by-sa-4.0",)),  # others are credited
    ],
)
def test_verdicts(parts: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    """Beside those of the documented table."""
    assert verdict(*parts) == allowed


@pytest.mark.parametrize(
    ("base", "data", "allowed"),
    [
        ("mit", ["cc-by-sa-4.0"], "mit"),
        ("mit", ["mixed"], "cc-by-sa-4.0"),
        ("mit", ["mixed-non-commercial", "mit"], "cc-by-nc-4.0"),
        ("cc-by-nc-sa-4.0", ["mit"], "cc-by-nc-sa-4.0"),
        ("llama2", ["mit"], "llama2"),
    ],
)
def test_verdicts_on_models(base: str, data: list[str], allowed: str) -> None:
    found = find_model_licences(
        load_licences()[base], [load_licences()[licence] for licence in data], "here"
    )
    assert allowed in found
    assert ("mit" in found) == (base == "mit" and "mixed-non-commercial" not in data)
    assert "mixed" not in found


@pytest.mark.parametrize(
    ("base", "data", "teacher", "allowed"),
    [
        ("mit", "cc-by-sa-4.0", "gemma", ("gemma",)),  # a student of Gemma is a derivative of it
        ("gemma", "mit", "gemma", ("gemma",)),
        ("llama2", "mit", "apache-2.0", ("llama2",)),
        ("llama2", "mit", "openai-terms", ("llama2",)),  # terms that bind the customer alone
        ("llama2", "mit", "gemma", None),
        ("mit", "cc-by-nc-4.0", "gemma", None),
    ],
)
def test_a_teachers_terms_reach_its_student(
    base: str, data: str, teacher: str, allowed: tuple[str, ...] | None
) -> None:
    known = load_licences()
    teachers = [known[teacher]]
    if allowed is None:
        with pytest.raises(InputError, match="no licence covers a model made from a base under"):
            find_model_licences(known[base], [known[data], *teachers], "here", teachers)
        return
    assert find_model_licences(known[base], [known[data], *teachers], "here", teachers) == allowed


def test_a_card_names_every_part_and_its_terms(tmp_path: Path) -> None:
    changes = {"license": "mixed-non-commercial", "source": SOURCE | {"license": "stsb-train"}}
    card = card_of(dataset_run(tmp_path / "run", "sts", changes=changes))
    with pytest.raises(InputError, match="does not cover its parts"):
        card_of(dataset_run(tmp_path / "other", "sts", changes=changes | {"license": "cc-by-4.0"}))
    data = front(card)
    assert (data["license"], data["license_name"]) == ("other", "mixed-non-commercial")
    assert (
        data["license_link"]
        == "https://huggingface.co/datasets/sts-dino/tiny-sts#licence-and-attribution"
    )
    said = card.split("## Licence and attribution\n")[1].split("\n## ")[0]
    assert "Licence: **mixed, by part, non-commercial**." in said and "Not legal advice." in said
    assert (
        "([CC BY-SA, version not stated](https://creativecommons.org/licenses/by-sa/4.0/))" in said
    )
    assert said.count("\n  - ") == 4 and "Rashtchian et al. 2010" in said
    assert "- Generator: artifacts/models/tiny-lm ([Apache License 2.0](" in said
    assert "- European Media Monitor must be acknowledged" in said


def test_no_model_card_without_the_licences_of_its_data(tmp_path: Path) -> None:
    directory = model_run(tmp_path / "run")
    assert "- Training data: sts-dino/tiny-sts ([CC BY-SA 4.0](" in card_of(directory)
    data = model_provenance()["datasets"][0] | {"license": None}
    edit(directory, provenance={"datasets": [data]})
    with pytest.raises(InputError, match="dataset sts-dino/tiny-sts: names no licence"):
        card_of(directory)


def test_the_table_is_sound() -> None:
    for licence in load_licences().values():
        assert licence.link.startswith(("https://", "#")), licence.id
        assert {portion.licence for portion in licence.parts} | set(licence.adapted) <= set(
            load_licences()
        ), licence.id
        assert not (licence.grant and (licence.no_derivatives or licence.parts)), licence.id
        assert licence.adapted or not licence.share_alike, licence.id
        assert not licence.grant or licence.covers(licence), licence.id
        assert all(
            load_licences()[other].covers(licence) or licence.terms for other in licence.adapted
        ), licence.id


def test_a_licence_is_one_of_the_hubs_or_other_with_a_name_and_a_link() -> None:
    assert make_license_fields(load_licences()["cc-by-sa-4.0"]) == {"license": "cc-by-sa-4.0"}
    fields = make_license_fields(load_licences()["emm"])
    assert (
        fields["license"] == "other"
        and fields["license_name"] == "emm"
        and fields["license_link"][:8] == "https://"
    )


SOURCES = (
    "cc0-1.0",
    "mit",
    "cc-by-4.0",
    "cc-by-sa-3.0",
    "cc-by-sa-4.0",
    "cc-by-nc-4.0",
    "stsb-train",
    "cc-by-nd-4.0",
)
GENERATORS = ("mit", "llama2", "cc-by-nc-sa-4.0")


def combination_table() -> str:
    """The table of docs/cards.md: the first licence allowed for each pair, or that it is refused."""
    lines = [
        "| | " + " | ".join(f"`{name}`" for name in GENERATORS) + " |",
        "| --- |" + " --- |" * len(GENERATORS),
    ]
    for source in SOURCES:
        cells = []
        for generator in GENERATORS:
            try:
                cells.append(f"`{verdict(source, generator)[0]}`")
            except InputError:
                cells.append("refused")
        lines.append(f"| `{source}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_the_documented_verdicts_are_the_computed_ones() -> None:
    page = Path("docs/cards.md").read_text(encoding="utf-8")
    assert combination_table() in page and all(f"`{known}`" in page for known in load_licences())


def test_the_hub_takes_every_licence_that_a_card_has() -> None:
    fields = [make_license_fields(licence)["license"] for licence in load_licences().values()]
    assert set(fields) <= LICENCES


@pytest.mark.parametrize(
    ("front_matter", "licence"),
    [
        ("license: cc-by-nc-4.0", "cc-by-nc-4.0"),
        ("license: [cc-by-nc-4.0]", "cc-by-nc-4.0"),
        ("license: CC-BY-NC-4.0", "cc-by-nc-4.0"),
        ("license: ' gemma '", "gemma"),
        ("license: other\nlicense_name: Gemma", "gemma"),
        ("license: [other]\nlicense_name: gemma", "gemma"),
        ("license: [mit, cc-by-nc-4.0]", "cc-by-nc-4.0"),
    ],
)
def test_a_licence_that_the_card_of_a_base_denies_is_refused(front_matter, licence, tmp_path):
    card = tmp_path / "README.md"
    card.write_text(f"---\n{front_matter}\n---\n")
    with pytest.raises(InputError, match=f"is 'apache-2.0', and .* says '{licence}'"):
        resolve_model_licence("--encoder-license", "apache-2.0", card)
    if "mit" in front_matter:  # the card names two: the user chooses
        with pytest.raises(InputError, match="names no licence"):
            resolve_model_licence("--encoder-license", "", card)
    else:
        assert resolve_model_licence("--encoder-license", "", card).id == licence


def test_an_encoder_of_ours_without_a_card_has_the_licence_of_its_recipe(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    card = tmp_path / "README.md"
    recipe.write_text("kind: model\nlicense: gemma\n")
    assert resolve_model_licence("--encoder-license", "", card).id == "gemma"
    with pytest.raises(InputError, match=r"is 'mit', and .* recipe.yaml says 'gemma'; name gemma"):
        resolve_model_licence("--encoder-license", "mit", card)
    for damaged in ("- license", "license: [", "", "license: 5"):
        recipe.write_text(damaged)
        assert resolve_model_licence("--encoder-license", "mit", card).id == "mit"
    card.write_text("---\nlicense: mit\n---\n")  # the card comes first
    recipe.write_text("license: gemma\n")
    assert resolve_model_licence("--encoder-license", "", card).id == "mit"


@pytest.mark.parametrize(
    "front_matter",
    [
        "license: 5",
        "license:",
        "license: {a: b}",
        "license: other",
        pytest.param(f"license: {'[' * 3_000}", id="nested too deeply"),
    ],
)
def test_a_card_without_a_known_licence_leaves_the_choice_to_the_user(front_matter, tmp_path):
    card = tmp_path / "README.md"
    card.write_text(f"---\n{front_matter}\n---\n")
    assert resolve_model_licence("--encoder-license", "mit", card).id == "mit"

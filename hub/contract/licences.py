"""Which licence a dataset or model may have, computed from those of its parts. Not legal advice.

``licences.yaml`` says what each licence asks. From that follows, for every combination, a verdict:

- Source sentences are published unchanged: everything their licence asks holds for the dataset.
- Generated texts come from the model: they are bound where its licence claims or restricts its output.
- Few-shot examples stand in prompts, not in the dataset: they are credited, and non-commercial ones bind it.
- A model comes from its base, which binds it; training data are credited, and non-commercial ones bind it.

Where one licence covers everything, the dataset has that or a stricter one. Where none does, its rows keep the licences
of their parts (``mixed``), as those of the STS Benchmark do; a model, which has no parts, is refused.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import TypeAdapter

from hub.contract.published_paths import origin_name
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.results import Frozen
from hub.errors import InputError, did_you_mean

TABLE = Path(__file__).with_name("data") / "licences.yaml"
COMMON = ("cc-by-4.0", "mit", "apache-2.0")
MIXED, MIXED_NON_COMMERCIAL = "mixed", "mixed-non-commercial"


class Outputs(Frozen):
    """What a model's licence says of what the model writes."""

    reach: Literal["none", "licence", "terms"]
    note: str


class Portion(Frozen):
    """One part of a collection, under a licence of its own."""

    licence: str
    what: str


class Licence(Frozen):
    """What a licence asks; the keys are explained in ``licences.yaml``."""

    id: str
    name: str
    link: str
    hub: bool = False
    grant: bool = False
    credit: bool = False
    non_commercial: bool = False
    no_derivatives: bool = False
    share_alike: bool = False
    adapted: tuple[str, ...] = ()
    terms: str | None = None
    notice: str | None = None
    outputs: Outputs | None = None
    parts: tuple[Portion, ...] = ()

    def covers(self, other: "Licence") -> bool:
        """Whether what is under ``other`` may be passed on under this licence."""
        if self.id == other.id:
            return True
        return not (
            other.terms
            or (other.credit and not self.credit)
            or (other.non_commercial and not self.non_commercial)
            or (other.adapted and self.id not in other.adapted)
        )

    @property
    def asks(self) -> bool:
        """Whether it asks anything at all of who passes the texts on."""
        return bool(self.terms or self.credit or self.non_commercial or self.adapted)

    def leaves(self) -> list["Licence"]:
        """The licences of a collection's parts; of any other, itself."""
        return [table()[portion.licence] for portion in self.parts] or [self]


@dataclass(frozen=True)
class Part:
    """A part of what was made: its role, what it is, and its licence."""

    role: str
    what: str
    licence: Licence


@dataclass(frozen=True)
class Verdict:
    """The licence of a dataset or model, the others it might have, its parts, and what its users should know."""

    licence: Licence
    allowed: tuple[str, ...]
    parts: tuple[Part, ...]
    notes: tuple[str, ...]


@cache
def table() -> dict[str, Licence]:
    """Every known licence by id."""
    tree = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    entries = {key: {"id": key, **value} for key, value in tree.items()}
    return TypeAdapter(dict[str, Licence]).validate_python(entries)


def likely(licence: str = "") -> str:
    """The three ids that a person may have meant, for an error."""
    near = get_close_matches(licence.lower(), table(), n=3)
    return f"{', '.join([*near, *(one for one in COMMON if one not in near)][:3])}, or another of docs/cards.md"


def known(place: str, licence: str) -> Licence:
    """The licence of that id. Raises InputError naming ``place`` when the table has none."""
    if licence in table():
        return table()[licence]
    add = "add what it asks to hub/contract/data/licences.yaml if it is not one of these"
    problem = f"{licence!r} is not a licence that can be judged" if licence.strip() else "names no licence"
    hint = " ".join(filter(None, (did_you_mean(licence, table()), add)))
    raise InputError(place, problem, allowed=likely(licence), hint=hint)


def of_model(place: str, licence: str, card: Path | None) -> Licence:
    """The licence that a recipe or option gives a model; without one, that of its ``card`` (a README.md).

    Raises InputError for an unknown licence, and for one that does not cover the card's.
    """
    from huggingface_hub.repocard import metadata_load

    found: dict[str, object] = {}
    if card is not None and card.is_file():
        with suppress(ValueError, yaml.YAMLError):  # front matter that cannot be read names no licence
            found = metadata_load(card) or {}
    named = str(found.get("license_name") if found.get("license") == "other" else found.get("license"))
    own = table().get(named)
    given = known(place, licence or (own.id if own else ""))
    if own and not given.covers(own):
        problem = f"is {given.id!r}, and the model's README.md says {own.id!r}"
        raise InputError(place, problem, hint="name the licence of the README, or take another model")
    return given


def check(recipe: DatasetRecipe) -> Verdict:
    """The verdict on a dataset; to be asked before generation starts.

    Raises InputError for an unknown licence, a combination that may not be published, or a licence it may not have.
    """
    allowed, (source, generator, *examples) = possible(recipe), _parts(recipe)
    chosen = _chosen(f"recipe {recipe.name}", recipe.license, allowed, (source, generator, *examples))
    outputs = generator.licence.outputs
    treated = "; here it is treated as if it did" if outputs and outputs.reach == "licence" else ""
    notes = [f"Of the generator: {outputs.note}{treated}."] if outputs else []
    notes += [f"{text[0].upper()}{text[1:]}." for text in dict.fromkeys(_terms(source.licence))]
    if chosen.id in (MIXED, MIXED_NON_COMMERCIAL) and any(leaf.share_alike for leaf in source.licence.leaves()):
        notes.append(
            "No single licence covers all parts, so source sentences and generated texts keep their own. It is not "
            "settled whether a generated text is an adaptation of its source sentence; where it is, the sentence's "
            "share-alike terms hold for it too."
        )
    return Verdict(chosen, allowed, (source, generator, *examples), tuple(notes))


def possible(recipe: DatasetRecipe) -> tuple[str, ...]:
    """The licences that a dataset may have, whichever its recipe names; raises as ``check`` does."""
    source, generator, *examples = _parts(recipe)
    shown = [part.licence for part in examples]
    return dataset_licences(source.licence, generator.licence, shown, f"recipe {recipe.name}")


def _parts(recipe: DatasetRecipe) -> list[Part]:
    """Source sentences, generator and examples with their licences. Raises InputError for an unknown one."""
    model = recipe.model
    name = model.repo_id or model.path or (model.server.model if model.server else "")
    found = [
        ("Source sentences", recipe.source.description, "source", recipe.source.license),
        ("Generator", name, "model", model.license),
    ]
    if recipe.few_shot:
        shown = recipe.few_shot.examples
        found.append(("Examples in prompts", shown.description, "few_shot.examples", shown.license))
    place = f"recipe {recipe.name}"
    return [Part(role, what, known(f"{place}: {key}.license", licence)) for role, what, key, licence in found]


def dataset_licences(source: Licence, generator: Licence, examples: Iterable[Licence], place: str) -> tuple[str, ...]:
    """What a dataset of these parts may be licensed as. Raises InputError when it may not be published at all."""
    for leaf in source.leaves():
        if leaf.no_derivatives:
            raise InputError(place, _no_result("source sentences", leaf, "texts are generated from them"))
    if generator.outputs is None:
        problem = f"{generator.id!r} does not say what it means for the texts a model writes: they cannot be published"
        hint = "take a generator under another licence, or add outputs to hub/contract/data/licences.yaml"
        raise InputError(place, problem, hint=hint)
    bound = [*source.leaves(), *([generator] if generator.outputs.reach != "none" else [])]
    non_commercial = any(leaf.non_commercial for licence in examples for leaf in licence.leaves())
    singles = _covering(bound, non_commercial)
    non_commercial = non_commercial or any(leaf.non_commercial for leaf in bound)
    return singles or ((MIXED_NON_COMMERCIAL,) if non_commercial else (MIXED,))


def check_model(recipe: ModelRecipe, datasets: Iterable[tuple[str, str]]) -> Verdict:
    """The verdict on a model; ``datasets`` are the names and licences of what it is trained on.

    Without them it can be asked before they are read: what is refused then is refused with any.

    Raises InputError for an unknown licence, a combination without a permitted result, or a licence it may not have.
    """
    place = f"recipe {recipe.name}"
    name = origin_name(recipe.base.repo_id, recipe.base.path)
    card = Path(recipe.base.path, "README.md") if recipe.base.path else None
    base = Part("Base", name, of_model(f"{place}: base.license", recipe.base.license, card))
    data = [Part("Training data", name, known(f"{place}: dataset {name}", licence)) for name, licence in datasets]
    for guide in filter(None, (item.guide for item in recipe.datasets)):  # what it says is trained on, too
        name = origin_name(guide.repo_id, guide.path)
        data.append(Part("Guide of the loss", name, known(f"{place}: guide {name}", guide.license)))
    allowed = model_licences(base.licence, [part.licence for part in data], place)
    notes = [f"{part.what}: {note}." for part in (base, *data) for note in _terms(part.licence)]
    if base.licence.notice:
        notes.append(f"{base.what}: {base.licence.notice}")
    if data:
        notes.append(
            "It is not settled whether a model is an adaptation of the texts it was trained on. Here their share-alike "
            "terms are not taken to reach its weights; a ban on commercial use is."
        )
    return Verdict(_chosen(place, recipe.license, allowed, (base, *data)), allowed, (base, *data), tuple(notes))


def model_licences(base: Licence, datasets: Iterable[Licence], place: str) -> tuple[str, ...]:
    """What a model trained from ``base`` on these may be licensed as. Raises InputError when no licence fits."""
    if base.no_derivatives:
        raise InputError(place, _no_result("base model", base, "training changes it"))
    non_commercial = any(leaf.non_commercial for licence in datasets for leaf in licence.leaves())
    allowed = _covering(base.leaves(), non_commercial)
    if not allowed:
        problem = f"no licence covers a model made from a base under {base.id!r}"
        problem += ", without commercial use" if non_commercial else ""
        raise InputError(place, problem, hint="take another base, or training data that allow commercial use")
    return allowed


def _covering(bound: list[Licence], non_commercial: bool) -> tuple[str, ...]:
    """The licences that may be granted and cover all of ``bound``; one with terms of its own, only what is under it."""
    asking = {other.id for other in bound if other.asks}
    return tuple(
        licence.id
        for licence in table().values()
        if licence.grant
        and (licence.non_commercial or not non_commercial)
        and all(licence.covers(other) for other in bound)
        and (not licence.terms or asking == {licence.id})
    )


def _chosen(place: str, licence: str, allowed: tuple[str, ...], parts: Iterable[Part]) -> Licence:
    if licence not in allowed:
        chosen = known(f"{place}: license", licence)
        open_ones = [one for one in parts if not all(chosen.covers(leaf) for leaf in one.licence.leaves())]
        named = ", ".join(dict.fromkeys(f"{one.role.lower()} under {one.licence.id!r}" for one in open_ones))
        problem, hint = f"{licence!r} does not cover its parts", "docs/cards.md says how that follows"
        problem += f" ({named})" if named else ""
        raise InputError(f"{place}: license", problem, allowed=", ".join(allowed), hint=hint)
    return table()[licence]


def _no_result(what: str, licence: Licence, because: str) -> str:
    return f"{what} under {licence.id!r} may not be changed, and {because}: the result may not be published"


def _terms(licence: Licence) -> list[str]:
    return [leaf.terms for leaf in licence.leaves() if leaf.terms]

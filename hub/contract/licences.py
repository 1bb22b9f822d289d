"""The licences that a dataset or model may have, computed from its parts' licences.

``licences.yaml`` lists the conditions of each licence. They decide every combination as follows;
none of it is legal advice.

- Source sentences are published unchanged, so all conditions of their licence hold for the dataset.
- Generated texts come from the language model. Its licence binds them where the licence claims or
  restricts the model's output.
- Few-shot examples stand in prompts, not in the dataset. The dataset credits them, and a ban on
  their commercial use holds for the dataset.
- An encoder comes from its base, whose licence binds the encoder. The encoder credits its training
  data, and a ban on their commercial use holds for the encoder.

Where one licence covers all parts, the dataset has that licence or a stricter one. Where no licence
does, the rows keep the licences of their parts (``mixed``), like the rows of the STS Benchmark. An
encoder has no separate parts, so it is refused then.
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

from sts_dino.hub.contract.published_paths import name_origin
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import read_yaml
from sts_dino.hub.contract.results import Frozen
from sts_dino.hub.contract.run_dir import RECIPE
from sts_dino.hub.errors import InputError, suggest_choice
from sts_dino.hub.untrusted import (
    CARD_LIMITS,
    find_front_matter,
    join_lines,
    list_card_licences,
    load_yaml,
)

LICENCES_FILE = Path(__file__).with_name("data") / "licences.yaml"
COMMON_LICENCES = ("cc-by-4.0", "mit", "apache-2.0")
UNLICENSED = "unlicensed"
OPENAI = "openai-terms"  # of the models behind OpenAI's hosts
GENERATOR = "Generator"  # role of a part: the language model of a dataset
TEACHER = "Teacher"  # role of a part: the encoder whose similarities a model learns
MIXED = "mixed"
MIXED_NON_COMMERCIAL = "mixed-non-commercial"
MIXED_UNLICENSED = "mixed-unlicensed"
MIXED_UNLICENSED_NON_COMMERCIAL = "mixed-unlicensed-non-commercial"


class Outputs(Frozen):
    """The claims of a model's licence on the texts that the model generates."""

    reach: Literal["none", "licence", "terms"]
    note: str


class Portion(Frozen):
    """One part of a collection, under a licence of its own."""

    licence: str
    what: str


class Licence(Frozen):
    """A licence and its conditions; ``licences.yaml`` explains the keys."""

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
    unlicensed: bool = False
    parts: tuple[Portion, ...] = ()

    def covers(self, other: "Licence") -> bool:
        """Whether a work under the licence ``other`` may be passed on under this licence.

        This licence must ask for all that ``other`` asks for. Where ``other`` has terms of its own,
        only ``other`` itself covers it. ``adapted`` lists the licences that ``other`` allows for
        adaptations; empty allows any.
        """
        if self.id == other.id:
            return True
        if other.terms or (other.credit and not self.credit):
            return False
        if other.non_commercial and not self.non_commercial:
            return False
        return not other.adapted or self.id in other.adapted

    @property
    def has_conditions(self) -> bool:
        """Whether the licence sets any condition for passing texts on."""
        return bool(self.terms or self.credit or self.non_commercial or self.adapted)

    @property
    def bans_commerce(self) -> bool:
        """Whether the licence, or the licence of a collection's part, bans commercial use."""
        return any(leaf.non_commercial for leaf in self.list_leaves())

    @property
    def mentioned_terms(self) -> list[str]:
        """The terms that users should know: the licence's own, or of each part of a collection."""
        return [leaf.terms for leaf in self.list_leaves() if leaf.terms]

    def list_leaves(self) -> list["Licence"]:
        """Return the licences of a collection's parts; the licence itself where it has no parts."""
        return [load_licences()[portion.licence] for portion in self.parts] or [self]


@dataclass(frozen=True)
class Part:
    """A part of a dataset or model: its role, its description and its licence."""

    role: str
    what: str
    licence: Licence


@dataclass(frozen=True)
class Verdict:
    """The licence of a dataset or model, all ids allowed, its parts, and notes for users."""

    licence: Licence
    allowed: tuple[str, ...]
    parts: tuple[Part, ...]
    notes: tuple[str, ...]


@cache
def load_licences() -> dict[str, Licence]:
    """Load every known licence by id."""
    tree = yaml.safe_load(LICENCES_FILE.read_text(encoding="utf-8"))
    entries = {key: {"id": key, **value} for key, value in tree.items()}
    return TypeAdapter(dict[str, Licence]).validate_python(entries)


def suggest_licences(licence: str = "") -> str:
    """Return three known licence ids for an error, those similar to ``licence`` first."""
    similar = get_close_matches(licence.lower(), load_licences(), n=3)
    common = [licence_id for licence_id in COMMON_LICENCES if licence_id not in similar]
    return f"{', '.join([*similar, *common][:3])}, or another of docs/cards.md"


def require_licence(place: str, licence: str) -> Licence:
    """Return the licence with the id ``licence``.

    Raises InputError naming ``place`` for an unknown id.
    """
    if licence in load_licences():
        return load_licences()[licence]
    problem = "names no licence"
    if licence.strip():
        problem = f"{licence!r} is not a licence that can be judged"
    hint = "add what it asks to hub/contract/data/licences.yaml if it is not one of these"
    suggestion = suggest_choice(licence, load_licences())
    if suggestion:
        hint = f"{suggestion} {hint}"
    raise InputError(place, problem, allowed=suggest_licences(licence), hint=hint)


def resolve_model_licence(place: str, licence: str, card: Path | None) -> Licence:
    """Return the licence that a recipe or option names, else the only one on the model's card.

    Raises InputError for an unknown licence, for a named licence that does not cover each known
    licence on the card, and where none is named and the card does not name exactly one.

    Args:
        place: the recipe key or option that errors name.
        licence: the licence id of the recipe or option; empty where it names none.
        card: the path of the model's README.md. Where the file is absent, a recipe.yaml beside it
            takes its place. None where there is no local model.
    """
    card_licences = read_card_licences(card)
    if not licence and len(card_licences) == 1:
        return card_licences[0]
    chosen = require_licence(place, licence)
    file = "README.md" if card is not None and card.is_file() else RECIPE
    for card_licence in card_licences:
        if not chosen.covers(card_licence):
            raise InputError(
                place,
                f"is {chosen.id!r}, and the model's {file} says {card_licence.id!r}",
                hint=f"name {card_licence.id}, or take another model",
            )
    return chosen


def is_openai(host: str) -> bool:
    """Return whether a host name, in lower case, is openai.com or ends in .openai.com."""
    return f".{host}".endswith(".openai.com")


def resolve_server_licence(
    option: str, model: str, host: str, chosen: str | None, inferred: str | None = None
) -> Licence:
    """Return the licence of a model behind a server.

    Args:
        option: the option that names the licence; an error names it.
        model: the server's name of the model.
        host: the server's public host; empty for a private one.
        chosen: the licence id of the option; None: OpenAI's terms at its hosts, else ``inferred``.
        inferred: the licence id that the server's answers imply; None: none.

    Raises InputError for an unknown licence, for another licence than OpenAI's at its hosts, and
    when ``chosen`` and ``inferred`` are None at another host.
    """
    if is_openai(host):
        if chosen not in (None, OPENAI):
            problem = f"{chosen!r} is not that of OpenAI's models"
            raise InputError(option, problem, allowed=OPENAI)
        return require_licence(option, OPENAI)
    licence_id = chosen or inferred
    if licence_id is None:
        raise InputError(
            option,
            f"the licence of {model} is not known",
            allowed=suggest_licences(),
            hint=f"name it: {option} apache-2.0, for example",
        )
    return require_licence(option, licence_id)


def describe_output_terms(model: str, licence: Licence) -> str | None:
    """Describe the terms that restrict the use of a model's texts; None without such terms.

    ``model``: the model's name. ``licence``: the model's licence.
    """
    if licence.outputs is None or licence.outputs.reach != "terms":
        return None
    name = join_lines(model)
    return f"texts of {name}: {licence.outputs.note}; check that your use is allowed"


def read_card_licences(card: Path | None) -> list[Licence]:
    """Return the known licences that a card's front matter names (``list_card_licences``).

    Where the file ``card`` is absent, the recipe.yaml beside it is read, as in a run directory.
    Returns [] for None, and for a file that is missing, cannot be read or breaks ``CARD_LIMITS``.
    """
    metadata: object = None
    with suppress(InputError, OSError, UnicodeDecodeError, yaml.YAMLError):
        if card is not None and card.is_file():
            metadata = load_yaml(find_front_matter(card.read_text(encoding="utf-8")), **CARD_LIMITS)
        elif card is not None and card.with_name(RECIPE).is_file():
            metadata = read_yaml(card.with_name(RECIPE))
    if not isinstance(metadata, dict):
        return []

    known = [load_licences().get(licence_id) for licence_id in list_card_licences(metadata)]
    return [licence for licence in known if licence is not None]


def check_dataset(recipe: DatasetRecipe) -> Verdict:
    """Return the verdict on the dataset of a recipe. Stages call it before generation starts.

    Raises InputError for an unknown licence, for parts that may not be published together, for a
    generator whose card contradicts the recipe (``resolve_model_licence``), and for a recipe whose
    licence does not cover its parts.
    """
    place = f"recipe {recipe.name}"
    parts = _list_parts(recipe)
    source_licence, generator_licence, *_ = [part.licence for part in parts]
    allowed = list_possible_licences(recipe)
    chosen = _require_allowed(place, recipe.license, allowed, parts)

    # what users of the dataset should know
    notes = []
    outputs = generator_licence.outputs
    if outputs:
        treated = "; here it is treated as if it did" if outputs.reach == "licence" else ""
        notes.append(f"Of the generator: {outputs.note}{treated}.")
    unique_terms = dict.fromkeys(source_licence.mentioned_terms)
    notes += [f"{terms[0].upper()}{terms[1:]}." for terms in unique_terms]
    is_share_alike = any(leaf.share_alike for leaf in source_licence.list_leaves())
    if chosen.id.startswith(MIXED) and is_share_alike:
        notes.append(
            "No single licence covers all parts, so source sentences and generated texts keep "
            "their own. It is not settled whether a generated text is an adaptation of its source "
            "sentence; where it is, the sentence's share-alike terms hold for it too."
        )
    return Verdict(chosen, allowed, tuple(parts), tuple(notes))


def list_possible_licences(recipe: DatasetRecipe) -> tuple[str, ...]:
    """List the ids of the licences that a recipe's dataset may have; the recipe's own is not read.

    They are in the order of ``licences.yaml``. Raises InputError for parts as ``check_dataset``.
    """
    source, generator, *examples = [part.licence for part in _list_parts(recipe)]
    return find_dataset_licences(source, generator, examples, f"recipe {recipe.name}")


def _list_parts(recipe: DatasetRecipe) -> list[Part]:
    """List the parts of a dataset: source sentences, generator and, if any, few-shot examples.

    Raises InputError for an unknown licence, and as ``resolve_model_licence`` for the generator.
    """
    recipe_name = f"recipe {recipe.name}"
    model = recipe.model
    source_licence = require_licence(f"{recipe_name}: source.license", recipe.source.license)
    card = Path(model.path, "README.md") if model.path else None
    model_licence = resolve_model_licence(f"{recipe_name}: model.license", model.license, card)
    model_name = model.repo_id or model.path or (model.server.model if model.server else "")
    parts = [
        Part("Source sentences", recipe.source.description, source_licence),
        Part(GENERATOR, model_name, model_licence),
    ]
    if recipe.few_shot:
        examples = recipe.few_shot.examples
        key = f"{recipe_name}: few_shot.examples.license"
        licence = require_licence(key, examples.license)
        parts.append(Part("Examples in prompts", examples.description, licence))
    return parts


def find_dataset_licences(
    source: Licence, generator: Licence, examples: Iterable[Licence], place: str
) -> tuple[str, ...]:
    """Find the licence ids that a dataset may have, in the order of ``licences.yaml``.

    Where no licence covers all parts, the result is one mixed licence. Raises InputError naming
    ``place`` when the dataset may not be published: the source sentences may not be changed, or the
    generator's licence does not say what it means for texts.

    Args:
        source: the licence of the source sentences.
        generator: the licence of the language model.
        examples: the licences of the few-shot examples.
        place: the recipe that errors name.
    """
    for leaf in source.list_leaves():
        if leaf.no_derivatives:
            raise InputError(
                place, _describe_ban("source sentences", leaf, "texts are generated from them")
            )
    if generator.outputs is None:
        raise InputError(
            place,
            f"{generator.id!r} does not say what it means for the texts a model writes: they "
            "cannot be published",
            hint="take a generator under another licence, or add outputs to "
            "hub/contract/data/licences.yaml",
        )

    # the licences whose conditions hold for the dataset: the module's docstring says why
    binding = source.list_leaves()
    if generator.outputs.reach != "none":
        binding.append(generator)
    non_commercial = any(licence.bans_commerce for licence in examples)
    licences = _find_covering(binding, non_commercial)
    if licences:
        return licences

    # No licence covers all parts, so each keeps its own.
    non_commercial = non_commercial or any(licence.non_commercial for licence in binding)
    if any(leaf.unlicensed for leaf in source.list_leaves()):
        return (MIXED_UNLICENSED_NON_COMMERCIAL if non_commercial else MIXED_UNLICENSED,)
    return (MIXED_NON_COMMERCIAL if non_commercial else MIXED,)


def choose_untaught_licence(recipe: ModelRecipe) -> str:
    """Return a licence id for an encoder that is trained like the recipe's, but on other datasets.

    Such an encoder is measured, not published, and has none of the recipe's teachers. Where the
    recipe has no teacher, the result is the recipe's licence. Where it has one, that licence may be
    due to the teacher's terms alone, so the result is a licence that the base allows. It is a
    non-commercial one if possible, because that suits any dataset.

    With a teacher in the recipe, raises InputError for a base whose licence is unknown, contradicts
    its card, forbids changes, or is covered by no licence.
    """
    if not any(dataset.teacher for dataset in recipe.datasets):
        return recipe.license
    card = Path(recipe.base.path, "README.md") if recipe.base.path else None
    place = f"recipe {recipe.name}: base.license"
    base = resolve_model_licence(place, recipe.base.license, card)
    allowed = find_model_licences(base, [], place)
    non_commercial = [name for name in allowed if load_licences()[name].non_commercial]
    return (non_commercial or allowed)[0]


def check_model(recipe: ModelRecipe, datasets: Iterable[tuple[str, str]]) -> Verdict:
    """Return the verdict on the encoder of a recipe.

    ``datasets``: (name, licence id) of each training dataset. With no dataset, as before any is
    read, only the base, the guides and the teachers are checked.

    Raises InputError for an unknown licence, for a base that its card contradicts
    (``resolve_model_licence``), for parts that no licence covers, and for a recipe whose licence
    does not cover its parts.
    """
    recipe_name = f"recipe {recipe.name}"

    # the base, the training data and what a loss reads beside them
    card = Path(recipe.base.path, "README.md") if recipe.base.path else None
    base_licence = resolve_model_licence(f"{recipe_name}: base.license", recipe.base.license, card)
    base = Part("Base", name_origin(recipe.base.repo_id, recipe.base.path), base_licence)
    data = [
        Part("Training data", name, require_licence(f"{recipe_name}: dataset {name}", licence))
        for name, licence in datasets
    ]
    for dataset in recipe.datasets:
        if guide := dataset.guide:
            name = name_origin(guide.repo_id, guide.path)
            guide_licence = require_licence(f"{recipe_name}: guide {name}", guide.license)
            data.append(Part("Guide of the loss", name, guide_licence))
        if teacher := dataset.teacher:
            title = f"{recipe_name}: teacher {teacher.origin}"
            data.append(Part(TEACHER, teacher.origin, require_licence(title, teacher.license)))
    parts = (base, *data)
    teachers = [part.licence for part in data if part.role == TEACHER]
    allowed = find_model_licences(
        base_licence, [part.licence for part in data], recipe_name, teachers
    )

    # what users of the model should know
    notes = []
    for part in parts:
        notes += _list_terms(part)
    if base_licence.notice:
        notes.append(f"{base.what}: {base_licence.notice}")
    if data:
        notes.append(
            "It is not settled whether a model is an adaptation of the texts it was trained on. "
            "Here their share-alike terms are not taken to reach its weights; a ban on commercial "
            "use is."
        )
    chosen = _require_allowed(recipe_name, recipe.license, allowed, parts)
    return Verdict(chosen, allowed, parts, tuple(notes))


def _list_terms(part: Part) -> list[str]:
    """List notes about the terms of one part of a model, for the model's users; [] without any."""
    notes = [f"{part.what}: {terms}." for terms in part.licence.mentioned_terms]
    outputs = part.licence.outputs
    if part.role == TEACHER and outputs and outputs.reach == "terms" and not part.licence.grant:
        notes.append(f"Of the teacher: {outputs.note}.")
    return notes


def find_model_licences(
    base: Licence, datasets: Iterable[Licence], place: str, teachers: Iterable[Licence] = ()
) -> tuple[str, ...]:
    """Find the licence ids that an encoder may have, at least one, as ordered in ``licences.yaml``.

    Raises InputError naming ``place`` when the base may not be changed, and when no licence covers
    all parts.

    Args:
        base: the licence of the base that is trained.
        datasets: the licences of the training data.
        place: the recipe that errors name.
        teachers: the licences of the teachers. Where a teacher's licence sets terms for its outputs
            and can be granted for a model, it is the only licence that the encoder may have.
    """
    if base.no_derivatives:
        raise InputError(place, _describe_ban("base model", base, "training changes it"))
    non_commercial = any(licence.bans_commerce for licence in datasets)
    # A teacher claims a model by terms that a model can be under. Others, as OpenAI's terms, bind
    # only the teacher's customer.
    claiming = [
        teacher
        for teacher in teachers
        if teacher.outputs and teacher.outputs.reach == "terms" and teacher.grant
    ]
    bound = [*base.list_leaves(), *claiming]
    allowed = _find_covering(base.list_leaves(), non_commercial)
    if claiming:
        # The model is then under the teacher's licence, or it cannot be published.
        terms = claiming[0]
        is_covering = all(terms.covers(licence) for licence in bound)
        fits_data = terms.non_commercial or not non_commercial
        allowed = (terms.id,) if is_covering and fits_data else ()
    if not allowed:
        problem = f"no licence covers a model made from a base under {base.id!r}"
        if claiming:
            problem += f", taught by a model under {claiming[0].id!r}"
        if non_commercial:
            problem += ", without commercial use"
        raise InputError(
            place,
            problem,
            hint="take another base or teacher, or training data that allow commercial use",
        )
    return allowed


def choose_model_licence(
    base: Licence, datasets: Iterable[Licence], place: str, teachers: Iterable[Licence] = ()
) -> str:
    """Choose the licence id of a model trained from ``base``: the base's own, where it is allowed.

    Otherwise it is the first id that ``find_model_licences`` finds. That function describes the
    parameters and the errors.
    """
    allowed = find_model_licences(base, datasets, place, teachers)
    return base.id if base.id in allowed else allowed[0]


def describe_unlicensed_parts(parts: Iterable[Part]) -> str:
    """Describe the parts that have no licence, or hold texts without one; "" without any."""
    names = [f"{part.role.lower()} ({part.what})" for part in parts if part.licence.unlicensed]
    if not names:
        return ""
    return f"without a licence: {', '.join(names)}; ask the owners before you make it public"


def _find_covering(binding: list[Licence], non_commercial: bool) -> tuple[str, ...]:
    """Find the ids of grantable licences that cover every licence of ``binding``; () without any.

    They are in the order of ``licences.yaml``. ``non_commercial``: whether the licence must ban
    commercial use.
    """
    conditional_ids = {licence.id for licence in binding if licence.has_conditions}
    covering = []
    for licence in load_licences().values():
        is_grantable = licence.grant and (licence.non_commercial or not non_commercial)
        # A licence with terms of its own is possible only where no other licence sets conditions.
        has_foreign_terms = licence.terms and conditional_ids != {licence.id}
        if not is_grantable or has_foreign_terms:
            continue
        if all(licence.covers(bound) for bound in binding):
            covering.append(licence.id)
    return tuple(covering)


def _require_allowed(
    place: str, licence: str, allowed: tuple[str, ...], parts: Iterable[Part]
) -> Licence:
    """Return the licence with the id ``licence``, if it is among ``allowed``.

    Otherwise raises InputError, with the ``parts`` that the licence does not cover, or for an
    unknown id. ``place``: the recipe that the error names.
    """
    if licence in allowed:
        return load_licences()[licence]
    chosen = require_licence(f"{place}: license", licence)
    uncovered = []
    for part in parts:
        if not all(chosen.covers(leaf) for leaf in part.licence.list_leaves()):
            uncovered.append(f"{part.role.lower()} under {part.licence.id!r}")
    problem = f"{licence!r} does not cover its parts"
    if uncovered:
        problem += f" ({', '.join(dict.fromkeys(uncovered))})"
    raise InputError(
        f"{place}: license",
        problem,
        allowed=", ".join(allowed),
        hint="docs/cards.md says how that follows",
    )


def _describe_ban(material: str, licence: Licence, reason: str) -> str:
    """Describe why ``material`` under a licence that forbids changes cannot be used."""
    return (
        f"{material} under {licence.id!r} may not be changed, and {reason}: the result may not be "
        "published"
    )

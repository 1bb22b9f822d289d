"""The section of a card that names the licence, whom to credit, and what the parts' licences ask."""

from hub.contract.licences import Licence, Part, Verdict
from hub.untrusted import Markdown, inline

DISCLAIMER = "Computed from the licences of the parts by `hub/contract/licences.py`. Not legal advice."


def attribution(verdict: Verdict) -> Markdown:
    """The licence, the parts with theirs, what their terms ask besides, and that this is no legal advice."""
    lines = [f"Licence: **{named(verdict.licence)}**.", "", "Made from, and to be credited with it:", ""]
    for part in verdict.parts:
        lines += _part(part)
    if verdict.notes:
        lines += ["", "To be known besides:", "", *(f"- {inline(note)}" for note in verdict.notes)]
    lines += ["", DISCLAIMER]
    return Markdown("\n".join(lines))


def named(licence: Licence) -> Markdown:
    """The licence's name, as a link unless it is explained on the card itself."""
    return Markdown(
        inline(licence.name) if licence.link.startswith("#") else f"[{inline(licence.name)}]({licence.link})"
    )


def _part(part: Part) -> list[str]:
    lines = [f"- {part.role}: {inline(part.what)} ({named(part.licence)})"]
    leaves = zip(part.licence.parts, part.licence.leaves(), strict=False)
    return lines + [f"  - {inline(portion.what)} ({named(leaf)})" for portion, leaf in leaves]

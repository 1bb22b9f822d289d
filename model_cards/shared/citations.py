"""BibTeX of the papers a card may cite, from ``citations.bib``. CITATION.cff lists them too; a test compares titles."""

from pathlib import Path

ENTRIES = Path(__file__).with_name("citations.bib").read_text(encoding="utf-8").strip().split("\n\n")
DINO, AUTO_NLI, PROMPT_EOL, DECLUTR, SIMCSE, GUIDANCE = ENTRIES


def cited(methods: set[str], debiased: bool, prompted: bool = False, guided: bool = False) -> str:
    """The entries for these methods (dino, auto-nli, declutr, simcse), for self-debiasing, a prompt and guidance."""
    wanted = {
        DINO: "dino" in methods or debiased,
        AUTO_NLI: "auto-nli" in methods,
        PROMPT_EOL: prompted,
        DECLUTR: "declutr" in methods,
        SIMCSE: "simcse" in methods,
        GUIDANCE: guided,
    }
    return "\n\n".join(entry for entry, is_cited in wanted.items() if is_cited)

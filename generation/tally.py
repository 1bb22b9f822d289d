"""What was kept and rejected, and how long the kept texts are: counted in parts that add up, in any order."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hub.recipe import DatasetRecipe

Row = dict[str, Any]


@dataclass(frozen=True)
class TextLength:
    """How long a text is: its unit, whose tokenizer counts (None: nobody's), and the count."""

    unit: str
    tokenizer: str | None
    of: Callable[[str], int]


WORDS = TextLength("words", None, lambda text: len(text.split()))


class Tally:
    """Kept and rejected rows by shot count, label and (rejected) reason, and the lengths of the kept texts."""

    def __init__(self) -> None:
        self.lengths = Counter[tuple[str, int]]()
        self.kept = Counter[tuple[int | None, str]]()
        self.rejected = Counter[tuple[int | None, str, str]]()
        self.sampled = 0

    def keep(self, shots: int | None, rows: list[Row], length: Callable[[str], int]) -> None:
        """Count rows that are kept, and the length of their second texts."""
        self.kept.update((shots, row["target"]) for row in rows)
        self.lengths.update((row["target"], length(row["text2"])) for row in rows)

    def reject(self, shots: int | None, rows: list[Row]) -> None:
        """Count rejected rows."""
        self.rejected.update((shots, row["target"], row["reason"]) for row in rows)

    def parts(self) -> dict[str, Any]:
        """The counts as JSON."""
        counters: dict[str, Counter[Any]] = {"lengths": self.lengths, "kept": self.kept, "rejected": self.rejected}
        listed = {name: [[*key, n] for key, n in sorted(found.items(), key=repr)] for name, found in counters.items()}
        return {**listed, "sampled": self.sampled}

    def add(self, parts: dict[str, Any]) -> None:
        """Add what another tally's ``parts`` say."""
        for name in ("lengths", "kept", "rejected"):
            getattr(self, name).update({tuple(key): n for *key, n in parts[name]})
        self.sampled += parts["sampled"]

    def token_lengths(self, recipe: DatasetRecipe, length: TextLength) -> dict[str, Any]:
        """Label → length → kept texts, with the unit and whose tokenizer counted."""
        by_label = {
            label.name: {str(size): n for (name, size), n in sorted(self.lengths.items()) if name == label.name}
            for label in recipe.labels
        }
        return {"unit": length.unit, "tokenizer": length.tokenizer, "by_label": by_label}

    def by_label(self, recipe: DatasetRecipe) -> dict[str, dict[str, Any]]:
        """Requested, kept and rejected texts of every label, and the rejected ones by reason."""
        found = {}
        for label in recipe.labels:
            kept = sum(n for (_, name), n in self.kept.items() if name == label.name)
            reasons = Counter[str]()
            for (_, name, reason), n in self.rejected.items():
                reasons[reason] += n if name == label.name else 0
            reasons = +reasons
            rejected = reasons.total()
            sums = {"requested": kept + rejected, "kept": kept, "rejected": rejected}
            found[label.name] = {**sums, "reasons": dict(sorted(reasons.items()))}
        return found

    def by_shots(self, recipe: DatasetRecipe) -> dict[str, dict[str, int]]:
        """Requested, kept and rejected texts of every shot count: ``0shot``, ``5shot`` ..."""
        found = {}
        for shots in dict.fromkeys(variant.shots for variant in recipe.variants):
            kept = sum(n for (count, _), n in self.kept.items() if count == shots)
            rejected = sum(n for (count, _, _), n in self.rejected.items() if count == shots)
            found[f"{shots}shot"] = {"requested": kept + rejected, "kept": kept, "rejected": rejected}
        return found

    def counts(self, recipe: DatasetRecipe, length: TextLength) -> dict[str, Any]:
        """The manifest's counts of texts. ``kept`` + ``rejected`` = ``requested``, in all and for every label."""
        reasons = Counter[str]()
        for (_, _, reason), n in self.rejected.items():
            reasons[reason] += n
        variants = {"variants": self.by_shots(recipe)} if recipe.few_shot else {}
        return {
            "requested": self.kept.total() + reasons.total(),
            "kept": self.kept.total(),
            "rejected": dict(sorted(reasons.items())),
            "sampled_negatives": self.sampled,
            "by_label": self.by_label(recipe),
            "token_lengths": self.token_lengths(recipe, length),
            **variants,
        }

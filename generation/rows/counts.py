"""What was kept and rejected, and how long the kept texts are: counted in parts that add up, in any order."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from generation.rows.verification import label_bias, likeliest
from hub.contract.recipe import DatasetRecipe

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
        self.likeliest = Counter[tuple[int | None, str, str]]()
        self.sampled = 0

    def verify(self, shots: int | None, raw: list[Row], recipe: DatasetRecipe) -> None:
        """Count which label each raw text of a shard fits best, where it was scored under all of them."""
        if recipe.verification:
            bias = label_bias(raw, recipe)
            self.likeliest.update((shots, row["target"], likeliest(row, bias)) for row in raw)

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
        likeliest = {"likeliest": [[*key, n] for key, n in sorted(self.likeliest.items(), key=repr)]}
        return {**listed, **(likeliest if self.likeliest else {}), "sampled": self.sampled}

    def add(self, parts: dict[str, Any]) -> None:
        """Add what another tally's ``parts`` say."""
        for name in ("lengths", "kept", "rejected", "likeliest"):
            getattr(self, name).update({tuple(key): n for *key, n in parts.get(name, ())})
        self.sampled += parts["sampled"]

    def token_lengths(self, recipe: DatasetRecipe, length: TextLength) -> dict[str, Any]:
        """Label → length → kept texts, with the unit and whose tokenizer counted."""
        by_label = {
            label.name: {str(size): n for (name, size), n in sorted(self.lengths.items()) if name == label.name}
            for label in recipe.written_labels
        }
        return {"unit": length.unit, "tokenizer": length.tokenizer, "by_label": by_label}

    def by_label(self, recipe: DatasetRecipe) -> dict[str, dict[str, Any]]:
        """Requested, kept and rejected texts of every label, and the rejected ones by reason."""
        found = {}
        for label in recipe.written_labels:
            kept, reasons = self._sums(lambda _, name, wanted=label.name: name == wanted)
            found[label.name] = {**_totals(kept, reasons), "reasons": reasons}
        return found

    def by_shots(self, recipe: DatasetRecipe) -> dict[str, dict[str, int]]:
        """Requested, kept and rejected texts of every shot count: ``0shot``, ``5shot`` ..."""
        counts = dict.fromkeys(variant.shots for variant in recipe.variants)
        return {f"{n}shot": _totals(*self._sums(lambda shots, _, n=n: shots == n)) for n in counts}

    def by_likeliest(self, recipe: DatasetRecipe) -> dict[str, dict[str, int]]:
        """Label asked for → label that the text fits best by its likelihoods → raw texts."""
        found = Counter[tuple[str, str]]()
        for (_, target, label), n in self.likeliest.items():
            found[target, label] += n
        names = [label.name for label in recipe.written_labels]
        return {target: {name: found[target, name] for name in names} for target in names}

    def counts(self, recipe: DatasetRecipe, length: TextLength) -> dict[str, Any]:
        """The manifest's counts of texts. ``kept`` + ``rejected`` = ``requested``, in all and for every label."""
        kept, reasons = self._sums(lambda *_: True)
        variants = {"variants": self.by_shots(recipe)} if recipe.few_shot else {}
        if recipe.verification:
            variants["likeliest"] = self.by_likeliest(recipe)
        return {
            **_totals(kept, reasons),
            "rejected": reasons,
            "sampled_negatives": self.sampled,
            "by_label": self.by_label(recipe),
            "token_lengths": self.token_lengths(recipe, length),
            **variants,
        }

    def _sums(self, chosen: Callable[..., bool]) -> tuple[int, dict[str, int]]:
        """Kept texts of the chosen (shots, label), and rejected ones by reason."""
        reasons = Counter[str]()
        for (shots, label, reason), n in self.rejected.items():
            reasons[reason] += n if chosen(shots, label) else 0
        return sum(n for key, n in self.kept.items() if chosen(*key)), dict(sorted((+reasons).items()))


def _totals(kept: int, reasons: dict[str, int]) -> dict[str, Any]:
    rejected = sum(reasons.values())
    return {"requested": kept + rejected, "kept": kept, "rejected": rejected}

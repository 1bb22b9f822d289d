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


_COUNTERS = ("lengths", "kept", "rejected", "likeliest")
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
        listed = {name: [[*key, n] for key, n in sorted(getattr(self, name).items(), key=repr)] for name in _COUNTERS}
        if not self.likeliest:
            del listed["likeliest"]
        return {**listed, "sampled": self.sampled}

    def add(self, parts: dict[str, Any]) -> None:
        """Add what another tally's ``parts`` say."""
        for name in _COUNTERS:
            getattr(self, name).update({tuple(key): n for *key, n in parts.get(name, ())})
        self.sampled += parts["sampled"]

    def counts(self, recipe: DatasetRecipe, length: TextLength) -> dict[str, Any]:
        """The manifest's counts of texts. ``kept`` + ``rejected`` = ``requested``, in all and for every label."""
        names = [label.name for label in recipe.written_labels]
        whole, reasons = self._sums(lambda *_: True)
        of_label = {name: self._sums(lambda _, label, name=name: label == name) for name in names}
        lengths = {
            name: {str(size): n for (label, size), n in sorted(self.lengths.items()) if label == name} for name in names
        }
        found: dict[str, Any] = {
            **whole,
            "rejected": reasons,
            "sampled_negatives": self.sampled,
            "by_label": {name: {**sums, "reasons": why} for name, (sums, why) in of_label.items()},
            "token_lengths": {"unit": length.unit, "tokenizer": length.tokenizer, "by_label": lengths},
        }
        if recipe.few_shot:
            shot_counts = dict.fromkeys(variant.shots for variant in recipe.variants)
            of_shots = {n: self._sums(lambda shots, _, n=n: shots == n)[0] for n in shot_counts}
            found["variants"] = {f"{n}shot": sums for n, sums in of_shots.items()}
        if recipe.verification:  # label asked for → label that the text fits best by its likelihoods → raw texts
            pairs = Counter[tuple[str, str]]()
            for (_, target, label), n in self.likeliest.items():
                pairs[target, label] += n
            found["likeliest"] = {target: {name: pairs[target, name] for name in names} for target in names}
        return found

    def _sums(self, chosen: Callable[..., bool]) -> tuple[dict[str, int], dict[str, int]]:
        """Requested, kept and rejected texts of the chosen (shots, label), and the rejected ones by reason."""
        reasons = Counter[str]()
        for (shots, label, reason), n in self.rejected.items():
            reasons[reason] += n if chosen(shots, label) else 0
        kept, rejected = sum(n for key, n in self.kept.items() if chosen(*key)), reasons.total()
        found = {"requested": kept + rejected, "kept": kept, "rejected": rejected}
        return found, dict(sorted((+reasons).items()))

"""The section ``few_shot`` of a dataset recipe: examples in the prompt, and where they come from."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from hub.contract.sections.base import CARD_ONLY, OPTION, QUOTE, Number, Positive, Strict, check_parts


class Examples(Strict):
    """Where few-shot examples come from. A file is a .tsv, .csv, .jsonl or .parquet one.

    - ``file``, ``hub``: a dataset of pairs. With a label, ``labels`` says which value of the label column stands for
      which label of the recipe, e.g. {entailment: "0"}; with a score, ``scores`` gives each label a band of it, e.g.
      {"1": [4.5, 5]}, limits included. Where a row has a text for every label, as in triplets, ``texts`` names their
      columns, e.g. {entailment: sent1, contradiction: hard_neg}; ``hypothesis`` and ``label`` are not read then.
    - ``hand``: a .tsv file written for prompts: the column text1 and one for each label, named like it.
    - ``own``: the run directory of a finished dataset, whose labels the recipe's are among: the model's own texts.

    ``rank_by`` names a numeric column, of which each label's ``top`` rows with the largest values are drawn from.
    """

    kind: Literal["file", "hub", "hand", "own"]
    path: str | None = None  # with kind hub: a file of the repo
    repo_id: str | None = None
    revision: str | None = None
    config: str | None = None
    splits: tuple[str, ...] = ("train",)
    premise: str = "premise"
    hypothesis: str = "hypothesis"
    label: str = "label"
    labels: dict[str, str] = Field(default_factory=dict)
    texts: dict[str, str] = Field(default_factory=dict)
    scores: Annotated[dict[str, tuple[Number, Number]], OPTION] = Field(default_factory=dict)
    rank_by: Annotated[str | None, OPTION] = None
    top: Annotated[Positive | None, OPTION] = None
    description: Annotated[str, CARD_ONLY]
    license: Annotated[str, CARD_ONLY]

    @model_validator(mode="after")
    def _one_way(self) -> "Examples":
        given = [key for key in ("labels", "texts", "scores") if getattr(self, key)]
        if self.kind in ("hand", "own"):
            columns = ("premise", "hypothesis", "label")
            unused = given + [key for key in columns if getattr(self, key) != type(self).model_fields[key].default]
            if unused:
                raise ValueError(f"examples of kind {self.kind} name their columns themselves: remove {unused[0]}")
        elif len(given) != 1:
            raise ValueError(
                "give either labels (the values of a label column) or texts (a column for every label) or scores "
                "(a band for every label)"
            )
        return self

    @model_validator(mode="after")
    def _bands(self) -> "Examples":
        bands = sorted(self.scores.items(), key=lambda item: item[1])
        for label, (low, high) in bands:
            if low > high:
                raise ValueError(f"scores.{label}: the lower limit stands before the upper one, e.g. [4.5, 5]")
        for (one, (_, high)), (other, (low, _)) in pairwise(bands):
            if low <= high:
                raise ValueError(f"scores: the bands of {one!r} and {other!r} share a score")
        return self

    @model_validator(mode="after")
    def _ranked(self) -> "Examples":
        if (self.rank_by is None) != (self.top is None):
            raise ValueError("rank_by names the column and top says how many rows are drawn from: give both or neither")
        if self.rank_by and (self.texts or self.kind == "hand"):
            raise ValueError("rank_by ranks pairs, but a row here has a text for every label: remove rank_by and top")
        return self

    @property
    def names(self) -> dict[str, str]:
        """For each label of the recipe the value, or the column, that it has in the dataset; empty: its own name."""
        return self.labels or self.texts or {label: label for label in self.scores}

    @model_validator(mode="after")
    def _complete(self) -> "Examples":
        needed = ("repo_id", "revision") if self.kind == "hub" else ("path",)
        missing = [key for key in needed if getattr(self, key) is None]
        if missing:
            raise ValueError(f"examples of kind {self.kind} need {', '.join(missing)}")
        check_parts(self)
        return self


class FewShot(Strict):
    """Gold examples before the prompt (Auto-NLI section 3.2). Every shot count has Hub configs of its own."""

    shots: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]  # examples per prompt; 0 = none
    sets: Positive = 10  # example sets of each shot count, drawn by seed; every set writes for every premise
    examples: Examples
    end: Annotated[str, Field(pattern=f"^{QUOTE}")] = QUOTE  # what closes an example's text (the authors' files: ".)
    separator: str = "\n"  # between examples, and before the prompt: without examples too, as in the authors' code
    rotate: Annotated[bool, OPTION] = False  # each first text has one set, chosen by a hash, instead of all of them

    @model_validator(mode="after")
    def _distinct(self) -> "FewShot":
        if len(set(self.shots)) != len(self.shots):
            raise ValueError(f"shots: a count stands twice: {list(self.shots)}")
        values = list(self.examples.names.values())
        if len(set(values)) != len(values):
            key = "texts: two labels have one column" if self.examples.texts else "labels: two labels have one value"
            raise ValueError(f"examples.{key}: {values}")
        return self

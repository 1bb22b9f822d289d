"""The section ``verification`` of a dataset recipe: every text is scored under every label's prompt."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hub.contract.sections.base import Positive, Strict


class Verification(Strict):
    """Every text is scored under the prompt of every label: log p(text | prompt), columns of ``raw`` and ``rejected``.

    With no key the columns are all that is added. How labels are compared: ``generation.rows.verification``.
    """

    calibrated: bool = False  # compare after subtracting each label's mean over the shard
    drop: bool = False  # reject texts that another label's prompt makes likelier than their own
    best_of: Positive = 1  # usable texts asked for each one wanted; those least probable for their label are rejected
    scores: Literal["asked", "soft"] = "asked"  # of finished rows: the label's, or the expectation over all labels
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # of soft scores

    @model_validator(mode="after")
    def _keys_are_used(self) -> "Verification":
        if self.calibrated and not (self.drop or self.scores == "soft"):
            raise ValueError("calibrated is for comparing labels: add drop: true or scores: soft, or remove it")
        if self.temperature != 1.0 and self.scores != "soft":
            raise ValueError("temperature is of soft scores: add scores: soft, or remove it")
        return self

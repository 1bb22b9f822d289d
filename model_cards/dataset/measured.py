"""What was measured of a dataset, where it was: training value, label fidelity, evaluation sentences in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hub.contract.measured import Fidelity, Ledger, TrainingValue, has_report
from hub.contract.run_dir import Manifest


@dataclass(frozen=True)
class Measured:
    """Each measurement that stands in a run directory; None: not measured."""

    value: TrainingValue | None = None
    fidelity: Fidelity | None = None
    ledger: Ledger | None = None
    report: bool = False  # whether there is a report for people

    @classmethod
    def of(cls, directory: Path, manifest: Manifest) -> Measured:
        """Those of a finished run. Raises InputError when one is damaged or of other rows."""
        return cls(
            TrainingValue.read(directory, manifest),
            Fidelity.read(directory, manifest),
            Ledger.read(directory, manifest),
            has_report(directory, manifest),
        )

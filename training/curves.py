"""The curves of a run, out of the trainer's log: loss, its parts, and the validation score, by step.

They stand in the manifest, from which the card draws its picture. While a run is on, TensorBoard shows the same
numbers from ``NAME.logs``.
"""

from typing import Any

Curve = list[list[float]]  # [[step, value]], steps ascending

NOT_PARTS = frozenset(
    ("loss", "grad_norm", "learning_rate", "epoch", "step", "train_loss", "total_flos", "num_input_tokens_seen")
)


def curves(log_history: list[dict[str, Any]]) -> dict[str, Any]:
    """``loss_curve``, ``validation_curve`` and ``loss_parts`` (name → curve, only for losses of several parts)."""
    losses = [entry for entry in log_history if "loss" in entry]
    scores = [entry for entry in log_history if "eval_sequential_score" in entry]
    parts = dict.fromkeys(name for entry in losses for name in entry if name not in NOT_PARTS)
    return {
        "loss_curve": _curve(losses, "loss"),
        "validation_curve": _curve(scores, "eval_sequential_score"),
        "loss_parts": {name: _curve([entry for entry in losses if name in entry], name) for name in parts},
    }


def _curve(entries: list[dict[str, Any]], name: str) -> Curve:
    return [[entry["step"], round(entry[name], 6)] for entry in entries]

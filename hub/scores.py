"""How the project prints a score x 100: on cards, in reports, tables of the terminal and comparisons."""

from hub.contract.results import Gain, TaskScore

ABSENT = "-"
NO_INTERVAL = "no interval"


def number(value: float | None, signed: bool = False) -> str:
    """A score or a difference to two decimals; a dash for none."""
    return ABSENT if value is None else f"{value:{'+' if signed else ''}.2f}"


def interval(low: float, high: float, signed: bool = False) -> str:
    """A 95 % interval in brackets."""
    return f"[{number(low, signed)}, {number(high, signed)}]"


def score(one: TaskScore | None) -> str:
    """A score with its interval, ``70.12 [69.12, 71.12]``; a dash where the task was not run."""
    if one is None:
        return ABSENT
    ends = one.interval()
    return f"{number(one.main_score)} {interval(*ends) if ends else f'[{NO_INTERVAL}]'}"


def difference(gain: Gain | None) -> str:
    """A paired difference with its interval and verdict, ``+1.00 [+0.10, +1.90] better``; a dash without one."""
    if gain is None:
        return ABSENT
    verdict = f" {gain.verdict}" if gain.verdict else ""
    return f"{number(gain.difference, signed=True)} {interval(gain.low, gain.high, signed=True)}{verdict}"

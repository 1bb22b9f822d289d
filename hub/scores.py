"""How the project prints a score x 100: on cards, in reports, tables of the terminal and comparisons."""

from collections import defaultdict
from collections.abc import Sequence
from math import hypot
from statistics import fmean

from hub.contract.recipe import DOWNLOADED
from hub.contract.results import Gain, Results, TaskScore, by_task

ABSENT = "-"
NO_INTERVAL = "no interval"
NAMED = 2  # tasks of a family that ``elsewhere`` names one by one


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


def mean_gain(gains: Sequence[Gain]) -> tuple[float, float, float]:
    """The mean gain and its 95 % interval, from the tasks' own: data sets independent, tasks of one fully dependent."""
    mean = fmean(one.difference for one in gains)
    below, above = defaultdict[str, float](float), defaultdict[str, float](float)
    for one in gains:
        name = one.task.partition("/")[0]
        below[name] += (one.difference - one.low) / len(gains)
        above[name] += (one.high - one.difference) / len(gains)
    return mean, mean - hypot(*below.values()), mean + hypot(*above.values())


def elsewhere(results: Results, start: str) -> str:
    """What an encoder trained further from the download gains or loses on public tasks; empty without such gains.

    start: what its base is called. Of many tasks of a family the mean of the differences, and where it is worse.
    """
    gains, families, found = by_task(results.gains), dict[str, list[Gain]](), list[str]()
    for one in results.scores if start == DOWNLOADED else ():
        gain = gains.get((one.task, one.split))
        if gain is not None and not one.protocol.startswith("own "):  # a user's files (``eval.tasks.own``)
            families.setdefault(one.family or "STS", []).append(gain)
    for family, of in families.items():
        if len(of) <= NAMED:
            found += [f"{gain.task} {gain.split} {difference(gain)}" for gain in of]
            continue
        worse = ", ".join(gain.task for gain in of if gain.verdict == "worse") or "none of them"
        middle, low, high = mean_gain(of)
        around = f"{number(middle, signed=True)} {interval(low, high, signed=True)}"
        found.append(f"mean of {len(of)} {family} tasks {around}, significantly worse on {worse}")
    return f"elsewhere, over the encoder {start}: {'; '.join(found)}" if found else ""

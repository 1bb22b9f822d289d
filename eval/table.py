"""Results as a plain table for people: before, after and gain of every task, each with its 95 % interval."""

from hub.results import Results, TaskScore

HEADER = ("task", "split", "metric", "pairs", "before", "after", "gain")


def table(results: Results) -> str:
    """One line a task, columns aligned; intervals in brackets; a dash where there is no base."""
    gains = {(gain.task, gain.split): gain for gain in results.gains}
    rows = [HEADER]
    for before, after in results.pairs_of_scores():
        gain = gains.get((after.task, after.split))
        shown = f"{gain.difference:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]" if gain else "-"
        fixed = (after.task, after.split, after.main_metric, str(after.n))
        rows.append((*fixed, _score(before) if before else "-", _score(after), shown))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _score(score: TaskScore) -> str:
    return f"{score.main_score:.2f} [{score.low:.2f}, {score.high:.2f}]"

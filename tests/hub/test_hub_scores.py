"""One form of a score and of a difference for the whole project."""

from hub import scores
from hub.contract.results import Gain, TaskScore

FACTS = {"task": "stsb/cosine", "protocol": "cosine", "split": "test", "main_metric": "spearman", "main_score": 70.123}
SCORE = TaskScore(**FACTS, low=69.0, high=71.0, n=9, data_sha256="e")
GAIN = Gain(task="stsb/cosine", split="test", difference=1.0, low=0.1, high=1.9, verdict="better")


def test_scores_and_differences_have_one_form():
    assert scores.score(SCORE) == "70.12 [69.00, 71.00]"
    assert scores.score(SCORE.model_copy(update={"low": None, "high": None})) == "70.12 [no interval]"
    assert scores.difference(GAIN) == "+1.00 [+0.10, +1.90] better"
    assert scores.difference(GAIN.model_copy(update={"verdict": None})) == "+1.00 [+0.10, +1.90]"
    assert scores.score(None) == scores.difference(None) == scores.number(None) == "-"

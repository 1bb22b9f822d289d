"""What an annotator is shown, in which order, and that nothing of it depends on the generator's labels."""

import pytest
from annotation_examples import inferred, scored, whole

from eval.audit.agreement import document, make_report, markdown, plain
from eval.audit.survey import UNREAD_SECONDS, AnnotatorSession, AnswerStore, Survey, clean_name, draw, similarity_scale
from hub.errors import InputError

LABELS = ["0", "0.1", "0.5", "0.9", "0.5"]


class Clock:
    """Every look at it is a minute later, unless it is stopped."""

    now, step = 0.0, 60.0

    def __call__(self):
        self.now += self.step
        return self.now


def survey(folder, labels=LABELS, count=None, clock=None):
    examples = scored(labels)
    sample = draw(examples, count or len(examples), seed=0)
    return Survey(sample, AnswerStore(folder, examples), clock or Clock())


def answered(asked, name, labels):
    seat = asked.join(name)
    for label in labels:
        seat = asked.answer(seat, label)
    return seat


def test_samples_are_random_without_repeats_the_same_for_a_seed_and_nested():
    examples = scored(["0"] * 1000)
    sample = draw(examples, 100, seed=1)
    assert len(set(sample.rows)) == 100 and list(sample.rows) != sorted(sample.rows)
    assert draw(examples, 100, seed=1) == sample and draw(examples, 250, seed=1).rows[:100] == sample.rows
    assert len(set(draw(examples, 100, seed=2).rows) & set(sample.rows)) < 40
    early = [row < 100 for seed in range(60) for row in draw(examples, 100, seed).rows]
    assert 0.08 < sum(early) / len(early) < 0.12  # every tenth row is drawn from the first tenth
    with pytest.raises(InputError, match=r"has 1000 rows, 1001 are asked for; --sample 1000"):
        draw(examples, 1001, seed=1)


def test_the_scale_is_the_datasets_scores_in_the_papers_words():
    scale = similarity_scale([0.9, 0.5, 0.10000000149, 0.0, 0.5], "x")
    assert scale.labels == ("0", "0.1", "0.5", "0.9") and scale.ordered
    assert scale.meanings[1] == "on different topics, but with a weak similarity in some aspect"
    assert similarity_scale([0.1, 0.5, 0.9], "x").meanings[0] == "on different topics"  # no sampled negatives
    assert similarity_scale([0.0, 0.5, 1.0], "x").meanings[2] == "mean (almost) the same thing"
    with pytest.raises(InputError, match="has 50 distinct scores; allowed: 2 to 9"):
        similarity_scale([number / 49 for number in range(50)], "x")


def test_nothing_that_is_shown_before_the_results_depends_on_the_generators_labels(tmp_path):
    def shown(folder, labels):
        asked = survey(folder, labels)
        seat, views = asked.join("Ann"), []
        for label in ("0", "0.9", "0.5", "0.1", "0"):
            views.append(asked.view(seat))
            seat = asked.answer(seat, label)
        return [*views, asked.view(seat)]

    assert shown(tmp_path / "a", LABELS) == shown(tmp_path / "b", LABELS[::-1])


def test_an_annotator_goes_through_the_sample_and_a_later_start_goes_on(tmp_path):
    asked = survey(tmp_path)
    seat = answered(asked, "Ann", ["0.5", "0.9"])
    view = asked.view(seat)
    assert (view.stage, view.place, view.answered, view.answer) == ("question", 2, 2, None)
    assert view.texts == asked.sample.examples.texts[asked.sample.rows[2]]
    back = asked.move(seat, -1)
    assert asked.view(back).answer == "0.9"
    assert asked.answer(back, "0.1").place == 2 and asked.view(back).answer == "0.1"
    assert asked.move(asked.move(back, -1), -1).place == 0
    later = survey(tmp_path)
    assert later.join("  Ann ").place == 2 and later.join("ann").place == 0


def test_the_same_answer_again_writes_nothing(tmp_path):
    asked = survey(tmp_path)
    seat = answered(asked, "Ann", ["0.5"])
    asked.answer(asked.move(seat, -1), "0.5")
    assert len(AnswerStore(tmp_path, asked.sample.examples).history()) == 1


def test_a_double_click_does_not_answer_the_next_pair(tmp_path):
    clock = Clock()
    asked = survey(tmp_path, clock=clock)
    seat = asked.join("Ann")
    clock.step = UNREAD_SECONDS * 0.6
    first = asked.answer(seat, "0.5")
    assert first is seat  # too soon to have been read
    second = asked.answer(seat, "0.5")
    assert second.place == 1 and asked.answer(second, "0.5") is second


def test_two_tabs_of_one_annotator_share_the_answers(tmp_path):
    asked = survey(tmp_path)
    one, two = asked.join("Ann"), asked.join("Ann")
    one = asked.answer(asked.answer(one, "0"), "0")
    assert asked.view(two).answer == "0"
    two = answered(asked, "Ann", ["0.9"] * 3)
    assert asked.view(two).stage == "review"
    asked.finish(two)
    late = asked.answer(one, "0.5")  # the first tab still shows a pair: nothing changes any more
    assert asked.view(late).stage == "results"
    assert sorted(asked.answers()["Ann"].values()) == ["0", "0", "0.9", "0.9", "0.9"]


def test_results_are_reached_through_every_pair_only(tmp_path):
    asked = survey(tmp_path)
    seat = answered(asked, "Ann", ["0.5"] * 4)
    end = asked.move(seat, +1)
    assert asked.view(end).stage == "review" and asked.view(asked.finish(end)).stage == "question"
    done = asked.answer(seat, "0.5")
    assert asked.view(done).stage == "review" and asked.view(asked.move(done, -1)).place == 4
    assert asked.view(asked.finish(done)).stage == "results"
    assert asked.view(asked.join("Ann")).stage == "results" and asked.view(asked.join("Bob")).stage == "question"


def test_a_larger_sample_opens_new_pairs_and_leaves_final_answers(tmp_path):
    asked = survey(tmp_path, count=2)
    asked.finish(answered(asked, "Ann", ["0.5", "0.5"]))
    more = survey(tmp_path)
    seat = more.join("Ann")
    assert seat.place == 2 and more.view(seat).stage == "question"
    assert more.answer(more.move(seat, -1), "0").place == 2
    assert more.view(more.finish(answered(more, "Ann", ["0"] * 3))).stage == "results"
    assert sorted(more.answers()["Ann"].values()) == ["0", "0", "0", "0.5", "0.5"]


def test_a_tab_of_a_server_that_is_gone_is_asked_for_its_name(tmp_path):
    asked = survey(tmp_path)
    assert asked.view(AnnotatorSession()).stage == "welcome"
    assert asked.view(asked.answer(AnnotatorSession(), "0.5")).stage == "welcome" and asked.answers() == {}
    with pytest.raises(InputError, match="answer: is 'x'"):
        asked.answer(asked.join("Ann"), "x")


def test_names_are_cleaned_or_refused():
    assert clean_name("  Zoe\u0308 \n\u202e Müller\x00 ") == "Zoë Müller"
    for name in ("", " \n", "\u200b", "x" * 61):
        with pytest.raises(InputError, match=r"name: has .* allowed: 1 to 60"):
            clean_name(name)


def test_the_report_has_a_table_per_annotator_one_for_all_and_every_two(tmp_path):
    examples = inferred(["entailment"] * 3 + ["contradiction"] * 2)
    given = dict(enumerate(["entailment", "neutral", "entailment", "contradiction", "entailment"]))
    report = make_report(whole(examples), {"Ann": given, "B|<i>*": {0: "entailment", 3: "neutral"}, "Eve": {}})
    assert list(report.annotators) == ["Ann", "B|<i>*"] and list(report.between) == [("Ann", "B|<i>*")]
    assert report.annotators["Ann"].counts.tolist() == [[2, 0, 1], [1, 0, 0], [0, 0, 1]]
    assert report.pooled.tolist() == [[3, 0, 1], [1, 0, 1], [0, 0, 1]]
    text = markdown(report)
    assert "| **entailment** | 67\u00a0% | – | 50\u00a0% |" in text and "| rows | 3 | 0 | 2 |" in text
    assert "## B&#124;&#60;i&#62;&#42;" in text and "<i>" not in text and "2 of 5 answered" in text
    # observed 3/5, expected (3x3 + 1x2) / 25
    assert f"| Cohen's κ | {(0.6 - 0.44) / 0.56:.2f} [" in text
    assert "All annotators together" in text
    assert "- neutral: the hypothesis might be true\n" in text
    assert document(report)["meanings"][1] == "the hypothesis might be true"
    assert "|  | Ann, B&#124;&#60;i&#62;&#42; |\n| --- | ---: |\n| common rows | 2 |\n" in text


def test_untrusted_text_stays_text():
    assert plain("a_b |*# <script>\n[x](http://y.z)") == (
        "a&#95;b &#124;&#42;&#35; &#60;script&#62; &#91;x&#93;&#40;http&#58;&#47;&#47;y&#46;z&#41;"
    )
    assert plain("sts-dino-x2 0.5") == "sts-dino-x2 0.5" and plain("- a --b 1. c") == "&#45; a &#45;&#45;b 1&#46; c"

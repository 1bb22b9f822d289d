"""Every file of SentEval and of the STS organisers as the toolkit reads it: encodings, quirks, row order, classes."""

import numpy as np
import pytest

from eval.tasks.files import DataFile
from eval.tasks.registry import DATASETS, find_dataset
from hub.errors import InputError


def read(dataset: str, split: str, *contents: str | bytes):
    """The rows of a split whose files have these contents."""
    part = find_dataset(dataset).part(split)
    assert len(part.files) == len(contents)
    as_bytes = [content if isinstance(content, bytes) else content.encode() for content in contents]
    return part.reader([DataFile(name, content) for name, content in zip(part.files, as_bytes, strict=True)])


def test_two_class_files_are_latin_1_with_blank_rows_the_first_file_having_class_1():
    rows = read("cr", "all", b"good  phone \n\n caf\xe9 nice", b"bad \n")
    assert rows.text == ("good phone", "", "café nice", "bad") and rows.labels.tolist() == [1, 1, 1, 0]
    assert find_dataset("subj").part("all").files[0] == "downstream/SUBJ/subj.objective"  # class 1 in the toolkit


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_a_line_ends_at_a_newline_only(separator):
    rows = read("sst2", "test", f"one{separator}two \t1\nthree \t0\n")
    assert rows.text == ("one two", "three") and rows.labels.tolist() == [1, 0]


def test_sst_classes_stand_behind_the_text_or_before_it():
    assert read("sst2", "validation", "a fine film \t1\n").labels.tolist() == [1]
    fine = read("sst5", "train", "4 a stirring , funny film\n0 no  fun\n")
    assert fine.text == ("a stirring , funny film", "no fun") and fine.labels.tolist() == [4, 0]


def test_trec_takes_the_coarse_class_and_is_latin_1():
    rows = read("trec", "test", b"NUM:dist How far is it from Caf\xe9 : Bar ?\nABBR:exp What is NASA ?\n")
    assert rows.text == ("How far is it from Café : Bar ?", "What is NASA ?")
    assert [rows.classes[label] for label in rows.labels] == ["NUM", "ABBR"] and rows.labels.tolist() == [5, 0]


def test_mrpc_has_a_byte_order_mark_and_a_header():
    content = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t12\t34\tHe said " yes .\tHe agreed .\n'
    rows = read("mrpc", "train", content)
    assert rows.first == ('He said " yes .',) and rows.second == ("He agreed .",) and rows.labels.tolist() == [1]


HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n"
SICK = HEADER + "7\tA  dog runs \tA dog\t4.5\tNEUTRAL\r\n"


def test_sick_has_a_header_and_may_have_windows_line_ends():
    entailment = read("sick-e", "test", SICK)
    assert entailment.first == ("A dog runs",) and entailment.labels.tolist() == [1]
    assert entailment.classes == ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
    assert read("sick-r-tokenised", "test", SICK).gold.tolist() == [4.5]
    assert read("sick-r", "test", SICK).first == ("A  dog runs ",)  # the organisers' spaces stay, as in MTEB's copy


def test_sick_full_is_train_then_trial_then_test():
    one, two, three = (SICK.replace("4.5", score) for score in ("1", "2", "3"))
    assert read("sick-r-full", "test", one, two, three).gold.tolist() == [1, 2, 3]


def test_snli_files_are_parallel():
    rows = read("snli", "test", "neutral\ncontradiction\n", "A man . \nA boy . \n", "He sits . \nHe runs . \n")
    assert rows.first == ("A man .", "A boy .") and rows.labels.tolist() == [1, 2]
    with pytest.raises(InputError, match=r"s2.test: has 1 lines, downstream/SNLI/labels.test has 2"):
        read("snli", "test", "neutral\nneutral\n", "a\nb\n", "c\n")


def test_unscored_sts_pairs_are_left_out_and_subsets_keep_the_toolkits_order():
    contents = [
        content
        for number in range(5)
        for content in (f"a{number}\tb{number}\nc\td\ne{number}\tf\n", f"{number}\n\n1.25\n")
    ]
    rows = read("sts15", "test", *contents)
    assert rows.subsets[:2] == (("answers-forums", 0, 2), ("answers-students", 2, 4)) and len(rows) == 10
    assert rows.first[:3] == ("a0", "e0", "a1") and rows.gold[:4].tolist() == [0, 1.25, 1, 1.25]


def test_sts_benchmark_knows_no_quoting():
    line = 'main-news\tMSRpar\t2012\t1\t3.800\t"It is here\tIt is  "here" .\n'
    assert read("stsb", "test", line).first == ('"It is here',)
    assert read("stsb", "test", line).second == ('It is  "here" .',)
    assert read("stsb-tokenised", "test", line).second == ('It is "here" .',)
    assert read("stsb", "test", line.removesuffix("\n") + "\tsource\tauthor\n").gold.tolist() == [3.8]


def test_probing_classes_are_sorted_as_text_and_taken_from_train():
    content = "tr\t5\tshort one\ntr\t10\tdeep one\nva\t10\textra\tva sentence\nte\t5\tte sentence\n"
    train, validation, test = (read("treedepth", split, content) for split in ("train", "validation", "test"))
    assert train.classes == test.classes == ("10", "5") and train.labels.tolist() == [1, 0]
    assert validation.text == ("va sentence",) and validation.labels.tolist() == [0] and test.labels.tolist() == [1]


BAD = {
    "stsb-columns": ("stsb", "a\tb\tc\n", "sts-test.csv:1: has 3 tab-separated columns, expected 7"),
    "stsb-score": ("stsb", "g\tf\t1\t2\tfive\ta\tb\n", "sts-test.csv:1: 'five' is no score"),
    "stsb-nan": ("stsb", "g\tf\t1\t2\tnan\ta\tb\n", "the score nan is out of range"),
    "stsb-range": ("stsb", "g\tf\t1\t2\t5.5\ta\tb\n", "the score 5.5 is out of range; allowed: 0 to 5"),
    "sst2-class": ("sst2", "fine \t2\n", "sentiment-test:1: unknown class '2'; allowed: 0, 1"),
    "trec-class": ("trec", "WHO:x who ?\n", "TREC_10.label:1: unknown class 'WHO'"),
    "sick-class": ("sick-e", SICK.replace("NEUTRAL", "MAYBE"), "SICK_test_annotated.txt:2: unknown class 'MAYBE'"),
    "probing-part": ("wc", "xx\t1\ta\n", "word_content.txt:1: unknown part 'xx'"),
    "probing-class": ("wc", "tr\t1\ta\nte\t2\tb\n", "word_content.txt:2: unknown class '2'"),
    "utf-8": ("sst2", b"caf\xe9 \t1\n", "sentiment-test: is not utf-8 .byte 3"),
}


@pytest.mark.parametrize("dataset,content,message", BAD.values(), ids=BAD)
def test_what_is_not_in_form_names_file_and_line(dataset, content, message):
    with pytest.raises(InputError, match=message):
        read(dataset, "test", content)


def test_rows_have_one_hash_whatever_the_file_looks_like():
    plain = read("sst2", "test", "a fine film \t1\nno fun \t0\n")
    other = read("sst2", "test", "a  fine film\t1\r\nno fun\t0")
    assert plain.sha256 == other.sha256
    changed = (("a fine film \t0\nno fun \t0\n"), ("no fun \t0\na fine film \t1\n"), ("a fine film \t1\n"))
    assert len({plain.sha256, *(read("sst2", "test", content).sha256 for content in changed)}) == 4


def test_every_data_set_has_its_splits():
    splits = {name: tuple(dataset.parts) for name, dataset in DATASETS.items()}
    assert {"mr", "cr", "subj", "mpqa"} <= {name for name, parts in splits.items() if parts == ("all",)}
    assert splits["trec"] == splits["mrpc"] == ("train", "test")
    assert splits["sts16"] == splits["sick-r-full"] == ("test",)
    assert all(parts[0] == "train" for name, parts in splits.items() if len(parts) > 1), splits
    assert np.array_equal(list(splits["sentlen"]), ["train", "validation", "test"])

"""The built-in language model as shipped, and the rules and documents that it was trained on."""

import random
from pathlib import Path

from transformers import AutoTokenizer

from experiments.built_in_lm import rules
from experiments.built_in_lm.corpus import detokenise, normalise, usable
from experiments.built_in_lm.pairs import Neighbours
from experiments.built_in_lm.prompts import Pair, clean, prompt
from experiments.built_in_lm.rules import fix_articles
from experiments.built_in_lm.train import encode

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "assets/demo-lm"


def test_quotes_are_tokens_of_their_own():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    text = prompt("0.5", "A man is here.") + 'He said nothing."'
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    pieces = [tokenizer.decode([i]) for i in ids]
    assert all(piece == '"' for piece in pieces if '"' in piece)
    start = tokenizer.encode(prompt("0.5", "A man is here."))
    assert ids[: len(start)] == start  # a completion never changes the prompt's tokens
    assert tokenizer.eos_token_id is not None and tokenizer.pad_token_id is not None


def test_documents_are_encoded_as_one_text():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    for label in ("1", "entails"):
        pair = Pair(label, "Two dogs run.", "Dogs are running.", "test")
        document = encode([pair], tokenizer)[0]
        assert document.ids[:-1] == tokenizer.encode(prompt(label, pair.first) + pair.second + '"')
        assert document.ids[-1] == tokenizer.eos_token_id
        assert len(document.weights) == len(document.ids) and document.weights[0] == 0 and document.weights[-1] == 1


RULES = [
    (rules.progressive, "A man is playing a guitar.", "A man plays a guitar."),
    (rules.there_is, "There are two dogs in the yard.", "Two dogs in the yard."),
    (rules.front_phrase, "In 1990, he moved to London.", "He moved to London in 1990."),
    (rules.numbers, "There are 3 dogs.", "There are three dogs."),
    (rules.coordinate, "A man and a woman dance.", "A woman and a man dance."),
    (rules.drop_modifier, "A dog runs on green grass.", "A dog runs on grass."),
    (rules.phrases, "He does not know.", "He doesn't know."),
    (rules.negate, "The dog is asleep.", "The dog is not asleep."),
    (rules.drop_clause, "Bob Ray (born 1950) sings.", "Bob Ray sings."),
]


def test_rules():
    for rule, text, expected in RULES:
        assert rule(text, random.Random(0)) == expected and rule("Hello there.", random.Random(0)) is None


def test_texts_are_cleaned_and_neighbours_found_by_words():
    assert fix_articles("a apple and an car, an hour") == "an apple and a car, an hour"
    assert detokenise("He ca n't pay $ 5 , @-@ he said .").startswith("He can't pay $5,")
    assert clean('He said "no" .') == "He said no ." and normalise("A man, 2 dogs!") == "aman2dogs"
    assert usable("Two dogs run home.") and not usable("Two <unk> run home.") and not usable("Short one")
    pool = Neighbours(["A dog runs.", "A cat sleeps.", "Stocks fell on Monday."] * 4)
    assert pool.far("A dog runs.", random.Random(0)) != "A dog runs."
    assert pool.similarity("A dog runs.", "The dog runs!") == 1.0

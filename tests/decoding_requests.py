"""Requests for the engine's tests: DINO's three prompts over a few first texts, with their counter-prompts."""

from generation.backends.protocol import Request

INSTRUCTIONS = ("mean the same thing", "are somewhat similar", "are on completely different topics")


def prompt(number: int, text: str) -> str:
    return f'Task: Write two sentences that {INSTRUCTIONS[number]}.\nSentence 1: "{text}"\nSentence 2: "'


def requests(count: int) -> list[Request]:
    texts = ["A man is playing a flute.", "Two dogs.", "A woman cooks and sings in the old kitchen."]
    made = []
    for seed in range(count):
        text, label = texts[seed % 3], seed % 3
        counters = tuple(prompt(i, text) for i in range(label))
        made.append(Request(prompt(label, text), counters, seed * 7919))
    return made

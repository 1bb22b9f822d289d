"""The work that is measured: what is asked of a model, and how much of the arithmetic nobody can avoid."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from generation.backends.protocol import Completion, Request
from generation.inputs.prompts import load_prompts
from generation.inputs.row_seeds import row_seed
from hub.contract.recipe import X1, DatasetRecipe, DecodingParameters
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError

STS, AUTO_NLI = Path("recipes/demo/sts-dino-x2.yaml"), Path("recipes/demo/auto-nli.yaml")
FIRST_TEXTS = Path("assets/demo-data/x1.tsv")
EXAMPLES = Path("benchmarks/data/sts_examples.tsv")
_EXAMPLE_TEXTS = '{"1": same, "0.5": similar, "0": different}'


@dataclass(frozen=True)
class Work:
    """Requests in the order of the pipeline (first text, label, sample) and what their prompts begin with."""

    requests: list[Request]
    prefixes: tuple[str, ...]
    settings: DecodingParameters
    labels: tuple[str, ...]  # of each request


def first_texts(count: int, start: int = 0) -> list[str]:
    """``count`` different texts of the demo's x1, in an order that mixes its kinds, from place ``start`` on."""
    lines = FIRST_TEXTS.read_text(encoding="utf-8").splitlines()[1:]
    texts = [text for text in (line.split("\t")[0].strip() for line in lines) if '"' not in text]
    mixed = sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest())
    turns = [divmod(place, len(mixed)) for place in range(start, start + count)]
    return [mixed[place] + (f" ({turn})" if turn else "") for turn, place in turns]


def sts_work(count: int, start: int = 0, shots: int = 0, counters: bool = True) -> Work:
    """STS-x2 (DINO section 4): three labels, two texts each, for ``count`` first texts.

    Args:
        shots: examples of about 40 tokens before each prompt, a counter-prompt's are its own label's; at most 8.
        counters: whether prompts have their counter-prompts; without, sampling is plain (K = 0).
    """
    examples = f"{{kind: file, path: {EXAMPLES}, premise: text, texts: {_EXAMPLE_TEXTS}, description: -, license: -}}"
    few_shot = [f"few_shot={{shots: [{shots}], sets: 1, examples: {examples}}}"] if shots else []
    recipe = load_recipe(STS, DatasetRecipe, few_shot)
    prompts, variant = load_prompts(recipe), recipe.variants[0]
    requests, labels = list[Request](), list[str]()
    for text in first_texts(count, start):
        for label in recipe.labels:
            prompt, counter_prompts = prompts.of(label, text, variant)
            for sample in range(recipe.decoding.samples):
                seed = row_seed(recipe.seed, text, label.name, sample)
                requests.append(Request(prompt, counter_prompts if counters else (), seed))
                labels.append(label.name)
    return Work(requests, prompts.prefixes(variant), recipe.decoding, tuple(labels))


def few_shot_work(count: int, start: int = 0, shots: int = 20) -> Work:
    """Auto-NLI with ``shots`` examples before each prompt: two labels, one text each, for ``count`` premises.

    The examples are neighbouring captions and headlines in the places of premise and hypothesis: their length is real.
    """
    recipe = load_recipe(AUTO_NLI, DatasetRecipe)
    examples = first_texts(2 * shots, start=600)
    blocks = {
        label.name: "".join(
            label.instruction.replace(X1, premise) + hypothesis + '"\n'
            for premise, hypothesis in zip(examples[::2], examples[1::2], strict=True)
        )
        for label in recipe.labels
    }
    requests = [
        Request(blocks[label.name] + label.instruction.replace(X1, text), (), row_seed(recipe.seed, text, label.name))
        for text in first_texts(count, start)
        for label in recipe.labels
    ]
    prefixes = tuple(blocks[label.name] + label.instruction.split(X1)[0] for label in recipe.labels)
    names = tuple(label.name for label in recipe.labels)
    return Work(requests, prefixes, recipe.decoding, names * count)


KINDS: dict[str, Callable[[int, int], Work]] = {
    "sts-x2": sts_work,
    "sts-x2-8shot": partial(sts_work, shots=8),
    "sts-x2-no-counters": partial(sts_work, counters=False),
    "auto-nli-20shot": few_shot_work,
}


def workload(kind: str) -> Callable[[int, int], Work]:
    """What makes the work of a kind, from a number of first texts and a place. Raises InputError when unknown."""
    if kind not in KINDS:
        raise InputError(f"kind of work {kind}", "unknown", allowed=", ".join(KINDS))
    return KINDS[kind]


def corpus() -> list[str]:
    """Texts to train a tokenizer on: all first texts, in the prompts of both tasks."""
    instructions = [label.instruction for path in (STS, AUTO_NLI) for label in load_recipe(path, DatasetRecipe).labels]
    return [instructions[place % len(instructions)].replace(X1, text) for place, text in enumerate(first_texts(1150))]


def useful_flops(
    work: Work, completions: Sequence[Completion], model: Any, tokens: Callable[[str], int], words: Callable[[str], int]
) -> float:
    """Floating-point operations that every way of doing this work needs.

    Two for each weight of a linear layer and each token it must see: the shared beginnings once, the rest of every
    distinct prompt once, and every written token but the last under each of its 1 + K prompts. The output layer only
    where a token is chosen. Attention's own products are left out (a few per cent at these lengths).

    Args:
        tokens: counts the tokens of a prompt.
        words: counts the tokens of a text as it was written, without the closing one.
    """
    layers, head = _weights(model)
    prompts = {prompt for request in work.requests for prompt in (request.prompt, *request.counter_prompts)}
    shared = {prefix: tokens(prefix) for prefix in work.prefixes}
    longest = [max((shared[p] for p in work.prefixes if prompt.startswith(p)), default=0) for prompt in prompts]
    read = sum(shared.values()) + sum(map(tokens, prompts)) - sum(longest)
    written = sum(
        words(completion.text) * (1 + len(request.counter_prompts))
        for request, completion in zip(work.requests, completions, strict=True)
    )
    return 2.0 * ((read + written) * layers + (len(prompts) + written) * head)


def _weights(model: Any) -> tuple[int, int]:
    """Weights of the linear layers a token passes, and of the output layer."""
    head = model.get_output_embeddings()
    kinds = ("Linear", "Conv1D")  # transformers' GPT-2 calls its linear layers Conv1D
    layers = sum(m.weight.numel() for m in model.modules() if type(m).__name__ in kinds and m is not head)
    return layers, head.weight.numel()

"""Prompt and counter-prompts for a source sentence and a label (DINO section 3, figure 2).

Each begins with its label's few-shot examples, if there are any (Auto-NLI section 3.2).
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

from sts_dino.generation.inputs.examples import ExampleSet, load_example_sets
from sts_dino.generation.inputs.row_seeds import make_seed
from sts_dino.hub.contract.recipe import PUBLISHED, X1, DatasetRecipe, Label, Variant
from sts_dino.hub.errors import InputError

logger = logging.getLogger(__name__)


class Prompts:
    """Every prompt of a recipe. ``sets``: shot count → example sets."""

    def __init__(
        self, recipe: DatasetRecipe, sets: Mapping[int, Sequence[ExampleSet]] | None = None
    ):
        self.recipe = recipe
        self.sets = sets or {}
        self.labels = {label.name: label for label in recipe.labels}
        self._get_examples = cache(self._format_examples)

    def make_prompt(self, label: Label, text1: str, variant: Variant) -> str:
        """Return a label's prompt: its few-shot examples, then its instruction with ``text1``."""
        return self._get_examples(label.name, variant) + _fill_instruction(label, text1)

    def make_turns(
        self, label: Label, text1: str, variant: Variant
    ) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return a label's prompt without examples, and its few-shot examples as turns of a chat.

        A turn is (an example's prompt, the example's text).
        """
        turns: list[tuple[str, str]] = []
        if variant.shots:
            for example in self.sets[variant.shots][variant.example_set][label.name]:
                turns.append((_fill_instruction(label, example.premise), example.hypothesis))
        return _fill_instruction(label, text1), tuple(turns)

    def make_contrast_turns(
        self, text1: str, variant: Variant
    ) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return the prompt for the texts of all labels, and its examples as turns of a chat.

        A turn is an example's prompt and the JSON object of its texts, one for each label. Raises
        InputError when the examples of the labels at one position have different source sentences.
        """
        server = self.recipe.model.server
        assert server is not None and server.contrast is not None, "the recipe has a contrast"
        contrast = server.contrast
        turns: list[tuple[str, str]] = []
        if variant.shots:
            example_set = self.sets[variant.shots][variant.example_set]
            examples = [example_set[label] for label in contrast.keys]
            # the examples at one position of all labels
            for label_examples in zip(*examples, strict=True):
                premises = {example.premise for example in label_examples}
                if len(premises) > 1:
                    raise InputError(
                        "few_shot.examples",
                        "model.server.contrast shows a text of every label for one source "
                        f"sentence, and labels have different ones: {sorted(premises)[0][:60]!r}",
                        hint="give a file with a text for each label in every row",
                    )
                texts = [example.hypothesis for example in label_examples]
                answer = dict(zip(contrast.keys.values(), texts, strict=True))
                premise = label_examples[0].premise
                turns.append(
                    (
                        contrast.instruction.replace(X1, premise),
                        json.dumps(answer, ensure_ascii=False),
                    )
                )
        return contrast.instruction.replace(X1, text1), tuple(turns)

    def make_prompts(
        self, label: Label, text1: str, variant: Variant
    ) -> tuple[str, tuple[str, ...]]:
        """Return the prompt and the counter-prompts of a label for a source sentence.

        The counter-prompts are those of its counter-labels, CL(y), in recipe order.
        """
        counter_prompts = [
            self.make_prompt(self.labels[name], text1, variant) for name in label.counter_labels
        ]
        return self.make_prompt(label, text1, variant), tuple(counter_prompts)

    def get_plain_prompt(self, label: Label) -> str | None:
        """Return the label's plain prompt, which guidance leads away from; None without guidance.

        A plain prompt has no few-shot examples.
        """
        if not self.recipe.get_decoding(label).guidance:
            return None
        return label.plain_prompt

    def choose_variant(self, variant: Variant, text1: str) -> Variant:
        """Return the variant whose prompts a source sentence gets.

        With ``few_shot.rotate`` a hash of (seed, shot count, source sentence) chooses the example
        set, and ``variant.example_set`` is ignored. So all labels and samples of a source sentence
        have the same set. Without ``rotate``, and without shots, ``variant`` is returned unchanged.
        """
        few_shot = self.recipe.few_shot
        if few_shot is None or not few_shot.rotate or not variant.shots:
            return variant
        number = make_seed(self.recipe.seed, "example set", variant.shots, text1)
        return Variant(variant.shots, number % few_shot.sets)

    def list_prefixes(self, variant: Variant) -> tuple[str, ...]:
        """Return the shared prefixes of a variant's prompts, one for each label and example set.

        A prefix is a prompt up to its source sentence: the few-shot examples, and the beginning of
        the instruction.
        """
        # With few_shot.rotate, the prompts of a variant have all example sets of its shot count
        row_variants: Sequence[Variant] = [variant]
        if self.recipe.few_shot is not None and self.recipe.few_shot.rotate:
            row_variants = [row for row in self.recipe.row_variants if row.shots == variant.shots]

        prefixes = []
        for row_variant in row_variants:
            for label in self.labels.values():
                examples = self._get_examples(label.name, row_variant)
                prefixes.append(examples + self.get_source_prefix(label))
        return tuple(prefixes)

    def get_source_prefix(self, label: Label) -> str:
        """Return the instruction up to the source sentence, its opening quotation mark included.

        The model continues it when it generates source sentences (DINO section 3).
        """
        return label.instruction[: label.instruction.index(X1)]

    def describe_examples(self) -> dict[str, Any]:
        """Return the manifest's entry ``examples``: their dataset, and the row numbers of each set.

        An empty dictionary for a recipe without ``few_shot``.
        """
        if self.recipe.few_shot is None:
            return {}
        keys = {"repo_id", "revision", "config", "splits", "path"}
        origin = self.recipe.few_shot.examples.model_dump(
            context=PUBLISHED, include=keys, exclude_none=True
        )
        rows: dict[str, list[dict[str, list[int]]]] = {}
        for shots, sets in self.sets.items():
            rows[f"{shots}shot"] = [_list_row_numbers(example_set) for example_set in sets]
        return {"examples": {**origin, "rows": rows}}

    def _format_examples(self, label: str, variant: Variant) -> str:
        """Return the few-shot examples of a label's prompt as text.

        The separator follows each example. With 0 shots the text is the separator alone, as in the
        authors' code. For a recipe without ``few_shot`` it is empty.
        """
        few_shot = self.recipe.few_shot
        if few_shot is None:
            return ""
        if not variant.shots:
            return few_shot.separator
        examples = ""
        for example in self.sets[variant.shots][variant.example_set][label]:
            prompt = _fill_instruction(self.labels[label], example.premise)
            examples += prompt + example.hypothesis + few_shot.end + few_shot.separator
        return examples


def _fill_instruction(label: Label, text1: str) -> str:
    """Return a label's instruction with a source sentence at the place of ``X1``."""
    return label.instruction.replace(X1, text1)


def _list_row_numbers(example_set: ExampleSet) -> dict[str, list[int]]:
    """Return label → the row numbers of its examples, in prompt order."""
    numbers = {}
    for label, examples in example_set.items():
        numbers[label] = [example.row for example in examples]
    return numbers


def load_prompts(recipe: DatasetRecipe) -> Prompts:
    """Return the prompts of a recipe, with few-shot examples that are drawn here.

    Raises InputError when the examples cannot be drawn, RunError when their Hub does not answer.
    """
    return Prompts(recipe, load_example_sets(recipe))


# a text may have so many more tokens inside a prompt than alone
_JOINT_TOKENS = 8


class TokenCounter(Protocol):
    """What a plan needs to know of a language model."""

    @property
    def context(self) -> int:
        """Most tokens of prompt and completion together; 0: not known."""

    def count_tokens(self, text: str) -> int:
        """Return how many tokens the model's tokenizer makes of ``text``, special tokens apart."""

    def count_prompt_tokens(self, prompt: str) -> int:
        """Return how many tokens the model reads for a prompt, with those of a chat template."""

    def is_control(self, text: str) -> bool:
        """Return whether ``text`` holds a control token, which a model does not read as letters."""

    def format_tokens(self, prompt: str) -> str:
        """Return a prompt's tokens as text for people; empty if a server hides them."""


@dataclass(frozen=True)
class ContextRoom:
    """Checks whether the prompts of a recipe fit the context of a model.

    A new object also checks the recipe for control tokens. It raises InputError for a few-shot
    example that holds one, and for an instruction that holds one and goes through a chat template;
    it logs a warning for such an instruction without a template.
    """

    prompts: Prompts
    model: TokenCounter

    def __post_init__(self) -> None:
        """Check the recipe's instructions and examples for control tokens."""
        for label in self.prompts.recipe.labels:
            if self.model.is_control(label.instruction):
                self._handle_control_token(label)
        for sets in self.prompts.sets.values():
            for example_set in sets:
                self._refuse_control_tokens(example_set)

    def _handle_control_token(self, label: Label) -> None:
        """Raise InputError if the instruction goes through a chat template, else log a warning."""
        location = f"label {label.name}"
        problem = "its instruction holds a control token of the model"
        if self.prompts.recipe.model.chat_template:
            raise InputError(
                location, f"{problem}, which may end its turn", hint="leave those to the template"
            )
        logger.warning(f"{location}: {problem}; it is read as that, not as letters")

    def _refuse_control_tokens(self, example_set: ExampleSet) -> None:
        """Raise InputError for an example that holds a control token."""
        for examples in example_set.values():
            for example in examples:
                for text in (example.premise, example.hypothesis):
                    if self.model.is_control(text):
                        raise InputError(
                            "few_shot.examples",
                            f"an example holds a control token of the model: {text[:60]!r}",
                            hint="take it out of the examples",
                        )

    def count_excess(self, text: str) -> int:
        """Return by how many tokens a source sentence exceeds the model's context; 0: it fits.

        Its longest prompt or counter-prompt and ``max_new_tokens`` have to fit. A model of unknown
        context has room for every sentence. Raises InputError when the prompts are too long even
        for an empty source sentence.
        """
        context = self.model.context
        if not context:
            return 0
        # a short text needs no tokenizer: a token has at least one byte
        if self._most_tokens_without_source + len(text.encode(errors="surrogatepass")) <= context:
            return 0
        new_tokens = self.prompts.recipe.decoding.max_new_tokens
        return max(0, self._count_longest_prompt(text) + new_tokens - context)

    @cached_property
    def _most_tokens_without_source(self) -> int:
        """Upper bound on the tokens of a prompt and its generated text without a source sentence.

        It is the longest prompt of an empty source sentence, ``max_new_tokens`` and
        ``_JOINT_TOKENS``. Raises InputError when prompt and generated text alone fill the model's
        context.
        """
        recipe = self.prompts.recipe
        longest = 0
        for label in recipe.labels:
            for variant in recipe.row_variants:
                prompt = self.prompts.make_prompt(label, "", variant)
                longest = max(longest, self.model.count_prompt_tokens(prompt))
        new_tokens = recipe.decoding.max_new_tokens
        if longest + new_tokens >= self.model.context:
            raise InputError(
                "the longest prompt",
                f"{longest} tokens without a source sentence, and {new_tokens} to write",
                allowed=f"fewer than the {self.model.context} of the model's context, in all",
                hint="use fewer examples, shorter instructions, or lower decoding.max_new_tokens",
            )
        return longest + new_tokens + _JOINT_TOKENS

    def _count_longest_prompt(self, text: str) -> int:
        """Return the number of tokens of a source sentence's longest prompt or counter-prompt."""
        longest = 0
        for run_variant in self.prompts.recipe.variants:
            variant = self.prompts.choose_variant(run_variant, text)
            for label in self.prompts.recipe.written_labels:
                prompt, counter_prompts = self.prompts.make_prompts(label, text, variant)
                for each_prompt in (prompt, *counter_prompts):
                    longest = max(longest, self.model.count_prompt_tokens(each_prompt))
        return longest

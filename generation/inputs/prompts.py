"""Source sentence x label → prompt and counter-prompts (DINO section 3, figure 2), with examples before them (Auto-NLI
section 3.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

from generation.inputs.examples import ExampleSet, example_sets
from generation.inputs.row_seeds import row_seed
from hub.cli import say
from hub.contract.recipe import PUBLISHED, X1, DatasetRecipe, Label, Variant
from hub.errors import InputError


class Prompts:
    """Every prompt of a recipe. ``sets``: shot count → example sets."""

    def __init__(self, recipe: DatasetRecipe, sets: Mapping[int, Sequence[ExampleSet]] | None = None):
        self.recipe, self.sets = recipe, sets or {}
        self.labels = {label.name: label for label in recipe.labels}
        self._block = cache(self._examples)

    def of(self, label: Label, text1: str, variant: Variant) -> tuple[str, tuple[str, ...]]:
        """The prompt and the counter-prompts of ``label`` for a source sentence (CL(y), in recipe order).

        Each label's prompt, a counter-label's too, has that label's own examples before it.
        """
        counters = tuple(self._prompt(self.labels[name], text1, variant) for name in label.counter_labels)
        return self._prompt(label, text1, variant), counters

    def plain(self, label: Label) -> str | None:
        """The prompt that guidance leads away from, without examples; None where its texts are not guided."""
        return label.plain_prompt if self.recipe.decoding_of(label).guidance else None

    def variant(self, asked: Variant, text1: str) -> Variant:
        """The variant of a source sentence's prompts, among those of ``asked``.

        With ``few_shot.rotate`` a hash of (seed, shot count, source sentence) chooses its example set, so all rows of a
        source sentence have one set, and its samples share a prompt. Else it is ``asked``.
        """
        few_shot = self.recipe.few_shot
        if few_shot is None or not few_shot.rotate or not asked.shots:
            return asked
        return Variant(asked.shots, row_seed(self.recipe.seed, "example set", asked.shots, text1) % few_shot.sets)

    def prefixes(self, asked: Variant) -> tuple[str, ...]:
        """The shared prefixes of a variant's prompts, one for each label and example set."""
        few_shot, variants = self.recipe.few_shot, [asked]
        if few_shot is not None and few_shot.rotate:
            variants = [one for one in self.recipe.row_variants if one.shots == asked.shots]
        return tuple(
            self._block(label.name, variant) + self.source_sentence_prefix(label)
            for variant in variants
            for label in self.labels.values()
        )

    def source_sentence_prefix(self, label: Label) -> str:
        """The instruction up to the source sentence, its opening quotation mark included (DINO section 3)."""
        return label.instruction[: label.instruction.index(X1)]

    def provenance(self) -> dict[str, Any]:
        """For the manifest: ``examples`` with their dataset and the rows of every set; nothing without examples."""
        if self.recipe.few_shot is None:
            return {}
        keys = {"repo_id", "revision", "config", "splits", "path"}
        named = self.recipe.few_shot.examples.model_dump(context=PUBLISHED, include=keys, exclude_none=True)
        rows = {
            f"{shots}shot": [{label: [one.row for one in shown] for label, shown in found.items()} for found in sets]
            for shots, sets in self.sets.items()
        }
        return {"examples": {**named, "rows": rows}}

    def _prompt(self, label: Label, text1: str, variant: Variant) -> str:
        return self._block(label.name, variant) + _fill(label, text1)

    def _examples(self, label: str, variant: Variant) -> str:
        """The examples of one label and the separator after the last, as in the authors' code; none: it alone."""
        few_shot = self.recipe.few_shot
        if few_shot is None:
            return ""
        examples = self.sets[variant.shots][variant.example_set][label] if variant.shots else ()
        shown = [_fill(self.labels[label], example.premise) + example.hypothesis for example in examples]
        return few_shot.separator.join([*(text + few_shot.end for text in shown), ""]) or few_shot.separator


def _fill(label: Label, text1: str) -> str:
    return label.instruction.replace(X1, text1)


def load_prompts(recipe: DatasetRecipe) -> Prompts:
    """The prompts of a recipe, its few-shot examples drawn. Raises InputError when they cannot be."""
    return Prompts(recipe, example_sets(recipe))


_JOINTS = 8  # tokens that a text may cost more between other texts than alone


class TokenCounter(Protocol):
    """What a plan needs to know of a language model."""

    @property
    def context(self) -> int:
        """Tokens of prompt and completion together; 0: not known."""

    def count_tokens(self, text: str) -> int:
        """How many tokens the model's tokenizer makes of ``text``, without special tokens."""

    def prompt_tokens(self, prompt: str) -> int:
        """How many tokens the model reads of a prompt: special tokens and the chat template's included."""

    def is_control(self, text: str) -> bool:
        """Whether ``text`` holds a control token, which the model would not read as letters."""

    def shown_tokens(self, prompt: str) -> str:
        """The tokens that the model reads of a prompt; nothing where a server does not tell."""


@dataclass(frozen=True)
class ContextRoom:
    """The context of a model, and the prompts of a recipe in it."""

    prompts: Prompts
    model: TokenCounter

    def __post_init__(self) -> None:
        """Raise InputError for an example, or a chat template's message, with a control token; else warn of it."""
        for label in self.prompts.recipe.labels:
            if self.model.is_control(label.instruction):
                place, problem = f"label {label.name}", "its instruction holds a control token of the model"
                if self.prompts.recipe.model.chat_template:
                    raise InputError(place, f"{problem}, which may end its turn", hint="leave those to the template")
                say(f"warning: {place}: {problem}; it is read as that, not as letters")
        sets = (one for of_shots in self.prompts.sets.values() for one in of_shots)
        for example in (one for found in sets for shown in found.values() for one in shown):
            if self.model.is_control(f"{example.premise}\n{example.hypothesis}"):
                problem = f"an example holds a control token of the model: {example.hypothesis[:60]!r}"
                raise InputError("few_shot.examples", problem, hint="take it out of the examples")

    def lack(self, text: str) -> int:
        """Tokens beyond the context for a source sentence's longest prompt and its new tokens; 0: they fit.

        Raises InputError where the prompts do not fit with any source sentence.
        """
        if not self.model.context or self._beside + len(text.encode(errors="surrogatepass")) <= self.model.context:
            return 0  # a token has a byte at least: short texts need not be counted
        return max(0, self._longest(text) + self.prompts.recipe.decoding.max_new_tokens - self.model.context)

    @cached_property
    def _beside(self) -> int:
        """Tokens beside the source sentence, at most."""
        recipe, context = self.prompts.recipe, self.model.context
        written = recipe.decoding.max_new_tokens
        found = max(
            self.model.prompt_tokens(self.prompts.of(label, "", variant)[0])
            for label in recipe.labels
            for variant in recipe.row_variants
        )
        if found + written >= context:
            problem = f"{found} tokens without a source sentence, and {written} to write"
            hint = "use fewer examples, shorter instructions, or lower decoding.max_new_tokens"
            allowed = f"fewer than the {context} of the model's context, in all"
            raise InputError("the longest prompt", problem, allowed=allowed, hint=hint)
        return found + written + _JOINTS

    def _longest(self, text: str) -> int:
        variants = [self.prompts.variant(asked, text) for asked in self.prompts.recipe.variants]
        found = (self.prompts.of(label, text, one) for one in variants for label in self.prompts.recipe.written_labels)
        return max(self.model.prompt_tokens(prompt) for own, counters in found for prompt in (own, *counters))

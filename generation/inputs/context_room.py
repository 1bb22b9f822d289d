"""Whether a first text, in its prompts and with the text to write, fits the model's context. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from generation.inputs.prompts import Prompts
from hub.errors import InputError

_JOINTS = 8  # tokens that a text may cost more between other texts than alone


class PromptCounter(Protocol):
    """What of a language model is asked."""

    @property
    def context(self) -> int:
        """Tokens of prompt and completion together; 0: not known."""
        ...

    def prompt_tokens(self, prompt: str) -> int:
        """How many tokens the model reads of a prompt: special tokens and the chat template's included."""
        ...


@dataclass(frozen=True)
class ContextRoom:
    """The context of a model, and the prompts of a recipe in it."""

    prompts: Prompts
    model: PromptCounter

    def lack(self, text: str) -> int:
        """Tokens that a first text's longest prompt and the text to write have beyond the context; 0: they fit.

        Raises InputError where the prompts do not fit with any first text.
        """
        if not self.model.context or self._beside + len(text.encode(errors="surrogatepass")) <= self.model.context:
            return 0  # a token has a byte at least: short texts need not be counted
        return max(0, self._longest(text) + self._written - self.model.context)

    @property
    def _written(self) -> int:
        return self.prompts.recipe.decoding.max_new_tokens

    @cached_property
    def _beside(self) -> int:
        """Tokens beside the first text, at most."""
        recipe, context = self.prompts.recipe, self.model.context
        found = max(
            self.model.prompt_tokens(self.prompts.of(label, "", variant)[0])
            for label in recipe.labels
            for variant in recipe.row_variants
        )
        if found + self._written >= context:
            problem = f"{found} tokens before a first text stands in it, and {self._written} to write"
            hint = "use fewer examples, shorter instructions, or lower decoding.max_new_tokens"
            allowed = f"fewer than the {context} of the model's context, in all"
            raise InputError("the longest prompt", problem, allowed=allowed, hint=hint)
        return found + self._written + _JOINTS

    def _longest(self, text: str) -> int:
        return max(self.model.prompt_tokens(prompt) for prompt in self._prompts_of(text))

    def _prompts_of(self, text: str) -> Iterator[str]:
        for asked in self.prompts.recipe.variants:
            variant = self.prompts.variant(asked, text)
            for label in self.prompts.recipe.written_labels:
                prompt, counter_prompts = self.prompts.of(label, text, variant)
                yield from (prompt, *counter_prompts)

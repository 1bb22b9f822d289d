"""``backend: vllm``: texts from vLLM in this process (its class LLM). Written against 0.27 to 0.33; it was not run."""

import importlib.metadata
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from generation.backends.answers import completed, user_turn
from generation.chat_template import ChatTemplate
from generation.writer import Completion, Request, Settings
from hub.errors import InputError
from hub.model_folder import first_line
from hub.recipe import QUOTE, LanguageModel

_CHUNK = 1024  # requests handed over together; vLLM batches them itself


class VLLM:
    """vLLM's ``LLM`` as a ``generation.writer.Writer``."""

    def __init__(self, llm: Any, sampling_params: Any, chat_template: bool):
        self._llm, self._sampling_params, self._chat_template = llm, sampling_params, chat_template
        self._tokenizer = llm.get_tokenizer()
        self._template = ChatTemplate(self._tokenizer)
        self.context = int(llm.llm_engine.model_config.max_model_len)

    @classmethod
    def load(cls, model: LanguageModel) -> "VLLM":
        """The writer of a recipe's section ``model``. Raises InputError when vLLM or the model cannot be loaded."""
        try:
            from vllm import LLM, SamplingParams
        except ImportError as error:
            hint = 'pip install -e ".[vllm]", with a GPU: docs/backends.md'
            raise InputError("model.backend vllm", f"the package vllm is missing ({error})", hint=hint) from error
        arguments = engine_arguments(model)
        try:
            llm = LLM(**arguments)
        except (OSError, ValueError) as error:
            raise InputError(arguments["model"], f"cannot be loaded by vLLM: {first_line(error)}") from error
        return cls(llm, SamplingParams, model.chat_template)

    def stream(
        self, queue: deque[Request], settings: Settings, batch_size: int | None, prefixes: Sequence[str] = ()
    ) -> Iterator[tuple[Request, Completion]]:
        """See ``generation.writer.Writer.stream``. vLLM finds shared beginnings itself (prefix caching)."""
        while queue:
            chunk = [queue.popleft() for _ in range(min(len(queue), batch_size or _CHUNK))]
            prompts = [{"prompt_token_ids": self._checked_ids(request.prompt, settings)} for request in chunk]
            params = [self._sampling_params(**sampling_arguments(settings, request.seed)) for request in chunk]
            outputs = self._llm.generate(prompts, params, use_tqdm=False)
            for request, output in zip(chunk, outputs, strict=True):
                best = output.outputs[0]
                log_prob, ended = best.cumulative_logprob / max(1, len(best.token_ids)), best.finish_reason == "stop"
                yield request, completed(best.text, log_prob, settings.text_end, ended)

    def _checked_ids(self, prompt: str, settings: Settings) -> list[int]:
        """Token ids of a prompt, or of the chat whose answer is opened with the quotation mark."""
        if self._chat_template:
            ids = self._tokenizer.encode(self._template.turn(user_turn(prompt)) + QUOTE, add_special_tokens=False)
        else:
            ids = self._tokenizer.encode(prompt)
        if len(ids) + settings.max_new_tokens > self.context:
            raise InputError(
                f"prompt {prompt[:60]!r}...",
                f"{len(ids)} tokens + {settings.max_new_tokens} to write exceed the model's context of {self.context}",
                hint="shorten the prompt or lower decoding.max_new_tokens",
            )
        return list(ids)

    def count_tokens(self, text: str) -> int:
        """How many tokens the model's tokenizer makes of ``text``, without special tokens."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def describe(self) -> dict[str, Any]:
        """Facts for the manifest."""
        return {"parameters": None, "backend": "vllm", "vllm": importlib.metadata.version("vllm")}


def engine_arguments(model: LanguageModel) -> dict[str, Any]:
    """Keyword arguments of ``vllm.LLM``. Raises InputError for what vLLM has no argument for."""
    quantization = dict(model.quantization or {})
    method = quantization.pop("quant_method", None)
    if quantization:
        place, hint = f"model.quantization {sorted(quantization)}", "leave quant_method alone, or use backend: engine"
        raise InputError(place, "backend vllm takes the method only", hint=hint)
    if model.device_map is not None:
        raise InputError("model.device_map", "backend vllm places the model itself", hint="remove it")
    return {
        "model": model.path or model.repo_id,
        "revision": model.revision,
        "tokenizer_revision": model.revision,
        "dtype": model.dtype,
        "quantization": method,
        "enable_prefix_caching": True,
        "trust_remote_code": False,
    }


def sampling_arguments(settings: Settings, seed: int) -> dict[str, Any]:
    """Keyword arguments of ``vllm.SamplingParams``. The row's seed keeps 63 bits (vLLM: a signed 64-bit number)."""
    return {
        "n": 1,
        "temperature": 1.0,
        "top_p": settings.top_p,
        "top_k": settings.top_k or -1,
        "seed": seed >> 1,
        "max_tokens": settings.max_new_tokens,
        "stop": [*((QUOTE,) if settings.text_end == "quotation_mark" else ()), "\n"],
        "include_stop_str_in_output": True,  # else a closed text and one that the model ended look alike
        "logprobs": 0,  # of the chosen tokens only
    }

"""Prompts as token ids: with special tokens, or as a user's turn in the model's chat template.

A chat template is an untrusted program. The library's sandbox keeps it from files and attributes, not from ``9**9**9``
or nested loops. So ``generation.inputs.chat_process`` renders it in a process of limited time, memory and length.
"""

import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock
from typing import Any

from generation.inputs import chat_process
from hub.contract.recipe import QUOTE
from hub.errors import InputError, RunError

_KEPT = ("PATH", "PYTHONPATH", "HOME", "SYSTEMROOT", "LD_LIBRARY_PATH", "LANG")  # of the environment: no token
_OWN = {"USE_TORCH": "0", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONIOENCODING": "utf-8"}
MOST_SECONDS = 5.0  # of CPU, for one turn
_OF_LIMITS = (-getattr(signal, "SIGPROF", 0), -signal.SIGABRT, -signal.SIGSEGV)  # of time; of memory, in C code
_SHOWN = 200  # characters of what a template says
_PROBE = 'Write two sentences that mean the same thing.\nSentence 1: "Two dogs run."\nSentence 2: "A'
_RUN = "import runpy, sys; runpy.run_path(sys.argv[1])['main'](float(sys.argv[2]))"


class ChatTemplate:
    """The chat template of a tokenizer. The process that renders it starts with the first turn."""

    def __init__(self, tokenizer: Any, seconds: float = MOST_SECONDS):
        self._tokenizer, self.seconds = tokenizer, seconds
        self._process: subprocess.Popen[str] | None = None
        self._proved: str | None = None
        self._lock = Lock()  # one question at a time

    def turn(self, text: str) -> str:
        """A user's turn with ``text``, up to where the answer begins.

        Raises InputError for a template that is missing, refuses the turn, raises, breaks a limit, changes or doubles
        the message, or renders it in two ways; RunError when the process that renders it ends for another reason.
        """
        template = self._source()
        if self._proved != template:
            once, again = (self._rendered(template, _PROBE) for _ in range(2))
            if once != again:
                raise _unusable("the model's template renders one message in two ways")
            if once.count(_PROBE) > 1:
                raise _unusable("the model's template repeats the message")
            self._proved = template
        turn = self._rendered(template, text)
        if text.strip() not in turn:  # spaces at its ends may go
            raise _unusable(f"the model's template drops, cuts or changes the message {text[:60]!r}")
        return turn

    def describe(self) -> dict[str, str]:
        """Facts for the manifest: the pinned time of a template that asks for it."""
        return {"chat_template_time": chat_process.TIME} if "strftime_now" in self._source() else {}

    def _source(self) -> str:
        try:
            return str(self._tokenizer.get_chat_template())
        except ValueError as error:
            raise _unusable("the model has none") from error

    def _rendered(self, template: str, text: str) -> str:
        special = {name: str(token) for name, token in self._tokenizer.special_tokens_map.items()}
        answer = self._asked({"template": template, "special": special, "text": text})
        if "raised" in answer:
            raise _unusable(f"the model's template raises {repr(answer['raised'])[:_SHOWN]}")
        if "added" in answer:
            raise _unusable(f"the model's template adds {answer['added']} characters to a turn")
        return str(answer["turn"])

    def _asked(self, question: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            return self._answer(question)

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        process = self._process = self._process or _started(self)
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # a broken pipe
            line = ""
        if not line.endswith("\n"):
            self._process = None
            process.communicate()  # until it has ended
            if process.returncode in _OF_LIMITS:
                raise _unusable("the model's template takes too much time or memory for one turn")
            problem = f"the process that renders it ended with exit code {process.returncode}"
            hint = "is there memory left, and can transformers be imported?"
            raise RunError("model.chat_template", problem, hint=hint)
        answer: dict[str, Any] = json.loads(line)
        return answer


def _unusable(problem: str) -> InputError:
    return InputError("model.chat_template", problem, hint="--set model.chat_template=false, or use another model")


def _started(owner: ChatTemplate) -> subprocess.Popen[str]:
    """The rendering process; it ends with its ``owner``, with this process, or of its limits."""
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-P", "-c", _RUN, chat_process.__file__, str(owner.seconds)],
        env={name: os.environ[name] for name in _KEPT if name in os.environ} | _OWN,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C is for the command
    )
    weakref.finalize(owner, _ended, process)
    return process


def _ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


class PromptEncoder:
    """A model's tokenizer as its prompts need it. ``context``: tokens of prompt and text together (0: not known)."""

    def __init__(self, tokenizer: Any, config: Any, chat: bool):
        """``config`` is transformers' of the model; ``chat``: prompts go through the tokenizer's chat template."""
        self.tokenizer, self._template = tokenizer, ChatTemplate(tokenizer) if chat else None
        self.context = int(getattr(config.get_text_config(), "max_position_embeddings", 0) or 0)
        self._rows = int(getattr(config.get_text_config(), "vocab_size", 0) or 0)
        added = tokenizer.added_tokens_decoder.values()
        self._control = {*tokenizer.all_special_tokens, *(str(token) for token in added if token.special)}
        self._lengths: dict[str, set[int]] = {}  # of control tokens, by their first characters: Gemma has 6,249 of them
        for token in self._control:
            self._lengths.setdefault(token[:1], set()).add(len(token))
        self._before = self._added_before()
        self.encode = lru_cache(maxsize=4096)(self._encoded)

    def count_tokens(self, text: str) -> int:
        """How many tokens the model's tokenizer makes of ``text``, without special tokens."""
        return len(self.tokenizer(text, add_special_tokens=False).input_ids)

    def prompt_tokens(self, prompt: str) -> int:
        """How many tokens the model reads of a prompt: special tokens and the chat template's included."""
        return len(self.encode(prompt))

    def is_control(self, text: str) -> bool:
        """Whether ``text`` holds a control token of the tokenizer's, which would be read as that and not as letters."""
        lengths = ((at, self._lengths.get(sign, ())) for at, sign in enumerate(text))
        return any(text[at : at + length] in self._control for at, found in lengths for length in found)

    def shown_tokens(self, prompt: str) -> str:
        """The tokens that the model reads of a prompt, control tokens without quotation marks."""
        words = (
            (self.tokenizer.convert_ids_to_tokens(one), self.tokenizer.decode([one])) for one in self.encode(prompt)
        )
        return " ".join(token if token in self._control else repr(text) for token, text in words)

    def encoded_prefix(self, prefix: str) -> tuple[int, ...]:
        """Token ids of the beginning of a prompt; none where the chat template changes its text."""
        if self._template is None:
            return self._ids(prefix, self._before)
        turn = self._template.turn(prefix)
        return self._ids(turn[: turn.index(prefix) + len(prefix)] if prefix in turn else "")

    def _encoded(self, prompt: str) -> tuple[int, ...]:
        if self._template is None:
            return self._ids(prompt, self._before)
        return self._ids(self._template.turn(prompt.removesuffix(QUOTE)) + (QUOTE if prompt.endswith(QUOTE) else ""))

    def _ids(self, text: str, before: Sequence[int] = ()) -> tuple[int, ...]:
        ids = (*before, *self.tokenizer(text, add_special_tokens=False).input_ids)
        if self._rows and max(ids, default=0) >= self._rows:
            token = self.tokenizer.convert_ids_to_tokens(max(ids))
            problem = f"gets the token {token} of id {max(ids)}, beyond the {self._rows} rows of the model's embedding"
            raise InputError(f"prompt {text[:60]!r}", problem, hint="resize the embedding and save the model again")
        return ids

    def _added_before(self) -> tuple[int, ...]:
        """The special tokens that the tokenizer puts before a text. Those behind it, an end of text, are left off."""
        text = list(self.tokenizer(QUOTE, add_special_tokens=False).input_ids)
        whole = list(self.tokenizer(QUOTE).input_ids)
        places = [at for at in range(len(whole)) if whole[at : at + len(text)] == text]
        return tuple(whole[: places[0]]) if places else ()

"""Prompts as token ids: after special tokens, or as a user's turn in the model's chat template.

A chat template is an untrusted program. The library's sandbox keeps it from files and attributes,
not from ``9**9**9`` or nested loops. So ``sts_dino.generation.inputs.chat_process`` renders it in a
process of limited time, memory and length.
"""

import json
import os
import signal
import subprocess
import sys
import weakref
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any

from sts_dino.generation.inputs import chat_process
from sts_dino.hub.contract.recipe import QUOTE
from sts_dino.hub.errors import InputError, RunError

# the variables of the environment that the process gets: no token
_ENVIRONMENT = ("PATH", "PYTHONPATH", "HOME", "SYSTEMROOT", "LD_LIBRARY_PATH", "LANG")
_SETTINGS = {
    "USE_TORCH": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONIOENCODING": "utf-8",
}
MOST_SECONDS = 5.0  # of CPU, for one turn
# exit codes of a process that exceeded a limit: its CPU time (the first), its memory (in C code)
_LIMIT_CODES = (-getattr(signal, "SIGPROF", 0), -signal.SIGABRT, -signal.SIGSEGV)
_SHOWN = 200  # characters of what a template raises
# a message that a template has to render once, and always the same
_PROBE = (
    'Write two sentences that mean the same thing.\nSentence 1: "Two dogs run."\nSentence 2: "A'
)
_RUN = "import runpy, sys; runpy.run_path(sys.argv[1])['main'](float(sys.argv[2]))"


class ChatTemplate:
    """The chat template of a tokenizer. The process that renders it starts with the first use."""

    def __init__(self, tokenizer: Any, seconds: float = MOST_SECONDS):
        self.seconds = seconds
        self._tokenizer = tokenizer
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()  # one question at a time

    def render_turn(self, text: str) -> str:
        """Return a user's turn with ``text``, up to where the answer begins.

        Raises InputError for a template that is missing, refuses the turn, raises, exceeds a limit,
        changes or repeats the message, or renders one message in two ways; RunError when the
        process that renders it ends for another reason.
        """
        turn = self._render(self._template, text)
        if text.strip() not in turn:  # a template may strip the message
            raise _make_error(
                f"the model's template drops, cuts or changes the message {text[:60]!r}"
            )
        return turn

    def describe(self) -> dict[str, str]:
        """Return facts for the manifest: the pinned time if the template asks for the time.

        Raises the errors of ``render_turn`` for an unusable template.
        """
        if "strftime_now" not in self._template:
            return {}
        return {"chat_template_time": chat_process.TIME}

    @cached_property
    def _template(self) -> str:
        """The template.

        Raises InputError for a missing template, and for one that renders ``_PROBE`` twice, or in
        two ways.
        """
        try:
            template = str(self._tokenizer.get_chat_template())
        except ValueError as error:
            raise _make_error("the model has none") from error
        turn = self._render(template, _PROBE)
        if turn != self._render(template, _PROBE):
            raise _make_error("the model's template renders one message in two ways")
        if turn.count(_PROBE) > 1:
            raise _make_error("the model's template repeats the message")
        return template

    def _render(self, template: str, text: str) -> str:
        """Return the user's turn with ``text`` in ``template``, up to where the answer begins.

        Raises InputError when the process answers with an error, and as ``_ask``.
        """
        special = {name: str(token) for name, token in self._tokenizer.special_tokens_map.items()}
        with self._lock:
            answer = self._ask({"template": template, "special": special, "text": text})
        if "needs" in answer:
            raise _make_error(f"the model's template needs {answer['needs']}, which no prompt has")
        if "raised" in answer:
            raise _make_error(f"the model's template raises {repr(answer['raised'])[:_SHOWN]}")
        if "added" in answer:
            raise _make_error(f"the model's template adds {answer['added']} characters to a turn")
        return str(answer["turn"])

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of the rendering process, which is started if none runs.

        ``question`` and answer have the keys of ``chat_process.answer``. The caller holds the lock.
        Raises InputError when a limit ends the process, RunError when something else does.
        """
        # send the question as a line of JSON, and read the answer as one
        process = self._process or _start_process(self)
        self._process = None  # an interrupted question leaves its answer in the pipe
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # a broken pipe
            line = ""
        if line.endswith("\n"):
            answer: dict[str, Any] = json.loads(line)
            self._process = process
            return answer

        # the process has ended
        process.communicate()
        if process.returncode in _LIMIT_CODES:
            raise _make_error("the model's template takes too much time or memory for one turn")
        raise RunError(
            "model.chat_template",
            f"the process that renders it ended with exit code {process.returncode}",
            hint="is there memory left, and can transformers be imported?",
        )


def _make_error(problem: str) -> InputError:
    return InputError(
        "model.chat_template", problem, hint="--set model.chat_template=false, or use another model"
    )


def _start_process(owner: ChatTemplate) -> subprocess.Popen[str]:
    """Start the rendering process; it ends with its ``owner``, with this process, or at a limit."""
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-P", "-c", _RUN, chat_process.__file__, str(owner.seconds)],
        env=environment | _SETTINGS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C is for the command
    )
    weakref.finalize(owner, _stop_process, process, os.getpid())
    return process


def _stop_process(process: subprocess.Popen[str], owner_pid: int) -> None:
    """End the rendering process. In a forked copy of the process ``owner_pid`` nothing is done.

    The original process goes on to use it, and a copy would wait for its end for ever.
    """
    if os.getpid() == owner_pid:
        process.kill()
        process.communicate()


class PromptEncoder:
    """Turns prompts into token ids, as a model needs them, and counts them.

    ``context``: most tokens of prompt and text together (0: not known). ``encode``: returns the
    token ids of a prompt; those of the latest 4,096 prompts are kept.

    Args:
        tokenizer: transformers' tokenizer of the model.
        config: transformers' configuration of the model.
        chat: whether prompts go through the tokenizer's chat template.
    """

    def __init__(self, tokenizer: Any, config: Any, chat: bool):
        self.tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer) if chat else None
        text_config = config.get_text_config()
        self.context = _find_context(text_config)
        self._embedding_rows = int(getattr(text_config, "vocab_size", 0) or 0)
        self._control_tokens = set(tokenizer.all_special_tokens)
        for token in tokenizer.added_tokens_decoder.values():
            if token.special:
                self._control_tokens.add(str(token))
        # first character → lengths of these tokens, so that ``is_control`` does not compare a text
        # with each of them: Gemma has 6,249
        self._control_lengths = defaultdict[str, set[int]](set)
        for control_token in self._control_tokens:
            self._control_lengths[control_token[:1]].add(len(control_token))
        self._start_ids = self._find_start_ids()
        self.encode = lru_cache(maxsize=4096)(self._encode_prompt)

    def count_tokens(self, text: str) -> int:
        """Return how many tokens the model's tokenizer makes of ``text``, special tokens apart."""
        return len(self.tokenizer(text, add_special_tokens=False).input_ids)

    def count_prompt_tokens(self, prompt: str) -> int:
        """Return how many tokens the model reads for a prompt, with those of a chat template."""
        return len(self.encode(prompt))

    def is_control(self, text: str) -> bool:
        """Return whether ``text`` holds a control token, which is not read as letters."""
        for start, character in enumerate(text):
            for length in self._control_lengths.get(character, ()):
                if text[start : start + length] in self._control_tokens:
                    return True
        return False

    def format_tokens(self, prompt: str) -> str:
        """Return a prompt's tokens, separated by spaces, as text for people.

        A control token is shown as it is, any other token in quotation marks.
        """
        formatted = []
        for token_id in self.encode(prompt):
            token = self.tokenizer.convert_ids_to_tokens(token_id)
            if token not in self._control_tokens:
                token = repr(self.tokenizer.decode([token_id]))
            formatted.append(token)
        return " ".join(formatted)

    def encode_prefix(self, prefix: str) -> tuple[int, ...]:
        """Return the token ids of a shared prefix of prompts.

        Empty if a chat template strips the prefix. Raises the errors of
        ``ChatTemplate.render_turn`` and ``_encode_text``.
        """
        if self._template is None:
            return self._encode_text(prefix, self._start_ids)
        turn = self._template.render_turn(prefix)
        if prefix not in turn:
            return ()
        end = turn.index(prefix) + len(prefix)
        return self._encode_text(turn[:end])

    def _encode_prompt(self, prompt: str) -> tuple[int, ...]:
        """Return the token ids of a prompt.

        In a chat template, the quotation mark at the prompt's end begins the model's answer. Raises
        the errors of ``ChatTemplate.render_turn`` and ``_encode_text``.
        """
        if self._template is None:
            return self._encode_text(prompt, self._start_ids)
        opening = QUOTE if prompt.endswith(QUOTE) else ""
        turn = self._template.render_turn(prompt.removesuffix(QUOTE))
        return self._encode_text(turn + opening)

    def _encode_text(self, text: str, start_ids: Sequence[int] = ()) -> tuple[int, ...]:
        """Return ``start_ids``, the tokenizer's special tokens, and then the text's token ids.

        A turn of a chat template has its own special tokens, so it takes no ``start_ids``. Raises
        InputError for a token without a row in the model's embedding.
        """
        ids = (*start_ids, *self.tokenizer(text, add_special_tokens=False).input_ids)
        largest = max(ids, default=0)
        if self._embedding_rows and largest >= self._embedding_rows:
            token = self.tokenizer.convert_ids_to_tokens(largest)
            raise InputError(
                f"prompt {text[:60]!r}",
                f"gets the token {token} of id {largest}, beyond the {self._embedding_rows} rows "
                "of the model's embedding",
                hint="resize the embedding and save the model again",
            )
        return ids

    def _find_start_ids(self) -> tuple[int, ...]:
        """Return the ids of the special tokens that the tokenizer adds before a text.

        Empty if it adds none there.
        """
        # the ids before those of the text itself; a quotation mark is a text of few tokens
        text_ids = self.tokenizer(QUOTE, add_special_tokens=False).input_ids
        all_ids = self.tokenizer(QUOTE).input_ids
        for start in range(len(all_ids)):
            if list(all_ids[start : start + len(text_ids)]) == list(text_ids):
                return tuple(all_ids[:start])
        return ()


def _find_context(text_config: Any) -> int:
    """Return the most tokens that a model reads; 0 if its configuration does not say.

    With long RoPE this is the shorter, original context: a longer text in a batch would change the
    frequencies of all rows.
    """
    context = int(getattr(text_config, "max_position_embeddings", 0) or 0)
    rope = getattr(text_config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return context
    original = rope.get("original_max_position_embeddings")
    original = original or getattr(text_config, "original_max_position_embeddings", None)
    return min(context, int(original or context))

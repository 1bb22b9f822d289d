"""The process that renders chat templates: a line of JSON on stdin, a line of JSON on stdout.

``sts_dino.generation.inputs.chat_template`` runs ``main`` of this file alone: no module of ours and
no torch is imported. The process sets its limits before it reads a template. They end it even
inside a C function, and when nobody waits for it.
"""

import json
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 30  # of memory that the process may take in addition to what it starts with
# the time that a template's strftime_now reads: the real one would change prompts from day to day
TIME = "2026-01-01T12:00:00"
MOST_CHARACTERS = 200_000  # that a template adds to a text
SYSTEM_TURN = "a system turn"
TOOLS = "tools"
# a function that a template may list, with the keys that templates read
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "answer",
        "description": "Give an answer.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}


def cap_memory() -> None:
    """Let the address space grow by ``MOST_BYTES`` and no more; this is done on Linux alone.

    A lower limit, which a cluster may set for all processes, stays.
    """
    if sys.platform == "linux":
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + MOST_BYTES
        for earlier_limit in resource.getrlimit(resource.RLIMIT_AS):  # the soft and the hard one
            if earlier_limit != resource.RLIM_INFINITY:
                limit = min(limit, earlier_limit)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def render_turn(question: dict[str, Any], render: Any, addition: str = "") -> str:
    """Render a text as the user's turn, up to the beginning of the model's answer.

    Args:
        question: ``template``; ``text`` of the turn; ``special``, name → special token.
        render: transformers' ``render_jinja_template``.
        addition: what the conversation has beside the turn: ``SYSTEM_TURN`` or ``TOOLS``; empty:
            nothing.

    Raises any exception of the template, which is untrusted.
    """
    messages = [{"role": "user", "content": question["text"]}]
    if addition == SYSTEM_TURN:
        messages.insert(0, {"role": "system", "content": "Answer."})
    texts, _ = render(
        [messages],
        chat_template=question["template"],
        add_generation_prompt=True,
        tools=[TOOL] if addition == TOOLS else None,
        **question["special"],
    )
    return str(texts[0])


def find_need(question: dict[str, Any], render: Any) -> str | None:
    """Return the addition with which a template renders a turn that it refuses alone, or None.

    The additions are ``SYSTEM_TURN`` and ``TOOLS``. ``question``, ``render``: see ``render_turn``.
    """
    for addition in (SYSTEM_TURN, TOOLS):
        try:
            render_turn(question, render, addition)
        except Exception:  # noqa: BLE001, S112 - an untrusted program may raise anything
            continue
        return addition
    return None


def answer(question: dict[str, Any], render: Any) -> dict[str, Any]:
    """Return a dictionary with one entry: the rendered ``turn`` or an error.

    The errors are ``needs`` (``find_need``), ``raised`` (what the template raised), and ``added``
    (the number of characters beside the text, if it is above ``MOST_CHARACTERS``). ``question``,
    ``render``: see ``render_turn``.
    """
    try:
        text = render_turn(question, render)
    except Exception as error:  # noqa: BLE001 - an untrusted program may raise anything
        needs = find_need(question, render)
        if needs:
            return {"needs": needs}
        return {"raised": f"{type(error).__name__}: {str(error)[:1_000]}"}
    added = len(text) - len(question["text"])
    return {"turn": text} if added <= MOST_CHARACTERS else {"added": added}


def main(seconds: float) -> None:
    """Answer each line of stdin, a question in JSON, by a line of JSON on stdout.

    A question has the keys of ``render_turn``. ``seconds``: CPU time for one question; a question
    that takes longer ends the process, except on Windows.
    """
    from transformers.utils import chat_template_utils as library

    class PinnedTime(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "PinnedTime":
            """Return the pinned time."""
            return cls.fromisoformat(TIME)

    setattr(library, "datetime", PinnedTime)  # noqa: B010 - mypy takes no class for another
    cap_memory()
    has_timer = hasattr(signal, "setitimer")  # not on Windows
    for line in sys.stdin:
        if has_timer:
            # its SIGPROF ends the process, as nobody handles it
            signal.setitimer(signal.ITIMER_PROF, seconds)
        reply = json.dumps(answer(json.loads(line), library.render_jinja_template))
        if has_timer:
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(reply, flush=True)

"""The process that renders chat templates: a question a line on stdin, an answer a line on stdout, both JSON.

``generation.inputs.chat_template`` runs ``main`` of this file alone: no module of ours and no torch is imported. The
process sets its limits before it reads a template. They end it even inside a C function, and when nobody waits for it.
"""

import json
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 30  # of memory, more than it has when it starts
TIME = "2026-01-01T12:00:00"  # what a template's strftime_now reads: else prompts differ from day to day
MOST_CHARACTERS = 200_000  # that a template adds to a text


def limit_memory() -> None:
    """Let the address space grow by ``MOST_BYTES`` and no more."""
    if sys.platform == "linux":
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + MOST_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def answer(question: dict[str, Any], render: Any) -> dict[str, Any]:
    """The rendered ``turn``, or what the template ``raised``, or how many characters too many it ``added``."""
    turn = [{"role": "user", "content": question["text"]}]
    try:
        rendered = render([turn], chat_template=question["template"], add_generation_prompt=True, **question["special"])
        text = str(rendered[0][0])
    except Exception as error:  # noqa: BLE001 - an untrusted program may raise anything
        return {"raised": f"{type(error).__name__}: {str(error)[:1_000]}"}
    added = len(text) - len(question["text"])
    return {"turn": text} if added <= MOST_CHARACTERS else {"added": added}


def main(seconds: float) -> None:
    """Answer until stdin ends, each question within so many ``seconds`` of CPU."""
    from transformers.utils import chat_template_utils as library

    class Pinned(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Pinned":
            """The pinned time."""
            return cls.fromisoformat(TIME)

    setattr(library, "datetime", Pinned)  # noqa: B010 - mypy takes no class for another
    limit_memory()
    timed = hasattr(signal, "setitimer")  # not on Windows
    for line in sys.stdin:
        if timed:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # its SIGPROF ends the process, as nobody handles it
        said = json.dumps(answer(json.loads(line), library.render_jinja_template))
        if timed:
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(said, flush=True)

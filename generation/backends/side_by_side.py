"""Engines that write at the same time, each in a thread of its own, with one copy of the model's weights.

A request goes to the engine that has least to do; those that share a prompt go to one engine, which reads it once.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Event, Thread

from generation.backends.protocol import Completion, Request

SLACK = 32  # rows that an engine may have more than another one, for the sake of a shared prompt
Stream = Callable[[deque[Request]], Iterator[tuple[Request, Completion]]]
Done = tuple["Share", Request, Completion] | BaseException


class Share:
    """The requests of one engine and the thread that completes them."""

    def __init__(self, stream: Stream, done: SimpleQueue[Done]):
        self.rows, self.prompts = 0, Counter[str]()  # of unfinished requests
        self._stream, self._done, self._queue = stream, done, deque[Request]()
        self._asked, self._ended = Event(), False
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, request: Request) -> None:
        """Have a request completed."""
        self._count(request, 1)
        self._queue.append(request)
        self._asked.set()

    def done(self, request: Request) -> None:
        """Count a request as completed."""
        self._count(request, -1)

    def end(self) -> None:
        """Leave unfinished requests, after the step of now."""
        self._ended = True
        self._asked.set()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _count(self, request: Request, sign: int) -> None:
        self.rows += sign * len(request.prompts)
        for prompt in request.prompts:
            self.prompts[prompt] += sign
            if not self.prompts[prompt]:
                del self.prompts[prompt]

    def _run(self) -> None:
        try:
            while not self._ended:
                for request, completion in self._stream(self._queue):
                    self._done.put((self, request, completion))
                    if self._ended:
                        return
                self._asked.wait()
                self._asked.clear()
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            self._done.put(error)


def side_by_side(streams: Sequence[Stream], queue: deque[Request], rows: int) -> Iterator[tuple[Request, Completion]]:
    """Complete the requests of ``queue`` as ``generation.backends.protocol.Writer.stream`` does, in several threads.

    streams: each completes the requests of a queue of its own, to which requests are added meanwhile.
    rows: of an engine's full batch; a quarter more wait for it.
    Raises what a stream raises.
    """
    done, most = SimpleQueue[Done](), rows + rows // 4
    shares = [Share(stream, done) for stream in streams]
    try:
        while queue or any(share.rows for share in shares):
            while queue and min(share.rows for share in shares) < most:
                chosen(shares, queue[0]).add(queue.popleft())
            found = done.get()
            if isinstance(found, BaseException):
                raise found
            share, request, completion = found
            share.done(request)
            yield request, completion
    finally:
        for share in shares:
            share.end()
        for share in shares:
            share.join()


def chosen(shares: Sequence[Share], request: Request) -> Share:
    """The share of a request: one that has a prompt of it, if it has hardly more to do than the one with least."""
    least = min(shares, key=lambda share: share.rows)
    near = (share for share in shares if share.rows <= least.rows + SLACK)
    return next((share for share in near if any(prompt in share.prompts for prompt in request.prompts)), least)

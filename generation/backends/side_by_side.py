"""Engines that write at the same time, each in its own thread, with one copy of the model's
weights.

A request goes to the engine with the fewest rows. Requests that share a prompt go to one engine,
which computes it once.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Event, Thread

from sts_dino.generation.backends.protocol import Completion, Request

SLACK = 32  # rows that an engine may have more than another one, for the sake of a shared prompt
Stream = Callable[[deque[Request]], Iterator[tuple[Request, Completion]]]
Result = tuple["Share", Request, Completion] | BaseException


class Share:
    """The requests of one engine and the thread that completes them."""

    def __init__(self, stream: Stream, results: SimpleQueue[Result]):
        # of unfinished requests
        self.rows = 0
        self.prompts = Counter[str]()
        self._stream = stream
        self._results = results
        self._queue = deque[Request]()
        self._has_news = Event()  # a request, or the end
        self._is_stopped = False
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, request: Request) -> None:
        """Add a request."""
        self.rows += len(request.prompts)
        self.prompts.update(request.prompts)
        self._queue.append(request)
        self._has_news.set()

    def mark_completed(self, request: Request) -> None:
        """Count a request as completed."""
        self.rows -= len(request.prompts)
        self.prompts -= Counter(request.prompts)  # drops those that no request needs

    def stop(self) -> None:
        """End the thread after its current step, with requests unfinished."""
        self._is_stopped = True
        self._has_news.set()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_stopped:
                for request, completion in self._stream(self._queue):
                    self._results.put((self, request, completion))
                    if self._is_stopped:
                        return
                self._has_news.wait()
                self._has_news.clear()
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            self._results.put(error)


def stream_in_parallel(
    streams: Sequence[Stream], queue: deque[Request], rows: int
) -> Iterator[tuple[Request, Completion]]:
    """Complete the requests of ``queue`` in several threads, as ``Writer.stream`` does.

    Args:
        streams: each completes the requests of its own queue, which grows meanwhile.
        queue: requests that wait.
        rows: of an engine's full batch; a quarter more wait for it.

    Raises:
        Exception: what a stream raises.
    """
    results = SimpleQueue[Result]()
    most_rows = rows + rows // 4
    shares = [Share(stream, results) for stream in streams]
    try:
        while queue or any(share.rows for share in shares):
            # Fill the engines, then wait for the next text of any
            while queue and min(share.rows for share in shares) < most_rows:
                choose_share(shares, queue[0]).add(queue.popleft())
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            share, request, completion = result
            share.mark_completed(request)
            yield request, completion
    finally:
        for share in shares:
            share.stop()
        for share in shares:
            share.join()


def choose_share(shares: Sequence[Share], request: Request) -> Share:
    """Return the share of a request.

    It is one that has a prompt of it, if it has hardly more rows than the one with the fewest.
    """
    smallest = min(shares, key=lambda share: share.rows)
    for share in shares:
        has_prompt = any(prompt in share.prompts for prompt in request.prompts)
        if has_prompt and share.rows <= smallest.rows + SLACK:
            return share
    return smallest

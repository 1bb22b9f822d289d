"""``backend: openai``: texts from any OpenAI-compatible server, several requests at a time, none paid for twice."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from generation.backends.answers import Answer, AnswerCache, completed, key_of, said
from generation.backends.dialects import answer_of, endpoint, opens_quotation, request_body
from generation.backends.protocol import Completion, Request
from hub.contract.published_paths import UNTOLD
from hub.contract.recipe import DecodingParameters, LanguageModel, Server
from hub.errors import InputError, RunError

if TYPE_CHECKING:
    from generation.backends.openai_client import Client


class OpenAIServer:
    """A language model behind a server, as a ``generation.backends.protocol.Writer``."""

    context = 0  # not known: a prompt that is too long is refused by the server

    def __init__(self, model: LanguageModel, server: Server, client: "Client", journal: AnswerCache):
        self.model, self.server = model, server
        self._client, self._journal = client, journal

    @classmethod
    def connect(cls, model: LanguageModel, directory: Path | None = None) -> "OpenAIServer":
        """The writer of a recipe's section ``model``; its answers are kept beside the run ``directory``.

        No request is sent yet. Raises InputError when the package openai is missing, and for a published recipe, which
        does not tell where the server is.
        """
        assert model.server is not None, "hub.contract.recipe checks this"
        if model.server.base_url == UNTOLD:
            hint = f"serve {model.server.model}, and say where: --set model.server.base_url=URL"
            raise InputError("model.server.base_url", "is not published", hint=hint)
        try:
            from generation.backends.openai_client import Client
        except ImportError as error:
            hint = 'pip install -c constraints.txt -e ".[openai]"'
            raise InputError("model.backend openai", f"the package openai is missing ({error})", hint=hint) from error
        path = directory.with_name(f"{directory.name}.answers.sqlite") if directory else None
        return cls(model, model.server, Client(model.server), AnswerCache(path))

    def stream(
        self, queue: deque[Request], settings: DecodingParameters, batch_size: int | None, prefixes: Sequence[str] = ()
    ) -> Iterator[tuple[Request, Completion]]:
        """See ``generation.backends.protocol.Writer.stream``. ``server.concurrency`` requests are under way at a time.

        When a request fails for good, no other is begun; those under way are waited for, and their answers kept.
        """
        pool = ThreadPoolExecutor(self.server.concurrency, thread_name_prefix="openai")
        under_way: dict[Future[Answer], Request] = {}
        try:
            while queue or under_way:
                while queue and len(under_way) < self.server.concurrency:
                    request = queue.popleft()
                    under_way[pool.submit(self._answer, request, settings)] = request
                done, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    request = under_way.pop(future)
                    yield request, self._completion(request, future.result(), settings)
        finally:
            pool.shutdown(cancel_futures=True)

    def _answer(self, request: Request, settings: DecodingParameters) -> Answer:
        path, body = endpoint(self.model), request_body(self.model, self.server, request, settings)
        key = key_of(self.server.base_url, path, body, request.seed)
        answer = self._journal.find(key)
        if answer is None:
            answer = self._ask(path, body, settings)
            self._journal.add(key, answer)
        return answer

    def _ask(self, path: str, body: dict[str, Any], settings: DecodingParameters) -> Answer:
        payload = self._client.post(path, body)
        try:
            answer = answer_of(payload, self.model, self.server, settings)
        except ValidationError as error:
            first = error.errors()[0]
            raise self._client.malformed(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        if self._client.mentions_key(answer.text):
            raise RunError(f"server {self.server.base_url}", "its answer holds the API key", hint="change the key")
        return answer

    def _completion(self, request: Request, answer: Answer, settings: DecodingParameters) -> Completion:
        if opens_quotation(self.model, self.server):
            return completed(answer.text, answer.log_prob, settings.text_end, answer.finish_reason == "stop")
        return said(request.prompt, answer)

    def count_tokens(self, text: str) -> int:
        """How many tokens the model's tokenizer makes of ``text``; it is read from ``path`` or ``repo_id``."""
        return len(self._tokenizer(text, add_special_tokens=False).input_ids)

    def prompt_tokens(self, prompt: str) -> int:
        """As ``count_tokens``: what the server adds to a prompt is not known."""
        return self.count_tokens(prompt)

    @cached_property
    def _tokenizer(self) -> Any:
        name = self.model.path or self.model.repo_id
        if name is None:
            problem = "a server does not count tokens, and no tokenizer is named"
            raise InputError("model", problem, hint="give model.path or model.repo_id with the model's tokenizer")
        if self.model.path is None and self.model.revision is None:
            raise InputError("model.revision", "the tokenizer decides which texts are used", hint=f"pin that of {name}")
        from generation.backends.load_model import load_tokenizer  # torch: not without premise_tokens

        return load_tokenizer(self.model)

    def owners(self) -> set[str]:
        """Whose the served models are, in the server's words; llama.cpp's and vLLM's tell themselves so."""
        return {str(one.get("owned_by")) for one in self._client.models()}

    def describe(self) -> dict[str, Any]:
        """Facts for the manifest."""
        return {
            "id": self.model.repo_id or self.server.model,
            "parameters": None,
            "backend": "openai",
            "served_model": self.server.model,
        }

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens and cost of all kept answers, those of interrupted runs included; cost None without prices.

        What a provider charges for requests that failed or timed out is not in it.
        """
        totals = self._journal.totals()
        prices = self.server.price_per_million
        cost = (totals.prompt_tokens * prices[0] + totals.completion_tokens * prices[1]) / 1e6 if prices else None
        return {**totals._asdict(), "cost": cost}

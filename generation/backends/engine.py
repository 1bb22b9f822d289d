"""Batched self-debiased decoding with a KV cache: the engine completes prompts, each with its
counter-prompts.

The rows of a request, one for each of its prompts, get the same token at every step. What rows
share is computed once (``sts_dino.generation.backends.shared_attention``). A text that ends makes
room for a waiting one. In float32 on a CPU a text and its statistics are a function of (model,
request, settings), whatever the batch (docs/engine.md).

A plain loop decodes what shared attention does not support: ALiBi, soft caps, texts longer than a
model's window. It gives the same texts and takes more memory and time.

Several workers may decode at the same time: threads with a share of the requests each, and one copy
of the model's weights. Requests that share a prompt go to one worker, which computes the prompt
once. Any other request goes to the worker with the fewest rows, and so does a request whose worker
has over ``SLACK_ROWS`` rows more than that one.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from copy import copy
from functools import partial
from itertools import chain, islice
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sts_dino.generation.backends.batch import (
    KVCaches,
    LiveBatch,
    LiveSequence,
    PlainBatch,
    Prompt,
    Row,
)
from sts_dino.generation.backends.load_model import choose_row_count, is_out_of_memory
from sts_dino.generation.backends.model_check import (
    PLAIN,
    AttentionPath,
    choose_attention,
    use_attention,
)
from sts_dino.generation.backends.output_layer import (
    LogitsInPieces,
    OutputLayer,
    pack_layers,
    take_output_layer,
)
from sts_dino.generation.backends.protocol import Completion, Request, extract_text
from sts_dino.generation.backends.self_debiasing import (
    NextTokenLogits,
    TextRows,
    append_guided_rows,
    choose_tokens,
)
from sts_dino.generation.backends.shared_attention import (
    KVCache,
    Level,
    Pass,
    Write,
    make_causal_mask,
    round_length,
    run_pass,
)
from sts_dino.generation.inputs.chat_template import PromptEncoder
from sts_dino.generation.inputs.row_seeds import draw_uniforms
from sts_dino.hub.contract.recipe import QUOTE, DecodingParameters, TextEnd
from sts_dino.hub.errors import InputError, OutOfMemory

logger = logging.getLogger(__name__)

PREFIX_CHUNK = 512  # tokens of a shared prefix in one pass
# roughly the largest number of prompt tokens that a pass prefills, for each row of a full batch:
# it bounds the memory of a pass
PREFILL_TOKENS_OF_ROW = 4
# A request goes to a worker that has one of its prompts, unless this worker has more than so many
# rows more than the worker with the fewest rows
SLACK_ROWS = 32
Ids = tuple[int, ...]
Completed = list[tuple[Request, Completion]]
Stream = Callable[[deque[Request]], Iterator[tuple[Request, Completion]]]
Result = tuple["Share", Request, Completion] | BaseException


class Running(NamedTuple):
    """The unfinished texts of a worker. Other threads read it, so it is replaced as a whole."""

    texts: list[LiveSequence]
    max_new_tokens: int


class Engine(PromptEncoder):
    """A causal language model and its tokenizer, ready to complete quoted texts."""

    def __init__(
        self, model: Any, tokenizer: Any, chat: bool = False, shared: bool = True, workers: int = 1
    ):
        """Prepare the model for decoding.

        With ``shared``, this sets the model's attention, and replaces or packs its output layer.

        Args:
            model: transformers' causal language model.
            tokenizer: its tokenizer.
            chat: prompts go through the tokenizer's chat template.
            shared: use shared attention if the model supports it, else the plain loop; False: the
                plain loop in any case.
            workers: threads that generate at the same time; the plain loop has one.
        """
        super().__init__(tokenizer, model.config, chat)
        self.model = model.eval()
        config = model.config.get_text_config()

        # Find the tokens that end a text, and the ids without a token, which are never drawn
        self.vocabulary = int(config.vocab_size)
        self.ends = self._list_end_tokens()
        self.stops = self._make_stop_tables()
        self.unused_ids = sorted({*range(self.vocabulary)} - {*tokenizer.get_vocab().values()})

        # Choose how the model reads, and where its logits come from
        if shared:
            self.attention = choose_attention(model)
            if not self.attention.shared:
                logger.info(
                    f"{config.model_type}: the plain loop writes the texts in one worker "
                    f"({self.attention.reason}); {PLAIN}"
                )
        else:
            self.attention = AttentionPath(False, "asked for", config._attn_implementation)
        # None: the model's own output layer gives logits
        self._output = take_output_layer(model) if self.attention.shared else None
        if shared and self._output is None:
            pack_layers(model, last=True)
        # An iterator of one message: all workers share it, so the first one alone gets the message
        self._window_messages = iter(
            [
                f"texts beyond the model's window of {self.attention.window} tokens: the plain, "
                "slower loop writes them"
            ]
        )
        # whether texts and statistics are bit-identical in every batch
        self._exact = model.dtype == torch.float32 and self._device.type == "cpu"

        # The state of a worker
        self._caches = KVCaches()
        self.prefix_ids: list[Ids] = []  # of the shared prefixes in the cache
        self._running = Running([], 1)
        # forward passes, and tokens that they computed; without those of shared prefixes
        self.passes = 0
        self.tokens_computed = 0
        # model rows that fit in memory, for all later calls; None until memory runs out
        self._most_rows: int | None = None

        # A worker holds its lock during a step. The plain loop holds all locks, because it changes
        # the attention of the whole model.
        self._lock = Lock()
        self._locks = [self._lock]
        self._workers = [self]
        if self.attention.shared:
            self._workers += [self._copy_worker() for _ in range(workers - 1)]
        self.workers = len(self._workers)

    def describe(self) -> dict[str, Any]:
        """Return facts for the manifest: number of parameters, attention, and the pinned time of a
        chat template that asks for the time.

        Raises what ``ChatTemplate.describe`` raises.
        """
        parameters = getattr(self.model, "parameters_as_published", self.model.num_parameters())
        facts = {"parameters": parameters, **self.attention.describe()}
        if self._template:
            facts |= self._template.describe()
        return facts

    def _copy_worker(self) -> "Engine":
        """Return another engine of the same model and tokenizer, with its own cache and lock.

        The lock is added to ``_locks``, the list that all workers share.
        """
        worker = copy(self)
        worker._caches = KVCaches()
        worker._lock = Lock()
        self._locks.append(worker._lock)
        return worker

    def copy_with_template(self, chat: bool) -> "Engine":
        """Return an engine of the same weights, with or without the chat template.

        The new engine has one worker. The two engines must not generate at the same time.

        ``chat``: whether prompts go through the tokenizer's chat template. An unusable template
        raises errors at the first prompt.
        """
        engine = copy(self)
        PromptEncoder.__init__(engine, self.tokenizer, self.model.config, chat)
        engine.prefix_ids = []
        engine._caches = KVCaches()
        engine._workers = [engine]
        engine.workers = 1
        return engine

    # Streams

    def stream(
        self,
        queue: deque[Request],
        settings: DecodingParameters,
        batch_size: int | None = None,
        prefixes: Sequence[str] = (),
    ) -> Iterator[tuple[Request, Completion]]:
        """Complete the requests of ``queue``, see ``Writer.stream``.

        ``batch_size`` counts the model rows of all workers; None: as many as fit in memory. A text
        has one row for each of its ``Request.prompts``.
        """
        # Texts that depend on the others in the queue have to stay in one worker
        workers = self._workers if self.choose_queue_length(settings, batch_size) else [self]
        rows = max(1, self.count_rows(settings, batch_size) // len(workers))
        streams = [
            partial(worker._stream, settings=settings, rows=rows, prefixes=prefixes)
            for worker in workers
        ]
        if len(streams) > 1:
            return stream_in_parallel(streams, queue, rows)
        return streams[0](queue)

    @torch.inference_mode()
    def _stream(
        self,
        queue: deque[Request],
        settings: DecodingParameters,
        rows: int,
        prefixes: Sequence[str],
    ) -> Iterator[tuple[Request, Completion]]:
        """Complete the requests of one worker with at most ``rows`` model rows at a time.

        Texts beyond the model's window, and all texts of a model without shared attention, go to
        the plain loop. When memory runs out, unfinished texts start again with half the rows.

        Raises:
            InputError, RunError: a prompt cannot be encoded, see ``_encode_checked``.
            OutOfMemory: memory is too small for one row.
        """
        rows = min(rows, self._most_rows or rows)
        batch: LiveBatch | None = None
        long_requests = deque[Request]()  # requests for texts beyond the model's window
        while queue or long_requests or (batch and batch.sequences):
            completed: Completed = []
            ran_out = False
            try:
                plain_queue = self._choose_plain_queue(queue, long_requests, batch, rows)
                if plain_queue is not None:
                    # Complete some texts in the plain loop
                    plain_rows = rows
                    if plain_queue is long_requests:
                        plain_rows = self._choose_rows_of_long_texts(rows)
                    completed = self._complete_plainly(plain_queue, settings, plain_rows)
                else:
                    # Fill the batch, and draw one token for each of its texts
                    with self._lock:
                        if batch is None:
                            self._read_prefixes(prefixes)
                            lengths = [len(ids) for ids in self.prefix_ids]
                            batch = LiveBatch(self._caches, lengths, self._device)
                        self._admit(batch, queue, long_requests, settings, rows)
                        completed = self._step(batch, settings)
            except (RuntimeError, MemoryError) as error:
                _require_smaller_batch(error, rows)
                ran_out = True

            # Start again with fewer rows. This is not in the except block, where the error still
            # refers to the tensors of the pass
            if ran_out:
                unfinished = batch.sequences if batch else []
                queue.extendleft(text.request for text in reversed(unfinished))
                batch = None
                self._caches = KVCaches()
                self.prefix_ids = []
                rows = self._halve_rows(rows)
                continue
            self._running = Running(batch.sequences if batch else [], settings.max_new_tokens)
            yield from completed

    def count_rows(self, settings: DecodingParameters, batch_size: int | None = None) -> int:
        """Return how many model rows all workers together decode at a time.

        These are ``batch_size``, or as many as fit in memory. After memory ran out for every
        worker, they are at most the sum of the rows with which the workers retried.
        """
        # The model's own output layer gives all logits of a row: a softmax has three copies of
        # them in memory, of 4 bytes each
        logits_bytes = self._output.bytes_per_row if self._output else 12 * self.vocabulary
        rows = batch_size or choose_row_count(self.model, settings.max_new_tokens, logits_bytes)
        return min(rows, sum(worker._most_rows or rows for worker in self._workers))

    def choose_queue_length(self, settings: DecodingParameters, batch_size: int | None) -> int:
        """Return how many requests the queue needs: one for each row of the batch.

        It is 0 where a text may depend on other texts in the queue: in the plain loop, and with a
        fixed ``batch_size`` outside float32 on a CPU.
        """
        if self.attention.shared and (self._exact or not batch_size):
            return self.count_rows(settings, batch_size)
        return 0

    def measure_texts_in_progress(self) -> float:
        """Return the work done on unfinished texts, prompts included, as a number of texts.

        Texts in the plain loop do not count. Any thread may call this.
        """
        total = 0.0
        for worker in self._workers:
            texts, max_new_tokens = worker._running
            total += sum(text.measure_progress(max_new_tokens) for text in texts)
        return total

    def _halve_rows(self, rows: int) -> int:
        """Free unused memory of the GPU; return half the rows, and limit later calls to them."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self._most_rows = rows // 2
        logger.info(f"out of memory with {rows} rows: retrying with {self._most_rows}")
        return self._most_rows

    @property
    def _device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    # Decoding with shared attention

    def _admit(
        self,
        batch: LiveBatch,
        queue: deque[Request],
        long_requests: deque[Request],
        settings: DecodingParameters,
        rows: int,
    ) -> None:
        """Move texts from the queue to the batch while there is room for them.

        There is room up to ``rows`` model rows; an empty batch has room for any one text. No text
        is added once the prompts of the next pass exceed ``PREFILL_TOKENS_OF_ROW`` · ``rows``
        tokens. Texts beyond the model's window, which shared attention does not support, are moved
        to ``long_requests``. Raises what ``_encode_checked`` raises.
        """
        live_rows = batch.rows
        while queue and (not live_rows or live_rows + len(queue[0].prompts) <= rows):
            prefill_tokens = sum(len(prompt.tokens) for prompt in batch.prefill)
            if prefill_tokens > PREFILL_TOKENS_OF_ROW * rows:
                break
            request = queue[0]
            prompts = [self._encode_checked(prompt, settings) for prompt in request.prompts]
            longest = max(len(ids) for ids in prompts)
            if not self.attention.can_read(longest + settings.max_new_tokens):
                long_requests.append(queue.popleft())
                continue
            batch.add(request, [(ids, self._find_prefix(ids)) for ids in prompts])
            queue.popleft()  # not before it is in the batch: making room for it may fail
            live_rows += len(prompts)

    def _step(self, batch: LiveBatch, settings: DecodingParameters) -> Completed:
        """Run one pass and draw one token for every text of the batch.

        Returns the texts that end with this token, in the batch's order. They leave the batch.
        """
        # Compute the newest token of every row, and the prompts to prefill
        decoding = [row for text in batch.sequences if text.tokens for row in text.rows]
        computed: list[Row | Prompt] = [*decoding, *batch.prefill]
        outputs: Tensor | None = None
        if computed:
            next_pass = batch.make_next_pass()
            outputs = run_pass(self.model, next_pass)
            self.passes += 1
            self.tokens_computed += len(next_pass.ids)
            for prompt, output in zip(batch.prefill, outputs[len(decoding) :], strict=True):
                prompt.output = output.clone()
        batch.prefill = []

        # Draw a token for every text; the batch is empty if all texts are beyond the window
        if batch.sequences:
            table, rows = _make_table(batch.sequences, computed, outputs)
            self._draw(batch.sequences, rows, table, self._output, settings)

        # Complete the texts that end. They stay in batch.sequences until the last assignment: if
        # memory runs out before, ``_stream`` queues them again
        ended = [text for text in batch.sequences if self._has_ended(text, settings)]
        completed = [(text.request, self._finish(text, settings)) for text in ended]
        for text in ended:
            batch.remove(text)
        batch.drop_unused_prompts()
        batch.sequences = [text for text in batch.sequences if not self._has_ended(text, settings)]
        return completed

    def _read_prefixes(self, prefixes: Sequence[str]) -> None:
        """Prefill the shared prefixes, unless the cache has exactly these.

        A prefix longer than the attention's window is skipped. The last token of a prefix is left
        out: with the text that follows it in a prompt, the tokenizer may make another token of it.
        Raises what ``PromptEncoder.encode_prefix`` raises.
        """
        prefix_ids: list[Ids] = []
        for prefix in prefixes:
            ids = self.encode_prefix(prefix)[:-1]
            if ids and ids not in prefix_ids and self.attention.can_read(len(ids)):
                prefix_ids.append(ids)
        if prefix_ids == self.prefix_ids:
            return
        self.prefix_ids = []  # stays empty until all prefixes are read: a pass may fail
        self._caches.shared_prefixes = KVCache()
        for entry, ids in enumerate(prefix_ids):
            self._caches.shared_prefixes.grow(entry + 1, len(ids))
            for start in range(0, len(ids), PREFIX_CHUNK):
                self._read_chunk(entry, ids, start, min(start + PREFIX_CHUNK, len(ids)))
        self.prefix_ids = prefix_ids

    def _read_chunk(self, entry: int, ids: Ids, start: int, end: int) -> None:
        """Prefill the tokens ``start`` to ``end`` (exclusive) of the shared prefix ``ids``.

        The cache holds the prefix as ``entry``, with the tokens before ``start`` already there.
        """
        cache = self._caches.shared_prefixes
        rows = end - start
        length = round_length(end)
        slots = torch.arange(rows, device=self._device)
        write = Write(
            cache,
            rows=slice(0, rows),
            entries=slots.new_full((rows,), entry),
            positions=torch.arange(start, end, device=self._device),
        )
        level = Level(
            cache,
            entries=slots.new_tensor([entry]),
            length=length,
            slots=slots[None],
            member_slots=slots,
            members=slice(0, rows),
            attn_bias=make_causal_mask(start, rows, length).to(self._device),
        )
        chunk = Pass(
            ids=np.array(ids[start:end]),
            positions=np.arange(start, end),
            output_rows=np.array([rows - 1]),  # unused; a pass has at least one row of logits
            writes=[write],
            levels=[level],
        )
        run_pass(self.model, chunk)

    def _find_prefix(self, ids: Ids) -> int:
        """Return the index in ``prefix_ids`` of the longest shared prefix of a prompt; -1: none.

        At least one token of the prompt must follow the prefix: the first token of the text is
        drawn from the output of the prompt's last token. ``ids``: the token ids of the prompt.
        """
        fitting = [(0, -1)]  # (length, index)
        for index, prefix in enumerate(self.prefix_ids):
            length = len(prefix)
            if length < len(ids) and ids[:length] == prefix:
                fitting.append((length, index))
        return max(fitting)[1]

    # Decoding in the plain loop

    def _choose_plain_queue(
        self,
        queue: deque[Request],
        long_requests: deque[Request],
        batch: LiveBatch | None,
        rows: int,
    ) -> deque[Request] | None:
        """Return the queue whose next texts the plain loop decodes now; None: shared attention.

        Texts beyond the window wait until they fill a batch, or until no other text is left.
        """
        if not self.attention.shared:
            return queue
        if not long_requests:
            return None
        is_full = len(long_requests) >= self._choose_rows_of_long_texts(rows)
        is_alone = not queue and not (batch and batch.sequences)
        return long_requests if is_full or is_alone else None

    def _choose_rows_of_long_texts(self, rows: int) -> int:
        """Return the model rows of a batch of texts beyond the window; log once that there are any.

        They are ``rows``. Where results are bit-identical it is 1, so one text at a time: padding
        would change bits.
        """
        # The first call takes the only message
        message = next(self._window_messages, None)
        if message is not None:
            logger.info(message)
        return 1 if self._exact else rows

    def _complete_plainly(
        self, queue: deque[Request], settings: DecodingParameters, rows: int
    ) -> Completed:
        """Complete the next texts of the queue, as many as ``rows`` model rows allow, at least one.

        They leave the queue when they are done: if memory runs out before, they stay. Raises what
        ``_encode_checked`` raises.
        """
        with ExitStack() as locks:
            for lock in self._locks:
                locks.enter_context(lock)

            # Take as many texts as fit if each has as many prompts as the one with the most
            width = max(len(request.prompts) for request in islice(queue, rows))
            requests = list(islice(queue, max(1, rows // width)))
            prompts: list[list[Ids]] = []
            for request in requests:
                prompts.append(
                    [self._encode_checked(prompt, settings) for prompt in request.prompts]
                )

            # Decode them
            with use_attention(self.model, self.attention.own):
                texts = self._decode_plainly(requests, prompts, settings)
            completed = [(text.request, self._finish(text, settings)) for text in texts]
            for _ in requests:
                queue.popleft()
            return completed

    def _decode_plainly(
        self, requests: list[Request], prompts: list[list[Ids]], settings: DecodingParameters
    ) -> list[LiveSequence]:
        """Decode texts together with the model's own attention; return them with their tokens.

        Args:
            requests: one for each text.
            prompts: for each text, the token ids of its prompts; equal prompts are read once.
            settings: decoding parameters.
        """
        # Prefill the distinct prompts; ``numbers`` has the batch row of each
        texts = [LiveSequence(request) for request in requests]
        numbers: dict[Ids, int] = {}
        for ids in chain.from_iterable(prompts):
            numbers.setdefault(ids, len(numbers))
        batch = PlainBatch(self.model, list(numbers))
        live = texts
        rows = [[numbers[ids] for ids in text_prompts] for text_prompts in prompts]

        # Draw a token for every live text; keep the rows of those that have not ended, and read
        # the new tokens
        while True:
            self._draw(live, rows, batch.logits, None, settings)
            batch_rows: list[int] = []
            newest: list[int] = []
            next_live: list[LiveSequence] = []
            next_rows: list[list[int]] = []
            for text, text_rows in zip(live, rows, strict=True):
                if not self._has_ended(text, settings):
                    next_live.append(text)
                    first = len(batch_rows)
                    batch_rows += text_rows
                    newest += [text.tokens[-1]] * len(text_rows)
                    next_rows.append(list(range(first, len(batch_rows))))
            if not next_live:
                return texts
            live = next_live
            rows = next_rows
            batch.read_tokens(batch_rows, newest)

    # Tokens

    def _draw(
        self,
        texts: Sequence[LiveSequence],
        rows: list[list[int]],
        table: Tensor,
        layer: OutputLayer | None,
        settings: DecodingParameters,
    ) -> None:
        """Draw one token for every text, and add it and its log-probabilities to the text.

        Args:
            texts: the texts.
            rows: for each text, the rows of ``table`` of its ``Request.prompts``, in their order.
            table: (R, V) logits, or (R, H) hidden states before the output ``layer``.
            layer: the output layer; None: ``table`` has logits.
            settings: decoding parameters.
        """
        # Collect the rows that each text is drawn and scored from; add rows with guided logits
        device = table.device
        pairs = [(text.request, text_rows) for text, text_rows in zip(texts, rows, strict=True)]
        compared = [text_rows[: request.compared_count] for request, text_rows in pairs]
        scored = [text_rows[: len(request.reported_prompts)] for request, text_rows in pairs]
        table_rows = TextRows(_pad_rows(compared).to(device), _pad_rows(scored).to(device))
        guidance = torch.tensor([request.get_guidance(settings) for request, _ in pairs]).to(device)
        if guidance.any():
            plain = torch.tensor([text_rows[request.plain_row] for request, text_rows in pairs])
            table, table_rows = append_guided_rows(table, table_rows, plain.to(device), guidance)

        # Draw with each text's own random number of this step
        banned = self.list_banned(settings)
        logits = LogitsInPieces(layer, table, banned) if layer else NextTokenLogits(table, banned)
        seeds = np.array([request.seed for request, _ in pairs], dtype=np.uint64)
        steps = np.array([len(text.tokens) for text in texts], dtype=np.uint64)
        decay_constants = [request.get_decay_constant(settings) for request, _ in pairs]
        tokens, log_probs = choose_tokens(
            logits,
            table_rows,
            settings,
            torch.from_numpy(draw_uniforms(seeds, steps)).to(device),
            torch.tensor(decay_constants).to(device),
        )
        token_log_probs = log_probs.double().cpu().numpy()
        for text, token, values in zip(texts, tokens.tolist(), token_log_probs, strict=True):
            text.tokens.append(token)
            # the values after those of the text's own prompts are padding
            text.log_probs += values[: len(text.log_probs)]

    def list_banned(self, settings: DecodingParameters) -> list[int]:
        """Return the token ids that are never drawn.

        These are ids without a token, and, if quotation marks end texts, the tokens that end a
        document.
        """
        if settings.text_end == "quotation_mark":
            return self.unused_ids + self.ends
        return self.unused_ids

    def _has_ended(self, text: LiveSequence, settings: DecodingParameters) -> bool:
        """Return whether the newest token ends a text, or is its last possible one."""
        is_full = len(text.tokens) == settings.max_new_tokens
        return is_full or bool(self.stops[settings.text_end][text.tokens[-1]])

    def _finish(self, text: LiveSequence, settings: DecodingParameters) -> Completion:
        """Return the completion of a text that has ended."""
        request = text.request
        means = text.log_probs[: request.compared_count] / len(text.tokens)
        mean, *counter_means = means.tolist()
        margin = mean - max(counter_means) if counter_means else None
        sums = dict(zip(request.reported_prompts, text.log_probs.tolist(), strict=True))
        log_likelihoods = tuple(sums[prompt] for prompt in request.scored_prompts)
        decoded, problem = self.decode_text(text.tokens, settings)
        return Completion(decoded, problem, mean, margin, log_likelihoods)

    def decode_text(
        self, tokens: list[int], settings: DecodingParameters
    ) -> tuple[str, str | None]:
        """Decode tokens; return the text and its problem as ``protocol.extract_text`` does.

        ``tokens``: the ids of all tokens of a text, at least one.
        """
        decoded = self.tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return extract_text(decoded, tokens[-1] in self.ends, settings.text_end)

    def _encode_checked(self, prompt: str, settings: DecodingParameters) -> Ids:
        """Return the token ids of a prompt.

        Raises InputError if they and ``max_new_tokens`` exceed the model's context, if a token is
        beyond its embedding, or if its chat template is unusable. Raises RunError if the process
        that renders the template fails.
        """
        ids = self.encode(prompt)
        if self.context and len(ids) + settings.max_new_tokens > self.context:
            raise InputError(
                f"prompt {prompt[:60]!r}...",
                f"{len(ids)} tokens + {settings.max_new_tokens} to write exceed the model's "
                f"context of {self.context}",
                hint="shorten the prompt or lower decoding.max_new_tokens",
            )
        return ids

    def _list_end_tokens(self) -> list[int]:
        """Return the ids of the tokens that end a document or a chat turn, in rising order.

        These are the tokenizer's end and padding tokens, and the end tokens of the model's
        generation settings. Ids beyond the vocabulary are left out.
        """
        generation_config = getattr(self.model, "generation_config", None)
        eos: Any = getattr(generation_config, "eos_token_id", None)
        tokens = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id}
        tokens.update(np.atleast_1d(eos).tolist())  # one id, a list of ids, or None
        return sorted(token for token in tokens if token is not None and token < self.vocabulary)

    def _make_stop_tables(self) -> dict[TextEnd, np.ndarray]:
        """Return ``decoding.text_end`` → (V,) whether each token ends a text.

        Tokens with a line break and end tokens end every text. Tokens with a quotation mark end a
        text of "quotation_mark", too.
        """
        has_line_break = np.zeros(self.vocabulary, dtype=bool)
        has_quote = np.zeros(self.vocabulary, dtype=bool)
        for token in range(min(self.vocabulary, len(self.tokenizer))):
            text = self.tokenizer.decode([token])
            has_line_break[token] = "\n" in text
            has_quote[token] = QUOTE in text
        has_line_break[self.ends] = True
        return {"line": has_line_break, "quotation_mark": has_line_break | has_quote}


def _make_table(
    texts: Sequence[LiveSequence], computed: Sequence[Row | Prompt], outputs: Tensor | None
) -> tuple[Tensor, list[list[int]]]:
    """Return the outputs from which texts draw their next token, and for each text its rows there.

    A text without tokens draws from the outputs of its prompts, which an earlier pass may have
    computed; any other text draws from the outputs of its newest token.

    Args:
        texts: the running texts, at least one.
        computed: the rows and prompts of the pass, in its order.
        outputs: (len(computed), H or V), the outputs of the pass; None: no pass was necessary.

    Returns:
        outputs (R, H or V), and for each text the index there of each of its prompts.
    """
    # by identity: two rows of one prompt may be equal
    indices = {id(item): index for index, item in enumerate(computed)}
    earlier: list[Tensor] = []  # of prompts that an earlier pass computed
    rows: list[list[int]] = []
    for text in texts:
        items: Sequence[Row | Prompt] = text.rows
        if not text.tokens:
            prompts = [row.prompt for row in text.rows]
            items = prompts
            for prompt in prompts:
                if id(prompt) not in indices:
                    indices[id(prompt)] = len(indices)
                    earlier.append(prompt.output)
        rows.append([indices[id(item)] for item in items])
    tables = [] if outputs is None else [outputs]
    if earlier:
        tables.append(torch.stack(earlier))
    return torch.cat(tables) if earlier else tables[0], rows


def _require_smaller_batch(error: Exception, rows: int) -> None:
    """Return if memory ran out and a smaller batch may fit.

    Raises the error itself if it has another cause, and OutOfMemory if ``rows`` is 1: a single text
    does not fit.
    """
    if not is_out_of_memory(error):
        raise error
    if rows <= 1:
        raise OutOfMemory(
            "memory",
            "is too small for one text at a time",
            hint="use a smaller model, a narrower dtype or a shorter prompt",
        ) from error


def _pad_rows(rows: list[list[int]]) -> Tensor:
    """Return lists of row indices as a tensor (lists, longest length).

    Shorter lists are filled with their first index.
    """
    width = max(len(row) for row in rows)
    return torch.tensor([row + row[:1] * (width - len(row)) for row in rows])


# Workers


class Share:
    """The requests of one worker, and the thread that completes them.

    ``rows``: number of model rows of the unfinished requests. ``prompts``: prompt → how often these
    requests have it.
    """

    def __init__(self, stream: Stream, results: SimpleQueue[Result]):
        self.rows = 0
        self.prompts = Counter[str]()
        self._stream = stream
        self._results = results
        self._queue = deque[Request]()
        self._has_news = Event()  # a request, or the end
        self._is_stopped = False
        self.thread = Thread(target=self._run, daemon=True)
        self.thread.start()

    def add(self, request: Request) -> None:
        """Count and queue a request, and wake the thread."""
        self.rows += len(request.prompts)
        self.prompts.update(request.prompts)
        self._queue.append(request)
        self._has_news.set()

    def mark_completed(self, request: Request) -> None:
        """Count a request as completed."""
        self.rows -= len(request.prompts)
        self.prompts -= Counter(request.prompts)  # removes prompts whose count falls to 0

    def stop(self) -> None:
        """Let the thread end after its next completed text, even with unfinished requests.

        A thread without requests ends at once.
        """
        self._is_stopped = True
        self._has_news.set()

    def _run(self) -> None:
        """Complete requests until ``stop``.

        Each completion, or the error that ends the thread, is put into the queue of results.
        """
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

    At the end or an error, this waits until each thread has ended (``Share.stop``).

    Args:
        streams: one for each worker; it completes the requests of a queue that grows meanwhile.
        queue: requests that wait; the caller may add further ones between two yields.
        rows: model rows of a worker's full batch. A worker gets requests for a quarter more rows,
            so that it never waits.

    Raises:
        BaseException: the first error that a stream raises.
    """
    results = SimpleQueue[Result]()
    most_rows = rows + rows // 4
    shares = [Share(stream, results) for stream in streams]
    try:
        while queue or any(share.rows for share in shares):
            # Fill the workers, then wait for the next text of any of them
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
            share.thread.join()


def choose_share(shares: Sequence[Share], request: Request) -> Share:
    """Return the share that a request is added to.

    It is the first share that has a prompt of the request and at most ``SLACK_ROWS`` rows more than
    the share with the fewest rows; else the share with the fewest rows.
    """
    smallest = min(shares, key=lambda share: share.rows)
    for share in shares:
        has_prompt = any(prompt in share.prompts for prompt in request.prompts)
        if has_prompt and share.rows <= smallest.rows + SLACK_ROWS:
            return share
    return smallest

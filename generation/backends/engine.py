"""Batched self-debiased decoding with a KV cache. Knows prompts and counter-prompts, no labels, files or datasets.

The rows of a request, one for each of its prompts, get the same token at every step. What rows share is computed once
(``generation.backends.shared_attention``); a text that ends makes room for a waiting one. In float32 on a CPU a text
and its statistics are a function of (model, request, settings), whatever the batch (docs/engine.md).

A plain loop decodes what shared attention does not know: ALiBi, soft caps, texts longer than a model's window. It gives
the same texts and takes more memory and time.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from copy import copy
from functools import partial
from itertools import chain, islice
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from generation.backends.batch import KVCaches, LiveBatch, LiveSequence, Prompt, Row
from generation.backends.load_model import is_out_of_memory, rows_that_fit
from generation.backends.model_check import PLAIN, AttentionPath, find_path, plain_logits, with_attention
from generation.backends.output_layer import LogitsInPieces, OutputLayer, pack, take_output_layer
from generation.backends.protocol import Completion, Request, cut
from generation.backends.self_debiasing import NextTokenLogits, choose, guided_rows
from generation.backends.shared_attention import KVCache, Level, Pass, Write, causal_mask, rounded, run_pass
from generation.backends.side_by_side import side_by_side
from generation.inputs.chat_template import PromptEncoder
from generation.inputs.row_seeds import uniforms
from hub.cli import say
from hub.contract.recipe import QUOTE, DecodingParameters, TextEnd
from hub.errors import InputError, OutOfMemory

PREFIX_CHUNK = 512  # tokens of a shared prefix in one pass
Ids = tuple[int, ...]


class Engine(PromptEncoder):
    """A causal language model and its tokenizer, ready to complete quoted texts."""

    def __init__(self, model: Any, tokenizer: Any, chat: bool = False, shared: bool = True, workers: int = 1):
        """``model`` and ``tokenizer`` are transformers'; ``chat``: prompts go through the tokenizer's chat template.

        ``shared``: read through ``generation.backends.shared_attention`` (where the model's attention can), else in the
        plain loop. ``workers``: threads that write at the same time, where attention is shared.
        """
        super().__init__(tokenizer, model.config, chat)
        self.model, config = model.eval(), model.config.get_text_config()
        self.vocabulary = int(config.vocab_size)
        self.ends = self._end_tokens()
        self.stops = self._stop_tables()
        self.no_tokens = sorted({*range(self.vocabulary)} - {*tokenizer.get_vocab().values()})
        self.attention = find_path(model) if shared else AttentionPath(False, "asked for", config._attn_implementation)
        if shared and not self.attention.shared:
            say(
                f"{config.model_type}: the plain loop writes the texts in one worker ({self.attention.reason}); {PLAIN}"
            )
        self._output = take_output_layer(model) if self.attention.shared else None
        if shared and self._output is None:
            pack(model, last=True)
        beyond = (
            f"texts beyond the model's window of {self.attention.window} tokens: the plain, slower loop writes them"
        )
        self._window_message = iter([beyond])  # said once by all workers
        self._exact = model.dtype == torch.float32 and self._device.type == "cpu"  # a text never depends on its batch
        self._caches = KVCaches()
        self.prefix_ids: list[Ids] = []
        self._running: tuple[list[LiveSequence], int] = [], 1  # unfinished texts, the most tokens of one
        self.passes = 0  # those of shared prefixes do not count
        self.tokens_computed = 0  # of rows and of prompts, each prompt once; without shared prefixes
        self._most_rows: int | None = None  # once memory ran out: what is left of the rows, for all later calls
        self._own = Lock()  # held in a step; the plain loop, for which the whole model changes its attention, holds all
        self._locks, self._workers = [self._own], [self]
        if self.attention.shared:
            self._workers += [self._beside() for _ in range(workers - 1)]
        self.workers = len(self._workers)

    def describe(self) -> dict[str, Any]:
        """Facts for the manifest."""
        parameters = getattr(self.model, "parameters_as_published", self.model.num_parameters())
        template = self._template.describe() if self._template else {}
        return {"parameters": parameters, **self.attention.describe(), **template}

    def _beside(self) -> "Engine":
        """Another engine of the same model and tokenizer, with keys and values of its own."""
        other = copy(self)
        other._caches, other._own = KVCaches(), Lock()
        self._locks.append(other._own)
        return other

    def stream(
        self,
        queue: deque[Request],
        settings: DecodingParameters,
        batch_size: int | None = None,
        prefixes: Sequence[str] = (),
    ) -> Iterator[tuple[Request, Completion]]:
        """See ``generation.backends.protocol.Writer.stream``.

        ``batch_size`` counts model rows of all workers: a text has 1 + K, one for each other prompt that it is scored
        under, and with guidance one for its plain prompt.
        """
        rows, workers = self.rows(settings, batch_size), self._workers if self.ahead(settings, batch_size) else [self]
        each = max(1, rows // len(workers))
        streams = [partial(one._stream, settings=settings, rows=each, prefixes=prefixes) for one in workers]
        return side_by_side(streams, queue, each) if len(streams) > 1 else streams[0](queue)

    @torch.inference_mode()
    def _stream(
        self, queue: deque[Request], settings: DecodingParameters, rows: int, prefixes: Sequence[str]
    ) -> Iterator[tuple[Request, Completion]]:
        """The stream of one worker, with so many model rows."""
        rows = min(rows, self._most_rows or rows)
        batch: LiveBatch | None = None
        wide = deque[Request]()  # beyond the model's window
        while queue or wide or (batch and batch.sequences):
            plain = queue if not self.attention.shared else None
            if wide and (len(wide) >= self._wide_rows(rows) or not (queue or (batch and batch.sequences))):
                plain = wide
            ran_out, done = False, list[tuple[Request, Completion]]()
            try:
                with ExitStack() as held:
                    for lock in self._locks if plain is not None else [self._own]:
                        held.enter_context(lock)
                    if plain is not None:
                        done = self._plain_batch(plain, settings, self._wide_rows(rows) if plain is wide else rows)
                    else:
                        if batch is None:
                            self._read_prefixes(prefixes)
                            batch = LiveBatch(self._caches, [len(ids) for ids in self.prefix_ids], self._device)
                        self._admit(batch, queue, wide, settings, rows)
                        done = self._step(batch, settings)
            except (RuntimeError, MemoryError) as error:
                _check_smaller(error, rows)
                ran_out = True
            if ran_out:  # not in the except block: the error holds the tensors of the pass
                queue.extendleft(text.request for text in reversed(batch.sequences if batch else []))
                batch, self._caches, self.prefix_ids = None, KVCaches(), []
                rows = self._fewer(rows)
            else:
                self._running = batch.sequences if batch else [], settings.max_new_tokens
                yield from done

    def _plain_batch(
        self, queue: deque[Request], settings: DecodingParameters, rows: int
    ) -> list[tuple[Request, Completion]]:
        """The next texts of the queue by the plain loop; they leave it when they are written."""
        width = max(len(request.prompts) for request in islice(queue, rows))
        batch = list(islice(queue, max(1, rows // width)))
        prompts = [[self._checked(prompt, settings) for prompt in request.prompts] for request in batch]
        with with_attention(self.model, self.attention.own):
            texts = self._decode_plainly(batch, prompts, settings)
        for _ in batch:
            queue.popleft()
        return [(text.request, self._finish(text, settings)) for text in texts]

    def _decode_plainly(
        self, requests: list[Request], prompts: list[list[Ids]], settings: DecodingParameters
    ) -> list[LiveSequence]:
        """Decode a batch in step, each row in its own cache; equal prompts are read once. ``prompts``: token ids."""
        texts = live = [LiveSequence(request) for request in requests]
        place = {ids: number for number, ids in enumerate(dict.fromkeys(chain.from_iterable(prompts)))}
        rows = [[place[ids] for ids in of_text] for of_text in prompts]
        longest = max(map(len, place))
        ids, mask = (torch.zeros(len(place), longest, dtype=torch.long) for _ in range(2))
        for row, prompt in enumerate(place):
            ids[row, longest - len(prompt) :], mask[row, longest - len(prompt) :] = torch.tensor(prompt), 1
        mask, cache = mask.to(self._device), DynamicCache(config=self.model.config)
        while True:
            self._draw(live, rows, plain_logits(self.model, ids, mask, cache), None, settings)
            rows = [of_text for text, of_text in zip(live, rows, strict=True) if not self._ended(text, settings)]
            live = [text for text in live if not self._ended(text, settings)]
            if not live:
                return texts
            kept = torch.tensor([*chain.from_iterable(rows)], device=self._device)
            cache.batch_select_indices(kept)
            mask = torch.cat([mask[kept], mask.new_ones(len(kept), 1)], dim=1)
            ids = torch.tensor([[text.tokens[-1]] for text, of_text in zip(live, rows, strict=True) for _ in of_text])
            numbers = iter(range(len(kept)))
            rows = [[next(numbers) for _ in of_text] for of_text in rows]

    def banned(self, settings: DecodingParameters) -> list[int]:
        """The ids that cannot be drawn: those of no token, and the end of text where a quotation mark ends a text."""
        return self.no_tokens + (self.ends if settings.text_end == "quotation_mark" else [])

    def rows(self, settings: DecodingParameters, batch_size: int | None = None) -> int:
        """Model rows of all workers: as many as the recipe says or as fit, and no more than memory once held."""
        logits = self._output.bytes_per_row if self._output else 12 * self.vocabulary  # float32, thrice for a softmax
        rows = batch_size or rows_that_fit(self.model, settings.max_new_tokens, logits)
        return min(rows, sum(one._most_rows or rows for one in self._workers))

    def ahead(self, settings: DecodingParameters, batch_size: int | None) -> int:
        """See ``Writer.ahead``: 0 in the plain loop, and where a fixed batch repeats bits that depend on it."""
        mixed = self.attention.shared and (self._exact or not batch_size)
        return self.rows(settings, batch_size) if mixed else 0

    def in_progress(self) -> float:
        """The work done on unfinished texts, prompts included, as a number of texts; another thread may ask."""
        return sum(text.share(most) for texts, most in (one._running for one in self._workers) for text in texts)

    def unfinished(self) -> list[tuple[int, int]]:
        """The rows and the tokens so far of every unfinished text."""
        return [(len(text.rows), len(text.tokens)) for text in self._running[0]]

    def _fewer(self, rows: int) -> int:
        """Half the rows, said and remembered; the GPU's freed memory is given back first."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self._most_rows = rows // 2
        say(f"out of memory with {rows} rows: retrying with {self._most_rows}")
        return self._most_rows

    @property
    def _device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    def _wide_rows(self, rows: int) -> int:
        """Rows of texts beyond the window. Where bits are promised one text at a time: padding would change them."""
        for message in self._window_message:
            say(message)
        return 1 if self._exact else rows

    def _admit(
        self,
        batch: LiveBatch,
        queue: deque[Request],
        wide: deque[Request],
        settings: DecodingParameters,
        rows: int,
    ) -> None:
        """Begin waiting texts while there is room for their rows, and for their prompts in one pass.

        Those beyond the model's window, which shared attention does not know, go to ``wide``.
        """
        live = batch.rows
        while queue and (not live or live + len(queue[0].prompts) <= rows):
            if batch.prefill_tokens > 4 * rows:
                break
            request = queue[0]
            prompts = [self._checked(prompt, settings) for prompt in request.prompts]
            if not self.attention.holds(max(map(len, prompts)) + settings.max_new_tokens):
                wide.append(queue.popleft())
                continue
            batch.add(request, [(ids, self._prefix_of(ids)) for ids in prompts])
            queue.popleft()  # not before it is in the batch: making room for it may fail
            live += len(prompts)

    def _step(self, batch: LiveBatch, settings: DecodingParameters) -> list[tuple[Request, Completion]]:
        """One pass and one token for every text; those that end leave the batch."""
        going = [row for text in batch.sequences if text.tokens for row in text.rows]
        read: list[Row | Prompt] = [*going, *batch.prefill]
        now = [batch.next_pass()] if read else []
        outputs = [run_pass(self.model, one) for one in now]
        self.passes += len(now)
        self.tokens_computed += sum(len(one.ids) for one in now)
        for number, prompt in enumerate(batch.prefill, len(going)):
            prompt.output = outputs[0][number].clone()
        batch.prefill = []
        if batch.sequences:  # none when all that waits is beyond the window
            place, kept = {id(what): number for number, what in enumerate(read)}, list[Tensor]()
            for prompt in (row.prompt for text in batch.sequences if not text.tokens for row in text.rows):
                if id(prompt) not in place:
                    place[id(prompt)] = len(place)
                    kept.append(prompt.output)
            table = torch.cat([*outputs, torch.stack(kept)]) if kept else outputs[0]
            rows = [[place[id(row if text.tokens else row.prompt)] for row in text.rows] for text in batch.sequences]
            self._draw(batch.sequences, rows, table, self._output, settings)
        done = [text for text in batch.sequences if self._ended(text, settings)]
        written = [(text.request, self._finish(text, settings)) for text in done]
        for text in done:
            batch.end(text)
        batch.forget()
        batch.sequences = [text for text in batch.sequences if not self._ended(text, settings)]
        return written  # until the last line, texts whose step fails are asked for again

    def _draw(
        self,
        texts: Sequence[LiveSequence],
        rows: list[list[int]],
        table: Tensor,
        layer: OutputLayer | None,
        settings: DecodingParameters,
    ) -> None:
        """Draw one token for every text.

        Args:
            rows: for each of the text's prompts its row in ``table``.
            table: (R, V) logits, or (R, H) hidden states before the output ``layer``.
        """
        requests = [text.request for text in texts]
        drawn, scored = (
            _padded([row[:count] for row, count in zip(rows, counts, strict=True)]).to(table.device)
            for counts in ([one.debiased_by for one in requests], [len(one.reported_prompts) for one in requests])
        )
        decay_constants, guidance, plain = (
            torch.tensor(values).to(table.device)
            for values in (
                [one.decay_constant_in(settings) for one in requests],
                [one.guidance_in(settings) for one in requests],
                [row[one.plain_row] for row, one in zip(rows, requests, strict=True)],
            )
        )
        guided = None
        if guidance.any():
            table, drawn, scored, guided = guided_rows(table, drawn, scored, plain, guidance)
        banned = self.banned(settings)
        logits = LogitsInPieces(layer, table, banned) if layer else NextTokenLogits(table, banned)
        seeds = np.array([one.seed for one in requests], dtype=np.uint64)
        steps = np.array([len(text.tokens) for text in texts], dtype=np.uint64)
        numbers = torch.from_numpy(uniforms(seeds, steps)).to(table.device)
        tokens, log_probs = choose(logits, drawn, settings, numbers, scored, guided, decay_constants)
        sums = log_probs.double().cpu().numpy()
        for text, token, added in zip(texts, tokens.tolist(), sums, strict=True):
            text.tokens.append(token)
            text.log_probs += added[: len(text.log_probs)]

    def _ended(self, text: LiveSequence, settings: DecodingParameters) -> bool:
        return bool(self.stops[settings.text_end][text.tokens[-1]]) or len(text.tokens) == settings.max_new_tokens

    def _read_prefixes(self, prefixes: Sequence[str]) -> None:
        """Prefill the shared prefixes that are missing; drop those that are not requested.

        The last token of a prefix is left to the prompts: with the next text it may become another one.
        """
        encoded = (self.encoded_prefix(prefix)[:-1] for prefix in prefixes)
        wanted = dict.fromkeys(ids for ids in encoded if self.attention.holds(len(ids)))
        wanted.pop((), None)
        if list(wanted) == self.prefix_ids:
            return
        self.prefix_ids = list(wanted)
        self._caches.shared_prefixes = KVCache()
        for number, ids in enumerate(wanted):
            self._caches.shared_prefixes.grow(number + 1, len(ids))
            for start in range(0, len(ids), PREFIX_CHUNK):
                self._read_chunk(number, ids, start, min(start + PREFIX_CHUNK, len(ids)))

    def _read_chunk(self, number: int, ids: Ids, start: int, end: int) -> None:
        cache, rows, length = self._caches.shared_prefixes, end - start, rounded(end)
        slots, positions = (torch.arange(*span, device=self._device) for span in ((rows,), (start, end)))
        entry, attn_bias = slots.new_tensor([number]), causal_mask(start, rows, length).to(self._device)
        level = Level(cache, entry, length, slots[None], slots, slice(0, rows), attn_bias)
        write = Write(cache, slice(0, rows), slots.new_full((rows,), number), positions)
        inputs = np.array(ids[start:end]), np.arange(start, end), np.array([rows - 1])
        run_pass(self.model, Pass(*inputs, [write], [level]))

    def _prefix_of(self, ids: Ids) -> int:
        """The longest shared prefix of a prompt that leaves at least one token; -1: none."""
        fitting = [
            (len(prefix), number)
            for number, prefix in enumerate(self.prefix_ids)
            if len(prefix) < len(ids) and ids[: len(prefix)] == prefix
        ]
        return max(fitting, default=(0, -1))[1]

    def _checked(self, prompt: str, settings: DecodingParameters) -> Ids:
        ids = self.encode(prompt)
        if self.context and len(ids) + settings.max_new_tokens > self.context:
            raise InputError(
                f"prompt {prompt[:60]!r}...",
                f"{len(ids)} tokens + {settings.max_new_tokens} to write exceed the model's context of {self.context}",
                hint="shorten the prompt or lower decoding.max_new_tokens",
            )
        return ids

    def _end_tokens(self) -> list[int]:
        """The tokens that end a document, or a turn: the tokenizer's and those of the model's generation settings."""
        listed: Any = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        found = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id, *np.atleast_1d(listed).tolist()}
        return sorted(token for token in found if token is not None and token < self.vocabulary)

    def _stop_tables(self) -> dict[TextEnd, np.ndarray]:
        """For every token id whether it ends a text: with a quotation mark, a line break or the document's end."""
        known = min(self.vocabulary, len(self.tokenizer))
        texts = [self.tokenizer.decode([token]) for token in range(known)] + [""] * (self.vocabulary - known)
        lines = np.array(["\n" in text or token in self.ends for token, text in enumerate(texts)])
        return {"line": lines, "quotation_mark": lines | np.array([QUOTE in text for text in texts])}

    def text_of(self, tokens: list[int], settings: DecodingParameters) -> tuple[str, str | None]:
        """The text that some tokens spell, and what is wrong with it (``generation.backends.protocol.cut``)."""
        decoded = self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return cut(decoded, tokens[-1] in self.ends, settings.text_end)

    def _finish(self, text: LiveSequence, settings: DecodingParameters) -> Completion:
        request, sums = text.request, text.log_probs
        means = (sums[: request.debiased_by] / len(text.tokens)).tolist()
        margin = means[0] - max(means[1:]) if len(means) > 1 else None
        nats = dict(zip(request.reported_prompts, sums.tolist(), strict=True))
        scored = tuple(nats[prompt] for prompt in request.scored_prompts)
        return Completion(*self.text_of(text.tokens, settings), means[0], margin, scored)


def _check_smaller(error: Exception, rows: int) -> None:
    """Return when fewer rows may help. Raises what is not an out-of-memory error, OutOfMemory for one text alone."""
    if not is_out_of_memory(error):
        raise error
    if rows <= 1:
        hint = "use a smaller model, a narrower dtype or a shorter prompt"
        raise OutOfMemory("memory", "is too small for one text at a time", hint=hint) from error


def _padded(rows: list[list[int]]) -> Tensor:
    """Rows of unequal length as one array; the first number stands where one is missing."""
    width = max(len(row) for row in rows)
    return torch.tensor([row + row[:1] * (width - len(row)) for row in rows])

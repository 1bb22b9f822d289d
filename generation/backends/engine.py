"""Batched self-debiased decoding with a KV cache. Knows prompts and counter-prompts, no labels, files or datasets.

The 1 + K rows of a request (its prompt and K counter-prompts) get the same token at every step; so do rows of further
prompts under which the text is only scored, and that of the plain prompt that guidance reads. Whatever rows share is
computed once (``generation.backends.shared_attention``); a text that ends makes room for a waiting one. Text and
statistics are a function of (model, request, settings) in float32 on a CPU, whatever the batch (docs/engine.md).

``PlainDecoding`` is the plain loop for what cannot be read level by level: ALiBi, soft caps, texts longer than a
model's window. It decodes a batch in step. Distinct prompts are computed once, then every row has its own cache, and
rows leave the batch as their texts end. The texts are the same; it takes more memory and time.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from generation.backends.batch import KVCaches, LiveBatch, LiveSequence, Prompt, Row
from generation.backends.load_model import is_out_of_memory, load_model, rows_that_fit
from generation.backends.model_check import AttentionPath, find_path, with_attention
from generation.backends.output_layer import LogitsInPieces, pack_output_layer, take_output_layer
from generation.backends.protocol import Completion, Request, cut
from generation.backends.self_debiasing import WholeLogits, choose, guided_rows
from generation.backends.shared_attention import KVCache, Level, Pass, Write, causal_mask, rounded, run_pass
from generation.inputs.chat_template import ChatTemplate, encoded_prompt
from generation.inputs.row_seeds import uniforms
from hub.cli import say
from hub.contract.recipe import QUOTE, DecodingParameters, LanguageModel, TextEnd
from hub.errors import InputError, OutOfMemory

PREFIX_CHUNK = 512  # tokens of a shared prefix in one pass
Ids = tuple[int, ...]


class Engine:
    """A causal language model and its tokenizer, ready to complete quoted texts."""

    def __init__(self, model: Any, tokenizer: Any, chat: bool = False, shared: bool = True):
        """``model`` and ``tokenizer`` are transformers'; ``chat``: prompts go through the tokenizer's chat template.

        ``shared``: read through ``generation.backends.shared_attention`` (where the model's attention can), else in the
        plain loop.
        """
        self.model, self.tokenizer, self.chat = model.eval(), tokenizer, chat
        config = model.config.get_text_config()
        self.vocabulary = int(config.vocab_size)
        self.ends = self._end_tokens()
        self.stops = self._stop_tables()
        self.no_tokens = sorted({*range(self.vocabulary)} - {*tokenizer.get_vocab().values()})
        self.attention = find_path(model) if shared else AttentionPath(False, "asked for", config._attn_implementation)
        if shared and not self.attention.shared:
            say(f"{config.model_type}: the plain, slower loop writes the texts ({self.attention.reason})")
        self._output = take_output_layer(model) if self.attention.shared else None
        if shared and self._output is None:
            pack_output_layer(model)
        self._plain, self._told_of_window = PlainDecoding(model), False
        self.context = int(getattr(config, "max_position_embeddings", 0) or 0)
        self._template = ChatTemplate(tokenizer)
        self._caches = KVCaches()
        self._prefix_ids: list[Ids] = []
        self._most_rows: int | None = None  # once memory ran out: what is left of the rows, for all later calls
        self.encode = lru_cache(maxsize=4096)(self._encoded)

    @classmethod
    def of(cls, model: LanguageModel) -> "Engine":
        """The engine of a recipe's section ``model``. Raises InputError when it is unusable."""
        return cls(*load_model(model), chat=model.chat_template)

    def describe(self) -> dict[str, Any]:
        """Facts for the manifest."""
        parameters = getattr(self.model, "parameters_as_published", self.model.num_parameters())
        return {"parameters": parameters, **self.attention.describe()}

    def count_tokens(self, text: str) -> int:
        """How many tokens the model's tokenizer makes of ``text``, without special tokens."""
        return len(self.tokenizer(text, add_special_tokens=False).input_ids)

    def prompt_tokens(self, prompt: str) -> int:
        """How many tokens the model reads of a prompt: special tokens and the chat template's included."""
        return len(self.encode(prompt))

    @torch.inference_mode()
    def stream(
        self,
        queue: deque[Request],
        settings: DecodingParameters,
        batch_size: int | None = None,
        prefixes: Sequence[str] = (),
    ) -> Iterator[tuple[Request, Completion]]:
        """See ``generation.backends.protocol.Writer.stream``.

        ``batch_size`` counts model rows: a text has 1 + K, one for each other prompt that it is scored under, and
        with guidance one for its plain prompt.
        """
        rows = self.rows(settings, batch_size)
        if not self.attention.shared:
            yield from self._stream_plain(queue, settings, rows)
            return
        batch: LiveBatch | None = None
        wide = deque[Request]()  # beyond the model's window
        while queue or wide or (batch and batch.sequences):
            if wide and not (queue or (batch and batch.sequences)):
                yield from self._stream_plain(wide, settings, self._wide_rows(rows))
                continue
            ran_out, done = False, list[tuple[Request, Completion]]()
            try:
                if batch is None:
                    self._read_prefixes(prefixes)
                    batch = LiveBatch(self._caches, [len(ids) for ids in self._prefix_ids], self._device)
                self._admit(batch, queue, wide, settings, rows)
                done = self._step(batch, settings)
            except (RuntimeError, MemoryError) as error:
                _check_smaller(error, rows)
                ran_out = True
            if ran_out:  # not in the except block: the error holds the tensors of the pass
                queue.extendleft(text.request for text in reversed(batch.sequences if batch else []))
                batch, self._caches, self._prefix_ids = None, KVCaches(), []
                rows = self._fewer(rows)
            else:
                yield from done

    def _stream_plain(
        self, queue: deque[Request], settings: DecodingParameters, rows: int
    ) -> Iterator[tuple[Request, Completion]]:
        while queue:
            width = max(len(request.prompts) for request in islice(queue, rows))
            batch = [queue.popleft() for _ in range(min(len(queue), max(1, rows // width)))]
            prompts = [[self._checked(prompt, settings) for prompt in request.prompts] for request in batch]
            try:
                stops, banned = self.stops[settings.text_end], self.banned(settings)
                with with_attention(self.model, self.attention.own):
                    written = self._plain.complete(prompts, batch, settings, stops, banned)
            except (RuntimeError, MemoryError) as error:
                _check_smaller(error, rows)
                written = None
            if written is None:
                queue.extendleft(reversed(batch))
                rows = self._fewer(rows)
                continue
            for request, (tokens, log_probs) in zip(batch, written, strict=True):
                yield request, self._completed(request, tokens, log_probs, settings)

    def banned(self, settings: DecodingParameters) -> list[int]:
        """The ids that cannot be drawn: those of no token, and the end of text where a quotation mark ends a text.

        An embedding that is padded to a round size has rows for ids of no token.
        """
        return self.no_tokens + (self.ends if settings.text_end == "quotation_mark" else [])

    def rows(self, settings: DecodingParameters, batch_size: int | None = None) -> int:
        """Model rows to decode together: as many as the recipe says or as fit, and no more than memory once held."""
        logits = self._output.bytes_per_row if self._output else 12 * self.vocabulary  # float32, thrice for a softmax
        rows = batch_size or rows_that_fit(self.model, settings.max_new_tokens, logits)
        return rows if self._most_rows is None else min(rows, self._most_rows)

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
        if not self._told_of_window:
            say(
                f"texts beyond the model's window of {self.attention.window} tokens: the plain, slower loop writes them"
            )
        self._told_of_window = True
        return 1 if self.model.dtype == torch.float32 and self._device.type == "cpu" else rows

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
        outputs = [run_pass(self.model, batch.next_pass())] if read else []
        for place, prompt in enumerate(batch.prefill, len(going)):
            prompt.output = outputs[0][place].clone()
        batch.prefill = []
        if batch.sequences:  # none when all that waits is beyond the window
            self._draw(batch, read, outputs, settings)
        done, kept, stops = list[LiveSequence](), list[LiveSequence](), self.stops[settings.text_end]
        for text in batch.sequences:
            ended = stops[text.tokens[-1]] or len(text.tokens) == settings.max_new_tokens
            (done if ended else kept).append(text)
        written = [
            (text.request, self._completed(text.request, text.tokens, text.log_probs, settings)) for text in done
        ]
        for text in done:
            batch.end(text)
        batch.forget()
        batch.sequences = kept  # last: until then, texts whose step fails are asked for again
        return written

    def _draw(
        self, batch: LiveBatch, read: list[Row | Prompt], outputs: list[Tensor], settings: DecodingParameters
    ) -> None:
        """One token for every text, from the ``outputs`` of what has just been ``read`` or, once, of its prompts."""
        place = {id(what): number for number, what in enumerate(read)}
        kept = list[Tensor]()
        for prompt in (row.prompt for text in batch.sequences if not text.tokens for row in text.rows):
            if id(prompt) not in place:
                place[id(prompt)] = len(place)
                kept.append(prompt.last_output)
        table = torch.cat([*outputs, torch.stack(kept)]) if kept else outputs[0]
        rows = [[place[id(row if text.tokens else row.prompt)] for row in text.rows] for text in batch.sequences]
        requests = [text.request for text in batch.sequences]
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
        logits = LogitsInPieces(self._output, table, banned) if self._output else WholeLogits(table, banned)
        numbers = batch.uniforms(batch.sequences)
        tokens, log_probs = choose(logits, drawn, settings, numbers, scored, guided, decay_constants)
        sums = log_probs.double().cpu().numpy()
        for text, token, added in zip(batch.sequences, tokens.tolist(), sums, strict=True):
            text.tokens.append(token)
            text.log_probs += added[: len(text.log_probs)]

    def _read_prefixes(self, prefixes: Sequence[str]) -> None:
        """Prefill the shared prefixes that are missing; drop those that are not requested.

        The last token of a prefix is left to the prompts: with the next text it may become another one.
        """
        encoded = (self._encoded_prefix(prefix)[:-1] for prefix in prefixes)
        wanted = dict.fromkeys(ids for ids in encoded if self.attention.holds(len(ids)))
        wanted.pop((), None)
        if list(wanted) == self._prefix_ids:
            return
        self._prefix_ids = list(wanted)
        self._caches.shared_prefixes = KVCache()
        for number, ids in enumerate(wanted):
            self._caches.shared_prefixes.grow(number + 1, len(ids))
            for start in range(0, len(ids), PREFIX_CHUNK):
                self._read_chunk(number, ids, start, min(start + PREFIX_CHUNK, len(ids)))

    def _read_chunk(self, number: int, ids: Ids, start: int, end: int) -> None:
        positions = torch.arange(start, end, device=self._device)
        rows, length = end - start, rounded(end)
        slots = torch.arange(rows, device=self._device)
        attn_bias = causal_mask(start, rows, length).to(self._device)
        cache, entry = self._caches.shared_prefixes, slots.new_tensor([number])
        level = Level(cache, entry, length, slots[None], slots, slice(0, rows), attn_bias)
        write = Write(cache, slice(0, rows), slots.new_full((rows,), number), positions)
        inputs = np.array(ids[start:end]), np.arange(start, end), np.array([rows - 1])
        run_pass(self.model, Pass(*inputs, [write], [level]))

    def _prefix_of(self, ids: Ids) -> int:
        """The longest shared prefix of a prompt that leaves at least one token; -1: none."""
        fitting = [
            (len(prefix), number)
            for number, prefix in enumerate(self._prefix_ids)
            if len(prefix) < len(ids) and ids[: len(prefix)] == prefix
        ]
        return max(fitting)[1] if fitting else -1

    def _encoded(self, prompt: str) -> Ids:
        return encoded_prompt(prompt, self.tokenizer, self._template if self.chat else None)

    def _encoded_prefix(self, prefix: str) -> Ids:
        if not self.chat:
            return tuple(self.tokenizer(prefix).input_ids)
        turn = self._template.turn(prefix)
        begun = turn[: turn.index(prefix) + len(prefix)] if prefix in turn else ""
        return tuple(self.tokenizer(begun, add_special_tokens=False).input_ids)

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

    def _completed(
        self, request: Request, tokens: list[int], log_probs: np.ndarray, settings: DecodingParameters
    ) -> Completion:
        """``log_probs``: sums over the tokens, under each of the request's ``reported_prompts``."""
        done = self._finish(tokens, log_probs[: request.debiased_by], settings)
        if not request.scored_prompts:
            return done
        sums = dict(zip(request.reported_prompts, log_probs.tolist(), strict=True))
        return replace(done, log_likelihoods=tuple(sums[prompt] for prompt in request.scored_prompts))

    def _finish(self, tokens: list[int], log_probs: np.ndarray, settings: DecodingParameters) -> Completion:
        means = (log_probs / len(tokens)).tolist()
        margin = means[0] - max(means[1:]) if len(means) > 1 else None
        return Completion(*self.text_of(tokens, settings), means[0], margin)


def _check_smaller(error: Exception, rows: int) -> None:
    """Return when fewer rows may help. Raises what is no out-of-memory error, OutOfMemory for one text alone."""
    if not is_out_of_memory(error):
        raise error
    if rows <= 1:
        hint = "use a smaller model, a narrower dtype or a shorter prompt"
        raise OutOfMemory("memory", "is too small for one text at a time", hint=hint) from error


def _padded(rows: list[list[int]]) -> Tensor:
    """Rows of unequal length as one array; the first number stands where one is missing."""
    width = max(len(row) for row in rows)
    return torch.tensor([row + row[:1] * (width - len(row)) for row in rows])


class PlainDecoding:
    """A model that reads every row with its own forward pass."""

    def __init__(self, model: Any):
        self.model = model

    @torch.inference_mode()
    def complete(
        self,
        prompts: Sequence[Sequence[Ids]],
        requests: Sequence[Request],
        settings: DecodingParameters,
        stops: np.ndarray,
        banned: list[int],
    ) -> list[tuple[list[int], np.ndarray]]:
        """Tokens of B texts, and their summed log-probabilities under each of a request's ``reported_prompts``.

        ``prompts`` are those of each of the ``requests``, as tokens; ``stops`` (V,) says which tokens end a text,
        ``banned`` which ones are never drawn.
        """
        distinct = list(dict.fromkeys(ids for text in prompts for ids in text))
        place = {ids: number for number, ids in enumerate(distinct)}
        width = max(len(text) for text in prompts)
        rows = [[place[ids] for ids in text] for text in prompts]
        index = torch.tensor([row + row[:1] * (width - len(row)) for row in rows])
        logits, mask, cache = self._read(distinct)
        tokens: list[list[int]] = [[] for _ in prompts]
        sums = np.zeros((len(prompts), width))
        live, seeds = np.arange(len(prompts)), np.array([request.seed for request in requests], dtype=np.uint64)
        debiased = torch.tensor([request.debiased_by for request in requests])
        reported = torch.tensor([len(request.reported_prompts) for request in requests])
        plain = torch.tensor([request.plain_row for request in requests])
        decay_constants = torch.tensor([request.decay_constant_in(settings) for request in requests])
        guidance = torch.tensor([request.guidance_in(settings) for request in requests])
        for step in range(settings.max_new_tokens):
            device = logits.device
            numbers = torch.from_numpy(uniforms(seeds[live], step)).to(device)
            drawn, scored = (_first(index, counts[live]).to(device) for counts in (debiased, reported))
            guided, decay = None, decay_constants[live].to(device)
            if guidance[live].any():
                away = index.gather(1, plain[live, None])[:, 0].to(device)
                logits, drawn, scored, guided = guided_rows(logits, drawn, scored, away, guidance[live].to(device))
            table = WholeLogits(logits, banned)
            chosen, log_probs = choose(table, drawn, settings, numbers, scored, guided, decay)
            sums[live, : log_probs.shape[1]] += log_probs.double().cpu().numpy()
            for text, token in zip(live.tolist(), chosen.tolist(), strict=True):
                tokens[text].append(token)
            keep = np.flatnonzero(~stops[chosen.cpu().numpy()])
            if step + 1 == settings.max_new_tokens or not len(keep):
                break
            live, next_ids = live[keep], chosen.cpu()[keep]
            rows_kept, index, ids = _kept_rows(index[keep], next_ids, first=step == 0)
            mask = mask[rows_kept.to(mask.device)]
            cache.batch_select_indices(rows_kept.to(mask.device))
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            logits = self._logits(ids[:, None].to(mask.device), mask, cache)
        return [(tokens[text], sums[text, :count]) for text, count in enumerate(reported.tolist())]

    def _read(self, prompts: list[Ids]) -> tuple[Tensor, Tensor, DynamicCache]:
        longest = max(len(ids) for ids in prompts)
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        device = self.model.get_input_embeddings().weight.device
        cache = DynamicCache(config=self.model.config)
        mask = mask.to(device)
        return self._logits(ids.to(device), mask, cache), mask, cache

    def _logits(self, ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)[:, -ids.shape[1] :]  # GPT-2 with left padding needs them
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]


def _first(index: Tensor, counts: Tensor) -> Tensor:
    """The first ``counts`` (B,) rows of each text of ``index`` (B, W), its own one where it has fewer than others."""
    return torch.where(torch.arange(index.shape[1]) < counts[:, None], index, index[:, :1])[:, : int(counts.max())]


def _kept_rows(index: Tensor, tokens: Tensor, first: bool) -> tuple[Tensor, Tensor, Tensor]:
    """What goes on of the texts of ``index`` (B, W): numbers of their rows, their new index and the rows' tokens.

    After its ``first`` token every text gets rows of its own; until then, texts share those of their prompts.
    """
    if first:
        rows, place = index.flatten(), torch.arange(index.numel())
    else:
        rows, place = index.flatten().unique(return_inverse=True)
    index = place.view(index.shape)
    ids = torch.empty(len(rows), dtype=torch.long)
    ids[index] = tokens[:, None].expand(index.shape)
    return rows, index, ids

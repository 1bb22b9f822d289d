"""Generate texts until each (source sentence, label) has enough usable ones, or no attempt is left.

Source: DINO section 4, footnote 2: up to five tries for two texts, because a model may not close
its quotation mark. The original code generates all tries, removes unclosed and identical pairs and
duplicates, and keeps two of the rest. Here an unusable completion asks for the next attempt at
once. A (source sentence, label) thus gets the shortest prefix 0..m of attempts with ``samples``
usable texts, or all ``max_attempts``, in whatever order they end. With selection or ``best_of``,
more texts than ``samples`` are needed (``DatasetRecipe.count_texts_asked``). Every completion
becomes one raw or rejected row, or both where a filter drops it later, so kept + rejected =
requested.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from sts_dino.generation.backends.protocol import Choice, Completion, Request, Writer
from sts_dino.generation.inputs.prompts import Prompts
from sts_dino.generation.inputs.row_seeds import make_seed
from sts_dino.generation.inputs.sources import SourceSentence
from sts_dino.generation.rows.filters import TextFilters
from sts_dino.generation.rows.selection import (
    Row,
    add_cosines,
    load_selector,
    make_columns,
    should_retry,
)
from sts_dino.hub.contract.recipe import DatasetRecipe, Label, Variant
from sts_dino.hub.contract.schema import COSINE, SAME_BEGINNING, SAME_FOR_LABELS
from sts_dino.hub.word_overlap import Words, split_words

BEGINNING_WORDS = 4
CONTRAST_SEED = "contrast"  # in place of a label's name where all labels share a request
FEWEST_SENTENCES = 8  # of a shard; fewer may begin alike by chance
# bounds memory: (source sentence, label) pairs of begun shards behind the first unfinished shard
MOST_PAIRS_AHEAD = 8192


class ShardRows(NamedTuple):
    """The rows of one shard, ordered by source sentence, label, attempt."""

    raw: list[Row]
    rejected: list[Row]  # with ``reason``


class _Attempt(NamedTuple):
    """One completion. ``reason``: why it is rejected, or None."""

    seed: int
    completion: Completion
    reason: str | None


@dataclass(eq=False)
class _TextRequest:
    """The attempts at one (source sentence, label) of a shard, and their usable texts.

    ``requested``: number of requested attempts. ``attempts``: number → attempt that has ended.
    """

    source: SourceSentence
    label: Label
    variant: Variant
    requested: int = 0
    attempts: dict[int, _Attempt] = field(default_factory=dict)
    usable_texts: set[str] = field(default_factory=set)

    def add_usable(self, completion: Completion, recipe: DatasetRecipe) -> bool:
        """Add the text of a completion to the usable texts if it is usable; return whether it is.

        A usable text is new and differs from its source sentence. It also passes verification,
        unless that is calibrated and so decides later. The set of usable texts does not depend on
        the order of the completions.
        """
        text = completion.text
        if text == self.source.text or text in self.usable_texts:
            return False
        columns = make_columns(completion, self.label.name, recipe)
        if should_retry({"target": self.label.name, **columns}, recipe):
            return False
        self.usable_texts.add(text)
        return True


@dataclass(eq=False)
class _OpenShard:
    """A shard whose texts are requested.

    ``requests``: by source sentence, then by label. ``open_texts``: number of texts that are wanted
    and neither usable nor given up.
    """

    requests: list[_TextRequest]
    open_texts: int = 0


@dataclass
class _RequestQueue:
    """The requests that wait for the writer, and the begun shards, in the order of the source."""

    recipe: DatasetRecipe
    prompts: Prompts
    variant: Variant
    sources: Iterator[Sequence[SourceSentence]]  # of the shards that are not begun
    size: int  # requests to keep waiting, those of further shards included
    waiting: deque[Request] = field(default_factory=deque)
    shards: deque[_OpenShard] = field(default_factory=deque)

    def fill(self) -> None:
        """Begin further shards while there is room (``_has_room``), or until none is left."""
        while self._has_room():
            sources = next(self.sources, None)
            if sources is None:
                return
            self._begin_shard(sources)

    def _has_room(self) -> bool:
        """Return whether to begin another shard.

        True if the queue has no begun shard. Otherwise true while fewer than ``size`` requests
        wait and the shards behind the first one have fewer than ``MOST_PAIRS_AHEAD`` (source
        sentence, label) pairs.
        """
        if not self.shards:
            return True
        pairs_ahead = sum(len(shard.requests) for shard in islice(self.shards, 1, None))
        return len(self.waiting) < self.size and pairs_ahead < MOST_PAIRS_AHEAD

    def _begin_shard(self, sources: Sequence[SourceSentence]) -> None:
        """Queue the first requests of a shard.

        They are queued by the length of their source sentence, so that neighbours have prompts of
        similar length.
        """
        shard = _OpenShard([])
        for source in sources:
            variant = self.prompts.choose_variant(self.variant, source.text)
            for label in self.recipe.written_labels:
                shard.requests.append(_TextRequest(source, label, variant))
        for text_request in sorted(shard.requests, key=lambda request: len(request.source.text)):
            for _ in range(self.recipe.count_texts_asked(text_request.label)):
                self.waiting.append(self._make_request(shard, text_request))
                shard.open_texts += 1
        self.shards.append(shard)

    def retry(self, shard: _OpenShard, text_request: _TextRequest) -> None:
        """Queue the next attempt before all other requests, so that its shard ends soon."""
        self.waiting.appendleft(self._make_request(shard, text_request))

    def _make_request(self, shard: _OpenShard, text_request: _TextRequest) -> Request:
        """Return the request of the next attempt, and count it in ``text_request.requested``.

        Its key is (shard, text_request, number of the attempt, from 0). With verification it has
        the prompts of every label, under which the text is scored.
        """
        attempt = text_request.requested
        text_request.requested += 1
        source, label, variant = text_request.source, text_request.label, text_request.variant
        seed = compute_text_seed(self.recipe, variant, source, label.name, attempt)
        scored_prompts: tuple[str, ...] = ()
        if self.recipe.verification:
            scored_prompts = tuple(
                self.prompts.make_prompt(scored_label, source.text, variant)
                for scored_label in self.recipe.written_labels
            )
        request = make_text_request(self.prompts, label, source.text, variant, seed)
        return replace(
            request,
            key=(shard, text_request, attempt),
            scored_prompts=scored_prompts,
            choice=self._make_choice(text_request, attempt),
        )

    def _make_choice(self, text_request: _TextRequest, attempt: int) -> Choice | None:
        """Return the position of a text in a server's answer with several texts.

        The first attempts at a source sentence and label share answers of ``model.server.choices``
        texts each; a retry has an answer of its own. None for a text that is alone in its answer.
        """
        server = self.recipe.model.server
        texts_asked = self.recipe.count_texts_asked(text_request.label)
        if server is None or server.choices == 1 or attempt >= texts_asked:
            return None
        # every ``choices`` attempts share an answer: its first attempt, and its number of texts
        first_attempt = attempt - attempt % server.choices
        count = min(server.choices, texts_asked - first_attempt)
        if count == 1:
            return None
        source, label, variant = text_request.source, text_request.label, text_request.variant
        seed = compute_text_seed(self.recipe, variant, source, label.name, first_attempt)
        return Choice(attempt - first_attempt, count, seed)


def generate_shards(
    writer: Writer,
    prompts: Prompts,
    recipe: DatasetRecipe,
    sentences: Iterable[Sequence[SourceSentence]],
    tick: Callable[[int], object],
    variant: Variant = Variant(None, 0),  # noqa: B008 - frozen
) -> Iterator[ShardRows]:
    """Generate shards and yield the rows of each, in the order of ``sentences``.

    Texts of the next shards are requested before a shard is done, so that the batch stays full
    (``Writer.choose_queue_length``).

    Args:
        writer: the language model.
        prompts: the prompts of ``recipe``.
        recipe: the dataset's recipe.
        sentences: the source sentences of each shard, read as the queue has room.
        tick: called with 1 for each text that becomes usable or is given up.
        variant: the variant of the prompts.

    Before any request, raises InputError when the encoder of ``selection`` cannot be loaded, and
    RunError when its Hub does not answer. Then raises the errors of ``Writer.stream``.
    """
    # request the texts of the first shards
    if recipe.selection is not None:
        load_selector(recipe)
    decoding = recipe.decoding
    filters = TextFilters(recipe, prompts.sets)
    ahead = writer.choose_queue_length(decoding, decoding.batch_size)
    queue = _RequestQueue(recipe, prompts, variant, iter(sentences), ahead)
    queue.fill()
    prefixes = prompts.list_prefixes(variant)
    for request, completion in writer.stream(
        queue.waiting, decoding, decoding.batch_size, prefixes
    ):
        # record the attempt
        shard, text_request, attempt = request.key
        reason = completion.problem or filters.find_reason(
            completion.text,
            text_request.source.text,
            text_request.label,
            text_request.variant,
        )
        text_request.attempts[attempt] = _Attempt(request.seed, completion, reason)

        # accept its text, give it up, or request the next attempt
        is_usable = reason is None and text_request.add_usable(completion, recipe)
        if is_usable or text_request.requested >= decoding.max_attempts:
            shard.open_texts -= 1
            tick(1)
        else:
            queue.retry(shard, text_request)

        # yield the shards that are done, in order, and begin further ones
        while queue.shards and not queue.shards[0].open_texts:
            yield _make_shard_rows(queue.shards.popleft(), recipe)
        queue.fill()


def _make_shard_rows(shard: _OpenShard, recipe: DatasetRecipe) -> ShardRows:
    """Return the raw and rejected rows of a shard whose attempts have all ended.

    A server's texts are first compared with each other, which may reject some of them. With
    ``selection`` the raw rows get their cosines. Raises the errors of ``load_selector``.
    """
    if recipe.model.server is not None:
        _reject_same_texts(shard.requests, len(recipe.written_labels))
        for label in recipe.written_labels:
            label_requests = [request for request in shard.requests if request.label is label]
            _reject_texts_that_begin_alike(label_requests)
    rows = ShardRows([], [])
    for text_request in shard.requests:
        for row in _make_rows(text_request, recipe):
            if row["reason"] is None:
                del row["reason"]
                rows.raw.append(row)
            else:
                rows.rejected.append(row)
    if recipe.selection is not None:
        add_cosines(rows.raw, recipe)
    return rows


def _reject_same_texts(text_requests: Sequence[_TextRequest], label_count: int) -> None:
    """Reject each text that a source sentence has under every label, by setting its reason.

    A server that returns the same text for every label answers without reading the label. Nothing
    is rejected with one label.

    Args:
        text_requests: the requests of a shard; those of a source sentence are consecutive. Their
            ``attempts`` are changed.
        label_count: the number of labels, and so of requests of a source sentence.
    """
    if label_count < 2:
        return
    for start in range(0, len(text_requests), label_count):
        sentence_requests = text_requests[start : start + label_count]
        same_texts = set.intersection(*(request.usable_texts for request in sentence_requests))
        for text_request in sentence_requests:
            for number, attempt in text_request.attempts.items():
                if attempt.reason is None and attempt.completion.text in same_texts:
                    text_request.attempts[number] = attempt._replace(reason=SAME_FOR_LABELS)


def _reject_texts_that_begin_alike(text_requests: Sequence[_TextRequest]) -> None:
    """Reject a label's texts that begin with the same four words for most source sentences.

    Such words ("A rephrased version would be …") are about the task. Nothing is rejected where
    many source sentences begin alike themselves (at least half as many as texts), as questions do,
    nor in a shard of fewer than ``FEWEST_SENTENCES`` source sentences.

    Args:
        text_requests: the requests of one label in one shard, one for each source sentence. Their
            ``attempts`` are changed: a rejected text gets the reason.
    """
    # find the most frequent first words of the texts
    source_counts = Counter(_get_beginning(request.source.text) for request in text_requests)
    text_counts = Counter[Words]()
    for text_request in text_requests:
        text_counts.update({_get_beginning(text) for text in text_request.usable_texts})
    if len(text_requests) < FEWEST_SENTENCES or not text_counts:
        return
    beginning, count = text_counts.most_common(1)[0]
    alike_sources = source_counts.most_common(1)[0][1]
    if len(beginning) < BEGINNING_WORDS or 2 * count <= len(text_requests):
        return
    if 2 * alike_sources >= count:
        return

    # reject the texts that begin with them
    for text_request in text_requests:
        for number, attempt in text_request.attempts.items():
            if attempt.reason is None and _get_beginning(attempt.completion.text) == beginning:
                text_request.attempts[number] = attempt._replace(reason=SAME_BEGINNING)


def _get_beginning(text: str) -> Words:
    """Return the first ``BEGINNING_WORDS`` words of a text, case-folded; fewer if it is shorter."""
    return split_words(text)[:BEGINNING_WORDS]


def compute_text_seed(
    recipe: DatasetRecipe, variant: Variant, source: SourceSentence, label: str, attempt: int
) -> int:
    """Return the seed of one completion, a hash of the recipe's seed and the arguments.

    Without few-shot examples the variant is not hashed. With ``model.server.contrast`` one request,
    and so one seed, has the texts of all labels.

    Args:
        recipe: the dataset's recipe.
        variant: the variant of the prompt.
        source: the source sentence.
        label: the label's name.
        attempt: the number of the attempt, from 0.
    """
    if recipe.has_contrast:
        label = CONTRAST_SEED
    identity = [recipe.seed, source.source_id, source.text, label, attempt]
    if variant.shots is not None:
        identity += [variant.shots, variant.example_set]
    return make_seed(*identity)


def make_text_request(
    prompts: Prompts, label: Label, text1: str, variant: Variant, seed: int
) -> Request:
    """Return the request for one text of a label, with the label's decay constant and guidance.

    For a server that gets few-shot examples as turns of a chat, the request has these turns, and no
    counter-prompts, guidance or examples in the prompt. With ``model.server.contrast`` its prompt
    asks for the texts of all labels, and ``answer_key`` names the one of ``label``.

    Args:
        prompts: the prompts of the recipe.
        label: the label to generate for.
        text1: the source sentence.
        variant: the variant of the prompt.
        seed: the completion's seed.

    Raises InputError as ``Prompts.make_contrast_turns``.
    """
    server = prompts.recipe.model.server
    if server is not None and server.contrast is not None:
        prompt, example_turns = prompts.make_contrast_turns(text1, variant)
        key = server.contrast.keys[label.name]
        return Request(prompt, (), seed, example_turns=example_turns, answer_key=key)
    if server is not None and server.example_turns:
        prompt, example_turns = prompts.make_turns(label, text1, variant)
        return Request(prompt, (), seed, example_turns=example_turns)
    prompt, counter_prompts = prompts.make_prompts(label, text1, variant)
    return Request(
        prompt,
        counter_prompts,
        seed,
        plain_prompt=prompts.get_plain_prompt(label),
        decay_constant=label.decay_constant,
        guidance=label.guidance,
    )


def _make_rows(text_request: _TextRequest, recipe: DatasetRecipe) -> Iterator[Row]:
    """Yield a row for every attempt, by number; ``sample`` counts the usable texts before it.

    ``reason`` is None for a raw row. With ``selection`` the column ``cosine`` is None:
    ``add_cosines`` sets it in raw rows.
    """
    source, label, variant = text_request.source, text_request.label, text_request.variant
    # collect the usable texts again: the attempts may have ended in another order
    earlier_attempts = _TextRequest(source, label, variant)
    for number, attempt in sorted(text_request.attempts.items()):
        completion = attempt.completion
        row = {
            "text1": source.text,
            "text2": completion.text,
            "source_id": source.source_id,
            "target": label.name,
            "sample": len(earlier_attempts.usable_texts),
            "attempt": number,
            "seed": attempt.seed,
            "log_prob": completion.log_prob,
            "margin": completion.margin,
            **make_columns(completion, label.name, recipe),
        }
        if recipe.selection is not None:
            row[COSINE] = None
        if recipe.few_shot:
            row["example_set"] = variant.example_set
        row["reason"] = attempt.reason
        if attempt.reason is None:
            earlier_attempts.add_usable(completion, recipe)
        yield row

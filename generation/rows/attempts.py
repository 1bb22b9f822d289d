"""Generate texts until each (source sentence, label) has what the recipe wants, or its attempts are used up.

Source: DINO section 4, footnote 2: up to five tries for two texts, because a model may not close its quotation mark.
The original code generates all tries, removes unclosed and identical pairs and duplicates, and keeps two of the rest.
Here an unusable completion asks for the next attempt at once. A (source sentence, label) thus gets the shortest prefix
0..m of attempts with ``samples`` usable texts, or all ``max_attempts``, in whatever order they end. Every completion
becomes one raw or rejected row, or both where a filter drops it later, so kept + rejected = requested.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product

from generation.backends.protocol import Completion, Request, Writer
from generation.inputs.prompts import Prompts
from generation.inputs.row_seeds import row_seed
from generation.inputs.sources import SourceSentence
from generation.rows import verification
from generation.rows.filters import Row, TextFilters
from hub.contract.recipe import DatasetRecipe, Label, Variant
from hub.contract.schema import SAME_FOR_LABELS

OPEN = 8192  # (source sentence, label) pairs of further shards that are begun while the first one is not done


@dataclass(eq=False)
class _Wanted:
    """One (source sentence, label) of a shard and its completions by attempt, each with its seed and problem."""

    shard: int
    first: SourceSentence
    label: Label
    variant: Variant
    asked: int = 0
    done: dict[int, tuple[int, Completion, str | None]] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)

    def take(self, completion: Completion, recipe: DatasetRecipe) -> bool:
        """Whether a text is new, differs from its source sentence, and passes verification. Order-independent."""
        text = completion.text
        row = {"target": self.label.name, **verification.columns(completion, self.label.name, recipe)}
        usable = text != self.first.text and text not in self.texts and not verification.asks_again(row, recipe)
        self.texts |= {text} if usable else set()
        return usable


def write_shards(
    writer: Writer,
    prompts: Prompts,
    recipe: DatasetRecipe,
    sentences: Iterable[Sequence[SourceSentence]],
    tick: Callable[[int], object],
    variant: Variant = Variant(None, 0),  # noqa: B008 - frozen
    stops_early: bool = False,
) -> Iterator[tuple[list[Row], list[Row]]]:
    """Raw rows and rejected rows (with ``reason``) of each shard's source sentences, shard after shard.

    stops_early: the rows so far of shards that the writer leaves unfinished are yielded, too (a pilot).

    Texts of the next shards are requested before a shard is done, so that the batch stays full (``Writer.ahead``).
    ``tick(n)`` is called for every n texts that are usable or given up. The rows depend on the sentences, the recipe
    and the variant only. Requests of a shard are queued by the length of their source sentence, so that neighbours have
    prompts of similar length.
    """
    queue, shards, filters = deque[Request](), deque[list[_Wanted]](), TextFilters(recipe, prompts.sets)
    waiting, ahead = enumerate(sentences), writer.ahead(recipe.decoding, recipe.decoding.batch_size)
    left = Counter[int]()  # texts of a shard that are neither usable nor given up

    def fill() -> None:
        while not shards or (len(queue) < ahead and sum(map(len, islice(shards, 1, None))) < OPEN):
            number, firsts = next(waiting, (0, None))
            if firsts is None:
                return
            needs = product(((one, prompts.variant(variant, one.text)) for one in firsts), recipe.written_labels)
            shards.append([_Wanted(number, first, label, of_first) for (first, of_first), label in needs])
            for need in sorted(shards[-1], key=lambda need: len(need.first.text)):
                queue.extend(_request(need, recipe, prompts) for _ in range(recipe.texts_asked(need.label)))
            left[number] = sum(need.asked for need in shards[-1])

    fill()
    stream = writer.stream(queue, recipe.decoding, recipe.decoding.batch_size, prompts.prefixes(variant))
    for request, completion in stream:
        need, attempt = request.key
        reason = completion.problem or filters.reason(completion.text, need.first.text, need.label, need.variant)
        need.done[attempt] = request.seed, completion, reason
        if (reason is None and need.take(completion, recipe)) or need.asked >= recipe.decoding.max_attempts:
            left[need.shard] -= 1
            tick(1)
        else:
            queue.appendleft(_request(need, recipe, prompts))
        while shards and not left[shards[0][0].shard]:
            yield _shard_rows(shards.popleft(), recipe)
        fill()
    if stops_early:
        yield from (_shard_rows(shard, recipe) for shard in shards)


def _shard_rows(wanted: Sequence[_Wanted], recipe: DatasetRecipe) -> tuple[list[Row], list[Row]]:
    """Raw and rejected rows, ordered by sentence, label, attempt."""
    if recipe.model.server is not None:
        _reject_same(wanted, len(recipe.written_labels))
    rows = [row for need in wanted for row in _rows(need, recipe)]
    raw = [{k: v for k, v in row.items() if k != "reason"} for row in rows if row["reason"] is None]
    return raw, [row for row in rows if row["reason"] is not None]


def _reject_same(wanted: Sequence[_Wanted], labels: int) -> None:
    """Reject a text that a source sentence has under every label: a server answers without reading the label."""
    for start in range(0, len(wanted) if labels > 1 else 0, labels):
        needs = wanted[start : start + labels]
        same = set[str].intersection(*(need.texts for need in needs))
        for need in needs:
            for attempt, (seed, completion, reason) in need.done.items():
                if reason is None and completion.text in same:
                    need.done[attempt] = seed, completion, SAME_FOR_LABELS


def text_seed(recipe: DatasetRecipe, variant: Variant, first: SourceSentence, label: str, attempt: int) -> int:
    """The seed of one completion. Without few-shot examples the variant is not part of its identity."""
    asked = () if variant.shots is None else (variant.shots, variant.example_set)
    return row_seed(recipe.seed, first.source_id, first.text, label, attempt, *asked)


def text_request(prompts: Prompts, label: Label, text1: str, variant: Variant, seed: int) -> Request:
    """The request for one text of a label, with the λ and γ that the label sets for itself."""
    prompt, counter_prompts = prompts.of(label, text1, variant)
    return Request(
        prompt,
        counter_prompts,
        seed,
        plain_prompt=prompts.plain(label),
        decay_constant=label.decay_constant,
        guidance=label.guidance,
    )


def _request(need: _Wanted, recipe: DatasetRecipe, prompts: Prompts) -> Request:
    attempt, need.asked = need.asked, need.asked + 1
    seed = text_seed(recipe, need.variant, need.first, need.label.name, attempt)
    labels = recipe.written_labels if recipe.verification else ()
    scored = tuple(prompts.of(label, need.first.text, need.variant)[0] for label in labels)
    request = text_request(prompts, need.label, need.first.text, need.variant, seed)
    return replace(request, key=(need, attempt), scored_prompts=scored)


def _rows(need: _Wanted, recipe: DatasetRecipe) -> list[Row]:
    """A row for every attempt, in order; ``sample`` counts the usable texts before it."""
    rows, before = list[Row](), _Wanted(need.shard, need.first, need.label, need.variant)
    example_set = {"example_set": need.variant.example_set} if recipe.few_shot else {}
    for attempt, (seed, completion, reason) in sorted(need.done.items()):
        rows.append(
            {
                "text1": need.first.text,
                "text2": completion.text,
                "source_id": need.first.source_id,
                "target": need.label.name,
                "sample": len(before.texts),
                "attempt": attempt,
                "seed": seed,
                "log_prob": completion.log_prob,
                "margin": completion.margin,
                **verification.columns(completion, need.label.name, recipe),
                **example_set,
                "reason": reason,
            }
        )
        if reason is None:
            before.take(completion, recipe)
    return rows

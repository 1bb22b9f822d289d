"""``--dry-run``: what a run would do. Prompts as the model reads them, token counts, shards, files and commits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from generation.backends.protocol import TokenCounter
from generation.backends.registry import load_preview, with_dtype
from generation.inputs.prompts import ContextRoom, Prompts, load_prompts
from generation.inputs.row_seeds import fraction
from generation.inputs.sources import CountTokens, FirstText, GivenTexts, Lack, is_generated
from generation.pipeline import tasks as layout
from generation.pipeline.directory import BaseRun
from hub.contract.recipe import DatasetRecipe, Label, Variant, Verification
from hub.errors import InputError

RENDERED = 5  # prompts shown of each label and shot count
SAMPLE = 200  # first texts whose prompts are counted
FILES, FILES_OF_FOLDER = 100_000, 10_000  # fewer are recommended: huggingface.co/docs/hub/storage-limits
BESIDE = 12  # files that are no data: manifest, recipe, card, plots
ROWS_OF_SHARD = 200_000  # of texts wanted: a worker holds them in memory
NOT_YET = "a sentence that the model will write first, here one of twelve words."


@dataclass(frozen=True)
class Firsts:
    """How many first texts a run has, some of them, and what was passed over."""

    total: int
    sample: tuple[FirstText, ...]  # spread over the source, at most ``SAMPLE``
    skipped: dict[str, int]


def plan(recipe: DatasetRecipe, directory: Path, base: BaseRun | None = None) -> str:
    """The whole plan as text. Loads the model's config and tokenizer and reads the source; writes nothing.

    ``base``: the finished run that rows are appended to; the plan is then of what comes after its first texts.

    Raises InputError as a run would: a source, example or model that cannot be used, or a prompt beyond the context.
    """
    recipe = with_dtype(recipe)
    (writer, told), prompts = load_preview(recipe.model), load_prompts(recipe)
    firsts = survey(recipe, writer.count_tokens, ContextRoom(prompts, writer).lack, base)
    lines = [f"{recipe.name} v{recipe.version} -> {directory}"]
    lines += told
    if base is not None:
        files, version = len(base.manifest.files), base.manifest.version
        lines.append(f"appended to v{version}: its {base.first_texts} first texts and {files} files stay as they are")
    lines += _first_text_lines(recipe, prompts, firsts)
    lines += _work_lines(recipe, firsts.total)
    lines += _file_lines(recipe, directory, firsts.total)
    lines += _prompt_lines(recipe, prompts, writer, firsts)
    return "\n".join(lines)


def survey(
    recipe: DatasetRecipe, count_tokens: CountTokens, lack: Lack = lambda _: 0, base: BaseRun | None = None
) -> Firsts:
    """Read the source once. First texts that the model has still to write are stood in for by one sentence.

    ``base``: the run whose first texts are passed over, because rows are appended to it.
    """
    if is_generated(recipe.source):
        return Firsts(
            (recipe.source.limit or 0) - (base.first_texts if base else 0), (FirstText("000000", NOT_YET),), {}
        )
    given, sample, total = GivenTexts(recipe, count_tokens, lack), list[tuple[float, int, FirstText]](), 0
    firsts = base.new_among(given, recipe.source.path or recipe.source.repo_id) if base else given
    for total, first in enumerate(firsts, start=1):
        sample.append((fraction("plan", first.source_id), total, first))
        if len(sample) > 20 * SAMPLE:
            sample = sorted(sample)[:SAMPLE]
    chosen = sorted(sorted(sample)[:SAMPLE], key=lambda entry: entry[1])
    return Firsts(total, tuple(first for _, _, first in chosen), dict(sorted(given.skipped.items())))


def visible(text: str) -> str:
    """``text`` for a terminal: line breaks stay, every other control or invisible character is written as its code."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _first_text_lines(recipe: DatasetRecipe, prompts: Prompts, firsts: Firsts) -> Iterator[str]:
    if is_generated(recipe.source):
        yield f"first texts: {firsts.total}, written by the model after:"
        yield from (f"  {prompts.first_text_prefix(label)!r}" for label in recipe.written_labels)
    else:
        passed = ", ".join(f"{count} {reason}" for reason, count in firsts.skipped.items()) or "none"
        yield f"first texts: {firsts.total} (passed over: {passed})"


def _work_lines(recipe: DatasetRecipe, total: int) -> Iterator[str]:
    labels, variants = recipe.written_labels, len(recipe.variants)
    wanted = {label.name: total * recipe.texts_asked(label) * variants for label in labels}
    each = f"{wanted[labels[0].name]} of each label"
    if len(set(wanted.values())) > 1:
        each = ", ".join(f"{count} of label {name}" for name, count in wanted.items())
    yield (
        f"texts: {sum(wanted.values())} wanted, {each}; at most "
        f"{total * recipe.decoding.max_attempts * variants * len(labels)} attempts"
    )
    yield from _own_lines(recipe)
    if recipe.verification:
        yield from _verification_lines(recipe.verification, recipe)
    whole, last = divmod(total, recipe.shard_size)
    blocks = whole + (last > 0)
    sizes = f"{whole} of {recipe.shard_size}" if not last else f"one of {last}"
    if whole and last:
        sizes = f"{whole} of {recipe.shard_size} and {sizes}"
    per_first = recipe.texts_per_first_text
    yield (
        f"shards: {blocks * variants} ({sizes} first texts{f', for each of {variants} variants' * (variants > 1)}; "
        f"{recipe.shard_size * per_first} wanted texts in a whole one)"
    )


def _verification_lines(asked: Verification, recipe: DatasetRecipe) -> Iterator[str]:
    """Which prompts a text is scored under, at how many model rows, and what is made of it."""
    labels = recipe.written_labels
    samples = dict.fromkeys(str(recipe.decoding_of(label).samples) for label in labels)
    of = dict.fromkeys(str(recipe.texts_asked(label)) for label in labels)
    done = {
        f"the best {' or '.join(samples)} of {' or '.join(of)} texts stay": asked.best_of > 1,
        "texts that fit another label better are dropped": asked.drop,
        f"scores are soft (temperature {asked.temperature:g})": asked.scores == "soft",
        "labels are calibrated over each shard": asked.calibrated,
    }
    yield (
        f"verification: each text is scored under the prompts of {len(labels)} labels "
        f"({_rows_a_text(recipe, labels):.3g} model rows a text, {_rows_a_text(recipe):.3g} on average without it)"
        + "".join(f"; {words}" for words, is_so in done.items() if is_so)
    )


def _rows_a_text(recipe: DatasetRecipe, scored: Sequence[Label] = ()) -> float:
    """Model rows of a text, the mean over all texts that are asked for; ``scored``: labels that it is scored under."""
    rows = 0
    for label in recipe.written_labels:
        prompts = {label.name, *label.counter_labels, *(one.name for one in scored)}
        rows += recipe.texts_asked(label) * (len(prompts) + (label in recipe.guided_labels))
    return rows / recipe.texts_per_first_text


def _own_lines(recipe: DatasetRecipe) -> Iterator[str]:
    """What labels set for themselves, and where guidance leads away from."""
    for label in recipe.labels:
        if not label.written:
            yield f"label {label.name}: never written, its prompt is a counter-prompt"
        elif label.decay_constant is not None:
            yield f"label {label.name}: λ = {label.decay_constant:g} in place of {recipe.decoding.decay_constant:g}"
    strengths = dict[float, list[Label]]()
    for label in recipe.guided_labels:
        strengths.setdefault(recipe.decoding_of(label).guidance, []).append(label)
    for strength, labels in strengths.items():
        plain = ", ".join(repr(prompt) for prompt in dict.fromkeys(label.plain_prompt for label in labels))
        whose = ", ".join(label.name for label in labels)
        only = "" if len(labels) == len(recipe.written_labels) else f" of label {whose}"
        yield f"guidance: γ = {strength:g} away from {plain} (one model row more a text{only})"


def _file_lines(recipe: DatasetRecipe, directory: Path, total: int) -> Iterator[str]:
    """Files of the repository, config by config, what the Hub says to so many, and the commits."""
    yield "files:"
    folders = layout.folders(recipe, total)
    for config, count in folders.items():
        if config.startswith(("raw", "rejected")):
            yield f"  data/{config}/: {count} shards, one when each is written"
        else:
            when = "written before the shards" if config == "sources" else "train and validation, written at the end"
            yield f"  data/{config}/: {when}; {count} files at most"
    fullest = max(folders, key=lambda config: folders[config])
    whole = sum(folders.values()) + BESIDE
    yield f"  at most {whole} files in all, {folders[fullest]} in the fullest folder, data/{fullest}/"
    if not _few_enough(folders):
        yield (
            f"warning: the Hub recommends fewer than {FILES} files in a repository and {FILES_OF_FOLDER} in a folder; "
            + _advice(recipe, total)
        )
    yield (
        f"commits: sts-dino publish {directory} --org ORG --yes makes one, atomic, of all files, "
        f"and the tag v{recipe.version}; release.run commits while the dataset grows"
    )


def _few_enough(folders: dict[str, int]) -> bool:
    return max(folders.values()) < FILES_OF_FOLDER and sum(folders.values()) + BESIDE < FILES


def _advice(recipe: DatasetRecipe, total: int) -> str:
    """The next larger shard size, by doubling, that gives few enough files."""
    size, per_first = 2 * recipe.shard_size, recipe.texts_per_first_text
    while size * per_first <= ROWS_OF_SHARD:
        if _few_enough(layout.folders(recipe.model_copy(update={"shard_size": size}), total)):
            return f"take shard_size: {size}"
        size *= 2
    return "divide the source among several recipes"


def _prompt_lines(recipe: DatasetRecipe, prompts: Prompts, writer: TokenCounter, firsts: Firsts) -> Iterator[str]:
    for shots in dict.fromkeys(variant.shots for variant in recipe.variants):
        variants = [variant for variant in recipe.variants if variant.shots == shots]
        for label in recipe.written_labels:
            name = f"label {label.name}" + (f", {shots} examples" if shots is not None else "")
            counts = _token_counts(prompts, writer, label, variants, firsts.sample)
            _check_context(recipe, writer, name, counts[-1])
            room = f"; with {recipe.decoding.max_new_tokens} to write, context {writer.context}" * bool(writer.context)
            yield (
                f"=== {name}: {counts[0]} / {median(counts):g} / {counts[-1]} prompt tokens "
                f"(least / median / most of {len(counts)}{room})"
            )
            yield from _rendered(prompts, label, variants, firsts.sample)


def _token_counts(
    prompts: Prompts, writer: TokenCounter, label: Label, variants: Sequence[Variant], sample: Sequence[FirstText]
) -> list[int]:
    """Tokens of a label's prompts and counter-prompts, in rising order. Example sets take turns over the sample."""
    counts = []
    for place, first in enumerate(sample):
        prompt, counters = prompts.of(label, first.text, prompts.variant(variants[place % len(variants)], first.text))
        counts += [writer.count_tokens(text) for text in (prompt, *counters)]
    return sorted(counts)


def _check_context(recipe: DatasetRecipe, writer: TokenCounter, name: str, longest: int) -> None:
    needed = longest + recipe.decoding.max_new_tokens
    if writer.context and needed > writer.context:
        raise InputError(
            name,
            f"{longest} prompt tokens + {recipe.decoding.max_new_tokens} to write exceed the model's context",
            allowed=f"{writer.context} in all",
            hint="use fewer examples, shorter first texts, or lower decoding.max_new_tokens",
        )


def _rendered(
    prompts: Prompts, label: Label, variants: Sequence[Variant], sample: Sequence[FirstText]
) -> Iterator[str]:
    """Some prompts in full, spread over the sample; what the text must not fit stands after the first."""
    step = max(1, len(sample) // RENDERED)
    for number, first in enumerate(sample[::step][:RENDERED]):
        variant = prompts.variant(variants[number % len(variants)], first.text)
        prompt, counters = prompts.of(label, first.text, variant)
        yield f"--- {visible(first.source_id)}" + (f", example set {variant.example_set}" if variant.shots else "")
        yield visible(prompt)
        if not number:
            yield from (f"    not also: {counter!r}" for counter in counters)

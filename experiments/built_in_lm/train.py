"""Train the built-in language model from plain text, on a processor, in minutes.

The data order depends on the seed alone; with ``--steps`` in place of ``--minutes`` so does the learning rate.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from tqdm import tqdm

from experiments.built_in_lm.corpus import Corpus, read_corpus
from experiments.built_in_lm.pairs import PairMaker, word_salad
from experiments.built_in_lm.prompts import MAX_LENGTH, Pair, before_first, between, train_tokenizer
from hub import cli
from hub.durable import write_text
from hub.errors import InputError

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

FIRST_WEIGHT = 0.4  # loss weight of first sentences, where completions have 1
EARLY_ROUNDS = 4  # rounds with the full range of label 0.5, see `pairs`
ROUND = 16384  # pairs drawn, sorted by length and shuffled at a time
SALAD = (0.25, 0.15, 0.1, 0.05, 0.02)  # random-word documents per pair, by round: the model learns to copy first
MAX_TOKENS = 160  # of a document
MATRIX_RATE, OTHER_RATE = 0.02, 0.003  # learning rates of Muon and AdamW
WARMUP, DECAY = 0.02, 0.4  # shares of the training
RUNNING = 0.02  # weight of the last loss in the running mean

app = cli.new_app(__doc__)


@dataclass(frozen=True)
class Settings:
    """The settings of a training, saved beside the model."""

    minutes: float
    steps: int
    seed: int
    threads: int
    tokens_per_step: int


@dataclass(frozen=True)
class Batch:
    """Token ids and loss weights (0 for prompts and padding), both of shape [rows, length]."""

    ids: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True)
class Document:
    """One encoded training document."""

    ids: list[int]
    weights: list[float]


@app.command()
def main(
    data: Annotated[Path, typer.Option(help="Folder with text, senteval, sts-original and auto_nli_fewshot")],
    out: Annotated[Path, typer.Option(help="Folder of the model")],
    minutes: Annotated[float, typer.Option(help="Stop after this time (0: no limit)")] = 38.0,
    steps: Annotated[int, typer.Option(help="Stop after this many steps (0: no limit)")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of weights and data order")] = 1,
    threads: Annotated[int, typer.Option(help="Processor threads")] = 2,
    tokens_per_step: Annotated[int, typer.Option(help="Tokens of a batch")] = 2048,
) -> None:
    """Build pairs and tokenizer from the data folder, train, and write the model's folder.

    Examples:

      sts-dino experiment lm-train --data DIR --out artifacts/demo-lm
    """
    if not minutes and not steps:
        raise InputError("--minutes and --steps", "both are 0: the training would not end", hint="give one of them")
    cli.say(f"reading {data}")
    train(read_corpus(data), Settings(minutes, steps, seed, threads, tokens_per_step), out)


def encode(pairs: list[Pair], tokenizer: PreTrainedTokenizerFast) -> list[Document]:
    """Encode prompts, texts and quotes separately, which equals encoding the whole: no token crosses a quote."""
    quote = tokenizer.convert_tokens_to_ids('"')
    fixed = {p.label: [tokenizer.encode(part(p.label)) for part in (before_first, between)] for p in pairs}
    first = tokenizer([p.first for p in pairs])["input_ids"]
    second = tokenizer([p.second for p in pairs])["input_ids"]
    documents = []
    for pair, a, b in zip(pairs, first, second, strict=True):
        opening, middle = fixed[pair.label]
        end = [quote, tokenizer.eos_token_id]
        weight = 0.0 if pair.kind == "random words" else FIRST_WEIGHT
        weights = [0.0] * len(opening) + [weight] * (len(a) + 1) + [0.0] * (len(middle) - 1) + [1.0] * (len(b) + 2)
        documents.append(Document([*opening, *a, *middle, *b, *end], weights))
    return [document for document in documents if len(document.ids) <= MAX_TOKENS]


def collate(documents: list[Document], pad: int) -> Batch:
    """Documents as one padded batch."""
    import torch

    longest = max(len(document.ids) for document in documents)
    ids, weights = torch.full((len(documents), longest), pad), torch.zeros(len(documents), longest)
    for row, document in enumerate(documents):
        ids[row, : len(document.ids)] = torch.tensor(document.ids)
        weights[row, : len(document.ids)] = torch.tensor(document.weights)
    return Batch(ids, weights)


def pack(documents: list[Document], tokens: int, pad: int, rng: random.Random) -> list[Batch]:
    """Batches of about ``tokens`` tokens of documents of similar length, in random order."""
    batches, rows = [], list[Document]()
    for document in sorted(documents, key=lambda one: (len(one.ids), rng.random())):
        if rows and len(document.ids) * (len(rows) + 1) > tokens:
            batches.append(collate(rows, pad))
            rows = []
        rows.append(document)
    batches.append(collate(rows, pad))
    rng.shuffle(batches)
    return batches


def stream(
    maker: PairMaker, tokenizer: PreTrainedTokenizerFast, settings: Settings, counts: Counter[tuple[str, str]]
) -> Iterator[Batch]:
    """Endless batches, the same for the same seed; ``counts`` counts all pairs by label and kind."""
    words = sorted({w for t in maker.corpus.prose + maker.captions.sentences[::5] for w in t.split()})
    for number in itertools.count():
        rng = random.Random(f"{settings.seed}/{number}")
        pairs = list(maker.draw(rng, ROUND, late=number >= EARLY_ROUNDS))
        salad = SALAD[min(number, len(SALAD) - 1)]
        pairs += [word_salad(words, rng) for _ in range(int(ROUND * salad))]
        counts.update((pair.label, pair.kind) for pair in pairs)
        yield from pack(encode(pairs, tokenizer), settings.tokens_per_step, int(tokenizer.pad_token_id or 0), rng)


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of 4.5 million parameters: rotary positions copy well at this size."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def batch_loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Weighted mean cross-entropy; the output layer runs on weighted tokens only."""
    import torch

    weights = batch.weights[:, 1:]
    counted = weights > 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(input_ids=batch.ids).last_hidden_state[:, :-1]
        logits = model.lm_head(hidden[counted])
    losses = torch.nn.functional.cross_entropy(logits.float(), batch.ids[:, 1:][counted], reduction="none")
    return (losses * weights[counted]).sum() / weights.sum()


def train(corpus: Corpus, settings: Settings, out: Path) -> None:
    """Train tokenizer and model: Muon for the matrices of the layers, AdamW for embeddings and norms."""
    import torch

    torch.manual_seed(settings.seed)
    torch.set_num_threads(settings.threads)
    maker, counts = PairMaker(corpus), Counter[tuple[str, str]]()
    steps, tokens, loss_mean = 0, 0, 0.0
    captions = [text for image in corpus.images for text in image]
    texts = captions[::3] + corpus.prose * 2 + [text for row in corpus.nli for text in row[1:]]
    tokenizer = train_tokenizer(texts)
    model = new_model(tokenizer)
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    muon = torch.optim.Muon(matrices, lr=MATRIX_RATE, momentum=0.95, weight_decay=0.02)
    adam = torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    started, minutes = time.monotonic(), 0.0
    with tqdm(total=100, unit="%", mininterval=10, bar_format="{l_bar}{bar}| {elapsed}{postfix}") as bar:
        for batch in stream(maker, tokenizer, settings, counts):
            minutes = (time.monotonic() - started) / 60
            share = max(steps / (settings.steps or math.inf), minutes / (settings.minutes or math.inf))
            if share >= 1:
                break
            factor = min(1.0, share / WARMUP + 0.01, (1 - share) / DECAY)  # warm-up, plateau, linear decay
            loss = batch_loss(model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer, rate in ((muon, MATRIX_RATE), (adam, OTHER_RATE)):
                optimizer.param_groups[0]["lr"] = rate * factor
                optimizer.step()
                optimizer.zero_grad()
            loss_mean += (RUNNING if steps else 1.0) * (loss.item() - loss_mean)
            steps, tokens = steps + 1, tokens + batch.ids.numel()
            bar.n = round(100 * share, 1)
            bar.set_postfix_str(f"step {steps}, loss {loss_mean:.3f}")
    facts: dict[str, object] = {
        "settings": asdict(settings),
        "progress": {"steps": steps, "tokens": tokens, "minutes": minutes, "loss": loss_mean},
        "sentences_kept": dict(corpus.kept),
        "evaluation_sentences_removed": dict(corpus.removed),
        "pairs_rejected": dict(maker.rejected),
        "pairs_drawn": {f"{label} | {kind}": n for (label, kind), n in sorted(counts.items())},
        "versions": {"torch": torch.__version__},
    }
    save(model, tokenizer, facts, out)
    cli.say(f"wrote {out}: {steps} steps, {tokens} tokens, {minutes:.1f} minutes, loss {loss_mean:.3f}")


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, facts: Mapping[str, object], out: Path) -> None:
    """Write the folder: fp16 weights that load in fp32, tokenizer, and training.json."""
    from transformers import GenerationConfig

    out.mkdir(parents=True, exist_ok=True)
    half, end = copy.deepcopy(model).half().eval(), tokenizer.eos_token_id
    half.generation_config = GenerationConfig(bos_token_id=end, eos_token_id=end, pad_token_id=tokenizer.pad_token_id)
    half.save_pretrained(out)
    tokenizer.save_pretrained(out)
    config = json.loads((out / "config.json").read_bytes())
    write_text(out / "config.json", json.dumps(config | {"dtype": "float32"}, indent=2) + "\n")
    write_text(out / "training.json", json.dumps(facts, indent=2, ensure_ascii=False) + "\n")

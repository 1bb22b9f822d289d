"""Train the built-in demonstration model from plain text, on a processor, in minutes.

python -m demo.lm.train --data DIR --out assets/demo-lm --minutes 38

The data order depends on the seed alone; with ``--steps`` in place of ``--minutes`` so does the learning rate.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from tqdm import tqdm

from demo.lm.batches import Batch, stream
from demo.lm.corpus import Corpus, read_corpus
from demo.lm.pairs import PairMaker
from demo.lm.tokenizer import MAX_LENGTH, train_tokenizer
from hub.cli import new_app, run, say
from hub.errors import InputError
from hub.untrusted import NO_CODE, NO_PICKLES

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


app = new_app(__doc__)
CHECKPOINT_SECONDS = 240


@dataclass(frozen=True)
class Settings:
    """What a training run was given; saved beside the model."""

    minutes: float
    steps: int
    seed: int
    threads: int
    tokens_per_step: int
    matrix_rate: float = 0.02
    other_rate: float = 0.003
    warmup: float = 0.02
    decay: float = 0.4
    resumed_at_minute: float | None = None


@dataclass
class Progress:
    """How far a run is; ``loss`` is a running mean."""

    steps: int = 0
    tokens: int = 0
    minutes: float = 0.0
    loss: float = 0.0
    round: int = -1

    def add(self, batch: Batch, loss: float) -> None:
        """Count one step."""
        self.steps, self.tokens, self.round = self.steps + 1, self.tokens + batch.ids.numel(), batch.round
        self.loss = loss if self.steps == 1 else self.loss + 0.02 * (loss - self.loss)


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


def new_optimizers(model: LlamaForCausalLM, settings: Settings) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms."""
    import torch

    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    return [
        torch.optim.Muon(matrices, lr=settings.matrix_rate, momentum=0.95, weight_decay=0.02),
        torch.optim.AdamW(others, lr=settings.other_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate_factor(progress: float, settings: Settings) -> float:
    """Warm-up, a plateau, then a straight line to zero."""
    return min(1.0, progress / settings.warmup + 0.01, max(0.0, (1 - progress) / settings.decay))


def set_rates(optimizers: list[torch.optim.Optimizer], rates: list[list[float]], factor: float) -> None:
    """Scale every learning rate."""
    for optimizer, base in zip(optimizers, rates, strict=True):
        for group, rate in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = rate * factor


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


def train_step(model: LlamaForCausalLM, optimizers: list[torch.optim.Optimizer], batch: Batch) -> float:
    """One step; the loss before it."""
    import torch

    loss = batch_loss(model, batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, report: dict[str, object], out: Path) -> None:
    """Write the whole folder (fp16 weights, to be loaded in fp32) beside ``out``, then move the files in."""
    from transformers import GenerationConfig

    out.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    half = copy.deepcopy(model).half().eval()
    end = tokenizer.eos_token_id
    half.generation_config = GenerationConfig(bos_token_id=end, eos_token_id=end, pad_token_id=tokenizer.pad_token_id)
    half.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    config = json.loads((temporary / "config.json").read_text())
    config["dtype"] = "float32"
    (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (temporary / "training.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    for path in sorted(temporary.iterdir()):
        path.chmod(0o644)
        path.replace(out / path.name)
    shutil.rmtree(temporary)


def make_report(
    settings: Settings, corpus: Corpus, maker: PairMaker, counts: Counter[tuple[str, str]], progress: Progress
) -> dict[str, object]:
    """What the model card needs to know about the run."""
    import torch
    import transformers

    return {
        "settings": asdict(settings),
        "progress": asdict(progress),
        "sentences_kept": dict(corpus.kept),
        "evaluation_sentences_removed": dict(corpus.removed),
        "pairs_rejected": dict(maker.rejected),
        "pairs_drawn": {f"{label} | {kind}": n for (label, kind), n in sorted(counts.items())},
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def tokenizer_texts(corpus: Corpus) -> list[str]:
    """The text the merges are learnt from: one caption in three, all else."""
    captions = [t for image in corpus.images for t in image]
    return captions[::3] + corpus.prose * 2 + [t for row in corpus.nli for t in row[1:]]


def new_start(corpus: Corpus) -> tuple[PreTrainedTokenizerFast, LlamaForCausalLM, Progress]:
    """A new tokenizer and a random model."""
    tokenizer = train_tokenizer(tokenizer_texts(corpus))
    return tokenizer, new_model(tokenizer), Progress()


def load_checkpoint(folder: Path) -> tuple[PreTrainedTokenizerFast, LlamaForCausalLM, Progress]:
    """What a checkpoint holds: the weights, not the optimizers' averages; training goes on with the next round."""
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    if not (folder / "training.json").is_file():
        raise InputError(folder, "is no checkpoint of this script", hint="give the folder named by --checkpoints")
    report = json.loads((folder / "training.json").read_text())
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, **NO_PICKLES)
    return PreTrainedTokenizerFast.from_pretrained(folder, **NO_CODE), model.train(), Progress(**report["progress"])


def train(corpus: Corpus, settings: Settings, out: Path, checkpoints: Path | None, resume: Path | None) -> None:
    """The whole run: tokenizer, model, batches, steps, files."""
    import torch

    torch.manual_seed(settings.seed)
    torch.set_num_threads(settings.threads)
    maker, counts = PairMaker(corpus), Counter[tuple[str, str]]()
    tokenizer, model, done = load_checkpoint(resume) if resume else new_start(corpus)
    settings = replace(settings, resumed_at_minute=round(done.minutes, 1) if resume else None)
    optimizers = new_optimizers(model, settings)
    rates = [[group["lr"] for group in o.param_groups] for o in optimizers]
    batches = stream(maker, tokenizer, settings.tokens_per_step, settings.seed, counts, start=done.round + 1)
    started, saved = time.monotonic() - 60 * done.minutes, time.monotonic()
    with tqdm(total=100, unit="%", mininterval=10, bar_format="{l_bar}{bar}| {elapsed}{postfix}") as bar:
        for batch in batches:
            done.minutes = (time.monotonic() - started) / 60
            share = max(done.steps / (settings.steps or math.inf), done.minutes / (settings.minutes or math.inf))
            if share >= 1:
                break
            set_rates(optimizers, rates, rate_factor(share, settings))
            done.add(batch, train_step(model, optimizers, batch))
            bar.n = round(100 * share, 1)
            bar.set_postfix_str(f"step {done.steps}, loss {done.loss:.3f}, {done.tokens / 60 / done.minutes:.0f} tok/s")
            if checkpoints and time.monotonic() - saved > CHECKPOINT_SECONDS:
                saved = time.monotonic()
                save(model, tokenizer, {"progress": asdict(done)}, checkpoints)
    save(model, tokenizer, make_report(settings, corpus, maker, counts, done), out)
    say(f"{out}: {done.steps} steps, {done.tokens} tokens, {done.minutes:.1f} minutes, loss {done.loss:.3f}")


@app.command()
def main(
    data: Annotated[Path, typer.Option(help="folder with text/, senteval/, sts-original/ and auto_nli_fewshot/")],
    out: Annotated[Path, typer.Option(help="folder the model is written to")],
    minutes: Annotated[float, typer.Option(help="stop after this time (0: no limit)")] = 38.0,
    steps: Annotated[int, typer.Option(help="stop after this many steps (0: no limit)")] = 0,
    seed: Annotated[int, typer.Option(help="seed of weights and data order")] = 1,
    threads: Annotated[int, typer.Option(help="processor threads")] = 2,
    tokens_per_step: Annotated[int, typer.Option(help="tokens in a batch")] = 2048,
    checkpoints: Annotated[Path | None, typer.Option(help="save here every four minutes")] = None,
    resume: Annotated[Path | None, typer.Option(help="go on from this checkpoint")] = None,
) -> None:
    """Build pairs and tokenizer from the data folder, train, and write the model's folder."""
    if not minutes and not steps:
        raise InputError("--minutes and --steps", "both are 0, so training would never end", hint="give one of them")
    say(f"reading {data}")
    settings = Settings(minutes, steps, seed, threads, tokens_per_step)
    train(read_corpus(data), settings, out, checkpoints, resume)


if __name__ == "__main__":
    run(app)

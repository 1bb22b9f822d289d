"""A small RoBERTa pretrained on documents: python -m benchmarks.papers.declutr.masked_lm DOCUMENTS.txt --out DIR

What DeCLUTR continues from, where no pretrained RoBERTa is at hand: a tokenizer of byte pairs trained on the documents,
random weights, and masked language modelling by transformers' own trainer. The folder is what a published checkpoint
is: the encoder with its masked language head.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hub import cli
from hub.durable import write_text
from hub.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, RobertaForMaskedLM

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]  # RoBERTa's first four ids; its mask is another one
NAMES = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
OTHERS = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
POSITIONS = 128
VOCABULARY = 8000
BATCH_SIZE = 32

app = cli.new_app(__doc__)


@app.command()
def main(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Documents, one a line")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the model is written")],
    steps: Annotated[int, typer.Option("--steps", min=0, help="Of 32 documents; 0: random weights")] = 500,
    size: Annotated[int, typer.Option("--size", help="Of the hidden states")] = 192,
    layers: Annotated[int, typer.Option("--layers", min=1)] = 3,
    tokens: Annotated[int, typer.Option("--tokens", help="Of a document that are read")] = 64,
    rate: Annotated[float, typer.Option("--rate", help="The highest learning rate")] = 1e-3,
    bf16: Annotated[bool, typer.Option("--bf16", help="Matrix products in bfloat16")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 42,
) -> None:
    """Train a tokenizer and a masked language model, and write both with the loss at the end.

    Examples:

      python -m benchmarks.papers.declutr.masked_lm documents.txt --out artifacts/small-roberta
    """
    import torch

    try:
        documents = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise InputError(file, "no such file", hint="benchmarks.papers.declutr.documents writes one") from error
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = make_tokenizer(documents)
    model = make_model(tokenizer, size, layers)
    told: dict[str, float] = {"parameters": model.num_parameters(), "steps": steps, "seed": seed}
    if steps:
        told |= pretrain(model, tokenizer, documents, steps, tokens, rate, bf16, seed)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(out)
    model.save_pretrained(out)
    write_text(out / "pretraining.json", json.dumps(told, indent=1) + "\n")
    cli.say(f"written: {out}: {told}")


def make_tokenizer(documents: Sequence[str]) -> "PreTrainedTokenizerFast":
    """RoBERTa's kind of tokenizer, lower-cased: so small a model cannot spare words for their capitals."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from tokenizers.processors import RobertaProcessing
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=alphabet, special_tokens=SPECIALS, show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=POSITIONS, **NAMES, **OTHERS)


def make_model(tokenizer: "PreTrainedTokenizerFast", size: int, layers: int) -> "RobertaForMaskedLM":
    """Random weights from torch's generator."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size,
        intermediate_size=4 * size,
        num_hidden_layers=layers,
        num_attention_heads=max(1, size // 64),
        max_position_embeddings=POSITIONS + 2,  # RoBERTa's begin behind that of padding
        type_vocab_size=1,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )
    return RobertaForMaskedLM(config)


def pretrain(
    model: "RobertaForMaskedLM",
    tokenizer: "PreTrainedTokenizerFast",
    documents: Sequence[str],
    steps: int,
    tokens: int,
    rate: float,
    bf16: bool,
    seed: int,
) -> dict[str, float]:
    """Train in place; the loss of the last steps, and the passes over the documents."""
    from datasets import Dataset
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    rows = Dataset.from_dict(dict(tokenizer(list(documents), truncation=True, max_length=tokens)))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=BATCH_SIZE,
            learning_rate=rate,
            warmup_steps=0.1,
            weight_decay=0.01,
            bf16=bf16,
            use_cpu=True,
            train_sampling_strategy="group_by_length",
            logging_steps=max(1, steps // 20),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=seed,
        )
        trainer = Trainer(model, arguments, DataCollatorForLanguageModeling(tokenizer), train_dataset=rows)
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"loss": losses[-1], "first_loss": losses[0], "passes": round(steps * BATCH_SIZE / len(documents), 2)}


if __name__ == "__main__":
    cli.run(app)

"""Peak memory of dataset runs of growing size: python -m benchmarks.generation.generation_memory

Every size is a run of its own in a process of its own: a made-up source, a tiny random language model that closes its
quotation marks often, the whole pipeline to the finished configs. What grows with the number of rows would show.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.trials import said_by, write_results
from generation.pipeline.job import generate
from hub import cli
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe
from hub.memory import peak_rss_mb

app = cli.new_app(__doc__)
SIZES = (1_000, 10_000, 100_000)
LABELS = ("1", "0.5", "0")
SAMPLES = 2
CLOSING = 4.5  # added to the quotation mark's logit: about one token in four


def make_model(directory: Path, context: int = 128) -> Path:
    """Write a random one-layer GPT-2 of 32 dimensions over bytes that ends its texts after a few tokens."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    letters = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")  # noqa: S106
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": context}
    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(letters), tie_word_embeddings=False, **sizes, **ends))
    with torch.no_grad():  # the last normalisation adds a direction that few tokens' output weights share
        direction = torch.nn.functional.normalize(torch.randn(32), dim=0)
        model.transformer.ln_f.bias.copy_(10 * direction)
        for token, logit in (('"', CLOSING), ("Ċ", -CLOSING), ("<|end|>", -CLOSING)):
            model.lm_head.weight[wrapped.convert_tokens_to_ids(token)] = logit / 10 * direction
    model.save_pretrained(directory)
    wrapped.save_pretrained(directory)
    return directory


def recipe(folder: Path, rows: int) -> DatasetRecipe:
    """A recipe that wants ``rows`` second texts from as many first texts as that takes."""
    firsts = -(-rows // (len(LABELS) * SAMPLES))
    source = folder / "x1.txt"
    with source.open("w", encoding="utf-8") as stream:
        stream.writelines(f"text {number}\n" for number in range(firsts))
    labels = [
        {"name": name, "score": float(name), "counter_labels": LABELS[:i], "instruction": f'{name}: "<X1>" to "'}
        for i, name in enumerate(LABELS)
    ]
    return DatasetRecipe.model_validate(
        {
            "kind": "dataset",
            "name": f"memory-{rows}",
            "version": "0.1.0",
            "schema": "sts",
            "pretty_name": "Memory",
            "license": "cc0-1.0",
            "source": {"kind": "file", "path": str(source), "description": "numbers", "license": "CC0"},
            "model": {"path": str(make_model(folder / "lm")), "threads": 1, "license": "cc0-1.0"},
            "labels": labels,
            "decoding": {"top_k": 0, "max_new_tokens": 8, "samples": SAMPLES, "batch_size": 576},
        }
    )


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="Where to write the figures")] = Path(
        "benchmarks/results/generation_memory.json"
    ),
    rows: Annotated[int | None, typer.Option(min=1, help="Run this size here and print its figures")] = None,
) -> None:
    """Measure every size, or one of them in this process."""
    if rows is not None:
        print(json.dumps(measured(rows)))
        return
    sizes = [one_size(size) for size in SIZES]
    print(json.dumps(sizes))
    write_results(out, {"runs": sizes}, ("torch", "transformers", "pyarrow", "datasets"))


def one_size(rows: int) -> dict[str, Any]:
    """The figures of one size, from a process of its own."""
    found: dict[str, Any] = said_by("benchmarks.generation.generation_memory", "--rows", rows)
    cli.say(json.dumps(found))
    return found


def measured(rows: int) -> dict[str, Any]:
    """Make a run of ``rows`` wanted rows and read this process's peak memory, before it and after it."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = recipe(Path(folder), rows)
        import generation.decoding.engine  # noqa: F401 - its libraries belong to the start

        before, started = peak_rss_mb(), time.monotonic()
        directory = Path(folder) / "run"
        with run_dir.locked(directory):
            counts = generate(wanted, directory, "benchmark").counts
    return {
        "rows_wanted": rows,
        "rows_written": counts["requested"],
        "rows_finished": counts["kept"] + counts["sampled_negatives"],
        "shards": -(-counts["sources"] // wanted.shard_size),
        "peak_rss_mb_before": before,
        "peak_rss_mb": peak_rss_mb(),
        "seconds": round(time.monotonic() - started, 1),
    }


if __name__ == "__main__":
    cli.run(app)

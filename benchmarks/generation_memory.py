"""Peak memory of dataset runs of growing size: memory must not grow with the number of rows.

Each size is a whole run in its own process, by a tiny random language model that closes its quotation marks soon.
"""

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from benchmarks.trials import cost_of, table, write_results
from hub import cli
from hub.errors import RunError

SIZES = [1_000, 10_000, 100_000]
LABELS = ("1", "0.5", "0")
SAMPLES = 2
CLOSING = 4.5  # added to the quotation mark's logit: about one token in four

app = cli.new_app(__doc__)


@app.command(no_args_is_help=False)
def main(
    sizes: Annotated[list[int], typer.Option("--rows", min=1, help="Rows of a run; repeatable")] = SIZES,
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/generation_memory.json"),
) -> None:
    """Measure the peak memory of a run of every size."""
    runs = [measured(rows) for rows in sizes]
    print(table(list(runs[0]), [list(run.values()) for run in runs], names=0))
    write_results(out, {"runs": runs}, ("torch", "transformers", "pyarrow", "datasets"))


def measured(rows: int) -> dict[str, Any]:
    """Rows, peak memory and seconds of one run."""
    with tempfile.TemporaryDirectory() as folder:
        path, run = Path(folder) / "recipe.yaml", Path(folder) / "run"
        path.write_text(yaml.safe_dump(recipe(Path(folder), rows)), encoding="utf-8")
        found = cost_of("write", path, "--out", run)
        if found.code:
            raise RunError("sts-dino write", f"ended with exit code {found.code}")
        counts = json.loads((run / "manifest.json").read_bytes())["counts"]
    return {
        "rows_wanted": rows,
        "rows_finished": counts["kept"] + counts["sampled_negatives"],
        "peak_rss_mb": round(found.peak_mb),
        "seconds": found.wall_s,
    }


def recipe(folder: Path, rows: int) -> dict[str, Any]:
    """A recipe of ``rows`` generated texts from as many source sentences as they need."""
    sources = -(-rows // (len(LABELS) * SAMPLES))
    source = folder / "x1.txt"
    with source.open("w", encoding="utf-8") as stream:
        stream.writelines(f"text {number}\n" for number in range(sources))
    labels = [
        {"name": name, "score": float(name), "counter_labels": list(LABELS[:i]), "instruction": f'{name}: "<X1>" to "'}
        for i, name in enumerate(LABELS)
    ]
    return {
        "kind": "dataset",
        "name": f"memory-{rows}",
        "version": "0.1.0",
        "form": "sts",
        "pretty_name": "Memory",
        "license": "cc0-1.0",
        "source": {"kind": "file", "path": str(source), "description": "numbers", "license": "CC0"},
        "model": {"path": str(make_model(folder / "lm")), "threads": 1, "license": "cc0-1.0"},
        "labels": labels,
        "decoding": {"top_k": 0, "max_new_tokens": 8, "samples": SAMPLES, "batch_size": 576},
    }


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

"""Write the demonstration model's card from what its training and its measurement recorded.

python -m demo.lm.card --model assets/demo-lm --benchmark benchmarks/results/demo_lm.json
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hub.cli import new_app, run, say
from hub.errors import InputError

app = new_app(__doc__)

CARD = """---
license: cc-by-nc-sa-4.0
language: en
library_name: transformers
pipeline_tag: text-generation
tags: [text-generation, llama, sts-dino, dino, demonstration]
---

# The demonstration language model of sts-dino

A Llama of {parameters:.1f} million parameters (4 layers, width 256, byte-level BPE of 5,120 tokens; weights stored in
fp16, loaded in fp32). It knows one thing: how to fill in sts-dino's own prompts, so that the whole chain from prompts
to a trained sentence encoder runs offline, on a processor, in minutes. **It is a demonstration and no substitute for a
real language model**: outside image captions its sentences are often wrong, and it knows no facts.

## Use

The text given ends with an opening quotation mark; the model writes up to the closing one.

    Task: Write two sentences that mean the same thing.
    Sentence 1: "A man is playing a guitar."
    Sentence 2: "

The other labels read `are somewhat similar` and `are on completely different topics`; cut after `Sentence 1: "`, the
model writes the first sentence itself. For inference pairs: `Generate one sentence that logically entails "..." in the
form of a statement beginning with "Answer:". Answer: "`, or `contradicts`. A double quote is always a token of its own.

## Measured

{count} first sentences that the model never saw (held-out captions), top-k 5, top-p 0.9, 40 tokens; cosines of
all-MiniLM-L6-v2. That encoder chose no training pair, but the shares of the kinds of pairs were changed twice during
development after a look at its cosines on 100 other held-out captions, the second time also on some 60 sentences each
of Wikipedia and of the STS Benchmark's development part (so the tables of those two are a little in-sample). ± is the
bootstrap standard deviation of the mean.
*Identical*: x2 has the same words as x1 in the same order. *Closed*: the quotation mark closes within 40 tokens.

{tables}
Hypotheses for the same captions: {nli}. Without a first sentence it closes {x1_closed:.0%} of the sentences it writes.

Samples (λ = 100; a text that breaks off did not close its quote within 40 tokens):

{samples}
## Training data

Plain English text and pairs, {pairs:,} training pairs drawn from:

{kinds}
Relations are set by rules on words (see `demo/lm`): captions of one image, inference pairs of SNLI,
rule-made paraphrases, exchanged words, halves of two sentences, templates. No similarity score by people and no
sentence encoder was used.

Every sentence of STS12-16, the STS Benchmark and SICK (lower case, letters and digits only) was removed from the
training text: {removed_total:,} sentences ({removed}). Pairs that would still have contained one, or a held-out
sentence, were dropped when drawn: {rejected}. All captions of the held-out images and the last 600 lines of the
Wikipedia file were held out.

| source | sentences | licence |
| --- | ---: | --- |
{sources}
Flickr30k captions as distributed with Multi30k are **non-commercial** (CC BY-NC-SA), so the model is shared under the
same terms: CC BY-NC-SA 4.0, non-commercial use.

## Training

    python -m demo.lm.train --data DIR --out assets/demo-lm --minutes {minutes:g} --threads {threads}

{steps:,} steps, {tokens:,} tokens, {time:g} minutes on {threads} processor thread(s), seed {seed}{resumed}.
The last training loss was {loss:.2f} nats a token (first sentences weigh 0.4); torch {torch},
transformers {transformers}.
The data order depends on the seed alone; the learning rate follows the clock, so another machine gives another, similar
model. `training.json` holds all counts.
"""

RESUMED = (
    " (interrupted, and resumed with `--resume` from its checkpoint of minute {:g} with a later mix of pairs; the"
    " tokens up to there, about three million of the total, were estimated)"
)
TITLES = {
    "unseen_prose": "Prose (held-out sentences of Wikipedia; names are copied imperfectly)",
    "sts-dev": "First sentences of the STS Benchmark's development part (captions, news, forums; no scores used)",
}
LICENCES = {
    "captions": "CC BY-NC-SA (Multi30k; captions of Flickr30k)",
    "snli": "CC BY-SA 4.0 (SNLI, development and test part)",
    "wikipedia": "CC BY-SA (Wikipedia; first lines of SimCSE's sample)",
    "wikitext-2": "CC BY-SA (Wikipedia; WikiText-2, validation and test part)",
    "openwebtext": "not stated (ten documents of OpenWebText)",
    "fewshot": "not stated (Auto-NLI's prompts, from SNLI and MultiNLI)",
}


def _table(name: str, report: dict[str, Any]) -> str:
    lines = [f"**{name}**, {report['sentences']} first sentences", ""]
    lines += [
        "| λ | label | cosine | word overlap | identical | closed |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    gaps = []
    for decay in ("0", "100"):
        block = report[f"decay {decay}"]
        gaps.append(f"λ = {decay}: {block['gap 1 - 0.5']:.3f} (1 to 0.5), {block['gap 0.5 - 0']:.3f} (0.5 to 0)")
        for label, row in block["labels"].items():
            cosine = f"{row['cosine']:.3f} ± {row['cosine_bootstrap_std']:.3f}"
            shares = f"{row['word_overlap']:.2f} | {row['identical']:.1%} | {row['closed']:.1%}"
            lines.append(f"| {decay} | {label} | {cosine} | {shares} |")
    return "\n".join([*lines, "", "Gaps of the mean cosine: " + "; ".join(gaps) + ".", "", ""])


def _samples(block: dict[str, Any]) -> str:
    lines = ["| x1 | label | x2 |", "| --- | ---: | --- |"]
    for number in range(5):
        for label, rows in block["samples"].items():
            lines.append(f"| {rows[number]['x1'] if label == '1' else ''} | {label} | {rows[number]['x2'].strip()} |")
    return "\n".join(lines) + "\n"


def render(training: dict[str, Any], measured: dict[str, Any], parameters: float) -> str:
    """The card's text; a missing number raises KeyError."""
    unseen, kept, removed = measured["unseen"], training["sentences_kept"], training["evaluation_sentences_removed"]
    tables = [_table("Captions", unseen)]
    tables += [_table(TITLES.get(name, name), report) for name, report in measured["other"].items()]
    nli = [f"{v} {r['closed']:.0%} closed, cosine {r['cosine']:.2f}" for v, r in unseen["nli, decay 100"].items()]
    kinds = [f"- {n:,} {kind.replace(' | ', ': ')}" for kind, n in training["pairs_drawn"].items()]
    settings, progress = training["settings"], training["progress"]
    return CARD.format(
        parameters=parameters,
        count=unseen["sentences"],
        tables="".join(tables),
        nli="; ".join(nli),
        x1_closed=measured["first texts"]["closed"],
        samples=_samples(unseen["decay 100"]),
        pairs=sum(training["pairs_drawn"].values()),
        kinds="\n".join(kinds) + "\n",
        removed_total=sum(removed.values()),
        removed=", ".join(f"{n:,} {source}" for source, n in removed.items() if n),
        rejected=f"{training['pairs_rejected']['evaluation or held-out sentence']:,}",
        sources="\n".join(f"| {s} | {n:,} | {LICENCES[s]} |" for s, n in kept.items()) + "\n",
        resumed=RESUMED.format(settings["resumed_at_minute"]) if settings["resumed_at_minute"] else "",
        time=round(progress["minutes"], 1),
        **{key: settings[key] for key in ("minutes", "threads", "seed")},
        **{key: progress[key] for key in ("steps", "tokens", "loss")},
        **training["versions"],
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(path, "no such file", hint="train and measure the model first")
    return dict(json.loads(path.read_text(encoding="utf-8")))


@app.command()
def main(
    model: Annotated[Path, typer.Option(help="the model's folder")],
    benchmark: Annotated[Path, typer.Option(help="results of python -m benchmarks.generation.demo_lm")],
) -> None:
    """Write README.md into the model's folder."""
    from safetensors import safe_open

    with safe_open(model / "model.safetensors", framework="pt") as weights:
        names = list(weights.keys())
        count = sum(weights.get_tensor(name).numel() for name in names)
    text = render(_read(model / "training.json"), _read(benchmark), count / 1e6)
    (model / "README.md").write_text(text, encoding="utf-8")
    say(f"wrote {model / 'README.md'}")


if __name__ == "__main__":
    run(app)

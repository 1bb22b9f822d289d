"""Compare 50 sentences of a domain, with and without 250 more that a language model generates.

The prompt for new sentences shows ten of the domain's 50. With one thread:

  python -m sts_dino.experiments.generated_sentences --data DIR --folder artifacts/generated \
    --out domains_generated.json
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
import yaml

from sts_dino.experiments.domains import (
    PLAN,
    Domain,
    DomainMaker,
    DomainPlan,
    choose_rows,
    compare_rows,
    extract_domain,
)
from sts_dino.experiments.plan import validate_plan
from sts_dino.experiments.steps import Steps
from sts_dino.hub import cli
from sts_dino.hub.contract.measured import write_json
from sts_dino.hub.contract.recipe_file import read_yaml
from sts_dino.hub.durable import write_text

DOMAINS = ("headlines", "images")  # of the domains on which choices are made
OWN, SHOWN, GENERATED = 50, 10, 250  # at most: duplicates are dropped
LM = "qwen2.5-coder-0.5b-instruct"
ROWS = ["as published", "teacher, base and pairs"]
SETTINGS = ["@assets/offline.yaml", "threads=1", "arguments.bf16=true"]


def main(
    data: Annotated[Path, typer.Option(help="Folder with sts-original")],
    folder: Annotated[Path, typer.Option(help="Folder of the steps")],
    out: Annotated[Path, typer.Option(help="Result to write")],
) -> None:
    """Train an encoder on each kind of sentences of two choice domains, and score it."""
    cli.route_messages(cli.TerminalHandler())
    plan = validate_plan(DomainPlan, read_yaml(PLAN), PLAN)
    plan = plan.model_copy(update={"sentences": OWN, "taught_sentences": OWN})
    steps = Steps(folder)
    maker = DomainMaker(plan, steps, LM, "embeddinggemma-300m", SETTINGS)
    published, taught = choose_rows(plan, ROWS, None)
    evaluations: dict[str, dict[str, list[Path]]] = {}
    for name in DOMAINS:
        domain = extract_domain(name, data, folder, plan)
        kinds = {
            published.name: (published, domain),
            "50 sentences": (taught, domain),
            "50 sentences and 250 generated ones": (taught, add_sentences(maker, steps, domain)),
        }
        for kind, (row, texts) in kinds.items():
            evaluations.setdefault(kind, {})[name] = maker.score_row(row, texts, 1)
    write_json(out, compare_rows(evaluations, {}, 1))


def add_sentences(maker: DomainMaker, steps: Steps, domain: Domain) -> Domain:
    """Return the domain with generated sentences after its own."""
    own = domain.sentences.read_text("utf-8").splitlines()
    file = steps.folder / "generated" / domain.name / "sentences.txt"
    if not file.is_file():
        maker._generate(domain)  # writes the recipe of the 50 sentences
        found = next((steps.folder / "recipes").glob(f"{domain.name}-*[0-9a-f].yaml"))
        recipe = yaml.safe_load(found.read_text("utf-8"))
        usable = [sentence for sentence in own if '"' not in sentence]
        generated: list[str] = []
        runs = len(usable) // SHOWN
        for run in range(runs):
            shown = usable[run * SHOWN : (run + 1) * SHOWN]
            place = file.parent / f"run{run}"
            generated += generate(steps, recipe, shown, -(-GENERATED // runs), place, run)
        new = [text for text in dict.fromkeys(generated) if text not in own]
        write_text(file, "\n".join([*own, *new[:GENERATED]]) + "\n")
    return replace(domain, sentences=file, taught_sentences=file)


def generate(
    steps: Steps, recipe: dict[str, Any], shown: Sequence[str], count: int, out: Path, seed: int
) -> list[str]:
    """Return ``count`` new sentences; the prompt shows ``shown``, each in quotation marks."""
    lines = "".join(f'Sentence: "{sentence}"\n' for sentence in shown)
    instruction = f'Task: Write sentences of one kind.\n{lines}Sentence: "<X1>"\nSentence: "'
    source = {"kind": "model", "limit": count, "top_p": 0.9, "license": "unlicensed"}
    recipe = recipe | {
        "source": source | {"description": "generated sentences"},
        "labels": [
            {"name": "1", "score": 1, "meaning": "are of one kind", "instruction": instruction}
        ],
        "decoding": recipe["decoding"] | {"max_attempts": 1},
        "seed": seed,
    }
    del recipe["few_shot"]
    file = out.with_suffix(".yaml")
    write_text(file, yaml.safe_dump(recipe, allow_unicode=True, sort_keys=False))
    key = f"sentences-{out.parent.name}-{out.name}"
    command = ["write", str(file), "--out", str(out)]
    steps.run_once("dataset", key, command, key, out / "manifest.json")
    return list(pd.read_parquet(next(out.glob("data/sources/*.parquet")))["text"])


if __name__ == "__main__":
    typer.run(main)

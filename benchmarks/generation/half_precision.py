"""What half precision does to self-debiasing: python -m benchmarks.generation.half_precision MODEL

δ is the difference of a token's probabilities under the prompt of one label and under that of its counter-label (DINO,
section 3). It is computed in float32 and from bfloat16 layers with three output layers: as ``generate()`` reads them
(logits rounded to bfloat16), as the engine does, and in float32. Told are the mean error of δ and the share of tokens
whose factor α changes by more than a tenth. Second texts are given: each first text again, and another one.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.generation.throughput.cases import LM, MAKE_LM
from benchmarks.generation.throughput.workloads import STS, first_texts
from benchmarks.trials import single_thread
from hub.cli import new_app, run
from hub.contract.recipe import QUOTE, X1, DatasetRecipe, DecodingParameters
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError
from hub.untrusted import NO_CODE, NO_PICKLES, reading_model

app = new_app(__doc__)


@app.command()
def main(
    model: Annotated[Path, typer.Argument(help="The language model's folder")] = LM,
    count: Annotated[int, typer.Option("--first-texts", min=2, help="How many, two second texts for each")] = 30,
) -> None:
    """Measure and print as JSON."""
    if not (model / "config.json").is_file():
        raise InputError(model, "is no folder of a language model", hint=f"name one, or make it: {MAKE_LM}")
    print(json.dumps(measure(model, count), indent=2))


def measure(model: Path, count: int) -> dict[str, Any]:
    """By way of reading: ``delta_error`` in the mean, ``alpha_changed`` share of tokens."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from generation.backends.output_layer import LogitsInPieces, OutputLayer
    from generation.backends.self_debiasing import log_alpha

    single_thread()
    with reading_model(str(model)):
        tokenizer = AutoTokenizer.from_pretrained(model, **NO_CODE)
        exact, half = (
            AutoModelForCausalLM.from_pretrained(model, dtype=dtype, **NO_PICKLES).eval()
            for dtype in (torch.float32, torch.bfloat16)
        )
    head, layer = exact.get_output_embeddings(), OutputLayer(half.get_output_embeddings().weight, None)

    def in_pieces(states: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        logits = LogitsInPieces(layer, states, [])
        return logits.at(torch.arange(len(ids))[:, None], ids[:, None])[:, 0, 0] - logits.norms

    def whole(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(logits.float(), dim=-1).gather(1, ids[:, None])[:, 0]

    def log_probabilities(prompt: str, text: str) -> dict[str, torch.Tensor]:
        """Of the text's tokens, by way."""
        before = tokenizer(prompt).input_ids
        after = tokenizer(text + QUOTE, add_special_tokens=False).input_ids
        ids, read = torch.tensor(after), torch.tensor([before + after])
        states = {name: lm.base_model(read).last_hidden_state[0, len(before) - 1 : -1] for name, lm in lms.items()}
        return {
            "float32": whole(head(states["float32"]), ids),
            "generate() in bfloat16": whole(half.get_output_embeddings()(states["bfloat16"]), ids),
            "engine in bfloat16": in_pieces(states["bfloat16"], ids),
            "float32 output layer": whole(head(states["bfloat16"].float()), ids),
        }

    lms = {"float32": exact, "bfloat16": half}
    labels = {label.name: label.instruction for label in load_recipe(STS, DatasetRecipe).labels}
    firsts, deltas, factors = first_texts(count), dict[str, list[torch.Tensor]](), dict[str, list[torch.Tensor]]()
    settings = DecodingParameters()
    with torch.inference_mode():
        for place, first in enumerate(firsts):
            for second in (first, firsts[place - 1]):
                own, counter = (log_probabilities(labels[name].replace(X1, first), second) for name in ("0.5", "1"))
                for way in own:
                    deltas.setdefault(way, []).append(own[way].exp() - counter[way].exp())
                    log = log_alpha(own[way], counter[way][None, None], settings.decay_constant, settings.epsilon)
                    factors.setdefault(way, []).append(log.exp().flatten())
    return _told(
        {way: torch.cat(parts) for way, parts in deltas.items()},
        {way: torch.cat(parts) for way, parts in factors.items()},
    )


def _told(deltas: dict[str, Any], factors: dict[str, Any]) -> dict[str, Any]:
    return {
        way: {
            "tokens": len(delta),
            "delta_error": round(float((delta - deltas["float32"]).abs().mean()), 5),
            "alpha_changed": round(float(((factors[way] - factors["float32"]).abs() > 0.1).float().mean()), 4),
        }
        for way, delta in deltas.items()
        if way != "float32"
    }


if __name__ == "__main__":
    run(app)

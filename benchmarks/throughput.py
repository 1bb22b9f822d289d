"""Texts per CPU second of the engine, of ``generate()`` and of llama.cpp's server, with peak memory.

All ways do the same work, STS-x2 as in ``recipes/demo/sts-dino-x2.yaml``: three labels, two texts for each (x1, label).
``batched``: ``generate()`` with the same logits processors. ``engine``: what ``sts-dino write`` runs. ``llama.cpp``:
its server, without counter-prompts. ``shards-50``: the engine as in a run with that ``shard_size``, rejected texts
generated again. All but llama.cpp draw with the same random numbers: float32 texts are equal.
A case loads a GGUF file only: its texts per CPU second are loads, ``transformers`` its own reader.
``workers-2``: the engine with two workers and twice the sentences, texts per second of the clock. ``products-2``: what
a CPU can reach, the products of one layer in each of two threads.
Each trial is a fresh process; the ways take turns, and each round has other source sentences.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Annotated, Any

import psutil
import typer

from benchmarks.trials import FreshProcesses, has_gpu, interleaved, ratios, single_thread, spread, table, write_results
from hub import cli
from hub.errors import InputError

RECIPE, SENTENCES = Path("recipes/demo/sts-dino-x2.yaml"), Path("assets/demo-data/x1.tsv")
EXAMPLES = Path("benchmarks/data/sts_examples.tsv")
DEMO_LM, LM = Path("assets/demo-lm"), Path("artifacts/lm/gemma-3-270m")
PRELOADED = ["benchmarks.generate_baseline", "generation.backends.engine"]
PRELOADED += [f"transformers.models.{kind}.modeling_{kind}" for kind in ("llama", "gemma3", "qwen2")]
SLOTS = 32  # of llama.cpp's server
TYPES = ("float32", "bfloat16")
SIDE_BY_SIDE = ("workers-", "products-")
PRODUCT = 192  # rows of a product
ROWS = 96  # model rows of a batched call of ``generate()``


@dataclass(frozen=True)
class Case:
    """Work on one model. ``counts``: "way dtype" → source sentences per round (slow ways get few)."""

    model: str  # demo-lm, or lm: the folder that the command names
    counts: dict[str, int]
    shots: int = 0  # examples of about 40 tokens before each prompt
    counters: bool = True  # False: prompts without counter-prompts
    loads: bool = False  # the model is loaded from its GGUF file, and no more: a load counts as a text


CASES = {
    "demo-lm": Case("demo-lm", {"batched float32": 32, "engine float32": 120}),
    "lm": Case("lm", {"batched float32": 17, "batched bfloat16": 12, "engine float32": 43, "engine bfloat16": 48}),
    "lm, 8 examples": Case("lm", {"batched bfloat16": 3, "engine bfloat16": 48}, shots=8),
    "lm, no counter-prompts": Case("lm", {"llama.cpp q4_k_m": 24, "engine bfloat16": 48}, counters=False),
    "lm, 5 examples": Case("lm", {"batched bfloat16": 2, "engine bfloat16": 60, "engine int8": 60}, shots=5),
    "lm, 5 examples, no counter-prompts": Case(
        "lm", {"llama.cpp q4_k_m": 10, "engine bfloat16": 60, "engine int8": 60}, shots=5, counters=False
    ),
    "demo-lm, shards": Case("demo-lm", {f"shards-{size} {dtype}": 600 for size in (600, 50) for dtype in TYPES}),
    "lm, shards": Case("lm", {f"shards-{size} bfloat16": 150 for size in (600, 50)}),
    "lm, workers": Case("lm", {f"workers-{n} int8": 40 * n for n in (1, 2)}, shots=5),
    "lm, products": Case("lm", {f"products-{n} int8": 500 for n in (1, 2)}),
    "load of a GGUF": Case("lm", {"transformers bfloat16": 1, "first bfloat16": 1, "second bfloat16": 1}, loads=True),
}


@dataclass(frozen=True)
class Trial:
    """One way to do a case once, on ``count`` source sentences from number ``start`` on."""

    case: Case
    way: str
    dtype: str
    count: int
    start: int
    model: Path
    gguf: Path
    device: str


@dataclass(frozen=True)
class Result:
    """Texts, seconds and peak memory (MiB) of a trial: ``peak_mb`` beyond the loaded model, ``whole_mb`` with it.

    tokens: that the engine computed, counted once for each row or prompt, and the fewest that these texts need.
    """

    accepted: int
    texts: list[str]
    cpu_s: float
    wall_s: float
    peak_mb: float
    whole_mb: float = 0.0
    tokens: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        return f"{self.accepted} of {len(self.texts)} texts accepted in {self.cpu_s:.1f} CPU s, {self.peak_mb:.0f} MiB"


def main(
    only: Annotated[list[str], typer.Option(help="Cases of this name, else those that contain it; repeatable")] = [],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    scale: Annotated[float, typer.Option(min=0.01, help="Factor on the numbers of source sentences")] = 1.0,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    lm: Annotated[Path, typer.Option(help="Folder of the language model lm (sts-dino lm)")] = LM,
    gguf: Annotated[Path | None, typer.Option(help="The same model for llama.cpp [default: in that folder]")] = None,
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/throughput.json"),
) -> None:
    """Measure every case, print a table, and write a JSON file."""
    alone = FreshProcesses(PRELOADED)
    if device != "cpu" and not alone(has_gpu):
        raise InputError(f"--device {device}", "torch finds no CUDA GPU here", allowed="cpu")
    chosen = {name: case for name, case in CASES.items() if name in only}
    chosen = chosen or {name: case for name, case in CASES.items() if not only or any(part in name for part in only)}
    if not chosen:
        raise InputError("--only", f"no case contains {only}", allowed=list(CASES))
    gguf = gguf or next(iter(sorted(lm.glob("*.gguf"))), lm / "model.gguf")
    found, rows = dict[str, Any](), list[list[object]]()
    for name, case in chosen.items():
        model = DEMO_LM if case.model == "demo-lm" else lm
        served = gguf.is_file() and find_spec("xllamacpp")
        ways = [way for way in case.counts if served or not way.startswith("llama.cpp")]
        if not (model / "config.json").is_file() and not gguf.is_file():
            cli.say(f"left out: {name}: {model} does not exist (sts-dino lm)")
            continue

        def trial(way: str, number: int, case: Case = case, model: Path = model) -> Result:
            count = max(1, round(scale * case.counts[way]))
            decoder, dtype = way.split()
            start = number * max(case.counts.values())
            given = Trial(case, decoder, dtype, count, start, model, gguf, device)
            result: Result = alone(measure, given)
            return result

        runs = interleaved(ways, rounds, trial)
        found[name] = summary(runs, device)
        rows += [
            [name, way, "{median} ({low} to {high})".format(**one["rate"])]
            + [one[key] for key in ("speedup", "peak_mb", "whole_mb", "same_texts", "tokens")]
            for way, one in found[name].items()
        ]
        write_results(out, {"cases": found}, ("torch", "transformers", "tokenizers"), device)
    head = ["case", "way", "texts/s", "speed-up", "peak MiB", "with the model", "same texts", "tokens a text, least"]
    print(table(head, rows, names=2))


def summary(runs: dict[str, list[Result]], device: str) -> dict[str, dict[str, Any]]:
    """Way → rate (accepted texts per second), speed-up over the first way, peak memory, texts equal to its texts."""
    first = next(iter(runs))
    clock = "wall_s" if device != "cpu" or first.startswith(SIDE_BY_SIDE) else "cpu_s"
    seconds = {way: [getattr(run, clock) for run in of] for way, of in runs.items()}
    rates = {way: [run.accepted / s for run, s in zip(of, seconds[way], strict=True)] for way, of in runs.items()}
    found = {}
    for way, of in runs.items():
        pairs = [
            a == b for one, two in zip(of, runs[first], strict=True) for a, b in zip(one.texts, two.texts, strict=False)
        ]
        found[way] = {
            "rate": spread(rates[way]),
            "speedup": ratios(rates[way], rates[first])["median"],
            "peak_mb": max(run.peak_mb for run in of),
            "whole_mb": max(run.whole_mb for run in of),
            "tokens": [round(sum(run.tokens[n] for run in of) / sum(len(run.texts) for run in of), 1) for n in (0, 1)],
            "same_texts": round(sum(pairs) / len(pairs), 4),
            "seconds": seconds[way],
        }
    return found


def work(case: Case, count: int, start: int) -> tuple[list[Any], tuple[str, ...], Any]:
    """The requests, prefixes and decoding parameters of a case for ``count`` source sentences."""
    from generation.backends.protocol import Request
    from generation.inputs.prompts import load_prompts
    from generation.inputs.row_seeds import row_seed
    from hub.contract.recipe import DatasetRecipe
    from hub.contract.recipe_file import load_recipe

    texts = '{"1": same, "0.5": similar, "0": different}'
    examples = f"{{kind: file, path: {EXAMPLES}, premise: text, texts: {texts}, description: -, license: -}}"
    few_shot = [f"few_shot={{shots: [{case.shots}], sets: 1, examples: {examples}}}"] if case.shots else []
    recipe = load_recipe(RECIPE, DatasetRecipe, few_shot)
    prompts, variant = load_prompts(recipe), recipe.variants[0]
    requests = []
    for text in source_sentences(count, start):
        for label in recipe.labels:
            prompt, counter_prompts = prompts.of(label, text, variant)
            for sample in range(recipe.decoding.samples):
                seed = row_seed(recipe.seed, text, label.name, sample)
                requests.append(Request(prompt, counter_prompts if case.counters else (), seed))
    return requests, prompts.prefixes(variant), recipe.decoding


def source_sentences(count: int, start: int) -> list[str]:
    """``count`` distinct sentences of the demo in a mixed order, from number ``start`` on."""
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()[1:]
    texts = [text for text in (line.split("\t")[0].strip() for line in lines) if '"' not in text]
    mixed = sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest())
    turns = [divmod(place, len(mixed)) for place in range(start, start + count)]
    return [mixed[place] + (f" ({turn})" if turn else "") for turn, place in turns]


def measure(trial: Trial) -> Result:
    """Load the model, generate one short text, then do the work once under the clock."""
    single_thread()
    if trial.case.loads:
        return measure_load(trial)
    requests, prefixes, settings = work(trial.case, trial.count, trial.start)
    with loaded(trial) as (generate, process, engine):
        generate(requests[-1:], (), settings.model_copy(update={"max_new_tokens": 2}))
        loaded_mb = process.memory_info().rss / 2**20
        Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
        if trial.way == "engine":
            engine.tokens_computed = 0
        cpu, wall = sum(process.cpu_times()[:2]), time.perf_counter()
        done = generate(requests, prefixes, settings)
        cpu, wall = sum(process.cpu_times()[:2]) - cpu, time.perf_counter() - wall
        peak, counts = _peak_mb(process), tokens(engine, requests, done) if trial.way == "engine" else (0, 0)
    accepted, texts = sum(one.problem is None for one in done), [one.text for one in done]
    return Result(accepted, texts, cpu, wall, round(peak - loaded_mb, 1), round(peak), counts)


def tokens(engine: Any, requests: list[Any], done: list[Any]) -> tuple[int, int]:
    """Tokens that the engine computed, and the fewest: each prompt's tail once, each text once for each of its rows."""
    prompts = {engine.encode(prompt) for one in requests for prompt in one.prompts}
    shared = {ids: max((len(p) for p in engine.prefix_ids if ids[: len(p)] == p), default=0) for ids in prompts}
    own = [len(engine.encode(f"{one.prompt}{text.text}\"")) - len(engine.encode(one.prompt)) - 1
           for one, text in zip(requests, done, strict=True)]  # fmt: skip
    rows = sum(max(0, length) * len(one.prompts) for one, length in zip(requests, own, strict=True))
    return engine.tokens_computed, rows + sum(len(ids) - shared[ids] for ids in prompts)


def measure_load(trial: Trial) -> Result:
    """Load a GGUF file by transformers' reader, by the project's (``first``, a copy is written), or from a copy."""
    from generation.backends import gguf_file
    from generation.backends.load_model import load_model
    from hub.contract.recipe import LanguageModel

    fields = {"path": str(trial.gguf.parent), "gguf_file": trial.gguf.name, "dtype": trial.dtype, "license": "none"}
    process = psutil.Process()
    with TemporaryDirectory(dir=trial.gguf.parent) as folder:
        gguf_file.COPIES = Path(folder)
        if trial.way == "transformers":
            gguf_file.PROVEN.clear()
        if trial.way == "second":
            load_model(LanguageModel.model_validate(fields))
            _join_threads()
        before = process.memory_info().rss / 2**20
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        cpu, wall = sum(process.cpu_times()[:2]), time.perf_counter()
        load_model(LanguageModel.model_validate(fields))
        cpu, wall = sum(process.cpu_times()[:2]) - cpu, time.perf_counter() - wall
        _join_threads()
    return Result(1, [""], cpu, wall, round(_peak_mb(process) - before, 1))


def _join_threads() -> None:
    """Wait for the copy of the weights."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.name.startswith("copy"):
            thread.join()


def _peak_mb(process: psutil.Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


@contextmanager
def loaded(trial: Trial) -> Iterator[tuple[Callable[..., list[Any]], psutil.Process, Any]]:
    """The function that generates or multiplies, the process that computes, and the engine if it is that."""
    from generation.backends.load_model import read_model
    from generation.backends.protocol import complete
    from generation.backends.registry import load_writer
    from hub.contract.recipe import LanguageModel

    if trial.way == "llama.cpp":
        from benchmarks.llamacpp_server import CONTEXT, serve

        with serve(trial.gguf, SLOTS, CONTEXT) as serving:
            server = {"base_url": serving.base_url, "model": "gguf", "dialect": "llamacpp", "concurrency": SLOTS}
            client = load_writer(
                LanguageModel.model_validate({"backend": "openai", "server": server, "license": "none"})
            )
            yield (lambda requests, prefixes, settings: complete(client, requests, settings)), serving.process, None
        return
    fields = {"path": str(trial.model), "dtype": trial.dtype, "device": trial.device, "license": "none"}
    if not (trial.model / "config.json").is_file():
        fields["gguf_file"] = trial.gguf.name
    model = LanguageModel.model_validate(fields)
    if trial.way == "engine" or trial.way.startswith(("shards-", *SIDE_BY_SIDE)):
        workers = int(trial.way.partition("-")[2]) if trial.way.startswith(SIDE_BY_SIDE) else 1
        writer: Any = load_writer(model, None, workers)

        def engine(requests: list[Any], prefixes: tuple[str, ...], settings: Any) -> list[Any]:
            if trial.way.startswith("shards-") and prefixes:
                return in_shards(writer, trial, int(trial.way.removeprefix("shards-")))
            if trial.way.startswith("products-"):
                return products(writer.model, workers, trial.count)
            rows = None if workers > 1 else writer.rows(settings, None)
            return complete(writer, requests, settings, rows, prefixes)

        yield engine, psutil.Process(), writer
    else:
        from benchmarks.generate_baseline import Generator

        generator = Generator(*read_model(model))
        yield (lambda requests, _, settings: generator.batched(requests, settings, ROWS)), psutil.Process(), None


def products(model: Any, workers: int, count: int) -> list[Any]:
    """So many products of the model's widest layer in each of some threads; each counts as a text."""
    import torch

    inside = (layer for name, layer in model.named_modules() if ".layers.0." in name and hasattr(layer, "out_features"))
    layer = max(inside, key=lambda layer: layer.in_features * layer.out_features)
    inputs = torch.zeros(PRODUCT, layer.in_features, dtype=model.dtype)

    def multiply() -> None:
        with torch.inference_mode():
            for _ in range(count):
                layer(inputs)

    threads = [threading.Thread(target=multiply) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [SimpleNamespace(text="", problem=None)] * (workers * count)


def in_shards(writer: Any, trial: Trial, size: int) -> list[Any]:
    """The texts of the trial's source sentences, generated in shards of ``size`` as ``sts-dino write`` does."""
    from generation.inputs.prompts import load_prompts
    from generation.inputs.sources import SourceSentence
    from generation.rows.attempts import write_shards
    from hub.contract.recipe import DatasetRecipe
    from hub.contract.recipe_file import load_recipe

    recipe = load_recipe(RECIPE, DatasetRecipe)
    firsts = [SourceSentence(text, text) for text in source_sentences(trial.count, trial.start)]
    shards = [firsts[place : place + size] for place in range(0, len(firsts), size)]
    written = write_shards(writer, load_prompts(recipe), recipe, shards, bool)
    return [
        SimpleNamespace(text=row["text2"], problem=row.get("reason")) for raw, failed in written for row in raw + failed
    ]

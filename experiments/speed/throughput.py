"""Texts per CPU second of the engine, of ``generate()`` and of llama.cpp's server.

All ways do the same work, STS-x2 as in ``recipes/demo/sts-dino-x2.yaml``: three labels, two texts
for each (x1, label). Each trial is a fresh process. The ways take turns, and each round has other
source sentences.

Ways:

- ``batched``: transformers' ``generate()`` with logits processors for self-debiasing.
- ``engine``: what ``sts-dino write`` runs. It draws with the same random numbers as ``batched``, so
  float32 texts are equal.
- ``llama.cpp``: llama.cpp's server, without counter-prompts.
- ``shards-50``: the engine as in a run with ``shard_size: 50``, rejected texts generated again.
- ``workers-2``: the engine with two workers and twice the sentences, texts per second of the clock.
- ``products-2``: the products of one layer in each of two threads, an upper bound of a CPU's speed.
- ``transformers``, ``first`` and ``second`` only load a GGUF file: by transformers' own reader, by
  the project's reader, and from the copy that the project's reader keeps. A load counts as a text.
"""

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Annotated, Any

import psutil
import typer

from sts_dino.experiments.speed import busy, llamacpp_server
from sts_dino.experiments.speed.llamacpp_server import CONTEXT_TOKENS, DEFAULT_SLOTS, serve
from sts_dino.experiments.speed.trials import (
    FreshProcesses,
    compute_ratios,
    compute_spread,
    format_table,
    has_gpu,
    run_interleaved,
    use_one_thread,
    write_results,
)
from sts_dino.generation.backends.protocol import Request, complete
from sts_dino.generation.backends.registry import load_writer
from sts_dino.generation.inputs.prompts import load_prompts
from sts_dino.generation.inputs.row_seeds import make_seed
from sts_dino.generation.inputs.sources import SourceSentence
from sts_dino.generation.rows.attempts import generate_shards
from sts_dino.hub.cli import make_app
from sts_dino.hub.contract.packaged import HOME_VARIABLE, find_moved_folder
from sts_dino.hub.contract.recipe import DatasetRecipe, LanguageModel
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.errors import InputError

logger = logging.getLogger(__name__)

RECIPE = Path("recipes/demo/sts-dino-x2.yaml")
SENTENCES = Path("assets/demo-data/x1.tsv")
EXAMPLES = Path("experiments/speed/data/sts_examples.tsv")
DEMO_LM = Path("assets/demo-lm")
LM = Path("artifacts/lm/gemma-3-270m")
PRELOADED = ["sts_dino.experiments.speed.generate_baseline", "sts_dino.generation.backends.engine"]
PRELOADED += [
    f"transformers.models.{kind}.modeling_{kind}" for kind in ("llama", "gemma3", "qwen2")
]
SHARD_DTYPES = ("float32", "bfloat16")
SIDE_BY_SIDE = ("workers-", "products-")
PRODUCT_ROWS = 192  # rows of a product
GENERATE_ROWS = 96  # model rows of a batched call of ``generate()``


@dataclass(frozen=True)
class Case:
    """Work on one model.

    ``counts``: "way dtype" → source sentences per round (slow ways get few).
    """

    model: str  # demo-lm, or lm: the folder that the command names
    counts: dict[str, int]
    shots: int = 0  # examples of about 40 tokens before each prompt
    counters: bool = True  # False: prompts without counter-prompts
    # the model is loaded from its GGUF file, and no more: a load counts as a text
    loads: bool = False


CASES = {
    "demo-lm": Case("demo-lm", {"batched float32": 32, "engine float32": 120}),
    "lm": Case(
        "lm",
        {
            "batched float32": 17,
            "batched bfloat16": 12,
            "engine float32": 43,
            "engine bfloat16": 48,
        },
    ),
    "lm, 8 examples": Case("lm", {"batched bfloat16": 3, "engine bfloat16": 48}, shots=8),
    "lm, no counter-prompts": Case(
        "lm", {"llama.cpp q4_k_m": 24, "engine bfloat16": 48}, counters=False
    ),
    "lm, 5 examples": Case(
        "lm", {"batched bfloat16": 2, "engine bfloat16": 60, "engine int8": 60}, shots=5
    ),
    "lm, 5 examples, no counter-prompts": Case(
        "lm",
        {"llama.cpp q4_k_m": 10, "engine bfloat16": 60, "engine int8": 60},
        shots=5,
        counters=False,
    ),
    "demo-lm, shards": Case(
        "demo-lm", {f"shards-{size} {dtype}": 600 for size in (600, 50) for dtype in SHARD_DTYPES}
    ),
    "lm, shards": Case("lm", {f"shards-{size} bfloat16": 150 for size in (600, 50)}),
    "lm, workers": Case("lm", {f"workers-{n} int8": 40 * n for n in (1, 2)}, shots=5),
    "lm, products": Case("lm", {f"products-{n} int8": 500 for n in (1, 2)}),
    "load of a GGUF": Case(
        "lm", {"transformers bfloat16": 1, "first bfloat16": 1, "second bfloat16": 1}, loads=True
    ),
}


@dataclass(frozen=True)
class Trial:
    """One way to do a case once, on ``count`` source sentences from index ``start`` on.

    ``model``: the folder of the language model; ``gguf``: the file of the same model.
    """

    case: Case
    way: str
    dtype: str
    count: int
    start: int
    model: Path
    gguf: Path
    device: str


@dataclass(frozen=True)
class Usage:
    """CPU seconds, wall seconds and peak memory (MiB) of some work.

    ``whole_mb``: the peak; ``peak_mb``: the peak minus the memory at the start.
    """

    cpu_s: float
    wall_s: float
    peak_mb: float
    whole_mb: float


@dataclass(frozen=True)
class Result:
    """Texts of a trial, their cost, and tokens.

    ``texts``: all generated texts; ``accepted``: how many of them have no problem. ``tokens``: the
    tokens that the engine computed, and the fewest that the texts need (``count_tokens``); (0, 0)
    for all ways but ``engine``.
    """

    accepted: int
    texts: list[str]
    usage: Usage
    tokens: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        accepted = f"{self.accepted} of {len(self.texts)} texts accepted"
        return f"{accepted} in {self.usage.cpu_s:.1f} CPU s, {self.usage.peak_mb:.0f} MiB"


@dataclass(frozen=True)
class Loaded:
    """A way to generate, with its model in memory.

    - ``generate``: function of requests, their shared prefixes and the decoding parameters, which
      returns a completion of each request.
    - ``process``: the process that computes.
    - ``engine``: the engine; None for a way without it.
    """

    generate: Callable[[list[Any], tuple[str, ...], Any], list[Any]]
    process: psutil.Process
    engine: Any = None


app = make_app(
    "Measure speed and memory; results go to experiments/speed/results "
    "(experiments/speed/README.md)."
)
app.command("busy")(busy.main)
app.command("llamacpp-server")(llamacpp_server.main)


@app.command("throughput")
def main(
    only: Annotated[
        list[str], typer.Option(help="Cases of this name, else those that contain it; repeatable")
    ] = [],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    scale: Annotated[
        float, typer.Option(min=0.01, help="Factor on the numbers of source sentences")
    ] = 1.0,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    lm: Annotated[Path, typer.Option(help="Folder of the language model lm (sts-dino lm)")] = LM,
    gguf: Annotated[
        Path | None, typer.Option(help="The same model for llama.cpp [default: in that folder]")
    ] = None,
    out: Annotated[Path, typer.Option(help="JSON file")] = Path(
        "experiments/speed/results/throughput.json"
    ),
) -> None:
    """Measure every chosen case, print a table, and write a JSON file.

    A case without its model is left out.
    """
    # Check the options
    if gguf is not None and not gguf.is_file():
        raise InputError(f"--gguf {gguf}", "no such file", hint="leave it out, or name a GGUF file")
    run_fresh = FreshProcesses(PRELOADED)
    if device != "cpu" and not run_fresh(has_gpu):
        raise InputError(f"--device {device}", "torch finds no CUDA GPU here", allowed="cpu")
    chosen = choose_cases(only)
    # The default is the folder of earlier versions; a model may be in today's download folder.
    lm = find_moved_folder(str(lm)) or lm
    gguf = gguf or next(iter(sorted(lm.glob("*.gguf"))), lm / "model.gguf")

    # Measure the cases
    results = dict[str, Any]()
    for name, case in chosen.items():
        model = DEMO_LM if case.model == "demo-lm" else lm
        has_folder = (model / "config.json").is_file() and not case.loads
        if not has_folder and not gguf.is_file():
            logger.info(f"left out: {name}: no model in {model} or {gguf} (sts-dino lm)")
            continue
        runs = run_case(case, model, gguf, device, rounds, scale, run_fresh)
        results[name] = compute_figures(runs, device)
        # A run that is stopped keeps the cases that are done.
        write_results(out, {"cases": results}, ("torch", "transformers", "tokenizers"), device)
    print(format_results(results))


def run_case(
    case: Case,
    model: Path,
    gguf: Path,
    device: str,
    rounds: int,
    scale: float,
    run_fresh: FreshProcesses,
) -> dict[str, list[Result]]:
    """Run every way of a case that can run here; return "way dtype" → its result of each round.

    Args:
        case: the case.
        model: the folder of its language model.
        gguf: the file of the same model for llama.cpp.
        device: ``cpu`` or ``cuda``.
        rounds: the number of rounds.
        scale: factor on the numbers of source sentences.
        run_fresh: calls a function in a fresh process.
    """
    counts = {name: max(1, round(scale * count)) for name, count in case.counts.items()}

    def run_trial(way_and_dtype: str, number: int) -> Result:
        """Do one way of the case in a fresh process, in round ``number``."""
        way, dtype = way_and_dtype.split()
        # No round reads a sentence of an earlier round, whichever way read it there.
        start = number * max(counts.values())
        trial = Trial(case, way, dtype, counts[way_and_dtype], start, model, gguf, device)
        return run_fresh(measure, trial)

    return run_interleaved(list_ways(case, gguf), rounds, run_trial)


def choose_cases(names: list[str]) -> dict[str, Case]:
    """Return the case of each name, else the cases that contain the name; without a name, all.

    Raises InputError for a name that no case contains.
    """
    if not names:
        return CASES
    chosen = dict[str, Case]()
    for part in names:
        matches = {part: CASES[part]} if part in CASES else {}
        if not matches:
            matches = {name: case for name, case in CASES.items() if part in name}
        if not matches:
            raise InputError("--only", f"no case contains {part!r}", allowed=list(CASES))
        chosen |= matches
    return chosen


def list_ways(case: Case, gguf: Path) -> list[str]:
    """List the ways ("way dtype") of a case that can run here.

    llama.cpp needs its package and the file ``gguf``.
    """
    if gguf.is_file() and find_spec("xllamacpp"):
        return list(case.counts)
    return [way for way in case.counts if not way.startswith("llama.cpp")]


def format_results(results: dict[str, dict[str, Any]]) -> str:
    """Format the figures as a Markdown table; ``results``: case → way → figures."""
    columns = {
        "speedup": "speed-up",
        "peak_mb": "peak MiB",
        "whole_mb": "with the model",
        "same_texts": "same texts",
        "tokens": "tokens a text, least",
    }
    rows = []
    for name, ways in results.items():
        for way, figures in ways.items():
            rate = "{median} ({low} to {high})".format(**figures["rate"])
            rows.append([name, way, rate, *(figures[key] for key in columns)])
    return format_table(["case", "way", "texts/s", *columns.values()], rows, names=2)


def compute_figures(runs: dict[str, list[Result]], device: str) -> dict[str, dict[str, Any]]:
    """Compute the figures of each way; ``runs``: way → its result of each round.

    ``rate``: accepted texts per second, spread over rounds. ``speedup``: median over rounds of the
    rate divided by the first way's. ``peak_mb`` and ``whole_mb``: the largest of all rounds, in
    MiB. ``tokens``: computed tokens for a text, and the fewest possible. ``same_texts``: share of
    texts that equal those of the first way. ``seconds``: of each round. Seconds are CPU seconds; on
    a GPU and for ``SIDE_BY_SIDE``, seconds of the clock.
    """
    # Choose the clock: CPU seconds do not show what a GPU, or threads side by side, save.
    first = next(iter(runs))
    uses_wall_clock = device != "cpu" or first.startswith(SIDE_BY_SIDE)
    clock = "wall_s" if uses_wall_clock else "cpu_s"
    seconds = dict[str, list[float]]()
    rates = dict[str, list[float]]()
    for way, results in runs.items():
        seconds[way] = [getattr(run.usage, clock) for run in results]
        pairs = zip(results, seconds[way], strict=True)
        rates[way] = [run.accepted / run_seconds for run, run_seconds in pairs]

    # Summarize the rounds of each way.
    figures = {}
    for way, results in runs.items():
        texts = sum(len(run.texts) for run in results)
        computed = sum(run.tokens[0] for run in results)
        fewest = sum(run.tokens[1] for run in results)
        figures[way] = {
            "rate": compute_spread(rates[way]),
            "speedup": compute_ratios(rates[way], rates[first])["median"],
            "peak_mb": max(run.usage.peak_mb for run in results),
            "whole_mb": max(run.usage.whole_mb for run in results),
            "tokens": [round(computed / texts, 1), round(fewest / texts, 1)],
            "same_texts": compute_equal_share(results, runs[first]),
            "seconds": seconds[way],
        }
    return figures


def compute_equal_share(runs: list[Result], references: list[Result]) -> float:
    """Return the share (0 to 1) of texts that equal the reference's text at the same position.

    Both lists have a result for each round. Positions that only one of two results has are ignored.
    """
    equal = list[bool]()
    for run, reference in zip(runs, references, strict=True):
        # A slow way has fewer texts.
        pairs = zip(run.texts, reference.texts, strict=False)
        equal += [text == reference_text for text, reference_text in pairs]
    return round(sum(equal) / len(equal), 4)


def make_requests(trial: Trial) -> tuple[list[Any], tuple[str, ...], Any]:
    """Return the requests, shared prefixes and decoding parameters of a trial's source sentences.

    There is one request for each sentence, label and sample, in this order.
    """
    # Load the recipe, with a setting that puts the case's examples before each prompt.
    case = trial.case
    few_shot = list[str]()
    if case.shots:
        texts = '{"1": same, "0.5": similar, "0": different}'
        columns = f"premise: text, texts: {texts}, description: -, license: -"
        examples = f"{{kind: file, path: {EXAMPLES}, {columns}}}"
        few_shot.append(f"few_shot={{shots: [{case.shots}], sets: 1, examples: {examples}}}")
    recipe = load_recipe(RECIPE, DatasetRecipe, few_shot)
    prompts = load_prompts(recipe)
    variant = recipe.variants[0]

    # Make the requests.
    requests = []
    for sentence in choose_sentences(trial):
        for label in recipe.labels:
            prompt, counter_prompts = prompts.make_prompts(label, sentence, variant)
            if not case.counters:
                counter_prompts = ()
            for sample in range(recipe.decoding.samples):
                seed = make_seed(recipe.seed, sentence, label.name, sample)
                requests.append(Request(prompt, counter_prompts, seed))
    return requests, prompts.list_prefixes(variant), recipe.decoding


def choose_sentences(trial: Trial) -> list[str]:
    """Return a trial's source sentences: those of the demo, ordered by their hash.

    Sentences with quotation marks, which end a text in the prompts, are left out. After the last
    sentence the first one follows again, with the number of the repetition at its end.
    """
    sentences = []
    for line in SENTENCES.read_text(encoding="utf-8").splitlines()[1:]:
        sentence = line.split("\t")[0].strip()
        if '"' not in sentence:
            sentences.append(sentence)
    sentences.sort(key=lambda sentence: hashlib.sha256(sentence.encode()).digest())
    chosen = []
    for number in range(trial.start, trial.start + trial.count):
        repetition, index = divmod(number, len(sentences))
        suffix = f" ({repetition})" if repetition else ""
        chosen.append(sentences[index] + suffix)
    return chosen


def measure(trial: Trial) -> Result:
    """Load the model of a trial, do its work once, and measure the work."""
    use_one_thread()
    if trial.case.loads:
        return measure_load(trial)
    requests, prefixes, settings = make_requests(trial)
    with load_way(trial) as way:
        # Generate a short text first, so that work that is done once a process is not measured.
        way.generate(requests[-1:], (), settings.model_copy(update={"max_new_tokens": 2}))
        is_engine = trial.way == "engine"
        if is_engine:
            way.engine.tokens_computed = 0

        # The work is one call of ``generate``, except for shards and products.
        kind, _, number = trial.way.partition("-")
        work = partial(way.generate, requests, prefixes, settings)
        if kind == "shards":
            work = partial(generate_in_shards, way.engine, trial, int(number))
        elif kind == "products":
            work = partial(compute_products, way.engine.model, int(number), trial.count)
        completions, usage = measure_usage(way.process, work)
        tokens = (0, 0)
        if is_engine:
            tokens = count_tokens(way.engine, requests, completions)
    return Result(
        accepted=sum(completion.problem is None for completion in completions),
        texts=[completion.text for completion in completions],
        usage=usage,
        tokens=tokens,
    )


def measure_usage(process: psutil.Process, work: Callable[[], Any]) -> tuple[Any, Usage]:
    """Do the work once. Return its result, and the time and memory of ``process``.

    CPU seconds are those of user and system, the first two fields of ``cpu_times``. Memory is read
    from Linux's /proc. The peak includes the threads that copy weights, which may end after
    ``work``; the seconds do not.
    """
    loaded_mb = process.memory_info().rss / 2**20
    # Writing 5 resets the kernel's record of the peak (man 5 proc).
    Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="ascii")
    cpu_start = sum(process.cpu_times()[:2])
    wall_start = time.perf_counter()
    result = work()
    cpu_s = sum(process.cpu_times()[:2]) - cpu_start
    wall_s = time.perf_counter() - wall_start
    _join_copies()
    peak_mb = _read_peak_mb(process)
    return result, Usage(cpu_s, wall_s, round(peak_mb - loaded_mb, 1), round(peak_mb))


def count_tokens(engine: Any, requests: list[Any], completions: list[Any]) -> tuple[int, int]:
    """Return the number of tokens that the engine computed, and the fewest possible.

    The fewest: each distinct prompt once, without its longest shared prefix; each text once for
    each of its rows (one for the prompt and one for each counter-prompt).
    """
    fewest = 0
    prompts = set[Any]()
    for request, completion in zip(requests, completions, strict=True):
        prompts |= {engine.encode(prompt) for prompt in request.prompts}
        # The closing quotation mark is not computed: 1 token less.
        whole_length = len(engine.encode(f'{request.prompt}{completion.text}"'))
        length = whole_length - len(engine.encode(request.prompt)) - 1
        fewest += max(0, length) * len(request.prompts)
    for ids in prompts:
        shared = [len(prefix) for prefix in engine.prefix_ids if ids[: len(prefix)] == prefix]
        fewest += len(ids) - max(shared, default=0)
    return engine.tokens_computed, fewest


def measure_load(trial: Trial) -> Result:
    """Measure one load of a GGUF file by the trial's way, as a result with one empty text.

    Changes the environment and ``gguf_file.PROVEN``: call it in a process of its own.
    """
    from sts_dino.generation.backends import gguf_file
    from sts_dino.generation.backends.load_model import load_model

    fields = {
        "path": str(trial.gguf.parent),
        "gguf_file": trial.gguf.name,
        "dtype": trial.dtype,
        "license": "none",
    }
    model = LanguageModel.model_validate(fields)
    with TemporaryDirectory(dir=trial.gguf.parent) as folder:
        os.environ[HOME_VARIABLE] = folder  # for the copies of weights
        # Without proven architectures, transformers reads the file itself.
        if trial.way == "transformers":
            gguf_file.PROVEN.clear()
        # The second load finds the copy that the first one writes.
        if trial.way == "second":
            load_model(model)
            _join_copies()
        _, usage = measure_usage(psutil.Process(), lambda: load_model(model))
    # In the way ``second`` the process holds two models, so ``whole_mb`` is left out for all ways.
    return Result(1, [""], replace(usage, whole_mb=0.0))


def _join_copies() -> None:
    """Wait for the threads that write copies of weights; their names begin with "copy"."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.name.startswith("copy"):
            thread.join()


def _read_peak_mb(process: psutil.Process) -> float:
    """Read the peak of resident memory since it was last cleared, in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="replace")
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) / 1024


@contextmanager
def load_way(trial: Trial) -> Iterator[Loaded]:
    """Load the model of a trial for its way.

    The server of the way ``llama.cpp`` runs for the duration of the block.
    """
    from sts_dino.generation.backends.load_model import read_model

    if trial.way == "llama.cpp":
        with _serve_llamacpp(trial) as way:
            yield way
        return

    fields = {
        "path": str(trial.model),
        "dtype": trial.dtype,
        "device": trial.device,
        "license": "none",
    }
    if not (trial.model / "config.json").is_file():
        fields["gguf_file"] = trial.gguf.name
    model = LanguageModel.model_validate(fields)

    # ``generate()`` in batches.
    if trial.way == "batched":
        from sts_dino.experiments.speed.generate_baseline import Generator

        generator = Generator(*read_model(model))
        yield Loaded(
            lambda requests, _, settings: generator.generate(requests, settings, GENERATE_ROWS),
            psutil.Process(),
        )
        return

    # The engine.
    workers = 1
    if trial.way.startswith(SIDE_BY_SIDE):
        workers = int(trial.way.partition("-")[2])
    writer: Any = load_writer(model, None, workers)
    yield Loaded(
        lambda requests, prefixes, settings: complete(
            writer, requests, settings, prefixes=prefixes
        ),
        psutil.Process(),
        writer,
    )


@contextmanager
def _serve_llamacpp(trial: Trial) -> Iterator[Loaded]:
    """Serve the trial's GGUF file by llama.cpp's server; yield its client as a way to generate.

    Raises RunError when the server does not start.
    """
    with serve(trial.gguf, DEFAULT_SLOTS, CONTEXT_TOKENS) as serving:
        server = {
            "base_url": serving.base_url,
            "model": "gguf",
            "dialect": "llamacpp",
            "concurrency": DEFAULT_SLOTS,
        }
        fields = {"backend": "openai", "server": server, "license": "none"}
        client = load_writer(LanguageModel.model_validate(fields))
        yield Loaded(
            lambda requests, _, settings: complete(client, requests, settings), serving.process
        )


def compute_products(model: Any, workers: int, count: int) -> list[Any]:
    """Multiply by the largest weight matrix of the first block, in each of ``workers`` threads.

    Each thread computes ``count`` products of ``PRODUCT_ROWS`` rows. Returns a completion with an
    empty text for each product, so that a product counts as a text.
    """
    import torch

    layers = [
        layer
        for name, layer in model.named_modules()
        if ".layers.0." in name and hasattr(layer, "out_features")
    ]
    largest = max(layers, key=lambda layer: layer.in_features * layer.out_features)
    inputs = torch.zeros(PRODUCT_ROWS, largest.in_features, dtype=model.dtype)

    def run_products() -> None:
        """Compute the products of one thread."""
        with torch.inference_mode():
            for _ in range(count):
                largest(inputs)

    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(run_products) for _ in range(workers)]:
            future.result()
    return [SimpleNamespace(text="", problem=None)] * (workers * count)


def generate_in_shards(writer: Any, trial: Trial, size: int) -> list[Any]:
    """Generate the trial's texts in shards of ``size`` source sentences as ``sts-dino write`` does.

    Returns a completion for each text, shard by shard, in each first the accepted texts and then
    the rejected texts. ``problem`` is the reason of a rejection; None for accepted texts.
    """
    recipe = load_recipe(RECIPE, DatasetRecipe)
    sources = [SourceSentence(sentence, sentence) for sentence in choose_sentences(trial)]
    shards = [sources[start : start + size] for start in range(0, len(sources), size)]
    completions = []
    rows_by_shard = generate_shards(
        writer, load_prompts(recipe), recipe, shards, tick=lambda texts: None
    )
    for raw, rejected in rows_by_shard:
        for row in raw + rejected:
            completions.append(SimpleNamespace(text=row["text2"], problem=row.get("reason")))
    return completions

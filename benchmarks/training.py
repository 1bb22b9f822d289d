"""Training steps of ``sts-dino train`` beside sentence-transformers' own trainer, and peak memory beside its estimate.

Both trainers train equal random encoders on the same rows with the same loss and arguments, interleaved, each trial in
a fresh process on texts of full length. The clock is CPU time of one thread, on a GPU the wall clock.
"""

import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.trials import FreshProcesses, has_gpu, interleaved, ratios, single_thread, spread, table, write_results
from hub import cli
from hub.errors import InputError

LIBRARIES = ("torch", "transformers", "sentence-transformers", "peft", "accelerate")
WARM_UP = 2  # steps before the clock starts
WORDS = ("a", "man", "is", "playing", "the", "flute", "two", "young", "women", "cook", "beans", "on", "old", "cars")
MIB = 2**20

app = cli.new_app(__doc__)


@dataclass(frozen=True)
class Case:
    """A RoBERTa under CosineSimilarityLoss: layers, width, rows of a step, timed steps, tokens of a text."""

    layers: int
    width: int
    batch: int
    steps: int
    length: int = 32

    @property
    def config(self) -> Any:
        """The config of the base."""
        from transformers import RobertaConfig

        return RobertaConfig(
            vocab_size=50_265,
            hidden_size=self.width,
            intermediate_size=4 * self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=max(2, self.width // 64),
            max_position_embeddings=514,
            type_vocab_size=1,
        )


CASES = {"small": Case(4, 128, 32, 80), "base": Case(12, 768, 32, 100, 64), "tiny": Case(1, 32, 4, 2)}


@dataclass(frozen=True)
class Result:
    """Seconds of a step, growth of resident memory (GPU: allocated memory) in MiB, and its estimate."""

    seconds: float
    peak_mb: float
    estimated_mb: float

    def __str__(self) -> str:
        return f"{self.seconds:.4f} s a step, {self.peak_mb:.0f} MiB (estimated {self.estimated_mb:.0f})"


@app.command(no_args_is_help=False)
def main(
    only: Annotated[list[str], typer.Option(help="Cases whose name contains this; repeatable")] = ["small"],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=1)] = 4,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/training_throughput.json"),
) -> None:
    """Measure, print a table, write a JSON file with every round."""
    alone = FreshProcesses(["benchmarks.training", "training.loop.train"])
    if device != "cpu" and not alone(has_gpu):
        raise InputError(f"--device {device}", "torch finds no CUDA GPU here", allowed="cpu")
    cases = {name: case for name, case in CASES.items() if any(part in name for part in only)}
    if not cases:
        raise InputError("--only", f"no case contains {only}", allowed=list(CASES))
    found, rows = dict[str, Any](), list[list[object]]()
    for name, case in cases.items():

        def trial(way: str, number: int, case: Any = case) -> Any:
            return alone(measure, case, way, device, number)

        runs = interleaved(["plain", "runner"], rounds, trial)
        seconds = {way: [run.seconds for run in of] for way, of in runs.items()}
        for way, of in runs.items():
            peak, estimated = (
                statistics.median(getattr(run, key) for run in of) for key in ("peak_mb", "estimated_mb")
            )
            over = ratios(seconds[way], seconds["plain"])
            facts = {"seconds": spread(seconds[way]), "over_plain": over, "peak_mb": peak, "estimated_mb": estimated}
            found.setdefault(name, {})[way] = facts | {"rounds": of}
            rows.append([name, way, spread(seconds[way])["median"], over["median"], f"{peak:.0f}", f"{estimated:.0f}"])
    write_results(out, {"cases": found}, LIBRARIES, device)
    print(table(["case", "trainer", "seconds a step", "over plain", "peak MiB", "estimated"], rows, names=2))


def measure(case: Case, way: str, device: str, seed: int) -> Result:
    """Train once: ``plain`` by sentence-transformers' trainer, ``runner`` by this project's."""
    import psutil
    import torch
    from sentence_transformers import SentenceTransformerTrainer
    from transformers import PrinterCallback, TrainerCallback

    from hub.process import peak_rss_mb
    from training.loop.train import make_trainer
    from training.losses.losses import build_loss
    from training.memory import memory_estimate

    single_thread()

    def now() -> float:
        if device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    class Clock(TrainerCallback):
        """Times the steps after the first ones, logs included."""

        started = stopped = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == WARM_UP:
                self.started = now()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.stopped = now()

    with tempfile.TemporaryDirectory() as folder:
        job = make_job(case, device, seed, Path(folder))
        estimated = memory_estimate(job.recipe, job.base, case.batch, job.arguments)
        before, clock = psutil.Process().memory_info().rss / MIB, Clock()
        encoder = make_encoder(case, job, device, Path(folder))
        if way == "plain":
            loss = build_loss(job.sets[0].spec, encoder, job.base)
            trainer = SentenceTransformerTrainer(encoder, job.arguments, train_dataset=job.sets[0].train, loss=loss)
            trainer.remove_callback(PrinterCallback)
        else:
            trainer = make_trainer(job, encoder, "benchmark")
        trainer.add_callback(clock)
        trainer.train()
    peak = peak_rss_mb() - before if device == "cpu" else torch.cuda.max_memory_allocated() / MIB
    return Result((clock.stopped - clock.started) / case.steps, peak, estimated.total / MIB)


def make_job(case: Case, device: str, seed: int, folder: Path) -> Any:
    """The job of a recipe file with random rows; nothing is on a Hub."""
    from datasets import Dataset

    from hub.contract.recipe import ModelRecipe
    from training.data.training_sets import TrainingSet
    from training.encoder.bases import Base
    from training.loop.arguments import trainer_arguments, typed_arguments
    from training.loop.job import TrainingJob

    data = {"path": "random", "config": "c", "example_type": "sts", "loss": "CosineSimilarityLoss", "license": "mit"}
    steps = {"max_steps": str(WARM_UP + case.steps), "logging_steps": "10", "save_strategy": "no", "report_to": "none"}
    recipe = ModelRecipe.model_validate(
        {
            "kind": "model",
            "name": "benchmark",
            "version": "0.1.0",
            "pretty_name": "Benchmark",
            "license": "mit",
            "base": {
                "repo_id": "random/base",
                "revision": "main",
                "max_seq_length": str(case.length),
                "license": "mit",
            },
            "datasets": [data],
            "batch_size": str(case.batch),
            "arguments": {**steps, "use_cpu": str(device == "cpu").lower()},
        }
    )
    draw, count = random.Random(seed), case.batch * (WARM_UP + case.steps)
    columns: dict[str, list[Any]] = {
        name: [" ".join(draw.choices(WORDS, k=case.length)) for _ in range(count)]
        for name in ("sentence1", "sentence2")
    }
    columns["score"] = [draw.random() for _ in range(count)]
    given = typed_arguments(recipe.arguments, "arguments") | {"per_device_train_batch_size": case.batch}
    arguments, reporters = trainer_arguments(given, folder / "checkpoints", 1, False, "arguments")
    rows = TrainingSet("random", recipe.datasets[0], Dataset.from_dict(columns), None, None, "", None)
    case.config.save_pretrained(folder / "shape")
    base = Base(folder / "shape", None, "")
    return TrainingJob(recipe, folder / "run", [rows], base, None, arguments, reporters)


def make_encoder(case: Case, job: Any, device: str, folder: Path) -> Any:
    """A random encoder of the case's shape, under the tokenizer of a tiny model."""
    import transformers

    from benchmarks.tiny_model import make_model
    from hub.untrusted import NO_CODE
    from training.encoder.bases import Base
    from training.encoder.encoder import build_encoder

    base = folder / "base"
    transformers.AutoTokenizer.from_pretrained(make_model(folder / "tiny"), **NO_CODE).save_pretrained(base)
    transformers.set_seed(job.recipe.seed)
    transformers.RobertaModel(case.config, add_pooling_layer=False).save_pretrained(base)
    return build_encoder(job.recipe.base.model_copy(update={"path": str(base)}), Base(base, None, "")).to(device)

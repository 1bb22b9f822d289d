"""What is measured: pieces of work, models, ways to do the work, and how much of it each way gets. Pure.

A way of doing the work with its numbers is a *variant*. A new switch of the engine is one more ``Variant`` in a case:
``Variant("engine", "float32", 64, keys=(("name of a key of the recipe's section model", value),))``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.generation.throughput import workloads
from hub.errors import InputError

DEMO_LM = Path("assets/demo-lm")
LM = Path("artifacts/lm/gemma-3-270m")  # the folder that a real language model lies in
MAKE_LM = "make lm"
SLOTS = 32  # of llama.cpp's server


@dataclass(frozen=True)
class Variant:
    """One way to do the work of a case, and how much of it that way is given."""

    way: Literal["original", "batched", "own-rows", "engine", "llama.cpp"]
    dtype: str  # torch's name; of llama.cpp the quantisation of its file
    count: int  # first texts a round: slow ways get few
    rows: int | None = None  # model rows of a batch; None: as many as the engine finds to fit, its default
    rounds: int | None = None  # at most so many; None: the preset's
    keys: tuple[tuple[str, Any], ...] = ()  # of the recipe's section ``model``: the engine's switches

    @property
    def name(self) -> str:
        """What the report calls it: way and dtype first, then what is not the default."""
        rows = f"{self.rows} rows" if self.way == "engine" and self.rows else ""
        return " ".join(filter(None, [self.way, self.dtype, rows, *(f"{key}={value}" for key, value in self.keys)]))


@dataclass(frozen=True)
class Case:
    """One piece of work on one model, and the ways that do it."""

    work: str  # of ``workloads.KINDS``
    model: str  # of ``models.SHAPES``, or ``demo-lm``, or ``lm``: the folder that the command names
    variants: tuple[Variant, ...]
    lengths: tuple[int, ...] = ()  # tokens after which random models close, equally often; empty: as the demo's model
    counted: Literal["accepted", "asked"] = "accepted"  # the texts of a rate

    @property
    def name(self) -> str:
        """What the report calls it; ``lm`` is replaced by the folder's name."""
        return f"{self.work}, {self.model}"


@dataclass(frozen=True)
class Preset:
    """What is measured on a kind of machine."""

    device: str
    rounds: int
    cases: tuple[Case, ...]
    widths: tuple[int, ...]  # of the roofline's layers
    roofline_rows: tuple[int, ...]
    lengths_of: int = 64  # first texts whose lengths under the demo's model are taken over


BOTH = ("float32", "bfloat16")
SHORT = (8, 9, 10, 11)


def _case(
    work: str,
    model: str,
    counts: dict[str, int],
    rows: int = 96,
    lengths: tuple[int, ...] = (),
) -> Case:
    """A case from ``"way dtype"`` → first texts a round; ``rows``: of every way but the engine's."""
    variants = []
    for name, count in counts.items():
        way, dtype = name.split()
        variants.append(Variant(way, dtype, count, None if way == "engine" else rows))  # type: ignore[arg-type]
    return Case(work, model, tuple(variants), lengths)


def _engine(count: int, dtypes: tuple[str, ...] = BOTH) -> dict[str, int]:
    return {f"engine {dtype}": count for dtype in dtypes}


_REAL = (
    Case(
        "sts-x2",
        "lm",
        (
            Variant("batched", "float32", 17, 102),  # three rounds: 306 texts; those of three rows fill one call
            Variant("batched", "bfloat16", 12, 72),
            Variant("own-rows", "float32", 12, 72, rounds=1),
            Variant("own-rows", "bfloat16", 12, 72, rounds=1),
            Variant("engine", "float32", 43),  # 516 rows: a full batch of the engine's default
            Variant("engine", "bfloat16", 48),
            Variant("engine", "float32", 17, 102, rounds=1),  # for memory at equal rows
            Variant("engine", "bfloat16", 12, 72, rounds=1),
        ),
    ),
    Case(
        "sts-x2-8shot",
        "lm",
        (
            Variant("batched", "float32", 3, 96),
            Variant("batched", "bfloat16", 3, 96),
            Variant("engine", "float32", 32),
            Variant("engine", "bfloat16", 48),
        ),
    ),
    Case(
        "sts-x2-no-counters",
        "lm",
        (
            Variant("llama.cpp", "q4_k_m", 24, SLOTS),
            Variant("engine", "float32", 32),
            Variant("engine", "bfloat16", 48),
        ),
        counted="asked",
    ),
)
_RANDOM_TOO = (
    _case("sts-x2", "demo-lm", {"batched float32": 32, "batched bfloat16": 32, "original float32": 12, **_engine(120)}),
    _case(
        "sts-x2",
        "gpt2-124m",
        {"batched float32": 16, "batched bfloat16": 16, "original float32": 1, **_engine(43)},
    ),
    _case("auto-nli-20shot", "llama-27m", {"batched float32": 16, **_engine(96)}, 32),
)
PRESETS = {
    "cpu": Preset("cpu", 3, _RANDOM_TOO, (256, 768), (64, 256, 1024)),
    "lm": Preset("cpu", 3, _REAL, (640, 2048), (64, 256, 1024)),
    "trial": Preset(
        "cpu",
        3,
        (
            _case("sts-x2", "llama-5m", {"original float32": 12, "batched float32": 32, **_engine(256)}, 96, SHORT),
            _case("sts-x2", "gpt2-124m", {"original float32": 2, "batched float32": 16, **_engine(48)}, 96, SHORT),
        ),
        (256, 768),
        (64, 256, 1024),
    ),
    "quick": Preset(
        "cpu",
        1,
        (
            _case("sts-x2", "gpt2-tiny", {"batched float32": 4, "original float32": 2, **_engine(8)}),
            _case("sts-x2-8shot", "llama-tiny", {"batched float32": 1, **_engine(1, ("float32",))}),
            _case("auto-nli-20shot", "llama-tiny", {"batched float32": 2, **_engine(4, ("float32",))}, 32),
        ),
        (256,),
        (64,),
        4,
    ),
    "h200": Preset(
        "cuda",
        1,
        (
            _case(
                "sts-x2",
                "gpt2-xl",
                {"original bfloat16": 4, "batched bfloat16": 64, **_engine(12_000, ("bfloat16",))},
            ),
            _case("sts-x2", "lm", {"batched bfloat16": 64, **_engine(12_000, ("bfloat16",))}),
        ),
        (1600, 8192),
        (512, 4096, 16_384),
    ),
}


def check_dtypes(names: Sequence[str]) -> None:
    """Raise InputError for a dtype that is not compared here."""
    for name in names:
        if name not in BOTH:
            raise InputError(f"dtype {name}", "is not measured", allowed=", ".join(BOTH))


def scaled(case: Case, scale: float) -> Case:
    """The case with so many times its first texts, at least one."""
    variants = (replace(variant, count=max(1, round(scale * variant.count))) for variant in case.variants)
    return replace(case, variants=tuple(variants))


def for_equality(case: Case, texts: int) -> Case:
    """The case's float32 variants of transformers and the engine, each with first texts for so many texts."""
    a_first_text = len(workloads.KINDS[case.work](1, 0).requests)
    count = -(-texts // a_first_text)
    compared = {
        variant.name: replace(variant, count=count, rounds=1)
        for variant in case.variants
        if variant.dtype == "float32" and variant.way in ("batched", "engine")
    }
    return replace(case, variants=tuple(compared.values()))

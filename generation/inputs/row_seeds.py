"""Randomness that belongs to a row: a seed from the row's identity, a uniform number from (seed, step).

No generator state exists, so a row's random numbers do not depend on its batch, its neighbours or a restart.
"""

import hashlib

import numpy as np

_GAMMA = 0x9E3779B97F4A7C15  # the increment and multipliers of SplitMix64 (Steele, Lea and Flood 2014)


def row_seed(*identity: object) -> int:
    """A 64-bit seed from a row's identity, e.g. (run seed, source id, label, attempt)."""
    text = "\x1f".join(str(part) for part in identity)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def fraction(*identity: object) -> float:
    """A number in [0, 1) from an identity, the same in every process."""
    return row_seed(*identity) / 2**64


def uniforms(seeds: np.ndarray, steps: int | np.ndarray) -> np.ndarray:
    """Uniform numbers in [0, 1), one for each seed.

    Args:
        seeds: (B,) uint64.
        steps: 0-based decoding step, one for all or (B,).

    Returns:
        (B,) float64: the SplitMix64 output number ``steps`` of each seed.
    """
    with np.errstate(over="ignore"):
        state = seeds + np.uint64(_GAMMA) * (np.asarray(steps, dtype=np.uint64) + np.uint64(1))
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53

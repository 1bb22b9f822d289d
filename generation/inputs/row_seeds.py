"""Random numbers of a row: a seed hashed from the row's identity, uniform numbers from the seed.

There is no generator with a state, so a row's random numbers do not depend on its batch, its
neighbours or a restart.
"""

import hashlib

import numpy as np

# the increment of SplitMix64 (Steele, Lea and Flood 2014); its multipliers are in draw_uniforms
_GAMMA = 0x9E3779B97F4A7C15


def make_seed(*identity: object) -> int:
    """Return a 64-bit seed for an identity, e.g. (run seed, source id, label, attempt)."""
    text = "\x1f".join(str(part) for part in identity)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def draw_fraction(*identity: object) -> float:
    """Return a number from 0 to 1 for an identity, the same in every process.

    ``identity``: values that are hashed, e.g. (run seed, "split", source sentence).
    """
    return make_seed(*identity) / 2**64


def draw_uniforms(seeds: np.ndarray, steps: int | np.ndarray) -> np.ndarray:
    """Return uniform numbers in [0, 1), one for each seed and its step.

    Args:
        seeds: (B,) uint64.
        steps: the decoding step, from 0: one for all seeds, or (B,).

    Returns:
        (B,) float64, the upper 53 bits of SplitMix64's output number ``steps`` of each seed.
    """
    with np.errstate(over="ignore"):
        outputs = np.asarray(steps, dtype=np.uint64) + np.uint64(1)
        state = seeds + np.uint64(_GAMMA) * outputs
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53

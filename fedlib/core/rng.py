"""Named random generators: the only source of randomness in the library."""

import hashlib

import torch


def seed_of(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed derived from the run's seed and a purpose.

    Parameters
    ----------
    seed : int
        The run's seed.
    *names : str or int
        Purpose, round, client ...; different names give independent streams.
    """
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """Return a CPU generator that depends on ``seed`` and ``names`` only.

    Drawing on the CPU keeps every device on the same random numbers.
    """
    return torch.Generator().manual_seed(seed_of(seed, *names))

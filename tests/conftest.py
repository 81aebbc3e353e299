"""Shared fixtures: a cache of its own for every test, one thread, toy federations."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from fedlib import nets
from fedlib.local import Shards, Training
from fedlib.method import Context, Method
from fedlib.rng import generator

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep every test's runs, decoded data and figures to itself."""
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDLIB_FIGURES", str(tmp_path / "figures"))
    monkeypatch.setenv("FEDLIB_PROGRESS", "none")
    return tmp_path / "cache"


def toy_shards(sizes: list[int], *, classes: int = 4, seed: int = 0) -> Shards:
    """Return separable 8 x 8 images: class c has a bright bar at row c."""
    draw = generator(seed, "toy")
    total = sum(sizes)
    y = torch.randint(classes, (total,), generator=draw)
    x = 0.3 * torch.randn(total, 1, 8, 8, generator=draw)
    x[torch.arange(total), 0, 2 * y] += 2.0
    starts = torch.tensor([0, *sizes]).cumsum(0)
    index = [torch.arange(a, b) for a, b in pairwise(starts.tolist())]
    return Shards(x, y, index, list(range(len(sizes))))


def toy_context(
    method: Method, clients: int, *, classes: int = 4, chunk: int | None = None, **hp
) -> Context:
    """Return a context with the small net of the digits."""
    return Context(
        hp=method.hp(**hp),
        net=nets.build("digits_cnn", (1, 8, 8), classes),
        training=Training(learning_rate=0.1),
        classes=classes,
        clients=clients,
        seed=7,
        chunk=chunk,
    )

"""Data that need no file: scikit-learn's digits, and noise."""

from pathlib import Path
from typing import Any

import numpy as np

from fedlib.data.sources import always
from fedlib.data.types import Block, Entry, Notes, Raw


def _read_digits(paths: list[Path], notes: Notes) -> Raw:
    """Return scikit-learn's digits; of each class the first 75 % are for training."""
    import torch
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    grey = (found.images * 255 / 16).round().astype(np.uint8)
    x = torch.from_numpy(grey).unsqueeze(1)
    y = torch.from_numpy(found.target.astype(np.int64))
    rows = [torch.nonzero(y == c).flatten() for c in range(10)]
    train = torch.cat([r[: len(r) * 3 // 4] for r in rows]).sort().values
    test = torch.cat([r[len(r) * 3 // 4 :] for r in rows]).sort().values
    return Raw([Block(x[train], y[train].tolist())], [Block(x[test], y[test].tolist())])


def _read_noise(paths: list[Path], notes: Notes) -> Raw:
    """Return noise of CIFAR-10's shape: 200 training and 40 test images per class."""
    import torch

    from fedlib.core.rng import generator

    draw = generator(0, "noise dataset")
    x = torch.randint(0, 256, (2400, 3, 32, 32), generator=draw).to(torch.uint8)
    y = (torch.arange(2400) % 10).tolist()
    return Raw([Block(x[:2000], y[:2000])], [Block(x[2000:], y[2000:])])


ENTRIES = {
    "digits": Entry(
        title="digits",
        shape=(1, 8, 8),
        find=always,
        read=_read_digits,
        mean=(0.306,),
        std=(0.375,),
        place="comes with scikit-learn",
        licence="CC BY 4.0 (UCI Machine Learning Repository)",
        page="https://archive.ics.uci.edu/dataset/80",
        classes=10,
        per_class=(
            [133, 136, 132, 137, 135, 136, 135, 134, 130, 135],
            [45, 46, 45, 46, 46, 46, 46, 45, 44, 45],
        ),
    ),
    "noise": Entry(
        title="noise",
        shape=(3, 32, 32),
        find=always,
        read=_read_noise,
        mean=(0.5,) * 3,
        std=(0.29,) * 3,
        place="is generated",
        licence="MIT, like this project",
        classes=10,
        per_class=([200] * 10, [40] * 10),
    ),
}

"""Digits of four domains, MNIST, USPS, SVHN and SYN, as 32 x 32 colour images."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from fedlib.core.crop import Augment
from fedlib.data.images import BLOCK
from fedlib.data.sets import mat, mnist_family, usps
from fedlib.data.sets.mat import IMAGENET, SHAPE
from fedlib.data.types import SPLITS, Block, DataError, Entry, Notes, Raw
from fedlib.support.paths import data_dirs

if TYPE_CHECKING:
    from torch import Tensor

DIGITS = {str(digit) for digit in range(10)}
BILINEAR = Image.Resampling.BILINEAR
DOMAINS = {  # in the order of FedHPro's tables and of fedlib.partitions.domains
    "MNIST": mnist_family.ENTRIES["mnist"],
    "USPS": usps.ENTRIES["usps"],
    "SVHN": mat.ENTRIES["svhn"],
    "SYN": mat.ENTRIES["syn"],
}


def _parts() -> dict[str, list[Path]]:
    """Return the files of each domain; each may lie in a data folder of its own."""
    return {
        name: next((found for root in data_dirs() if (found := entry.find(root))), [])
        for name, entry in DOMAINS.items()
    }


def _find(root: Path) -> list[Path]:
    parts = list(_parts().values())
    return [path for part in parts for path in part] if all(parts) else []


def as_colour(x: "Tensor") -> "Tensor":
    """Return images [n, c, h, w] as [n, 3, 32, 32].

    Resized as Pillow does it (bilinear), like the released loaders, which resize what
    torchvision's sets return; grey is repeated.
    """
    import torch

    _, height, width = SHAPE
    if x.shape[2:] != (height, width):
        resized = [
            np.asarray(Image.fromarray(image).resize((width, height), BILINEAR))
            for image in x.squeeze(1).numpy()
        ]
        x = torch.from_numpy(np.stack(resized)).unsqueeze(1)
    return x.expand(-1, 3, -1, -1)


def _blocks(parts: dict[str, Iterable[Block]]) -> Iterator[Block]:
    for name, blocks in parts.items():
        for block in blocks:
            y = [_digit(name, label) for label in block.y]
            for start in range(0, len(y), BLOCK):
                part = slice(start, start + BLOCK)
                x = as_colour(block.x[part])
                yield Block(x, y[part], [name] * len(x))


def _digit(domain: str, label: str | int) -> int:
    """Return a label as a number: folders of images have text."""
    if str(label) not in DIGITS:
        raise DataError(f"{domain}: label {label}, expected a digit")
    return int(label)


def _read(paths: list[Path], notes: Notes) -> Raw:
    raw = {name: DOMAINS[name].read(found, notes) for name, found in _parts().items()}
    train, test = (
        _blocks({name: getattr(r, split) for name, r in raw.items()})
        for split in SPLITS
    )
    return Raw(train, test)


ENTRIES = {
    "digits_domains": Entry(
        title="Digits",
        shape=SHAPE,
        find=_find,
        read=_read,
        mean=IMAGENET[0],
        std=IMAGENET[1],
        augment=Augment(4, True),
        place="all of mnist, usps, svhn and syn (each has a guide)",
        licence="; ".join(f"{name}: {e.licence}" for name, e in DOMAINS.items()),
        page="http://yaroslav.ganin.net/",
        classes=10,
        groups=tuple(DOMAINS),
    ),
}

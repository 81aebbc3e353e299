"""CIFAR: torchvision's batches, or images by class in a folder or a zip."""

from pathlib import Path

import torch
from torchvision import datasets as tv

from fedlib.augment import Augment
from fedlib.data.images import read_tree
from fedlib.data.sources import first_of, reading
from fedlib.data.splits import three_ways
from fedlib.data.transform import Transform
from fedlib.data.types import Block, Entry, Notes, Raw, Remote

SHAPE = (3, 32, 32)


def _read_cifar10(paths: list[Path], notes: Notes) -> Raw:
    (path,) = paths
    with reading(path):
        if path.name != "cifar-10-batches-py":
            title = "CIFAR-10 (JPEG)" if "jpeg" in path.name else None
            return read_tree(path, notes, SHAPE, title)
        blocks = []
        for train in (True, False):
            split = tv.CIFAR10(str(path.parent), train=train, download=False)
            x = torch.from_numpy(split.data).permute(0, 3, 1, 2)
            blocks.append([Block(x, [split.classes[label] for label in split.targets])])
    return Raw(*blocks)


def _read_cifar10_fs(paths: list[Path], notes: Notes) -> Raw:
    """Pool all images and split them anew, 85/5/10; the 5 % are left out.

    FedPG's released code splits as FederatedScope does, but its loader is missing: that
    both official parts are pooled is our reading.
    """
    raw = _read_cifar10(paths, notes)
    read = [block for part in (raw.train, raw.test) for block in part]
    x, y = torch.cat([block.x for block in read]), [c for b in read for c in b.y]
    train, _, test = (
        [Block(x[rows], [y[row] for row in rows])] for rows in three_ways(len(y))
    )
    title = (raw.title or "CIFAR-10").replace("CIFAR-10", "CIFAR-10 85/5/10")
    return Raw(train, test, title)


ENTRIES = {
    "cifar10": Entry(
        title="CIFAR-10",
        shape=SHAPE,
        find=first_of(
            "cifar-10-batches-py", "cifar10-jpeg.zip", "cifar10.zip", "cifar10"
        ),
        read=_read_cifar10,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        augment=Augment(4, True),
        place="cifar-10-batches-py/, or images as cifar10/{train,test}/<class>/, or "
        "those folders in cifar10-jpeg.zip",
        licence="not stated",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        classes=10,
        per_class=([5000] * 10, [1000] * 10),
        transforms={
            "fedhpro": Transform(
                mean=(0.4914, 0.4822, 0.4465),
                std=(0.2023, 0.1994, 0.2010),
                padding=4,
                flip=True,
            ),
            "fedpg": Transform(
                mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)
            ),
        },
        downloads=(
            Remote(
                tv.CIFAR10.filename,
                (tv.CIFAR10.url,),
                f"md5:{tv.CIFAR10.tgz_md5}",
                unpack=True,
            ),
        ),
    ),
}

ENTRIES["cifar10_fs"] = ENTRIES["cifar10"]._replace(
    title="CIFAR-10 85/5/10",
    read=_read_cifar10_fs,
    per_class=None,
    total=57_000,
    guide="cifar10",
)

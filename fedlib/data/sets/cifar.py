"""CIFAR: torchvision's batches, Parquet, or images by class in a folder or a zip."""

from functools import partial
from pathlib import Path

from fedlib.core.crop import Augment
from fedlib.data.images import read_tree
from fedlib.data.labels import named
from fedlib.data.parquet import parquet_in, read_parquet
from fedlib.data.sources import either, first_of, reading
from fedlib.data.splits import three_ways
from fedlib.data.types import Block, Entry, Notes, Raw, Remote

SHAPE = (3, 32, 32)


def _read(paths: list[Path], notes: Notes, folder: str, title: str, label: str) -> Raw:
    path = paths[0]
    if path.suffix == ".parquet":
        return read_parquet(paths, notes, SHAPE, label, named=True)
    if path.name != folder:
        jpeg = f"{title} (JPEG)" if "jpeg" in path.name else None
        with reading(path):
            return read_tree(path, notes, SHAPE, jpeg)
    import torch
    from torchvision import datasets as tv

    batches = {"CIFAR-10": tv.CIFAR10, "CIFAR-100": tv.CIFAR100}[title]
    blocks = []
    for train in (True, False):
        with reading(path):
            split = batches(str(path.parent), train=train, download=False)
        x = torch.from_numpy(split.data).permute(0, 3, 1, 2)
        blocks.append([Block(x, named(split.targets, split.classes))])
    return Raw(*blocks)


def _read_cifar10_fs(paths: list[Path], notes: Notes) -> Raw:
    """Pool all images and split them anew, 85/5/10; the 5 % are left out.

    FedPG's released code splits as FederatedScope does. Its loader is missing; its log
    shows that both official parts are pooled: the clients' samples sum to 51,000, and
    6,000 test the model.
    """
    import torch

    raw = ENTRIES["cifar10"].read(paths, notes)
    read = [block for part in (raw.train, raw.test) for block in part]
    x, y = torch.cat([block.x for block in read]), [c for b in read for c in b.y]
    train, _, test = (
        [Block(x[rows], [y[row] for row in rows])] for rows in three_ways(len(y))
    )
    title = (raw.title or "CIFAR-10").replace("CIFAR-10", "CIFAR-10 85/5/10")
    return Raw(train, test, title)


def _entry(
    name: str, title: str, folder: str, md5: str, label: str, config: str
) -> Entry:
    archive = f"{title.lower()}-python.tar.gz"
    return Entry(
        title=title,
        shape=SHAPE,
        find=either(
            first_of(folder),
            parquet_in(name),
            first_of(f"{name}-jpeg.zip", f"{name}.zip", name),
        ),
        read=partial(_read, folder=folder, title=title, label=label),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        augment=Augment(4, True),
        place=f"{folder}/, or {name}/{config}/{{train,test}}-00000-of-"
        f"00001.parquet, or images as {name}/{{train,test}}/<class>/, or those folders "
        f"in {name}-jpeg.zip",
        licence="not stated",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        downloads=(
            Remote(
                archive,
                (f"https://www.cs.toronto.edu/~kriz/{archive}",),
                f"md5:{md5}",
                unpack=True,
            ),
        ),
    )


ENTRIES = {
    "cifar10": _entry(
        "cifar10",
        "CIFAR-10",
        "cifar-10-batches-py",
        "c58f30108f718f92721af3b95e74349a",
        "label",
        "plain_text",
    )._replace(classes=10, per_class=([5000] * 10, [1000] * 10)),
    "cifar100": _entry(
        "cifar100",
        "CIFAR-100",
        "cifar-100-python",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "fine_label",
        "cifar100",
    )._replace(
        mean=(0.507, 0.487, 0.441),  # as GFPL
        std=(0.267, 0.256, 0.276),
        classes=100,
        per_class=([500] * 100, [100] * 100),
    ),
}

ENTRIES["cifar10_fs"] = ENTRIES["cifar10"]._replace(
    title="CIFAR-10 85/5/10",
    read=_read_cifar10_fs,
    per_class=None,
    per_split=(51_000, 6_000),
    guide="cifar10",
)

"""MNIST and Fashion-MNIST: IDX files, gzipped or not."""

import gzip
import shutil
import tempfile
from pathlib import Path
from typing import Any

from torchvision import datasets as tv

from fedlib.data.sources import all_of, reading
from fedlib.data.transform import Transform
from fedlib.data.types import Block, Entry, Notes, Raw, Remote

GREY = ((0.1307,), (0.3081,))
HALF = Transform(mean=(0.5,), std=(0.5,))  # FedPA: pixels in [-1, 1]


def idx_files(
    folder: str, parts: tuple[str, str] = ("train", "t10k")
) -> tuple[str, ...]:
    """Return the names of the four IDX files: images and labels of both splits."""
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    return tuple(
        f"{folder}/raw/{part}-{kind}" for part in ("train", "t10k") for kind in kinds
    )


def read_idx(paths: list[Path], notes: Notes) -> Raw:
    """Read the four files of ``idx_files``, with torchvision's readers."""
    parts = []
    with tempfile.TemporaryDirectory() as scratch:
        for path in paths:
            images = "images" in path.name
            reader = tv.mnist.read_image_file if images else tv.mnist.read_label_file
            with reading(path):
                plain = path
                if path.suffix == ".gz":
                    plain = Path(scratch) / path.stem
                    with gzip.open(path) as packed, open(plain, "wb") as out:
                        shutil.copyfileobj(packed, out)
                parts.append(reader(str(plain)))
    train_x, train_y, test_x, test_y = parts
    return Raw(
        [Block(train_x.unsqueeze(1), train_y.tolist())],
        [Block(test_x.unsqueeze(1), test_y.tolist())],
    )


def _remotes(origin: Any, folder: str) -> tuple[Remote, ...]:
    """Return torchvision's mirrors and hashes."""
    return tuple(
        Remote(
            f"{folder}/raw/{name}",
            tuple(f"{mirror}{name}" for mirror in origin.mirrors),
            f"md5:{md5}",
        )
        for name, md5 in origin.resources
    )


ENTRIES = {
    "mnist": Entry(
        title="MNIST",
        shape=(1, 28, 28),
        find=all_of(idx_files("MNIST")),
        read=read_idx,
        mean=GREY[0],
        std=GREY[1],
        place="MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]",
        licence="CC BY-SA 3.0",
        page="https://huggingface.co/datasets/ylecun/mnist",
        classes=10,
        per_class=(
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
            [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        ),
        transforms={"fedpa": HALF},
        downloads=_remotes(tv.MNIST, "MNIST"),
        files=idx_files("MNIST"),
    ),
    "fashion": Entry(
        title="Fashion-MNIST",
        shape=(1, 28, 28),
        find=all_of(idx_files("FashionMNIST")),
        read=read_idx,
        mean=GREY[0],
        std=GREY[1],
        place="FashionMNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]",
        licence="MIT",
        page="https://github.com/zalandoresearch/fashion-mnist",
        classes=10,
        per_class=([6000] * 10, [1000] * 10),
        transforms={"fedpa": HALF},
        downloads=_remotes(tv.FashionMNIST, "FashionMNIST"),
        files=idx_files("FashionMNIST"),
    ),
}

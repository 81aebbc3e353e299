"""MNIST and Fashion-MNIST: IDX files, gzipped or not, or Parquet."""

import gzip
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from torch import Tensor
from torchvision import datasets as tv

from fedlib.data.parquet import parquet_in, read_parquet
from fedlib.data.sources import all_of, either, reading
from fedlib.data.types import Block, Entry, Notes, Raw, Remote

SHAPE = (1, 28, 28)
GREY = ((0.1307,), (0.3081,))


def idx_files(
    folder: str, parts: tuple[str, str] = ("train", "t10k")
) -> tuple[str, ...]:
    """Return the names of the four IDX files: images and labels of both splits."""
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    return tuple(f"{folder}/raw/{part}-{kind}" for part in parts for kind in kinds)


class Idx(NamedTuple):
    """One IDX file, gzipped or not; it may be a member of an archive."""

    path: Path  # as messages name it
    open: Callable[[], IO[bytes]]


def idx_tensor(idx: Idx) -> Tensor:
    """Return the content of an IDX file, with torchvision's readers."""
    images = "images" in idx.path.name
    reader = tv.mnist.read_image_file if images else tv.mnist.read_label_file
    with tempfile.TemporaryDirectory() as scratch, reading(idx.path, TypeError):
        plain = Path(scratch) / "idx"
        with idx.open() as file, open(plain, "wb") as out:
            packed = idx.path.suffix == ".gz"
            shutil.copyfileobj(gzip.open(file) if packed else file, out)
        return reader(str(plain))


def _split(images: Idx, labels: Idx) -> Iterator[Block]:
    yield Block(idx_tensor(images).unsqueeze(1), idx_tensor(labels).tolist())


def read_idx(paths: list[Path], notes: Notes) -> Raw:
    """Read the four files of ``idx_files``, or Parquet files instead."""
    if paths[0].suffix == ".parquet":
        return read_parquet(paths, notes, SHAPE)
    train_x, train_y, test_x, test_y = (
        Idx(path, lambda path=path: open(path, "rb")) for path in paths
    )
    return Raw(_split(train_x, train_y), _split(test_x, test_y))


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
        shape=SHAPE,
        find=either(all_of(idx_files("MNIST")), parquet_in("mnist")),
        read=read_idx,
        mean=GREY[0],
        std=GREY[1],
        place="MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz], or "
        "mnist/mnist/{train,test}-00000-of-00001.parquet",
        licence="CC BY-SA 3.0",
        page="https://huggingface.co/datasets/ylecun/mnist",
        classes=10,
        per_class=(
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
            [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        ),
        downloads=_remotes(tv.MNIST, "MNIST"),
        files=idx_files("MNIST"),
    ),
    "fashion": Entry(
        title="Fashion-MNIST",
        shape=SHAPE,
        find=either(
            all_of(idx_files("FashionMNIST")), parquet_in("fashion_mnist", "fashion")
        ),
        read=read_idx,
        mean=GREY[0],
        std=GREY[1],
        place="FashionMNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz], or "
        "fashion_mnist/fashion_mnist/{train,test}-00000-of-00001.parquet",
        licence="MIT",
        page="https://github.com/zalandoresearch/fashion-mnist",
        classes=10,
        per_class=([6000] * 10, [1000] * 10),
        downloads=_remotes(tv.FashionMNIST, "FashionMNIST"),
        files=idx_files("FashionMNIST"),
    ),
}

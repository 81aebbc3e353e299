"""MNIST and Fashion-MNIST: IDX files, gzipped or not, or Parquet."""

import gzip
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from fedlib.data.parquet import parquet_in, read_parquet
from fedlib.data.sources import all_of, either, reading
from fedlib.data.types import Block, Entry, Notes, Raw, Remote

if TYPE_CHECKING:
    from torch import Tensor

SHAPE = (1, 28, 28)
MOST_BYTES = 2**31  # of a file when unpacked; EMNIST's largest has 2**29.2
CHUNK = 2**20
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


def idx_tensor(idx: Idx) -> "Tensor":
    """Return the content of an IDX file, with torchvision's readers."""
    from torchvision.datasets import mnist

    images = "images" in idx.path.name
    reader = mnist.read_image_file if images else mnist.read_label_file
    with tempfile.TemporaryDirectory() as scratch, reading(idx.path, TypeError):
        plain = Path(scratch) / "idx"
        with idx.open() as file, open(plain, "wb") as out:
            packed = idx.path.suffix == ".gz"
            _copied(gzip.open(file) if packed else file, out)
        return reader(str(plain))


def _copied(file: IO[bytes] | gzip.GzipFile, out: IO[bytes]) -> None:
    """Unpack a file of bounded size."""
    left = MOST_BYTES
    while part := file.read(CHUNK):
        left -= len(part)
        if left < 0:
            raise ValueError(f"more than {MOST_BYTES} bytes when unpacked")
        out.write(part)


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


def _remotes(
    folder: str, mirrors: tuple[str, ...], hashes: tuple[str, ...]
) -> tuple[Remote, ...]:
    """Return the four files, gzipped; mirrors and hashes are torchvision's."""
    names = [f"{file.rsplit('/', 1)[1]}.gz" for file in idx_files(folder)]
    return tuple(
        Remote(
            f"{folder}/raw/{name}",
            tuple(f"{mirror}{name}" for mirror in mirrors),
            f"md5:{md5}",
        )
        for name, md5 in zip(names, hashes, strict=True)
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
        downloads=_remotes(
            "MNIST",
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "http://yann.lecun.com/exdb/mnist/",
            ),
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
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
        downloads=_remotes(
            "FashionMNIST",
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
        files=idx_files("FashionMNIST"),
    ),
}

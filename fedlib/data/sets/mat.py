"""SVHN and the synthetic digits SYN: .mat files, and SYN also as images by class."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from fedlib.core.crop import Augment
from fedlib.data.image_files import listing
from fedlib.data.images import BLOCK, read_tree
from fedlib.data.labels import named
from fedlib.data.sources import either, first_of, member, members, reading, together
from fedlib.data.types import SPLITS, Block, DataError, Entry, Notes, Raw, Remote

SHAPE = (3, 32, 32)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
DIGITS = range(10)
MOST_NUMBERS = 2**31  # of a variable; SYN's images are 2**30.4
SVHN_FILES = tuple(f"{split}_32x32.mat" for split in SPLITS)
SVHN_HASHES = ("e26dedcc434d2e4c54c9b2d4a06d8373", "eb5a983be6a315427106f1b164d9cef3")
SVHN_SIZES = (182_040_794, 64_275_384)
SYN_FILES = ("synth_train_32x32.mat", "synth_test_32x32.mat")
SYN_FOLDERS = ("syn", "SYN", "SynthDigits")


def _pieces(x: np.ndarray, y: np.ndarray) -> Iterator[Block]:
    """Cut images [n, c, h, w] into blocks: only a block is copied into that order."""
    import torch

    labels = named(y.tolist(), DIGITS)
    for start in range(0, len(x), BLOCK):
        part = np.ascontiguousarray(x[start : start + BLOCK])
        yield Block(torch.from_numpy(part), labels[start : start + BLOCK])


def _svhn_split(path: Path, split: str) -> Iterator[Block]:
    from torchvision import datasets as tv

    with reading(path):
        found = tv.SVHN(str(path.parent), split=split)
    yield from _pieces(found.data, found.labels)


def _read_svhn(paths: list[Path], notes: Notes) -> Raw:
    train, test = map(_svhn_split, paths, SPLITS)
    return Raw(train, test)


def _syn_split(path: Path, opener: Callable[[], IO[bytes]]) -> Iterator[Block]:
    """Read images ``X`` [32, 32, 3, n] and labels ``y``; 10 is the digit 0, if any."""
    import scipy.io
    from scipy.io.matlab import MatReadError

    with reading(path, LookupError, MatReadError, TypeError), opener() as file:
        _refuse_huge(scipy.io.whosmat(file))
        file.seek(0)
        found = scipy.io.loadmat(file, variable_names=("X", "y"))
        x, y = found["X"], found["y"].ravel()
        if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8:
            raise ValueError(f"X is {x.dtype} {x.shape}, expected uint8 (32, 32, 3, n)")
        if x.shape[3] != len(y):
            raise ValueError(f"{x.shape[3]} images, {len(y)} labels")
    yield from _pieces(x.transpose(3, 2, 0, 1), np.where(y == 10, 0, y))


def _as_digits(block: Block) -> Block:
    """Return images whose folders are called as the labels of a .mat file."""
    return block._replace(y=["0" if label == "10" else label for label in block.y])


def _refuse_huge(variables: list[tuple[str, tuple[int, ...], str]]) -> None:
    """Refuse a .mat file by its list of variables, before any is unpacked."""
    for name, shape, _ in variables:
        if name in ("X", "y") and math.prod(shape) > MOST_NUMBERS:
            raise ValueError(f"{name} has {shape} numbers")


def _read_syn(paths: list[Path], notes: Notes) -> Raw:
    path = paths[0]
    if path.suffix in (".pkl", ".pt"):
        raise DataError(
            f"{path} is a pickle, and reading one may run any program that it holds: "
            f"refused. Put {SYN_PLACE} instead"
        )
    if path.suffix == ".mat":
        train, test = (_syn_split(p, partial(open, p, "rb")) for p in paths)
        return Raw(train, test)
    inside = members(path) if path.suffix == ".zip" else {}
    if all(name in inside for name in SYN_FILES):
        train, test = (
            _syn_split(path / inside[name], partial(member, path, inside[name]))
            for name in SYN_FILES
        )
        return Raw(train, test)
    folders = {PurePosixPath(name).parent.parent.name for name in listing([path])}
    test = "test" if "test" in folders else "val"
    raw = read_tree(path, notes, SHAPE, splits=("train", test))
    return Raw(map(_as_digits, raw.train), map(_as_digits, raw.test))


def _pickles(root: Path) -> list[Path]:
    """Return a pickle of SYN where there is one, for a message that says why not."""
    found = (p for folder in SYN_FOLDERS for p in (root / folder).rglob("*.p*"))
    return sorted(p for p in found if p.suffix in (".pkl", ".pt"))[:1]


SYN_PLACE = (
    f"SynthDigits.zip, or from it syn/{{{','.join(SYN_FILES)}}}, or images as "
    "syn/{train,test}/<digit>/ (or val instead of test), or those folders in syn.zip,"
)

ENTRIES = {
    "svhn": Entry(
        title="SVHN",
        shape=SHAPE,
        find=together(("svhn", "SVHN", "."), SVHN_FILES),
        read=_read_svhn,
        mean=IMAGENET[0],
        std=IMAGENET[1],
        augment=Augment(4, True),
        place=f"svhn/{{{','.join(SVHN_FILES)}}}",
        licence="non-commercial use only",
        page="http://ufldl.stanford.edu/housenumbers/",
        classes=10,
        per_class=(
            [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659],
            [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595],
        ),
        downloads=tuple(
            Remote(
                f"svhn/{name}",
                (f"http://ufldl.stanford.edu/housenumbers/{name}",),
                f"md5:{md5}",
                size,
            )
            for name, md5, size in zip(SVHN_FILES, SVHN_HASHES, SVHN_SIZES, strict=True)
        ),
        files=tuple(f"svhn/{name}" for name in SVHN_FILES),
    ),
    "syn": Entry(
        title="SYN",
        shape=SHAPE,
        find=either(
            together((*SYN_FOLDERS, "."), SYN_FILES),
            first_of("SynthDigits.zip", "syn/SynthDigits.zip", "syn.zip"),
            lambda root: [
                root / f for f in SYN_FOLDERS if (root / f / "train").is_dir()
            ][:1],
            _pickles,
        ),
        read=_read_syn,
        mean=IMAGENET[0],
        std=IMAGENET[1],
        augment=Augment(4, True),
        place=SYN_PLACE.rstrip(","),
        licence="not stated",
        page="http://yaroslav.ganin.net/",
        classes=10,
    ),
}

"""What the parts of ``fedlib.data`` hand to each other."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedlib.core.crop import Augment

if TYPE_CHECKING:  # the catalogue is listed without torch
    from torch import Tensor

SPLITS = ("train", "test")


class DataError(FileNotFoundError):
    """A data set is missing, incomplete or unreadable; the message says what to do."""

    def __str__(self) -> str:
        """Return the message alone."""
        return str(self.args[0])


class Groups(NamedTuple):
    """Where each sample comes from: its domain, its writer, its celebrity."""

    train: "Tensor"  # int64 [n], 0..G-1
    test: "Tensor"
    names: tuple[str, ...]  # the original name of each group, in the entry's order


class Dataset(NamedTuple):
    """Both splits of a data set, as stored: no transform applied."""

    name: str
    train_x: "Tensor"  # uint8 [n, c, h, w]
    train_y: "Tensor"  # int64 [n], 0..C-1
    test_x: "Tensor"
    test_y: "Tensor"
    classes: tuple[str, ...]  # the original label of each class
    mean: tuple[float, ...]  # of the papers' normalisation, per channel, in [0, 1]
    std: tuple[float, ...]
    augment: Augment | None  # of training images
    title: str  # as tables print it
    fingerprint: str  # hash of the content
    groups: Groups | None = None  # of data sets with domains or users
    skipped: tuple[str, ...] = ()  # unreadable images that were left out, by name
    sizes: str = ""  # of the images as found, where they were not all alike


class Facts(NamedTuple):
    """What is known of a data set without its images."""

    name: str
    title: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment | None
    fingerprint: str
    groups: tuple[str, ...]  # names; none where it has no domains or users


class Block(NamedTuple):
    """Some samples of a split, in their order."""

    x: "Tensor"  # uint8 [n, c, h, w]; all blocks of a data set have the same c, h, w
    y: list  # n labels as the source has them
    group: list[str] | None = None  # n names of domains or users


class Raw(NamedTuple):
    """What a reader returns: blocks may be decoded while they are iterated over."""

    train: Iterable[Block]
    test: Iterable[Block]
    title: str | None = None  # where it depends on what was found; else the entry's


@dataclass
class Notes:
    """What a reader notices in its source, filled in while blocks are read."""

    unreadable: list[str] = field(default_factory=list)  # "file: why", in order
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)  # (width, height)


class Remote(NamedTuple):
    """One file to download."""

    path: str  # where it lies under the data folder, such as "usps/usps.bz2"
    urls: tuple[str, ...]  # mirrors, in the order in which they are asked
    hash: str = ""  # "md5:<hex>" or "sha256:<hex>"; empty where none is published
    size: int | None = None  # bytes, where known
    unpack: bool = False  # a tar archive, unpacked into the folder that it lies in


class Entry(NamedTuple):
    """How one data set is found, read, normalised, checked and obtained."""

    title: str
    shape: tuple[int, int, int]  # channels, height, width as stored
    find: Callable[[Path], list[Path]]  # folder -> files of the source, [] if absent
    read: Callable[[list[Path], Notes], Raw]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    place: str  # where a person puts the files
    licence: str  # as its owner words it, or "not stated"
    page: str = ""  # origin
    augment: Augment | None = None  # of training images
    classes: int | None = None  # None where they depend on what was sampled
    per_class: tuple[list[int], list[int]] | None = None  # official counts
    per_split: tuple[int, int] | None = None  # official, where no more is known
    groups: tuple[str, ...] = ()  # all names in the papers' order; else sorted
    downloads: tuple[Remote, ...] = ()  # empty: nothing to fetch, see the guide
    files: tuple[str, ...] = ()  # all of these are needed, each plain or with .gz
    guide: str = ""  # whose page a variant shares; empty: it has its own

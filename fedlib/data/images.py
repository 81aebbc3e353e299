"""Images in a folder or a zip: listed safely, decoded in order, faults named."""

import functools
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import numpy as np
import torch
from PIL import Image

from fedlib.data.types import SPLITS, Block, DataError, Notes, Raw

SUFFIXES = {".jpg", ".jpeg", ".png"}
BLOCK = 256  # images decoded before they are written


class Item(NamedTuple):
    """One image of a data set."""

    name: str  # inside the folder or zip, with forward slashes
    label: str | int
    group: str | None = None


Opener = Callable[[str], IO[bytes]]


@contextmanager
def opened(path: Path) -> Iterator[tuple[list[str], Opener]]:
    """Yield the names of all images of a folder or a zip, sorted, and how to open one.

    Raises
    ------
    DataError
        A zip whose members leave it.
    """
    if path.is_dir():
        files = (p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
        names = sorted(p.relative_to(path).as_posix() for p in files)
        yield names, lambda name: open(path / name, "rb")
        return
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            pure = PurePosixPath(name)
            if pure.is_absolute() or ".." in pure.parts:
                raise DataError(
                    f"{path.name}: member {name!r} leaves the archive; refused"
                )
        names = [
            n for n in archive.namelist() if PurePosixPath(n).suffix.lower() in SUFFIXES
        ]
        yield sorted(names), archive.open


def listing(path: Path) -> list[str]:
    """Return the names of all images of a folder or a zip, sorted."""
    with opened(path) as (names, _):
        return names


def _array(opener: Opener, item: Item, mode: str, notes: Notes) -> np.ndarray | None:
    try:
        with opener(item.name) as file, Image.open(file) as image:
            array = np.asarray(image.convert(mode))
            notes.sizes[image.size] += 1
            return array
    except (OSError, SyntaxError, ValueError) as error:  # as Pillow raises them
        notes.unreadable.append(f"{item.name}: {error}")
        return None


def blocks(
    path: Path, items: Sequence[Item], notes: Notes, shape: tuple[int, int, int]
) -> Iterator[Block]:
    """Decode images in the order of ``items``; note those that cannot be read."""
    channels, height, width = shape
    mode = "L" if channels == 1 else "RGB"
    with opened(path) as (_, opener):
        for start in range(0, len(items), BLOCK):
            arrays, kept = [], []
            for item in items[start : start + BLOCK]:
                array = _array(opener, item, mode, notes)
                if array is None:
                    continue
                if array.shape[:2] != (height, width):
                    found = f"{array.shape[1]}x{array.shape[0]}"
                    notes.unreadable.append(
                        f"{item.name}: {found} pixels instead of {width}x{height}"
                    )
                    continue
                arrays.append(array.reshape(height, width, channels))
                kept.append(item)
            if kept:
                x = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
                groups = [str(i.group) for i in kept if i.group is not None]
                yield Block(x, [i.label for i in kept], groups or None)


def split_items(names: Sequence[str]) -> dict[str, list[Item]]:
    """Return the items of ``.../train|test/<class>/<file>``."""
    found: dict[str, list[Item]] = {split: [] for split in SPLITS}
    for name in names:
        parts = PurePosixPath(name).parts
        if len(parts) >= 3 and parts[-3] in SPLITS:
            found[parts[-3]].append(Item(name, parts[-2]))
    return found


def read_tree(
    path: Path, notes: Notes, shape: tuple[int, int, int], title: str | None = None
) -> Raw:
    """Read ``train|test/<class>/*`` from a folder or a zip.

    Raises
    ------
    DataError
        A split without images.
    """
    items = split_items(listing(path))
    for split in SPLITS:
        if not items[split]:
            raise DataError(f"{path.name}: no images under {split}/<class>/")
    read = functools.partial(blocks, path, notes=notes, shape=shape)
    return Raw(read(items["train"]), read(items["test"]), title)

"""A folder of images of your own, a sub-folder for each class."""

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np

from fedlib.data import splits
from fedlib.data.catalogue import DATASETS
from fedlib.data.image_files import listing
from fedlib.data.images import Item, blocks, by_class, square
from fedlib.data.types import DataError, Entry, Notes, Raw

MEASURED = 1000  # training images at most, of which mean and spread are taken
FLAT = 1e-3  # spread of a channel without any structure
PAGE = "a folder of your own"


def add_folder(
    name: str,
    path: Path | str,
    *,
    side: int = 32,
    grey: bool = False,
    trained: float = 0.75,
    title: str = "",
) -> None:
    """Add a folder of images, or a zip of it, as a data set.

    Of each class the same share is for training, drawn once and for all. Mean and
    spread of the channels are measured on training images.

    Parameters
    ----------
    name : str
        What settings call it.
    path : Path
        Holds a folder for each class: ``<class>/*.png``, ``*.jpg`` and the like.
    side : int
        Height and width in pixels to which images are brought.
    grey : bool
        One channel in place of three.
    trained : float between 0 and 1
        Share of each class that is for training.
    title : str, optional
        As tables print it; by default the name.

    Raises
    ------
    DataError
        There is no such folder, or no images of two classes in it, or none or too few
        of one to train and test.
    ValueError
        The name is another data set's, or a number is out of range.
    """
    if not (name.isidentifier() and name.islower()):
        raise ValueError(f"name: got {name!r}, expected a-z, 0-9 and _")
    if name in DATASETS and DATASETS[name].page != PAGE:
        raise ValueError(f"name: got {name!r}, which is taken; choose another")
    if side < 1:
        raise ValueError(f"side: got {side}, expected at least 1")
    if not 0 < trained < 1:
        raise ValueError(f"trained: got {trained}, expected between 0 and 1")
    root, shape = Path(path).resolve(), (1 if grey else 3, side, side)
    if not root.exists():
        raise DataError(f"path: got {path}, which does not exist")
    if empty := _without_images(root):
        raise DataError(f"{root.name}: no image in {', '.join(empty)}; fill or remove")
    read = partial(_read, shape=shape, trained=trained)
    mean, std = _measured(root, shape, trained)
    DATASETS[name] = Entry(
        title=title or name,
        shape=shape,
        find=lambda _: [root] if root.exists() else [],
        read=read,
        mean=mean,
        std=std,
        place="<class>/*.png or *.jpg",
        licence="not stated",
        page=PAGE,
    )


def _without_images(root: Path) -> list[str]:
    """Return the folders that look like a class's and hold no image."""
    folders = (
        [part.name for part in root.iterdir() if part.is_dir()] if root.is_dir() else []
    )
    known = {str(item.label) for item in by_class(listing([root]))} if folders else {}
    return sorted(n for n in folders if n not in known and n[0] not in "._")


def _split(paths: list[Path], trained: float) -> tuple[list[Item], list[Item]]:
    """Return the images to train on and those to test with, of each class its share.

    Raises
    ------
    DataError
        Fewer than two classes, or one without an image to train on or to test with.
    """
    items = by_class(listing(paths)) if all(path.exists() for path in paths) else []
    labels = [str(item.label) for item in items]
    sizes = Counter(labels)
    few = [f"{n} of {c}" for c, n in sizes.items() if not 1 <= int(trained * n) < n]
    if len(sizes) < 2 or few:
        got = f"images of {len(sizes)} classes" + (f", {', '.join(few)}" if few else "")
        raise DataError(
            f"{paths[0].name}: got {got}, expected <class>/<image> for two classes or "
            f"more, and enough of each to train on a share of {trained}"
        )
    train, test = splits.per_class(labels, trained)
    return [items[row] for row in train], [items[row] for row in test]


def _read(
    paths: list[Path], notes: Notes, shape: tuple[int, int, int], trained: float
) -> Raw:
    """Read ``<class>/*``; an image that cannot be read keeps its place in the split."""
    made = square(shape[1])
    train, test = (
        blocks(paths, part, notes, shape, made) for part in _split(paths, trained)
    )
    return Raw(train, test)


def _measured(
    root: Path, shape: tuple[int, int, int], trained: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, over training images."""
    train, _ = _split([root], trained)
    some = train[:: 1 + (len(train) - 1) // MEASURED]
    found = [b.x for b in blocks([root], some, Notes(), shape, square(shape[1]))]
    if not found:
        raise DataError(f"{root.name}: no image that can be read")
    pixels = np.concatenate(found).swapaxes(0, 1).reshape(shape[0], -1) / 255
    std = np.maximum(pixels.std(1), FLAT)
    return tuple(pixels.mean(1).round(4).tolist()), tuple(std.round(4).tolist())

"""Flowers, DeFungi and RealWaste: a folder per class, split as FedMPS splits them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedlib.core.crop import Augment
from fedlib.data import splits
from fedlib.data.image_files import listing
from fedlib.data.images import Item, blocks, by_class, square
from fedlib.data.sources import first_of
from fedlib.data.types import DataError, Entry, Notes, Raw, Remote

SHAPE = (3, 32, 32)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def _read(
    paths: list[Path], notes: Notes, split: Callable[..., splits.Split], classes: int
) -> Raw:
    """Read ``<class>/*``, split by row; images that cannot be read keep their row.

    An empty folder would shift the numbers of the classes behind it.
    """
    items = by_class(listing(paths))
    if not items:
        raise DataError(f"{paths[0].name}: no images under <class>/")
    found = sorted({item.label for item in items})
    if len(found) != classes:
        raise DataError(
            f"{paths[0].name}: images of {len(found)} classes "
            f"({', '.join(map(str, found))}), expected {classes}; "
            "a folder without images is none"
        )
    train, test = (
        blocks(paths, [items[row] for row in rows], notes, SHAPE, square(32))
        for rows in split(items)
    )
    return Raw(train, test)


def _shuffled(items: list[Item], share: float) -> splits.Split:
    return splits.shuffled(len(items), share)


def _per_class(items: list[Item], share: float) -> splits.Split:
    return splits.per_class([item.label for item in items], share)


# Cardboard, Food Organics, Glass, Metal, Miscellaneous Trash, Paper, Plastic, Textile
# Trash, Vegetation
WASTE = [461, 411, 420, 790, 495, 500, 921, 318, 436]


def _uci(number: int, name: str) -> tuple[Remote, ...]:
    """Return a zip of the UCI Machine Learning Repository, which states no hash."""
    origin = "https://archive.ics.uci.edu/static/public"
    return (Remote(f"{name}.zip", (f"{origin}/{number}/{name}.zip",)),)


ENTRIES = {
    "flowers": Entry(
        title="Flowers",
        shape=SHAPE,
        find=first_of("flowers", "flowers.zip"),
        read=partial(_read, split=partial(_shuffled, share=0.75), classes=5),
        mean=IMAGENET[0],
        std=IMAGENET[1],
        place="flowers/<class>/*.jpg, or those folders in flowers.zip",
        licence="not stated",
        page="https://www.kaggle.com/datasets/alxmamaev/flowers-recognition",
        classes=5,
        per_split=(3237, 1080),  # of the archive; its page and FedMPS say 4,242
    ),
    "defungi": Entry(
        title="DeFungi",
        shape=SHAPE,
        find=first_of("defungi", "defungi.zip"),
        read=partial(_read, split=partial(_shuffled, share=0.8), classes=5),
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        place="defungi/<class>/*.jpg, or those folders in defungi.zip",
        licence="CC BY 4.0 (UCI Machine Learning Repository)",
        page="https://archive.ics.uci.edu/dataset/773/defungi",
        classes=5,
        per_split=(7291, 1823),
        downloads=_uci(773, "defungi"),
    ),
    "realwaste": Entry(
        title="RealWaste",
        shape=SHAPE,
        find=first_of("realwaste", "RealWaste", "realwaste.zip"),
        read=partial(_read, split=partial(_per_class, share=0.7), classes=9),
        mean=(0.598, 0.619, 0.631),
        std=(0.155, 0.164, 0.182),
        augment=Augment(4, True),
        place="realwaste/<class>/*.jpg, or those folders in realwaste.zip",
        licence="CC BY 4.0 (UCI Machine Learning Repository)",
        page="https://archive.ics.uci.edu/dataset/908/realwaste",
        classes=9,
        per_class=(
            [int(0.7 * n) for n in WASTE],
            [n - int(0.7 * n) for n in WASTE],
        ),  # 4,752 in all; FedMPS says 4,753
        downloads=_uci(908, "realwaste"),
    ),
}

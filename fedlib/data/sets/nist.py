"""FEMNIST of FedMPS and GFPL: NIST Special Database 19, images by class."""

import re
from pathlib import Path

from fedlib.data import splits
from fedlib.data.image_files import listing
from fedlib.data.images import Item, blocks
from fedlib.data.sources import first_of
from fedlib.data.types import DataError, Entry, Notes, Raw, Remote

SHAPE = (1, 128, 128)
HEX = re.compile("[0-9a-f]{2}")
TRAIN, TEST = 1920, 300  # images of a class: the first of train_<hex> and of hsf_0


def _items(names: list[str]) -> tuple[list[Item], list[Item]]:
    """Return the items of ``<hex>/train_<hex>/*`` and of ``<hex>/hsf_0/*``.

    The label is the character whose code the folder is named after; codes sort as
    characters do.
    """
    train, test = [], []
    for name in names:
        *_, code, part, _ = ("", "", *name.split("/"))
        if part not in (f"train_{code}", "hsf_0") or not HEX.fullmatch(code):
            continue
        item = Item(name, chr(int(code, 16)))
        (test if part == "hsf_0" else train).append(item)
    return train, test


def _read_by_class(paths: list[Path], notes: Notes) -> Raw:
    """Read the first images of each class that FedMPS's released code lists."""
    parts = []
    found = _items(listing(paths))
    for items, size, where in zip(
        found, (TRAIN, TEST), ("train_<hex>", "hsf_0"), strict=True
    ):
        if not items:
            raise DataError(f"{paths[0].name}: no images under <hex>/{where}/")
        rows = splits.first_of_each([item.label for item in items], size)
        parts.append(blocks(paths, [items[row] for row in rows], notes, SHAPE))
    train, test = parts
    return Raw(train, test)


ENTRIES = {
    "femnist": Entry(
        title="FEMNIST",
        shape=SHAPE,
        find=first_of("by_class", "by_class.zip"),
        read=_read_by_class,
        mean=(0.1307,),
        std=(0.3081,),
        place="by_class/<hex>/{train_<hex>,hsf_0}/*.png, or by_class.zip as it comes",
        licence="not stated",
        page="https://www.nist.gov/srd/nist-special-database-19",
        classes=62,
        per_class=([TRAIN] * 62, [TEST] * 62),
        downloads=(
            Remote(
                "by_class.zip",
                ("https://s3.amazonaws.com/nist-srd/SD19/by_class.zip",),
                "md5:79572b1694a8506f2b722c7be54130c4",
            ),
        ),
    ),
}

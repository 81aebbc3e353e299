"""Office-Caltech: ten classes from four domains."""

from pathlib import Path

from fedlib.core.crop import Augment
from fedlib.data import splits
from fedlib.data.image_files import listing
from fedlib.data.images import Item, blocks, square
from fedlib.data.sources import first_of
from fedlib.data.types import DataError, Entry, Notes, Raw

SHAPE = (3, 32, 32)
DOMAINS = ("Caltech", "Amazon", "Webcam", "DSLR")  # in the order of the presets


def _items(names: list[str]) -> dict[str, list[Item]]:
    """Return the items of ``<domain>/<class>/<file>``, by domain."""
    found: dict[str, list[Item]] = {domain: [] for domain in DOMAINS}
    folders = {domain.lower(): domain for domain in DOMAINS}
    for name in names:
        *_, folder, label, _ = ("", "", *name.split("/"))
        if domain := folders.get(folder.lower()):
            found[domain].append(Item(name, label, domain))
    return found


def _read_office(paths: list[Path], notes: Notes) -> Raw:
    """Read all domains, one after the other, each split by its own row numbers."""
    train: list[Item] = []
    test: list[Item] = []
    for domain, items in _items(listing(paths)).items():
        if not items:
            raise DataError(f"{paths[0].name}: no images under {domain}/<class>/")
        for part, rows in zip((train, test), splits.modulo(len(items)), strict=True):
            part += [items[row] for row in rows]
    fit = square(32)
    return Raw(
        blocks(paths, train, notes, SHAPE, fit), blocks(paths, test, notes, SHAPE, fit)
    )


ENTRIES = {
    "office_caltech": Entry(
        title="Office-Caltech",
        shape=SHAPE,
        find=first_of(
            "office_caltech_10",
            "office_caltech_10.zip",
            "office_caltech",
            "office_caltech.zip",
        ),
        read=_read_office,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        augment=Augment(4, True),
        place="office_caltech_10/{caltech,amazon,webcam,dslr}/<class>/*.jpg, or those "
        "folders in office_caltech_10.zip",
        licence="not stated",
        page="https://github.com/jindongwang/transferlearning/blob/master/data/dataset.md",
        classes=10,
        per_split=(2031, 502),
        groups=DOMAINS,
    ),
}

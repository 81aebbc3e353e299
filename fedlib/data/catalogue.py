"""All data sets, by name."""

from fedlib.data.sets import (
    cifar,
    class_folders,
    embedded,
    ham10000,
    imagenet,
    mnist_family,
    nist,
    office,
)
from fedlib.data.types import Entry

DATASETS: dict[str, Entry] = {
    **embedded.ENTRIES,
    **mnist_family.ENTRIES,
    **cifar.ENTRIES,
    **class_folders.ENTRIES,
    **nist.ENTRIES,
    **office.ENTRIES,
    **ham10000.ENTRIES,
    **imagenet.ENTRIES,
}


def entry_of(name: str) -> Entry:
    """Return the entry of a data set; ``ValueError`` names the known ones."""
    if name not in DATASETS:
        raise ValueError(f"dataset: got {name!r}, expected one of {list(DATASETS)}")
    return DATASETS[name]

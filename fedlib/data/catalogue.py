"""All data sets, by name."""

from fedlib.data.sets import (
    cifar,
    class_folders,
    digits_domains,
    embedded,
    emnist,
    ham10000,
    imagenet,
    leaf,
    mat,
    mnist_family,
    nist,
    office,
    usps,
)
from fedlib.data.types import Entry
from fedlib.support import spelling

DATASETS: dict[str, Entry] = {
    **embedded.ENTRIES,
    **mnist_family.ENTRIES,
    **emnist.ENTRIES,
    **cifar.ENTRIES,
    **class_folders.ENTRIES,
    **nist.ENTRIES,
    **office.ENTRIES,
    **ham10000.ENTRIES,
    **imagenet.ENTRIES,
    **mat.ENTRIES,
    **usps.ENTRIES,
    **digits_domains.ENTRIES,
    **leaf.ENTRIES,
}


def entry_of(name: str) -> Entry:
    """Return the entry of a data set; ``ValueError`` names the known ones."""
    if name not in DATASETS:
        raise ValueError(
            f"dataset: got {name!r}, expected one of {list(DATASETS)}"
            f"{spelling.hint(name, DATASETS)}"
        )
    return DATASETS[name]

"""EMNIST: IDX files as torchvision unpacks them, or the archive as it is published.

The images stay as they are published: transposed, white on black.
"""

import string
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fedlib.data.labels import named
from fedlib.data.sets.mnist_family import GREY, SHAPE, Idx, idx_files, idx_tensor
from fedlib.data.sources import all_of, either, first_of, member, members
from fedlib.data.types import Block, DataError, Entry, Notes, Raw, Remote

ARCHIVE = "EMNIST/raw/gzip.zip"
LETTERS = string.ascii_lowercase  # labels 1 to 26; upper and lower case are one class
BY_CLASS = string.digits + string.ascii_uppercase + string.ascii_lowercase  # 0 to 61


def _files(split: str) -> tuple[str, ...]:
    return idx_files("EMNIST", (f"emnist-{split}-train", f"emnist-{split}-test"))


def _members(archive: Path, split: str) -> list[Idx]:
    """Return the four gzipped files of a split, wherever they lie in the archive."""
    inside = members(archive)
    wanted = [f"{Path(name).name}.gz" for name in _files(split)]
    gaps = [name for name in wanted if name not in inside]
    if gaps:
        raise DataError(f"{archive} lacks {', '.join(gaps)}")
    return [
        Idx(archive / inside[name], partial(member, archive, inside[name]))
        for name in wanted
    ]


def _read(
    paths: list[Path], notes: Notes, split: str, names: str, first: int = 0
) -> Raw:
    if paths[0].suffix == ".zip":
        found = _members(paths[0], split)
    else:
        found = [Idx(path, partial(open, path, "rb")) for path in paths]
    train_x, train_y, test_x, test_y = found

    def blocks(images: Idx, labels: Idx) -> Iterator[Block]:
        x = idx_tensor(images).unsqueeze(1)
        yield Block(x, named(idx_tensor(labels).tolist(), names, first))

    return Raw(blocks(train_x, train_y), blocks(test_x, test_y))


def _entry(title: str, split: str, names: str, first: int = 0) -> Entry:
    return Entry(
        title=title,
        shape=SHAPE,
        find=either(all_of(_files(split)), first_of(ARCHIVE, "EMNIST/gzip.zip")),
        read=partial(_read, split=split, names=names, first=first),
        mean=GREY[0],
        std=GREY[1],
        place=f"{ARCHIVE} as it is downloaded, or from it EMNIST/raw/emnist-{split}-"
        "{train,test}-{images-idx3,labels-idx1}-ubyte[.gz]",
        licence="not stated",
        page="https://www.nist.gov/itl/products-and-services/emnist-dataset",
        classes=len(names),
        downloads=(
            Remote(
                ARCHIVE,
                ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
                "md5:58c8d27c78d21e728a6bc7b3cc06412e",
                561_753_746,
            ),
        ),
        files=_files(split),
    )


ENTRIES = {
    "emnist": _entry("EMNIST letters", "letters", LETTERS, 1)._replace(
        per_class=([4800] * 26, [800] * 26)
    ),
    "emnist_byclass": _entry("EMNIST by class", "byclass", BY_CLASS)._replace(
        per_split=(697_932, 116_323), guide="emnist"
    ),
}

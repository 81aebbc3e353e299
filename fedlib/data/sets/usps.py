"""USPS: LIBSVM's text files, compressed with bzip2."""

from collections.abc import Iterator
from pathlib import Path

from fedlib.data.labels import named
from fedlib.data.sources import reading, together
from fedlib.data.types import Block, Entry, Notes, Raw, Remote

FILES = ("usps.bz2", "usps.t.bz2")  # training and test images
HASHES = ("ec16c51db3855ca6c91edd34d0e9b197", "8ea070ee2aca1ac39742fdd1ef5ed118")
ORIGIN = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"


def _split(path: Path, train: bool) -> Iterator[Block]:
    import torch
    from torchvision import datasets as tv

    with reading(path, IndexError):
        found = tv.USPS(str(path.parent), train=train)
    yield Block(
        torch.from_numpy(found.data).unsqueeze(1), named(found.targets, range(10))
    )


def _read(paths: list[Path], notes: Notes) -> Raw:
    train, test = map(_split, paths, (True, False))
    return Raw(train, test)


ENTRIES = {
    "usps": Entry(
        title="USPS",
        shape=(1, 16, 16),
        find=together(("usps", "USPS", "."), FILES),
        read=_read,
        mean=(0.5,),  # no paper takes USPS alone; these are its own -1 to 1
        std=(0.5,),
        place=f"usps/{{{','.join(FILES)}}}",
        licence="not stated",
        page=f"{ORIGIN}.html",
        classes=10,
        per_class=(
            [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644],
            [359, 264, 198, 166, 200, 160, 170, 147, 166, 177],
        ),
        downloads=tuple(
            Remote(f"usps/{name}", (f"{ORIGIN}/{name}",), f"md5:{md5}")
            for name, md5 in zip(FILES, HASHES, strict=True)
        ),
        files=tuple(f"usps/{name}" for name in FILES),
    ),
}

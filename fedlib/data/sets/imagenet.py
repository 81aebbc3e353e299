"""ImageNet and Tiny ImageNet: a folder per WordNet id; validation images test."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from fedlib.data.image_files import images_of, opened
from fedlib.data.images import Item, blocks, centre, read_tree
from fedlib.data.sources import first_of, reading
from fedlib.data.types import DataError, Entry, Notes, Raw, Remote

TINY_SHAPE = (3, 64, 64)
SHAPE = (3, 224, 224)
SHOWN = 10  # names that a message lists


def _read_tiny(paths: list[Path], notes: Notes) -> Raw:
    """Read ``train/<wnid>/images/*``, and ``val/images/*`` by their table."""
    (path,) = paths
    with opened(paths) as files:
        by_end = {name.rsplit("/", 1)[-1]: name for name in files.names}
        texts = {}
        for needed in ("wnids.txt", "val_annotations.txt"):
            if needed not in by_end:
                raise DataError(f"{path.name}: no {needed}")
            with reading(path / by_end[needed]):
                texts[needed] = files.read(by_end[needed]).decode()
        names = images_of(files.names)
    train: list[Item] = []
    images: dict[str, str] = {}
    for name in names:
        parts = PurePosixPath(name).parts
        if parts[-4:-3] == ("train",) and parts[-2] == "images":
            train.append(Item(name, parts[-3]))
        elif parts[-3:-1] == ("val", "images"):
            images[parts[-1]] = name
    wnids = texts["wnids.txt"].split()
    rows = [line.split("\t") for line in texts["val_annotations.txt"].splitlines()]
    labels = {row[0]: row[1] for row in rows if len(row) > 1}
    _check(path, "train/<wnid>/images", {str(i.label) for i in train}, wnids)
    _check(path, "val/images", images, labels)
    test = [Item(images[file], label) for file, label in labels.items()]
    return Raw(
        blocks(paths, train, notes, TINY_SHAPE), blocks(paths, test, notes, TINY_SHAPE)
    )


def _check(path: Path, where: str, found: Iterable[str], listed: Iterable[str]) -> None:
    """Refuse what is listed but not there, or there but not listed."""
    here, told = set(found), set(listed)
    for kind, names in (("missing", told - here), ("not listed", here - told)):
        if names:
            more = ", ..." if len(names) > SHOWN else ""
            shown = ", ".join(sorted(names)[:SHOWN])
            raise DataError(f"{path.name}: {where}: {len(names)} {kind}: {shown}{more}")


def _read_imagenet(paths: list[Path], notes: Notes) -> Raw:
    """Read ``train|val/<wnid>/*``, as ImageNet's usual test transform crops them."""
    fit = centre(256, 224)
    return read_tree(paths[0], notes, SHAPE, splits=("train", "val"), prepare=fit)


ENTRIES = {
    "tiny_imagenet": Entry(
        title="Tiny ImageNet",
        shape=TINY_SHAPE,
        find=first_of("tiny-imagenet-200", "tiny-imagenet-200.zip"),
        read=_read_tiny,
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        place="tiny-imagenet-200/{train,val}/, or tiny-imagenet-200.zip as it comes",
        licence="not stated",
        page="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        classes=200,
        per_class=([500] * 200, [50] * 200),
        downloads=(
            Remote(
                "tiny-imagenet-200.zip",
                ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                248_100_043,
            ),
        ),
    ),
    "imagenet": Entry(
        title="ImageNet",
        shape=SHAPE,
        find=first_of("imagenet", "ILSVRC2012", "imagenet.zip"),
        read=_read_imagenet,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        place="imagenet/{train,val}/<wnid>/*.JPEG",
        licence="for research and non-commercial use, on the terms of image-net.org",
        page="https://image-net.org/challenges/LSVRC/2012/",
        classes=1000,
        per_split=(1_281_167, 50_000),
    ),
}

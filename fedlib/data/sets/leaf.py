"""LEAF's FEMNIST and CelebA: data that belong to users."""

import string
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from fedlib.data import leaf
from fedlib.data.image_files import listing
from fedlib.data.images import Item, blocks
from fedlib.data.sources import first_of
from fedlib.data.types import Block, DataError, Entry, Notes, Raw

# LEAF numbers the classes in this order, which is also that of the characters
CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
WRITERS = (1, 28, 28)
FACES = (3, 84, 84)
SHARES, SEED = (0.85, 0.05), 1234  # FederatedScope's seed for LEAF's data


# FEMNIST


def _written(user: leaf.User) -> Block:
    """Return a writer's images: dark ink on white, upright, as LEAF has them."""
    import torch

    where = f"{user.file}: user {user.name}"
    wanted = f"expected {len(user.y)} lists of 784 numbers in [0, 1]"
    try:
        x = np.array(user.x, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} has images of several sizes, {wanted}") from error
    if x.shape != (len(user.y), 784):
        raise DataError(f"{where} has images of shape {x.shape}, {wanted}")
    if not ((x >= 0) & (x <= 1)).all():
        raise DataError(f"{where} has pixels from {x.min()} to {x.max()}, {wanted}")
    high = max(user.y)
    if high >= len(CHARACTERS):
        raise DataError(f"{where} has the label {high}, expected 0 to 61")
    pixels = torch.from_numpy((x * 255).round().astype(np.uint8))
    labels = [CHARACTERS[label] for label in user.y]
    return Block(pixels.view(-1, *WRITERS), labels, [user.name] * len(labels))


def _read_writers(paths: list[Path], notes: Notes) -> Raw:
    train, test = leaf.by_sample(*paths)
    return Raw(map(_written, train), map(_written, test))


def three_parts(count: int) -> tuple[list[int], list[int], list[int]]:
    """Return a writer's rows for training, validation and test: 85, 5 and 10 %.

    FederatedScope's ``LEAF_CV``, which FedPG's program builds on: scikit-learn's
    ``train_test_split`` once for training, once more for validation, with one seed for
    all writers. That refuses writers of fewer than 14 samples; here their validation
    part is empty, and a single sample is for training.
    """
    if count < 2:
        return list(range(count)), [], []
    train, rest = _halves(list(range(count)), SHARES[0])
    share = SHARES[1] / (1 - SHARES[0])
    if int(share * len(rest)) == 0:
        return train, [], rest
    validation, test = _halves(rest, share)
    return train, validation, test


def _halves(rows: list[int], share: float) -> tuple[list[int], list[int]]:
    from sklearn.model_selection import train_test_split

    first, second = train_test_split(rows, train_size=share, random_state=SEED)
    return list(first), list(second)


def _read_writers_fs(paths: list[Path], notes: Notes) -> Raw:
    """Split every writer anew; what is for validation is left out.

    Tests are kept in memory while training images are read: a tenth of the data.
    """
    test: list[Block] = []

    def trained() -> Iterator[Block]:
        for user in leaf.users(paths[0]):
            every = _written(user)
            train, _, rest = three_parts(len(user.y))
            if rest:
                test.append(_rows(every, rest))
            yield _rows(every, train)

    return Raw(trained(), test)


def _rows(block: Block, rows: list[int]) -> Block:
    names = (block.group or [])[: len(rows)]  # all the same
    return Block(block.x[rows], [block.y[row] for row in rows], names)


# CelebA


def _find_celeba(root: Path) -> list[Path]:
    splits = leaf.folders("celeba", "train", "test")(root)
    faces = first_of(
        "celeba/img_align_celeba",
        "celeba/img_align_celeba.zip",
        "celeba/data/raw/img_align_celeba",
        "celeba/data/raw/img_align_celeba.zip",
    )(root)
    return [*splits, *faces] if splits and faces else []


def _small(image: Image.Image) -> Image.Image:
    """Return a face of 178 x 218 pixels as a square, as FedGen's program makes it."""
    return image.resize(FACES[1:], Image.Resampling.BICUBIC)


def _faces(
    users: Iterable[leaf.User], images: Path, where: dict[str, str], notes: Notes
) -> Iterator[Block]:
    """Decode the images that users name; ``where`` has each one's full name."""
    items, missing = [], []
    for user in users:
        for name, label in zip(user.x, user.y, strict=True):
            if not isinstance(name, str):
                raise DataError(
                    f"{user.file}: user {user.name} has {name!r}, expected an image's "
                    "name"
                )
            if name in where:
                items.append(Item(where[name], label, user.name))
            else:
                missing.append(f"{name} ({user.file}, user {user.name})")
    if missing:
        raise DataError(
            f"{len(missing)} images are not in {images.name}: {', '.join(missing[:5])}"
            f"{', ...' if len(missing) > 5 else ''}"
        )
    yield from blocks([images], items, notes, FACES, _small)


def _read_celeba(paths: list[Path], notes: Notes) -> Raw:
    *splits, images = paths
    where = {name.rsplit("/", 1)[-1]: name for name in listing([images])}
    train, test = leaf.by_sample(*splits)
    return Raw(_faces(train, images, where, notes), _faces(test, images, where, notes))


WRITERS_ENTRY = Entry(
    title="FEMNIST (LEAF)",
    shape=WRITERS,
    find=leaf.folders("femnist_writers", "train", "test"),
    read=_read_writers,
    mean=(0.9637,),  # FederatedScope's
    std=(0.1592,),
    place="LEAF's JSON files: femnist_writers/{train,test}/*.json",
    licence="not stated (NIST's images); BSD 2-Clause (LEAF's program)",
    page="https://leaf.cmu.edu",
    classes=62,
)

ENTRIES = {
    "femnist_writers": WRITERS_ENTRY,
    "femnist_writers_fs": WRITERS_ENTRY._replace(
        title="FEMNIST (LEAF) 85/5/10",
        guide="femnist_writers",
        find=leaf.folders("femnist_writers", "all_data"),
        read=_read_writers_fs,
        place="LEAF's JSON files of all writers: femnist_writers/all_data/*.json",
    ),
    "celeba": Entry(
        title="CelebA (LEAF)",
        shape=FACES,
        find=_find_celeba,
        read=_read_celeba,
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        place="LEAF's JSON files, celeba/{train,test}/*.json, and the images as "
        "celeba/img_align_celeba/ or celeba/img_align_celeba.zip",
        licence="non-commercial research purposes only",
        page="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        classes=2,
    ),
}

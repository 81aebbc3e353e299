"""Data sets that have been here longest: every format read, every fault named."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import datasets as tv

from fedlib import data
from fedlib.core.augment import Augment
from fedlib.data import DataError
from tests.on_disk import (
    TRAIN_Y,
    decoded,
    idx,
    pack,
    picture,
    pixels,
    unpack,
    write_idx,
)


def assert_tiny_idx(found: data.Dataset) -> None:
    assert found.train_x.dtype == torch.uint8
    assert np.array_equal(found.train_x.squeeze(1).numpy(), pixels(6, 28, 28))
    assert np.array_equal(
        found.test_x.squeeze(1).numpy(), pixels(4, 28, 28, name="test")
    )
    assert found.train_x.shape == (6, 1, 28, 28)
    assert found.train_y.tolist() == [0, 1, 2, 0, 1, 2]
    assert found.test_y.tolist() == [2, 0, 0, 1]
    assert found.train_y.dtype == torch.int64
    assert found.classes == ("3", "7", "9")


@pytest.mark.parametrize("packed", [True, False], ids=["gz", "plain"])
@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST"), ("fashion", "FashionMNIST")]
)
def test_idx_files(source, name, folder, packed):
    write_idx(source / folder, packed)
    found = data.load(name)
    assert_tiny_idx(found)
    assert found.title == data.DATASETS[name].title
    assert found.augment is None


def test_an_incomplete_folder_is_no_data_set(source):
    write_idx(source / "MNIST")
    (source / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()
    lacks = f"{source} lacks MNIST/raw/t10k-labels-idx1-ubyte."
    with pytest.raises(DataError, match=f"MNIST is not here.*{lacks}"):
        data.load("mnist")


DAMAGED = {
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "page": lambda content: b"<html>quota exceeded</html>" * 9,
}


@pytest.mark.parametrize("packed", [True, False], ids=["gz", "plain"])
@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("part", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_a_damaged_source_is_named(source, own_cache, packed, damage, part):
    write_idx(source / "MNIST", packed)
    path = source / "MNIST" / "raw" / (f"{part}.gz" if packed else part)
    path.write_bytes(DAMAGED[damage](path.read_bytes()))
    with pytest.raises(DataError, match=f"{path} is damaged .*fetch again"):
        data.load("mnist")
    assert not [p for p in (own_cache / "decoded").iterdir() if p.is_dir()]


def test_as_many_labels_as_images(source):
    write_idx(source / "MNIST", packed=False)
    path = source / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    path.write_bytes(idx(TRAIN_Y[:-1]))
    with pytest.raises(DataError, match="MNIST: 6 train images, 5 labels"):
        data.load("mnist")


# CIFAR-10 as images and as batches


def pictures() -> dict[str, bytes]:
    """Return members out of order; the reader sorts them by name."""
    names = ["train/dog/b.jpg", "train/cat/a.jpeg", "train/cat/c.JPG", "test/dog/a.png"]
    kinds = {"png": "PNG"}
    return {
        name: picture(number, kinds.get(name[-3:], "JPEG"))
        for number, name in enumerate(names)
    }


@pytest.mark.parametrize("form", ["folder", "cifar10-jpeg.zip", "nested"])
def test_images_by_class(source, form):
    members = pictures()
    extra = {"train/cat/notes.txt": b"no image", "readme.txt": b"no image"}
    if form == "folder":
        unpack(source / "cifar10", members | extra)
    elif form == "nested":
        pack(source / "cifar10.zip", members | extra, prefix="cifar10/")
    else:
        pack(source / form, members | extra)
    found = data.load("cifar10")
    assert found.classes == ("cat", "dog")
    assert found.train_y.tolist() == [0, 0, 1]
    assert found.test_y.tolist() == [1]
    order = ["train/cat/a.jpeg", "train/cat/c.JPG", "train/dog/b.jpg"]
    assert torch.equal(found.train_x, torch.stack([decoded(members[n]) for n in order]))
    assert torch.equal(found.test_x[0], decoded(members["test/dog/a.png"]))
    assert found.title == ("CIFAR-10 (JPEG)" if "jpeg" in form else "CIFAR-10")
    assert found.augment == Augment(4, True)


FAULTY = {
    "unreadable": {"train/cat/a.jpeg": b"this is no image"},
    "truncated": {"train/cat/a.jpeg": picture(1)[:-200]},
    "other size": {"train/dog/b.jpg": picture(0, side=16)},
}


@pytest.mark.parametrize("form", ["folder", "zip"])
@pytest.mark.parametrize("fault", FAULTY)
def test_a_faulty_image_is_named_and_nothing_is_kept(source, own_cache, form, fault):
    members = pictures() | FAULTY[fault]
    if form == "folder":
        unpack(source / "cifar10", members)
    else:
        pack(source / "cifar10.zip", members)
    (name,) = FAULTY[fault]
    told = "16x16 pixels instead of 32x32" if fault == "other size" else "image"
    with pytest.raises(
        DataError, match=f"CIFAR-10: 1 unreadable image: {name}: .*{told}"
    ):
        data.load("cifar10")
    assert not [p for p in (own_cache / "decoded").iterdir() if p.is_dir()]


@pytest.mark.parametrize(
    "name", ["../train/cat/evil.jpg", "/train/cat/evil.jpg", "train/../../x/evil.jpg"]
)
def test_a_member_that_leaves_the_archive_is_refused(source, tmp_path, name):
    pack(source / "cifar10.zip", pictures() | {name: picture(9)})
    with pytest.raises(DataError, match=f"member '{name}' leaves the archive; refused"):
        data.load("cifar10")
    assert not list(tmp_path.rglob("evil*"))


def test_an_archive_cut_in_half_is_named(source):
    path = source / "cifar10-jpeg.zip"
    pack(path, pictures())
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(DataError, match=f"{path} is damaged .*not a zip file"):
        data.load("cifar10")


def test_a_new_file_in_a_folder_is_seen(source):
    unpack(source / "cifar10", pictures())
    assert len(data.load("cifar10").train_y) == 3
    unpack(source / "cifar10", {"train/cat/d.jpg": picture(7)})
    assert data.load("cifar10").train_y.tolist() == [0, 0, 0, 1]


def test_a_split_without_images_is_named(source):
    members = {k: v for k, v in pictures().items() if k.startswith("train")}
    unpack(source / "cifar10", members)
    with pytest.raises(DataError, match="cifar10: no images under test/<class>/"):
        data.load("cifar10")


def write_batches(root: Path) -> tuple[np.ndarray, list[int]]:
    """Write pickled batches of 2 images each and return all of them in order."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rows, labels = pixels(12, 3072), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 0]
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for number, name in enumerate(names):
        part = slice(2 * number, 2 * number + 2)
        content = {"data": rows[part], "labels": labels[part]}
        (folder / name).write_bytes(pickle.dumps(content))
    classes = {"label_names": [f"class {i}" for i in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(classes))
    return rows, labels


def test_pickled_batches_through_torchvisions_reader(source, monkeypatch):
    rows, labels = write_batches(source)
    unpack(source / "cifar10", pictures())  # the batches come first
    with pytest.raises(DataError, match=r"cifar-10-batches-py is damaged .*corrupted"):
        data.load("cifar10")
    exists = lambda path, md5=None: os.path.isfile(path)  # noqa: E731
    monkeypatch.setattr(tv.cifar, "check_integrity", exists)
    found = data.load("cifar10")
    both = torch.cat([found.train_x, found.test_x])
    assert torch.equal(both, torch.from_numpy(rows.reshape(12, 3, 32, 32)))
    assert [*found.train_y.tolist(), *found.test_y.tolist()] == labels
    assert len(found.train_y) == 10
    assert found.classes == tuple(f"class {i}" for i in range(10))
    assert found.title == "CIFAR-10"


# labels


@pytest.mark.parametrize(
    ("raw", "mapped", "classes"),
    [
        (np.array([9, 3, 7, 3], dtype=np.int32), [2, 0, 1, 0], ("3", "7", "9")),
        (torch.tensor([9, 3, 7], dtype=torch.int32), [2, 0, 1], ("3", "7", "9")),
        (["dog", "cat", "dog"], [1, 0, 1], ("cat", "dog")),
        ([10, 9, 100], [1, 0, 2], ("9", "10", "100")),  # by value, not by text
    ],
    ids=["int32", "tensor", "text", "numbers"],
)
def test_odd_labels_are_mapped_in_sorted_order(raw, mapped, classes):
    found, names = data.map_labels(raw)
    assert found.dtype == torch.int64
    assert found.tolist() == mapped
    assert names == classes


def test_labels_in_a_given_order():
    found, names = data.map_labels(["b", "c", "b"], ("c", "b", "a"))
    assert found.tolist() == [1, 0, 1]
    assert names == ("c", "b", "a")  # also what is absent keeps its place
    with pytest.raises(DataError, match="got 'd' at position 1, expected one of c, b"):
        data.map_labels(["b", "d"], ("c", "b"))


@pytest.mark.parametrize("kind", [np.int32, np.int8, np.float32])
def test_a_negative_label_is_refused_with_value_and_position(kind):
    labels = np.array([3, 7, -1, 9], dtype=kind)
    with pytest.raises(
        DataError, match=r"labels: got -1(\.0)? at position 2, expected"
    ):
        data.map_labels(labels)

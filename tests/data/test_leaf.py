"""LEAF's data sets, from JSON files as LEAF's own scripts write them."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedlib import data, papers
from fedlib.core.augment import normalise
from fedlib.data import DataError
from fedlib.data.sets.leaf import three_parts
from tests.on_disk import pack, picture, pixels, unpack


def ink(name: str, count: int) -> np.ndarray:
    return pixels(count, 784, name=name)


def users(sizes: dict[str, int], **more) -> dict:
    """Return a file of FEMNIST as LEAF's scripts dump it; ``more`` goes on top."""
    data = {
        name: {
            "x": (ink(name, size) / 255).tolist(),
            "y": [(7 * i + len(name)) % 62 for i in range(size)],
        }
        for name, size in sizes.items()
    }
    content = {"users": [*sizes], "num_samples": [*sizes.values()], "user_data": data}
    return content | more


def write(folder: Path, files: dict[str, dict]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


TRAIN = {
    "all_data_1_niid_05_keep_0_train_9.json": users({"f2": 3}),
    "all_data_0_niid_05_keep_0_train_9.json": users({"f10": 2, "a_b": 4}),
}
TEST = {"all_data_0_niid_05_keep_0_test_9.json": users({"a_b": 1, "f10": 1, "f2": 2})}


def write_writers(base: Path, train: dict = TRAIN, test: dict = TEST) -> None:
    write(base / "train", train)
    write(base / "test", test)


# FEMNIST by writer


@pytest.mark.parametrize("place", ["femnist_writers", "femnist_writers/data"])
def test_writers(source, place):
    write_writers(source / place)
    (source / place / "train" / "readme.txt").write_text("no JSON")
    found = data.load("femnist_writers")
    order = [("f10", 2), ("a_b", 4), ("f2", 3)]  # files by name, users as they stand
    wanted = np.concatenate([ink(*user) for user in order])
    assert np.array_equal(found.train_x.flatten(1).numpy(), wanted)
    assert found.train_x.shape == (9, 1, 28, 28)
    assert found.groups is not None
    assert found.groups.names == ("a_b", "f10", "f2")
    assert found.groups.train.tolist() == [1, 1, 0, 0, 0, 0, 2, 2, 2]
    assert found.groups.test.tolist() == [0, 1, 2, 2]
    first = [found.classes[y] for y in found.train_y.tolist()]
    assert first == ["3", "A", "3", "A", "H", "O", "2", "9", "G"]  # 10: A, 24: O
    assert found.title == "FEMNIST (LEAF)"


def test_characters_are_in_the_order_of_leafs_numbers(source):
    every = users({"f1": 62})
    every["user_data"]["f1"]["y"] = [*range(62)]
    write_writers(source / "femnist_writers", {"a.json": every}, {"a.json": every})
    found = data.load("femnist_writers")
    assert found.train_y.tolist() == [*range(62)]
    assert "".join(found.classes[8:12] + found.classes[34:38]) == "89ABYZab"
    assert len(data.check("femnist_writers")) == 2 * 62


def test_paper_is_white_and_pixels_are_read_row_by_row(source):
    one = users({"f1": 1})
    image = np.ones((28, 28))
    image[2, 5] = 0.0
    image[3, 5] = 128 / 255
    one["user_data"]["f1"]["x"] = [image.flatten().tolist()]
    write_writers(source / "femnist_writers", {"a.json": one}, {"a.json": one})
    found = data.load("femnist_writers").train_x[0, 0]
    assert found[2:4, 4:7].tolist() == [[255, 0, 255], [255, 128, 255]]


def test_what_leaf_leaves_behind_is_no_fault(source):
    """LEAF keeps users of fewer than two samples in user_data, with empty lists."""
    content = users({"f1": 2}, hierarchies=["hsf_0", "hsf_1"])
    content["user_data"]["f3"] = {"x": [], "y": []}
    both = {"a.json": content}
    write_writers(source / "femnist_writers", both, both)
    groups = data.load("femnist_writers").groups
    assert groups is not None
    assert groups.names == ("f1",)


def changed(**fields) -> dict:
    """Return two users, of whom the first one has other fields."""
    content = users({"f1": 2, "f2": 1})
    content["user_data"]["f1"] |= fields
    return content


LONG = [[0.5] * 784]
FAULTS = {
    "no object": ([1, 2], "a.json: expected an object with users, num_samples, user_d"),
    "no key": ({"users": []}, "train/a.json: expected an object with users, num_sam"),
    "no data": (
        users({"f1": 1}, user_data={"f1": {"x": LONG}}),
        "expected user_data: name -> x, y",
    ),
    "numbers of users": (
        users({"f1": 1, "f2": 1}, num_samples=[1]),
        "train/a.json: 2 users, 1 num_samples",
    ),
    "twice in a file": (
        users({"f1": 1}, users=["f1", "f1"], num_samples=[1, 1]),
        "a.json: user f1 stands twice in users",
    ),
    "no entry": (users({"f1": 1}, user_data={}), "user f1 is not in user_data"),
    "not in users": (
        users({"f1": 1, "f2": 1}, users=["f1"], num_samples=[1]),
        "user f2 has samples but is not in users",
    ),
    "empty": (users({"f1": 0}), "a.json: user f1 has no samples"),
    "num_samples": (
        users({"f1": 2}, num_samples=[3]),
        "user f1 has 2 samples and 2 labels, num_samples says 3",
    ),
    "labels": (changed(y=[1]), "user f1 has 2 samples and 1 labels, num_samples says"),
    "negative label": (changed(y=[1, -1]), "user f1 has the label -1, expected 0, 1"),
    "text": (changed(y=["a", "b"]), "user f1 has the label 'a', expected 0, 1"),
    "half a label": (changed(y=[0.5, 1]), "user f1 has the label 0.5, expected 0, 1"),
    "high label": (changed(y=[1, 62]), "user f1 has the label 62, expected 0 to 61"),
    "size": (changed(x=[[0.5] * 9] * 2), r"shape \(2, 9\), expected 2 lists of 784"),
    "sizes": (changed(x=[[0.5] * 9, [0.5]]), "images of several sizes, expected 2 "),
    "range": (changed(x=[[0] * 783 + [255]] * 2), r"pixels from 0.0 to 255.0, expect"),
    "users no list": (users({"f1": 1}, users=3), "a.json: users is no list"),
    "users a table": (users({"f1": 1}, users={"f1": 1}), "a.json: users is no list"),
    "users no text": (users({"f1": 1}, users=[["f1"]]), r"got \['f1'\] for a user"),
    "sizes no list": (users({"f1": 1}, num_samples=1), "num_samples is no list"),
    "data no table": (users({"f1": 1}, user_data=[]), "user_data is no dict"),
    "x a number": (changed(x=3), "user f1: expected lists x and y"),
    "x a table": (changed(x={"0": 1, "1": 2}), "user f1: expected lists x and y"),
    "y text": (changed(y="ab"), "user f1: expected lists x and y"),
    "endless label": (changed(y=[float("inf"), 1]), "has the label inf, expected 0"),
    "vast label": (changed(y=[10**300, 1]), "has the label 1000.*, expected 0"),
    "deep x": (changed(x=[[[[[0.5]]]]] * 2), r"expected 2 lists of 784"),
    "text in x": (changed(x=[["a"] * 784] * 2), "expected 2 lists of 784"),
    "nan": (changed(x=[[float("nan")] * 784] * 2), "pixels from nan to nan, expected"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_names_file_and_user(source, own_cache, fault):
    content, message = FAULTS[fault]
    write_writers(source / "femnist_writers", {"a.json": content})
    with pytest.raises(DataError, match=message):
        data.load("femnist_writers")
    assert not [p for p in (own_cache / "decoded").iterdir() if p.is_dir()]


@pytest.mark.parametrize("text", ['{"users": ["f1"', "", "<html>quota exceeded</html>"])
def test_a_file_cut_off_is_named(source, text):
    write_writers(source / "femnist_writers")
    path = source / "femnist_writers" / "train" / "zzz.json"
    path.write_text(text)
    with pytest.raises(DataError, match=f"{path} is damaged"):
        data.load("femnist_writers")


def test_a_user_in_two_files_is_named_with_both(source):
    train = {"a.json": users({"f1": 1}), "b.json": users({"f2": 1, "f1": 2})}
    write_writers(source / "femnist_writers", train)
    with pytest.raises(DataError, match="b.json: user f1 is also in train/a.json; fi"):
        data.load("femnist_writers")


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (
            {"f1": 1, "f3": 1},
            r"test/a.json: user f3 is not in train/; both .*-t sample",
        ),
        ({"f1": 1}, r"train/: 1 users such as f2 are not in test/; both .* -t sample"),
    ],
)
def test_a_split_by_user_is_refused(source, test, message):
    train = {"a.json": users({"f1": 2, "f2": 1})}
    write_writers(source / "femnist_writers", train, {"a.json": users(test)})
    with pytest.raises(DataError, match=message):
        data.load("femnist_writers")


def test_one_split_is_no_data_set(source):
    write(source / "femnist_writers" / "train", TRAIN)
    (source / "femnist_writers" / "test").mkdir()
    with pytest.raises(DataError, match=r"FEMNIST \(LEAF\) is not here.*guide femnist"):
        data.load("femnist_writers")


# FEMNIST as FederatedScope splits it


def test_three_parts_are_federatedscopes():
    """The same calls on an array, as its loader makes them."""
    train, validation, test = three_parts(100)
    assert [len(train), len(validation), len(test)] == [85, 5, 10]
    assert sorted(train + validation + test) == [*range(100)]
    order = np.random.RandomState(1234).permutation(100)  # ShuffleSplit: tests first
    assert train == order[15:].tolist()
    rest = order[:15][np.random.RandomState(1234).permutation(15)]
    assert test == rest[:10].tolist()
    assert validation == rest[10:].tolist()


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(1, (1, 0, 0)), (2, (1, 0, 1)), (13, (11, 0, 2)), (14, (11, 1, 2))],
)
def test_writers_with_few_samples(count, sizes):
    parts = three_parts(count)
    assert tuple(len(part) for part in parts) == sizes
    assert sorted(row for part in parts for row in part) == [*range(count)]


@pytest.mark.parametrize("place", ["femnist_writers", "femnist_writers/data"])
def test_every_writer_is_split_alone(source, place):
    files = {"all_data_0.json": users({"f1": 40}), "all_data_1.json": users({"f2": 20})}
    write(source / place / "all_data", files)
    found = data.load("femnist_writers_fs")
    assert found.groups is not None
    assert found.groups.train.bincount().tolist() == [34, 17]
    assert found.groups.test.bincount().tolist() == [4, 2]
    train, _, test = three_parts(40)
    assert np.array_equal(found.train_x[:34].flatten(1).numpy(), ink("f1", 40)[train])
    assert np.array_equal(found.test_x[:4].flatten(1).numpy(), ink("f1", 40)[test])
    characters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    labels = [characters[(7 * row + 2) % 62] for row in test]
    assert [found.classes[y] for y in found.test_y[:4].tolist()] == labels


# CelebA


FACES = {f"{n:06}.jpg": picture(n, side=n + 90) for n in range(1, 8)}


def faces(sizes: dict[str, list[int]]) -> dict:
    """Return a file of CelebA: names of images, and 0.0 or 1.0 for each of them."""
    data = {
        name: {"x": [f"{n:06}.jpg" for n in rows], "y": [n % 2 + 0.0 for n in rows]}
        for name, rows in sizes.items()
    }
    counts = [len(rows) for rows in sizes.values()]
    return {"users": [*sizes], "num_samples": counts, "user_data": data}


def write_faces(root: Path, place: str = "celeba", images: str = "folder") -> None:
    train, test = faces({"2880": [5, 2], "17": [1, 4]}), faces({"2880": [3], "17": [7]})
    write_writers(root / place, {"a.json": train}, {"a.json": test})
    if images == "folder":
        unpack(root / place / "img_align_celeba", FACES)
    elif images == "zip":
        archive = root / place / "img_align_celeba.zip"
        pack(archive, FACES, prefix="img_align_celeba/")
    else:
        unpack(root / place / "raw" / "img_align_celeba", FACES)


def small(name: str) -> torch.Tensor:
    with Image.open(io.BytesIO(FACES[name])) as image:
        array = np.array(image.convert("RGB").resize((84, 84)))  # Pillow: bicubic
    return torch.from_numpy(array).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("place", "images"),
    [("celeba", "folder"), ("celeba", "zip"), ("celeba/data", "raw")],
)
def test_celeba(source, place, images):
    write_faces(source, place, images)
    found = data.load("celeba")
    names = ["000005.jpg", "000002.jpg", "000001.jpg", "000004.jpg"]
    assert torch.equal(found.train_x, torch.stack([small(name) for name in names]))
    assert torch.equal(
        found.test_x, torch.stack([small("000003.jpg"), small("000007.jpg")])
    )
    assert found.train_y.tolist() == [1, 0, 1, 0]
    assert found.classes == ("0", "1")
    assert found.groups is not None
    assert found.groups.names == ("17", "2880")
    assert found.groups.train.tolist() == [1, 1, 0, 0]
    assert found.sizes == "91x91 to 97x97"
    assert len(data.check("celeba")) == 4


def test_fedpa_sees_pixels_as_they_are(source):
    write_faces(source)
    x = data.load("celeba").train_x
    transform = papers.PAPERS["fedpa"]["celeba"].transform
    assert transform is not None
    assert transform.mean is not None
    assert transform.std is not None
    torch.testing.assert_close(normalise(x, transform.mean, transform.std), x.float())


@pytest.mark.parametrize("x", [[3], [["000005.jpg"]], [None]])
def test_faces_that_are_no_names_are_refused(source, x):
    write_faces(source)
    content = faces({"2880": [5], "17": [1]})
    content["user_data"]["17"]["x"] = x
    write(source / "celeba" / "train", {"a.json": content})
    with pytest.raises(DataError, match=r"user 17 has .*, expected an image's name"):
        data.load("celeba")


def test_images_that_are_not_there_are_named(source):
    write_faces(source)
    for name in ("000002.jpg", "000004.jpg"):
        (source / "celeba" / "img_align_celeba" / name).unlink()
    told = (
        r"2 images are not in img_align_celeba: 000002.jpg \(train/a.json, user 2880\)"
        r", 000004.jpg \(train/a.json, user 17\)"
    )
    with pytest.raises(DataError, match=told):
        data.load("celeba")


def test_unreadable_faces_are_named_or_left_out(source):
    write_faces(source)
    path = source / "celeba" / "img_align_celeba" / "000001.jpg"
    path.write_bytes(b"this is no image")
    with pytest.raises(DataError, match="1 unreadable image: 000001.jpg: "):
        data.load("celeba")
    found = data.load("celeba", unreadable="skip")
    assert len(found.skipped) == 1
    assert found.groups is not None
    assert found.groups.train.tolist() == [1, 1, 0]


def test_celeba_needs_its_images_too(source):
    write_faces(source)
    (source / "celeba" / "img_align_celeba").rename(source / "elsewhere")
    with pytest.raises(DataError, match=r"CelebA \(LEAF\) is not here"):
        data.load("celeba")

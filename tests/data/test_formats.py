"""Data sets in torchvision's and Hugging Face's formats, as they lie on a disk."""

import bz2
import gzip
import io
import json
import os
import pickle
import random
import string
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import torch
from PIL import Image
from torchvision import datasets as tv
from torchvision.transforms import functional as T

from fedlib import data
from fedlib.core.augment import Augment
from fedlib.data import DataError, parquet
from fedlib.data.sets import mat, mnist_family
from fedlib.data.types import Notes
from fedlib.partitions.domains import DOMAIN_PRESETS
from tests.on_disk import decoded, idx, pack, picture, pixels, unpack, write_idx


@pytest.fixture
def unhashed(monkeypatch):
    """Let torchvision read files that are not the official ones."""
    for module in (tv.cifar, tv.svhn):
        monkeypatch.setattr(
            module, "check_integrity", lambda path, md5=None: os.path.isfile(path)
        )


def nothing_is_kept(cache: Path) -> bool:
    return not [p for p in (cache / "decoded").iterdir() if p.is_dir()]


# EMNIST

LETTERS = ([1, 26, 3, 3], [26, 1, 3])
BY_CLASS = ([0, 10, 36, 61], [61, 36, 9])


def emnist_files(split: str, labels: tuple[list[int], list[int]]) -> dict[str, bytes]:
    """Return the four gzipped files of a split."""
    found = {}
    for part, y in zip(("train", "test"), labels, strict=True):
        x = pixels(len(y), 28, 28, name=f"{split} {part}")
        found[f"emnist-{split}-{part}-images-idx3-ubyte.gz"] = idx(x)
        found[f"emnist-{split}-{part}-labels-idx1-ubyte.gz"] = idx(np.uint8(y))
    return {name: gzip.compress(content) for name, content in found.items()}


def write_emnist(source: Path, form: str, **labels) -> Path:
    """Write letters and byclass in one of the forms that a person may have."""
    files = emnist_files("letters", labels.get("letters", LETTERS))
    files |= emnist_files("byclass", labels.get("byclass", BY_CLASS))
    raw = source / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    if form == "archive":
        pack(raw / "gzip.zip", files, prefix="gzip/")
    elif form == "gz":
        unpack(raw, files)
    else:
        unpack(raw, {n.removesuffix(".gz"): gzip.decompress(files[n]) for n in files})
    return raw


@pytest.mark.parametrize("form", ["archive", "gz", "plain"])
def test_emnist_letters_have_labels_1_to_26(source, form):
    write_emnist(source, form)
    found = data.load("emnist")
    assert found.classes == ("a", "c", "z")
    assert found.train_y.tolist() == [0, 2, 1, 1]
    assert found.test_y.tolist() == [2, 0, 1]
    raw = pixels(4, 28, 28, name="letters train")
    assert np.array_equal(found.train_x[:, 0].numpy(), raw)  # as published: transposed


@pytest.mark.parametrize("form", ["archive", "gz"])
def test_emnist_by_class_keeps_the_order_of_its_62_labels(source, form):
    write_emnist(source, form)
    found = data.load("emnist_byclass")
    assert found.classes == ("0", "9", "A", "a", "z")
    assert found.train_y.tolist() == [0, 2, 3, 4]
    assert found.test_y.tolist() == [4, 3, 1]


def test_all_classes_of_emnist_are_where_torchvision_has_them(source):
    write_emnist(
        source,
        "archive",
        letters=(list(range(1, 27)), [1]),
        byclass=(list(range(62)), [0]),
    )
    letters, by_class = data.load("emnist"), data.load("emnist_byclass")
    assert letters.classes == tuple(string.ascii_lowercase)
    assert letters.train_y.tolist() == list(range(26))
    assert by_class.classes == tuple(tv.EMNIST.classes_split_dict["byclass"])
    assert by_class.train_y.tolist() == list(range(62))


@pytest.mark.parametrize("label", [0, 27])
def test_a_letter_outside_1_to_26_is_refused(source, label):
    write_emnist(source, "gz", letters=([1, 2, label], [1]))
    told = f"EMNIST letters: labels: got {label} at position 2, expected 1 to 26"
    with pytest.raises(DataError, match=told):
        data.load("emnist")


def test_damaged_emnist_is_named(source, own_cache):
    raw = write_emnist(source, "archive")
    whole = (raw / "gzip.zip").read_bytes()
    (raw / "gzip.zip").write_bytes(whole[:-100])
    with pytest.raises(DataError, match=r"gzip.zip is damaged .*not a zip file"):
        data.load("emnist")
    files = emnist_files("letters", LETTERS)
    name = "emnist-letters-test-labels-idx1-ubyte.gz"
    pack(raw / "gzip.zip", files | {name: files[name][:-9]}, prefix="gzip/")
    with pytest.raises(DataError, match=rf"gzip.zip/gzip/{name} is damaged"):
        data.load("emnist")
    pack(raw / "gzip.zip", {k: v for k, v in files.items() if k != name})
    with pytest.raises(DataError, match=rf"gzip.zip lacks {name}"):
        data.load("emnist")
    assert nothing_is_kept(own_cache)


# CIFAR-100

CIFAR100_NAMES = ["apple", "bear", "whale"]


def write_cifar100(source: Path, fine: list[int]) -> np.ndarray:
    """Write a training batch and a test batch of one image; return all rows."""
    rows = pixels(len(fine), 3072, name="cifar100")
    folder = source / "cifar-100-python"
    folder.mkdir()
    for name, part in {"train": slice(0, -1), "test": slice(-1, None)}.items():
        batch = {"data": rows[part], "fine_labels": fine[part]}
        batch |= {"coarse_labels": [0] * len(fine[part])}
        (folder / name).write_bytes(pickle.dumps(batch))
    meta = {"fine_label_names": CIFAR100_NAMES, "coarse_label_names": ["all"]}
    (folder / "meta").write_bytes(pickle.dumps(meta))
    return rows


@pytest.mark.usefixtures("unhashed")
def test_cifar100_has_its_fine_labels(source):
    rows = write_cifar100(source, [2, 0, 0, 1, 2])
    found = data.load("cifar100")
    both = torch.cat([found.train_x, found.test_x])
    assert torch.equal(both, torch.from_numpy(rows.reshape(5, 3, 32, 32)))
    assert found.classes == ("apple", "bear", "whale")
    assert found.train_y.tolist() == [2, 0, 0, 1]
    assert found.test_y.tolist() == [2]
    assert (found.mean, found.std) == ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276))
    assert found.augment == Augment(4, True)


@pytest.mark.usefixtures("unhashed")
@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_without_a_name_is_refused(source, label):
    write_cifar100(source, [2, 0, label, 1, 2])
    told = f"labels: got {label} at position 2, expected 0 to 2"
    with pytest.raises(DataError, match=told):
        data.load("cifar100")


def test_batches_other_than_the_official_ones_are_named(source):
    write_cifar100(source, [2, 0, 1])
    with pytest.raises(DataError, match="cifar-100-python is damaged .*corrupted"):
        data.load("cifar100")


# SVHN, USPS, SYN


def write_mat(path: Path, y: np.ndarray, name: str = "mat") -> torch.Tensor:
    """Write images [32, 32, 3, n] and labels [n, 1]; return them as [n, c, h, w]."""
    x = pixels(32, 32, 3, len(y), name=f"{name} {path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, {"X": x, "y": y[:, None]}, do_compression=True)
    return torch.from_numpy(x.transpose(3, 2, 0, 1))


def write_svhn(folder: Path) -> torch.Tensor:
    write_mat(folder / "test_32x32.mat", np.uint8([9, 10]))
    return write_mat(folder / "train_32x32.mat", np.uint8([10, 1, 9, 10]))


@pytest.mark.usefixtures("unhashed")
@pytest.mark.parametrize("folder", ["svhn", "SVHN", "."])
def test_svhn_calls_its_digit_10_a_0(source, folder):
    x = write_svhn(source / folder)
    found = data.load("svhn")
    assert torch.equal(found.train_x, x)
    assert found.classes == ("0", "1", "9")
    assert found.train_y.tolist() == [0, 1, 2, 0]
    assert found.test_y.tolist() == [2, 0]


def test_svhn_other_than_the_official_one_is_named(source):
    write_svhn(source / "svhn")
    told = r"svhn/train_32x32.mat is damaged .*corrupted"
    with pytest.raises(DataError, match=told):
        data.load("svhn")


def libsvm(x: np.ndarray, y: list[int]) -> bytes:
    """Return lines of a label and 256 values in -1 to 1."""
    lines = [
        " ".join([str(label), *(f"{i}:{v:.6f}" for i, v in enumerate(image, 1))])
        for image, label in zip(x.reshape(len(y), 256) / 127.5 - 1, y, strict=True)
    ]
    return bz2.compress(("\n".join(lines) + "\n").encode())


def write_usps(folder: Path, y: list[int]) -> np.ndarray:
    x = pixels(len(y), 16, 16, name="usps")
    files = {"usps.bz2": libsvm(x, y), "usps.t.bz2": libsvm(x[:2], [10, 1])}
    unpack(folder, files)
    return x


@pytest.mark.parametrize("folder", ["usps", "."])
def test_usps(source, folder):
    x = write_usps(source / folder, [1, 10, 4])
    found = data.load("usps")
    assert found.train_x.shape == (3, 1, 16, 16)
    off = found.train_x[:, 0].numpy().astype(int) - x
    assert np.abs(off).max() <= 1  # torchvision rounds down
    assert found.classes == ("0", "3", "9")
    assert found.train_y.tolist() == [0, 2, 1]
    assert found.test_y.tolist() == [2, 0]


@pytest.mark.parametrize("label", [0, -1, 11])
def test_a_label_of_usps_outside_1_to_10_is_refused(source, label):
    write_usps(source / "usps", [1, label])
    told = f"USPS: labels: got {label - 1} at position 1, expected 0 to 9"
    with pytest.raises(DataError, match=told):
        data.load("usps")


USPS_DAMAGE = {
    "half": lambda content: content[: len(content) // 2],
    "page": lambda content: b"<html>quota exceeded</html>" * 9,
    "short line": lambda content: bz2.compress(b"1 1:0.5\n"),
    "empty line": lambda content: bz2.compress(bz2.decompress(content) + b"\n"),
    "no numbers": lambda content: bz2.compress(b"one " + b"1:x " * 256),
    "nothing": lambda content: b"",
}


@pytest.mark.parametrize("damage", USPS_DAMAGE)
def test_a_damaged_usps_is_named(source, own_cache, damage):
    write_usps(source / "usps", [1, 10, 4])
    path = source / "usps" / "usps.t.bz2"
    path.write_bytes(USPS_DAMAGE[damage](path.read_bytes()))
    with pytest.raises(DataError, match=rf"USPS: {path} is damaged"):
        data.load("usps")
    assert nothing_is_kept(own_cache)


def write_syn(folder: Path, y: np.ndarray) -> torch.Tensor:
    write_mat(folder / "synth_test_32x32.mat", np.uint8([0, 7]))
    return write_mat(folder / "synth_train_32x32.mat", y)


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.float64])
@pytest.mark.parametrize("zero", [0, 10])
def test_syn_as_mat(source, kind, zero):
    x = write_syn(source / "syn", np.array([7, zero, 3], dtype=kind))
    found = data.load("syn")
    assert torch.equal(found.train_x, x)
    assert found.classes == ("0", "3", "7")
    assert found.train_y.tolist() == [2, 0, 1]
    assert found.test_y.tolist() == [0, 2]


def test_a_negative_label_of_a_mat_is_refused(source):
    write_syn(source / "syn", np.int16([7, 3, -1]))
    told = "SYN: labels: got -1 at position 2, expected 0 to 9"
    with pytest.raises(DataError, match=told):
        data.load("syn")


def test_syn_as_it_is_downloaded(source, tmp_path):
    x = write_syn(tmp_path, np.uint8([7, 0, 3]))
    files = {p.name: p.read_bytes() for p in tmp_path.glob("*.mat")}
    pack(source / "SynthDigits.zip", files)
    found = data.load("syn")
    assert torch.equal(found.train_x, x)
    assert found.train_y.tolist() == [2, 0, 1]


@pytest.mark.parametrize("test", ["test", "val"])
@pytest.mark.parametrize("form", ["folder", "zip"])
def test_syn_as_images(source, form, test):
    names = ["train/7/b.png", "train/0/a.png", f"{test}/7/a.png"]
    members = {name: picture(n, "PNG") for n, name in enumerate(names)}
    if form == "folder":
        unpack(source / "syn", members)
    else:
        pack(source / "syn.zip", members, prefix="syn/")
    found = data.load("syn")
    assert found.classes == ("0", "7")
    assert found.train_y.tolist() == [0, 1]
    assert torch.equal(found.train_x[0], decoded(members["train/0/a.png"]))
    assert torch.equal(found.test_x[0], decoded(members[f"{test}/7/a.png"]))


def test_a_folder_10_of_syn_is_the_digit_0_as_in_a_mat(source):
    """C09: as a name of its own it would stand behind 1, and be class number 1."""
    names = ["train/10/a.png", "train/1/a.png", "train/2/a.png", "test/10/a.png"]
    unpack(source / "syn", {name: picture(n, "PNG") for n, name in enumerate(names)})
    found = data.load("syn")
    assert found.classes == ("0", "1", "2")
    assert found.train_y.tolist() == [1, 0, 2]  # in the order of folders
    assert found.test_y.tolist() == [0]


@pytest.mark.parametrize("name", ["syn/train.pkl", "SynthDigits/partitions/part0.pkl"])
def test_pickles_are_refused_unread(source, name):
    unpack(source, {name: b"c__builtin__\nexit\n(I3\ntR."})  # would end this process
    told = rf"{name} is a pickle.* may run any program.* Put SynthDigits.zip"
    with pytest.raises(DataError, match=told):
        data.load("syn")


def without_x(content: bytes) -> bytes:
    file = io.BytesIO()
    scipy.io.savemat(file, {"y": np.zeros(3)})
    return file.getvalue()


def other_images(content: bytes) -> bytes:
    file = io.BytesIO()
    scipy.io.savemat(file, {"X": np.zeros((3, 32, 32, 3)), "y": np.zeros(3)})
    return file.getvalue()


def one_label_less(content: bytes) -> bytes:
    file = io.BytesIO()
    x = np.zeros((32, 32, 3, 3), np.uint8)
    scipy.io.savemat(file, {"X": x, "y": np.zeros(2)})
    return file.getvalue()


MAT_DAMAGE = {
    "head": lambda content: content[:100],
    "half": lambda content: content[: len(content) // 2],
    "last": lambda content: content[:-10],
    "empty": lambda content: b"",
    "page": lambda content: b"<html>quota exceeded</html>" * 9,
    "without X": without_x,
    "other images": other_images,
    "one label less": one_label_less,
}


@pytest.mark.parametrize("damage", MAT_DAMAGE)
def test_a_damaged_mat_is_named(source, own_cache, damage):
    write_syn(source / "syn", np.uint8([7, 0, 3]))
    path = source / "syn" / "synth_test_32x32.mat"
    path.write_bytes(MAT_DAMAGE[damage](path.read_bytes()))
    with pytest.raises(DataError, match=rf"SYN: {path} is damaged \(.+\)"):
        data.load("syn")
    assert nothing_is_kept(own_cache)


# the four domains of digits


@pytest.fixture
def domains(source, unhashed) -> dict[str, torch.Tensor]:
    """Write all four; return the training images of each."""
    write_idx(source / "MNIST")
    write_usps(source / "usps", [1, 10, 4])
    svhn = write_svhn(source / "svhn")
    syn = write_syn(source / "syn", np.uint8([7, 0]))
    mnist = torch.from_numpy(pixels(6, 28, 28)[:, None])
    return {"MNIST": mnist, "USPS": data.load("usps").train_x, "SVHN": svhn, "SYN": syn}


def as_the_released_loaders(image: torch.Tensor) -> torch.Tensor:
    """Return torchvision's Resize of a PIL image, repeated to three channels."""
    resized = T.resize(Image.fromarray(image[0].numpy()), [32, 32])
    return T.pil_to_tensor(resized).repeat(3, 1, 1)


def test_domains_of_digits(domains):
    found = data.load("digits_domains")
    assert found.groups is not None
    assert found.groups.names == ("MNIST", "USPS", "SVHN", "SYN")
    assert found.groups.train.bincount().tolist() == [6, 3, 4, 2]
    assert found.groups.test.bincount().tolist() == [4, 2, 2, 2]
    assert found.classes == ("0", "1", "3", "7", "9")
    for d, (name, x) in enumerate(domains.items()):
        mine = found.train_x[found.groups.train == d]
        if name in ("MNIST", "USPS"):
            x = torch.stack([as_the_released_loaders(image) for image in x])
        assert torch.equal(mine, x), name
    y = found.train_y[found.groups.train == 1]
    assert [found.classes[c] for c in y.tolist()] == ["0", "9", "3"]
    assert found.mean == (0.485, 0.456, 0.406)
    assert found.augment == Augment(4, True)


def test_the_domains_are_in_the_order_of_the_presets(domains):
    found = data.load("digits_domains")
    preset = DOMAIN_PRESETS["digits_f2dc"].per_domain
    assert found.groups is not None
    # FedHPro 1.4: MNIST 3, USPS 6, SVHN 6, SYN 5
    expected = {"MNIST": 3, "USPS": 6, "SVHN": 6, "SYN": 5}
    assert dict(zip(found.groups.names, preset, strict=True)) == expected


def test_domains_may_lie_in_several_folders(source, own_cache, domains):
    first = data.load("digits_domains").fingerprint
    (own_cache / "data").mkdir()
    (source / "syn").rename(own_cache / "data" / "syn")
    assert data.load("digits_domains").fingerprint == first
    (source / "usps" / "usps.bz2").unlink()
    with pytest.raises(DataError, match="Digits is not here.*all of mnist, usps"):
        data.load("digits_domains")


def test_labels_of_domains_as_folders(source, domains):
    for path in (source / "syn").iterdir():
        path.unlink()
    members = {"train/7/a.png": picture(0, "PNG"), "test/0/a.png": picture(1, "PNG")}
    unpack(source / "syn", members)
    found = data.load("digits_domains")
    assert found.classes == ("0", "1", "3", "7", "9")
    assert found.train_y[-1] == 3
    unpack(source / "syn", {"train/seven/a.png": picture(0, "PNG")})
    with pytest.raises(DataError, match="SYN: label seven, expected a digit"):
        data.load("digits_domains")


# Parquet


def features(column: str, names: list[str]) -> dict[bytes, bytes]:
    """Return what Hugging Face's library writes beside the columns."""
    of = {column: {"names": names, "_type": "ClassLabel"}}
    return {b"huggingface": json.dumps({"info": {"features": of}}).encode()}


def write_parquet(
    path: Path,
    images: list,
    y: list,
    *,
    image: str = "image",
    label: str = "label",
    names: list[str] | None = None,
) -> None:
    """Write a column of images as struct{bytes, path} and one of labels."""
    cells = [{"bytes": content, "path": f"{n}.png"} for n, content in enumerate(images)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({image: pa.array(cells, kind), label: pa.array(y)})
    if names:
        table = table.replace_schema_metadata(features(label, names))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=2)


def grey(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(28, 28, name=f"grey {number}")).save(file, "PNG")
    return file.getvalue()


TRAIN, TEST = "train-00000-of-00001.parquet", "test-00000-of-00001.parquet"


@pytest.mark.parametrize("kind", ["int64", "int32", "text"])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "mnist/mnist"),
        ("mnist", "mnist/data"),
        ("fashion", "fashion_mnist/fashion_mnist"),
        ("fashion", "fashion"),
    ],
)
def test_grey_parquet(source, name, folder, kind):
    to = {"int64": np.int64, "int32": np.int32, "text": np.str_}[kind]
    images = [grey(n) for n in range(5)]
    y = np.array([9, 3, 7, 3, 9]).astype(to)
    write_parquet(source / folder / TRAIN, images, y, names=list("zyxwvutsrq"))
    write_parquet(source / folder / TEST, images[:1], y[:1])
    found = data.load(name)
    x = np.stack([pixels(28, 28, name=f"grey {n}") for n in range(5)])
    assert np.array_equal(found.train_x[:, 0].numpy(), x)
    assert found.classes == ("3", "7", "9")  # as in the IDX files
    assert found.train_y.tolist() == [2, 0, 1, 0, 2]


@pytest.mark.parametrize(
    ("name", "folder", "label"),
    [
        ("cifar10", "cifar10/plain_text", "label"),
        ("cifar100", "cifar100/cifar100", "fine_label"),
    ],
)
@pytest.mark.parametrize("names", [["ant", "bee", "cat"], None], ids=["names", "bare"])
def test_colour_parquet_in_two_files(source, name, folder, label, names):
    images = [picture(n, "PNG") for n in range(5)]
    about = {"image": "img", "label": label, "names": names}
    place = source / folder
    first, second = (place / f"train-0000{n}-of-00002.parquet" for n in range(2))
    write_parquet(first, images[:3], [2, 0, 0], **about)
    write_parquet(second, images[3:], [1, 2], **about)
    write_parquet(place / TEST, images[:1], [1], **about)
    found = data.load(name)
    assert torch.equal(found.train_x, torch.stack([decoded(i) for i in images]))
    assert found.train_y.tolist() == [2, 0, 0, 1, 2]
    assert found.classes == (tuple(names) if names else ("0", "1", "2"))
    second.unlink()
    with pytest.raises(DataError, match=f"lacks {second.name}"):
        data.load(name)


def test_two_copies_of_parquet_are_not_mixed(source):
    for file in (TRAIN, "train-00000-of-00002.parquet", TEST):
        write_parquet(source / "mnist" / file, [grey(0)], [3])
    with pytest.raises(DataError, match=f"{TRAIN}.* are not of one copy; keep one"):
        data.load("mnist")


def test_images_as_plain_bytes(source):
    table = pa.table({"image": [grey(0), grey(1)], "label": [1, 0]})
    for file in (TRAIN, TEST):
        (source / "mnist").mkdir(exist_ok=True)
        pq.write_table(table, source / "mnist" / file)
    assert data.load("mnist").train_y.tolist() == [1, 0]


@pytest.mark.parametrize("content", [b"no image", grey(0)[:-50], None], ids=str)
def test_a_faulty_image_in_parquet_is_named_by_its_row(source, own_cache, content):
    images = [grey(0), grey(1), content, grey(3)]
    write_parquet(source / "mnist" / TRAIN, images, [1, 0, 1, 0])
    write_parquet(source / "mnist" / TEST, [grey(0)], [1])
    told = rf"MNIST: 1 unreadable image: {TRAIN}:2: .*image"
    with pytest.raises(DataError, match=told):
        data.load("mnist")
    assert nothing_is_kept(own_cache)
    found = data.load("mnist", unreadable="skip")
    assert len(found.skipped) == 1
    assert found.train_y.tolist() == [1, 0, 0]


@pytest.mark.parametrize("label", [-1, None])
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_label_that_is_none_is_named_by_its_row(source, name, label):
    image = grey(0) if name == "mnist" else picture(0)
    names = list("0123456789")
    write_parquet(source / name / TRAIN, [image] * 4, [1, 0, 1, label], names=names)
    write_parquet(source / name / TEST, [image], [1], names=names)
    wanted = "0 or more" if name == "mnist" else "0 to 9"
    told = rf"{TRAIN}:3: label {label}, expected {wanted}"
    with pytest.raises(DataError, match=told):
        data.load(name)


def test_a_parquet_without_the_columns_is_named(source):
    for file in (TRAIN, TEST):
        write_parquet(source / "mnist" / file, [grey(0)], [1], label="digit")
    told = f"{TRAIN}: columns image, digit, expected label"
    with pytest.raises(DataError, match=told):
        data.load("mnist")


PARQUET_DAMAGE = {
    "half": lambda content: content[: len(content) // 2],
    "page": lambda content: b"<html>quota exceeded</html>" * 9,
    "empty": lambda content: b"",
    "inside": lambda content: content[:4] + b"\xff" * 400 + content[404:],
}


@pytest.mark.parametrize("damage", PARQUET_DAMAGE)
def test_a_damaged_parquet_is_named(source, own_cache, damage):
    for file in (TRAIN, TEST):
        write_parquet(source / "mnist" / file, [grey(n) for n in range(5)], [1] * 5)
    path = source / "mnist" / TRAIN
    path.write_bytes(PARQUET_DAMAGE[damage](path.read_bytes()))
    with pytest.raises(DataError, match=rf"MNIST: {path} is damaged \(.+\)"):
        data.load("mnist")
    assert nothing_is_kept(own_cache)


@pytest.mark.parametrize("nested", [True, False])
def test_a_kilobyte_of_parquet_does_not_become_gigabytes(source, nested):
    """One image that 256 rows share was unpacked 256 times: 4 GB."""
    one = pa.DictionaryArray.from_arrays(
        pa.array([0] * 256, pa.int32()), pa.array([bytes(2**24)])
    )
    paths = pa.array(["a"] * 256)
    cells = pa.StructArray.from_arrays([one, paths], ["bytes", "path"])
    table = pa.table({"image": cells if nested else one, "label": [1] * 256})
    (source / "mnist").mkdir()
    for file in (TRAIN, TEST):
        pq.write_table(table, source / "mnist" / file, compression="zstd")
    assert (source / "mnist" / TRAIN).stat().st_size < 2000
    with pytest.raises(DataError, match=r"bytes of images in 1\d+; refused"):
        data.load("mnist")


def test_rows_that_share_an_image_are_read_some_at_a_time(source, monkeypatch):
    """In a file that is large enough to hold it, too."""
    content = random.Random(0).randbytes(2**21)
    cells = pa.DictionaryArray.from_arrays(
        pa.array([0] * 256, pa.int32()), pa.array([content])
    )
    (source / "mnist").mkdir()
    paths = [source / "mnist" / TRAIN, source / "mnist" / TEST]
    for path in paths:
        pq.write_table(pa.table({"image": cells, "label": [1] * 256}), path)
    monkeypatch.setattr(parquet, "IN_MEMORY", 2**25)
    before, peak = pa.total_allocated_bytes(), 0

    def decode(*_):
        nonlocal peak
        peak = max(peak, pa.total_allocated_bytes() - before)

    monkeypatch.setattr(parquet, "decode", decode)
    raw = parquet.read_parquet(paths, Notes(), (1, 28, 28))
    assert list(raw.train) == []
    assert len(content) < peak < 2**27 < 256 * len(content)


def test_more_rows_than_bytes_are_refused(source):
    (source / "mnist").mkdir()
    count = 200_000
    table = pa.table({"image": [b""] * count, "label": [1] * count})
    for file in (TRAIN, TEST):
        pq.write_table(table, source / "mnist" / file)
    with pytest.raises(DataError, match=f"{count} rows in .* bytes; refused"):
        data.load("mnist")


@pytest.mark.parametrize(
    "about",
    ["{", "[]", '{"info": 3}', '{"info": {"features": {"label": {"names": 3}}}}'],
)
def test_names_of_labels_that_are_none(source, about):
    images, meta = pa.array([picture(0, "PNG")]), {"huggingface": about}
    table = pa.table({"img": images, "label": [1]}).replace_schema_metadata(meta)
    (source / "cifar10").mkdir()
    for file in (TRAIN, TEST):
        pq.write_table(table, source / "cifar10" / file)
    with pytest.raises(DataError, match=f"{TRAIN} is damaged"):
        data.load("cifar10")


def test_a_mat_of_many_numbers_is_refused_by_its_list(source, monkeypatch):
    monkeypatch.setattr(mat, "MOST_NUMBERS", 32 * 32 * 3 * 2 - 1)
    (source / "syn").mkdir()
    for name in mat.SYN_FILES:
        x, y = np.zeros((32, 32, 3, 2), np.uint8), np.array([[1], [2]])
        scipy.io.savemat(source / "syn" / name, {"X": x, "y": y}, do_compression=True)
    monkeypatch.setattr("scipy.io.loadmat", lambda *_, **__: pytest.fail("unpacked"))
    with pytest.raises(DataError, match="X has .* numbers"):
        data.load("syn")


def test_an_idx_file_that_grows_is_refused(source, monkeypatch):
    monkeypatch.setattr(mnist_family, "MOST_BYTES", 1000)
    write_idx(source / "MNIST")
    with pytest.raises(DataError, match="more than 1000 bytes when unpacked"):
        data.load("mnist")


# counts


@pytest.mark.parametrize(
    ("name", "train", "test", "classes"),
    [
        ("emnist", 124_800, 20_800, 26),
        ("cifar100", 50_000, 10_000, 100),
        ("svhn", 73_257, 26_032, 10),
        ("usps", 7_291, 2_007, 10),
    ],
)
def test_official_counts_add_up(name, train, test, classes):
    entry = data.DATASETS[name]
    assert entry.classes == classes
    assert entry.per_class is not None
    assert [len(counts) for counts in entry.per_class] == [classes] * 2
    assert [sum(counts) for counts in entry.per_class] == [train, test]


def test_check_of_what_has_no_counts_per_class(source):
    assert sum(data.DATASETS["emnist_byclass"].per_split or ()) == 814_255
    write_emnist(source, "gz", byclass=(list(range(62)), [0]))
    told = "EMNIST by class: train: 62 images instead of 697932; test: 1 images instead"
    with pytest.raises(DataError, match=told):
        data.check("emnist_byclass")


@pytest.mark.parametrize("name", ["emnist", "cifar100", "svhn", "usps", "syn"])
def test_downloads_have_hashes(name):
    entry = data.DATASETS[name]
    assert entry.page.startswith("http")
    assert all(remote.hash.startswith("md5:") for remote in entry.downloads)
    assert bool(entry.downloads) == (name != "syn")

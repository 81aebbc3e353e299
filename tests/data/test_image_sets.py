"""Data sets of images: small copies in their real layout, as a folder and as a zip.

Every image is of one grey, its number, so that order and splits can be read off pixels.
"""

import io
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedlib import data
from fedlib.core.augment import Augment
from fedlib.data import DataError, images
from fedlib.partitions.domains import DOMAIN_PRESETS
from tests.data.test_data import pictures
from tests.data.test_splits import PERMUTED, SHUFFLED
from tests.on_disk import pack, picture, unpack

both = pytest.mark.parametrize("form", ["folder", "zip"])


def flat(number: int, width: int = 12, height: int = 10, kind: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (number,) * 3).save(buffer, kind, quality=100)
    return buffer.getvalue()


def put(source: Path, name: str, form: str, members: dict[str, bytes]) -> Path:
    """Write members into a folder, or into a zip where they lie in that folder."""
    if form == "folder":
        unpack(source / name, members)
        return source / name
    shuffled = list(members.items())
    random.Random(0).shuffle(shuffled)  # a zip has its own order
    pack(source / f"{name}.zip", dict(shuffled), prefix=f"{name}/")
    return source / f"{name}.zip"


def numbers(x: torch.Tensor) -> list[int]:
    """Return the grey of every image, which must be of one grey."""
    assert x.dtype == torch.uint8
    found = x.flatten(1)
    assert torch.equal(found, found[:, :1].expand_as(found))
    return found[:, 0].tolist()


def labelled(found: data.Dataset) -> dict[str, list[str]]:
    """Return the original labels of both splits."""
    of = found.classes
    return {
        "train": [of[c] for c in found.train_y.tolist()],
        "test": [of[c] for c in found.test_y.tolist()],
    }


# Flowers, DeFungi, RealWaste


def four_of_five(classes: list[str], extra: str = "") -> dict[str, bytes]:
    """Return images 0..19 in order of class and name, in an order of their own."""
    names = [f"{extra}{c}/{n}.jpg" for c in sorted(classes) for n in (10, 11, 2, 9)]
    members = {name: flat(n, 10 + n, 30 - n) for n, name in enumerate(names)}
    return dict(reversed(members.items()))


@both
@pytest.mark.parametrize(
    ("name", "classes", "end"),
    [
        ("flowers", ["daisy", "dandelion", "rose", "sunflower", "tulip"], 15),
        ("defungi", ["H1", "H2", "H3", "H5", "H6"], 16),
    ],
)
def test_flowers_and_defungi(source, form, name, classes, end):
    put(source, name, form, four_of_five(classes))
    found = data.load(name)
    assert found.train_x.shape == (end, 3, 32, 32)
    assert numbers(found.train_x) == SHUFFLED[:end]
    assert numbers(found.test_x) == SHUFFLED[end:]
    assert found.classes == tuple(classes)
    assert found.train_y.tolist() == [n // 4 for n in SHUFFLED[:end]]
    assert found.test_y.tolist() == [n // 4 for n in SHUFFLED[end:]]
    assert found.sizes == "10x11 to 29x30"  # as found
    assert found.augment is None


@both
def test_realwaste(source, form):
    counts = {"Glass": 7, "Food Organics": 10}
    members = {
        f"realwaste-main/RealWaste/{name}/{name}_{n}.jpg": flat(100 * (k == 7) + n)
        for name, k in counts.items()
        for n in range(1, k + 1)
    }
    rest = ["Metal", "Miscellaneous Trash", "Paper", "Plastic", "Textile Trash"]
    rest += ["Vegetation", "Waste"]
    members |= {f"realwaste-main/RealWaste/{name}/a.jpg": flat(200) for name in rest}
    put(source, "realwaste", form, members | {"realwaste-main/logo.png": picture(0)})
    found = data.load("realwaste")
    # what split-folders does with 10 and 7 files of such names: see its own test
    assert numbers(found.train_x) == [1, 10, 2, 3, 4, 6, 7, 101, 102, 104, 106]
    assert numbers(found.test_x) == [5, 8, 9, 103, 105, 107] + [200] * 7
    test = ["Food Organics"] * 3 + ["Glass"] * 3 + rest
    assert labelled(found)["test"] == test
    assert found.augment == Augment(4, True)
    official = data.DATASETS["realwaste"].per_class
    assert official is not None
    assert [sum(part) for part in official] == [3323, 1429]


@both
def test_an_empty_folder_of_a_class_does_not_shift_the_others(source, form):
    """C05: without it tulips are class 3, and a run starts with four of five."""
    members = four_of_five(["daisy", "dandelion", "sunflower", "tulip"])
    path = put(source, "flowers", form, members)
    if form == "folder":
        (path / "rose").mkdir()
    told = r"images of 4 classes \(daisy, dandelion, sunflower, tulip\), expected 5"
    with pytest.raises(DataError, match=told):
        data.load("flowers")


def test_a_tree_without_classes_is_named(source):
    unpack(source / "flowers", {"rose.jpg": flat(1)})
    with pytest.raises(DataError, match="^flowers: no images under <class>/"):
        data.load("flowers")


@both
def test_unreadable_images_keep_their_place_in_the_split(source, form):
    members = four_of_five(["daisy", "dandelion", "rose", "sunflower", "tulip"])
    members["rose/9.jpg"] = members["rose/9.jpg"][:-20]  # number 11, which trains
    members["daisy/10.jpg"] = b""  # number 0, which tests
    put(source, "flowers", form, members)
    names = ["rose/9.jpg", "daisy/10.jpg"]
    if form == "zip":
        names = [f"flowers/{name}" for name in names]
    told = f"Flowers: 2 unreadable images: {names[0]}: .*; {names[1]}: cannot identify"
    with pytest.raises(DataError, match=told):
        data.load("flowers")
    found = data.load("flowers", unreadable="skip")
    assert numbers(found.train_x) == [n for n in SHUFFLED[:15] if n != 11]
    assert numbers(found.test_x) == [n for n in SHUFFLED[15:] if n != 0]
    assert [entry.split(": ")[0] for entry in found.skipped] == names
    assert "truncated" in found.skipped[0]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "flowers",
            "^Flowers: train: 15 images instead of 3237; "
            "test: 5 images instead of 1080$",
        ),
        (
            "defungi",
            "^DeFungi: train: 16 images instead of 7291; "
            "test: 4 images instead of 1823$",
        ),
        (
            "realwaste",
            r"^realwaste: images of 5 classes \(a, b, c, d, e\), expected 9; a folder",
        ),
    ],
)
def test_check_says_what_a_small_copy_lacks(source, name, told):
    put(source, name, "folder", four_of_five(list("abcde")))
    with pytest.raises(DataError, match=told):
        data.check(name)


# FEMNIST by class


@both
def test_femnist(source, form, monkeypatch):
    monkeypatch.setattr("fedlib.data.sets.nist.TRAIN", 3)
    monkeypatch.setattr("fedlib.data.sets.nist.TEST", 2)
    members: dict[str, bytes] = {}
    for number, code in enumerate(("7a", "30", "41")):
        for n in range(4):
            grey = 10 * number + n
            end = f"{n:05d}.png"
            train = flat(grey, 128, 128, "PNG")
            members[f"{code}/train_{code}/train_{code}_{end}"] = train
            members[f"{code}/hsf_0/hsf_0_{end}"] = flat(100 + grey, 128, 128, "PNG")
            members[f"{code}/hsf_1/hsf_1_{end}"] = flat(200, 128, 128, "PNG")
        members[f"{code}/hsf_0.mit"] = b"a list"
    put(source, "by_class", form, members)
    found = data.load("femnist")
    assert found.train_x.shape == (9, 1, 128, 128)
    assert found.classes == ("0", "A", "z")
    assert numbers(found.train_x) == [10, 11, 12, 20, 21, 22, 0, 1, 2]
    assert found.train_y.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert numbers(found.test_x) == [110, 111, 120, 121, 100, 101]
    with pytest.raises(
        DataError, match=r"FEMNIST: 3 classes \(0, A, z\) instead of 62"
    ):
        data.check("femnist")


def test_femnist_has_as_many_images_as_the_paper_says():
    train, test = data.DATASETS["femnist"].per_class or ([], [])
    assert set(train) == {1920}
    assert set(test) == {300}
    assert sum(train) + sum(test) == 137_640


def test_femnist_without_test_images_is_named(source):
    unpack(source / "by_class", {"30/train_30/train_30_00000.png": flat(1)})
    with pytest.raises(DataError, match="by_class: no images under <hex>/hsf_0/"):
        data.load("femnist")


def test_other_sizes_of_femnist_are_named(source):
    members = {f"30/{k}/{k}_00000.png": flat(1) for k in ("train_30", "hsf_0")}
    unpack(source / "by_class", members)
    with pytest.raises(
        DataError, match="train_30_00000.png: 12x10 pixels instead of 12"
    ):
        data.load("femnist")


# Office-Caltech


@both
def test_office_caltech(source, form):
    counts = {"webcam": 11, "Caltech": 12, "dslr": 10, "amazon": 20}
    members = {}
    for number, (domain, count) in enumerate(counts.items()):
        for n in range(count):
            label = "bike" if n < 9 else "mug"
            name = f"{domain}/{label}/frame_{n:04d}.jpg"
            members[name] = flat(50 * number + n)
    put(source, "office_caltech_10", form, members)
    found = data.load("office_caltech")
    assert found.groups is not None
    assert found.groups.names == ("Caltech", "Amazon", "Webcam", "DSLR")
    eight = list(range(8))
    assert numbers(found.train_x) == [
        *(50 + n for n in [*eight, 10, 11]),
        *(150 + n for n in [*eight, *range(10, 18)]),
        *(n for n in [*eight, 10]),
        *(100 + n for n in eight),
    ]
    assert numbers(found.test_x) == [58, 59, 158, 159, 168, 169, 8, 9, 108, 109]
    assert found.groups.test.tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 3, 3]
    assert found.groups.train.bincount().tolist() == [10, 16, 9, 8]
    assert labelled(found)["test"][:2] == ["bike", "mug"]
    assert found.augment == Augment(4, True)
    with pytest.raises(DataError, match=r"^Office-Caltech: 2 classes \(bike, mug\)"):
        data.check("office_caltech")


def test_the_presets_count_clients_in_the_order_of_the_domains():
    """F2DC and FedHPro: 3 clients of Caltech, 2 of Amazon, 2 of Webcam, 3 of DSLR."""
    order = data.DATASETS["office_caltech"].groups
    clients = dict(zip(order, DOMAIN_PRESETS["office"].per_domain, strict=True))
    assert clients == {"Caltech": 3, "Amazon": 2, "Webcam": 2, "DSLR": 3}


def test_a_domain_without_images_is_named(source):
    members = {f"{d}/mug/a.jpg": flat(1) for d in ("caltech", "amazon", "dslr")}
    unpack(source / "office_caltech_10", members)
    with pytest.raises(DataError, match="no images under Webcam/<class>/"):
        data.load("office_caltech")


# HAM10000

DIAGNOSES = ["akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"]


def lesions(each: int = 24) -> tuple[dict[str, bytes], list[tuple[str, str, str]]]:
    """Return images in two parts and rows: of every lesion with 3 images, one alone."""
    members, rows = {}, []
    for number in range(7 * each):
        image, dx = f"ISIC_{24306 + number:07d}", DIAGNOSES[number % 7]
        lesion = f"HAM_{number % 7}_{number // 28}_{number // 7 % 4 == 0}"
        part = 1 + (number >= 3 * each)
        members[f"HAM10000_images_part_{part}/{image}.jpg"] = flat(number)
        rows.append((lesion, image, dx))
    random.Random(1).shuffle(rows)  # the real table is sorted by diagnosis
    return members, rows


def table(rows: list[tuple[str, str, str]], between: str = ",") -> bytes:
    head = ["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization"]
    lines = [head, *([*row, "histo", "50.0", "male", "back"] for row in rows)]
    return "\n".join(between.join(line) for line in lines).encode()


@pytest.mark.parametrize("form", ["folder", "zip", "zips", "one folder"])
@pytest.mark.parametrize("name", ["ham10000", "ham10000_lesion", "ham10000_stratified"])
def test_ham10000(source, form, name):
    members, rows = lesions()
    about = {"HAM10000_metadata.csv": table(rows)}
    if form == "zips":
        for part in ("HAM10000_images_part_1", "HAM10000_images_part_2"):
            inside = {k.split("/")[1]: v for k, v in members.items() if part in k}
            (source / "ham10000").mkdir(exist_ok=True)
            pack(source / "ham10000" / f"{part}.zip", inside)
        about = {"HAM10000_metadata": table(rows, "\t")}
        unpack(source / "ham10000", about)
    elif form == "one folder":
        members = {f"images/{k.split('/')[1]}": v for k, v in members.items()}
        put(source, "ham10000", "folder", members | about)
    else:
        again = {
            k.replace("HAM", "ham"): b"" for k in list(members)[:5]
        }  # as in Kaggle's archive
        put(source, "ham10000", form, members | again | about)
    found = data.load(name)
    train, test = numbers(found.train_x), numbers(found.test_x)
    assert found.train_x.shape[1:] == (3, 64, 64)
    assert train == sorted(train)
    assert test == sorted(test)
    assert sorted(train + test) == list(range(168))
    assert found.classes == tuple(DIAGNOSES)
    assert found.train_y.tolist() == [n % 7 for n in train]
    assert found.test_y.tolist() == [n % 7 for n in test]
    each = 4 if name == "ham10000_stratified" else 20  # a fifth of 24, rounded down
    assert found.test_y.bincount().tolist() == [each] * 7
    of = {int(image[5:]) - 24306: lesion for lesion, image, _ in rows}
    shared = {of[n] for n in train} & {of[n] for n in test}
    assert bool(shared) == (name != "ham10000_lesion")
    with pytest.raises(DataError, match=r"^HAM10000.*: train akiec: \d+ instead of "):
        data.check(name)


def test_ham10000s_official_counts():
    for name, test in {
        "ham10000": [20] * 7,
        "ham10000_lesion": [20] * 7,
        "ham10000_stratified": [65, 102, 219, 23, 222, 1341, 28],
    }.items():
        official = data.DATASETS[name].per_class
        assert official is not None
        assert official[1] == test
        both = np.add(*official).tolist()
        assert both == [327, 514, 1099, 115, 1113, 6705, 142]
        assert sum(both) == 10_015


@both
def test_images_and_rows_without_each_other_are_named(source, form):
    members, rows = lesions()
    del members["HAM10000_images_part_1/ISIC_0024307.jpg"]
    rows = [row for row in rows if row[1] not in ("ISIC_0024308", "ISIC_0024310")]
    about = {"HAM10000_metadata.csv": table(rows)}
    path = put(source, "ham10000", form, members | about)
    with pytest.raises(DataError) as caught:
        data.load("ham10000")
    assert str(caught.value) == (
        f"{path.name}: 2 images without a row of the table: ISIC_0024308, "
        "ISIC_0024310; 1 rows of the table without an image: ISIC_0024307"
    )


def test_a_missing_part_and_a_missing_table_are_named(source):
    members, rows = lesions()
    half = {k: v for k, v in members.items() if "part_1" in k}
    unpack(source / "ham10000", half)
    with pytest.raises(DataError, match="ham10000: no HAM10000_metadata.csv"):
        data.load("ham10000")
    unpack(source / "ham10000", {"HAM10000_metadata.csv": table(rows)})
    told = r"96 rows of the table without an image: ISIC_0024378, .*, \.\.\.$"
    with pytest.raises(DataError, match=told):
        data.load("ham10000")
    unpack(source / "ham10000", {"HAM10000_metadata.csv": b"image_id,dx\na,b\n"})
    with pytest.raises(DataError, match=r"metadata.csv: no column lesion_id"):
        data.load("ham10000")


def test_too_few_images_for_the_test_set_are_named(source):
    members, rows = lesions(each=20)
    about = {"HAM10000_metadata.csv": table(rows)}
    put(source, "ham10000", "folder", members | about)
    told = "ham10000: class akiec: 20 images, expected more than the 20 of the test set"
    with pytest.raises(DataError, match=told):
        data.load("ham10000")


# Tiny ImageNet and ImageNet


def tiny() -> dict[str, bytes]:
    members = {"wnids.txt": b"n02\nn01\n", "words.txt": b"n01\tgoldfish\n"}
    for number, wnid in enumerate(("n01", "n02")):
        for n in range(3):
            name = f"train/{wnid}/images/{wnid}_{n}.JPEG"
            members[name] = flat(10 * number + n, 64, 64)
        members[f"train/{wnid}/{wnid}_boxes.txt"] = b"0\t0\t62\t62\n"
    for n, wnid in enumerate(("n02", "n01", "n02")):
        members[f"val/images/val_{n}.JPEG"] = flat(100 + n, 64, 64)
        line = f"val_{n}.JPEG\t{wnid}\t0\t32\t44\t62\n".encode()
        members["val/val_annotations.txt"] = (
            members.get("val/val_annotations.txt", b"") + line
        )
    members["test/images/test_0.JPEG"] = flat(200, 64, 64)  # has no label
    return members


@both
def test_tiny_imagenet(source, form):
    put(source, "tiny-imagenet-200", form, tiny())
    found = data.load("tiny_imagenet")
    assert found.train_x.shape == (6, 3, 64, 64)
    assert numbers(found.train_x) == [0, 1, 2, 10, 11, 12]
    assert found.train_y.tolist() == [0, 0, 0, 1, 1, 1]
    assert numbers(found.test_x) == [100, 101, 102]
    assert found.test_y.tolist() == [1, 0, 1]
    assert found.classes == ("n01", "n02")
    with pytest.raises(
        DataError, match=r"Tiny ImageNet: 2 classes \(n01, n02\) instead"
    ):
        data.check("tiny_imagenet")


@both
@pytest.mark.parametrize(
    ("lost", "told"),
    [
        ("val/images/val_1.JPEG", "val/images: 1 missing: val_1.JPEG"),
        ("val/val_annotations.txt", "no val_annotations.txt"),
        ("wnids.txt", "no wnids.txt"),
    ],
)
def test_what_tiny_imagenet_lacks_is_named(source, form, lost, told):
    members = tiny()
    del members[lost]
    put(source, "tiny-imagenet-200", form, members)
    with pytest.raises(DataError, match=f"tiny-imagenet-200.*: {told}"):
        data.load("tiny_imagenet")


def test_what_tiny_imagenet_does_not_list_is_named(source):
    members = tiny() | {"val/images/val_9.JPEG": flat(1, 64, 64)}
    members["wnids.txt"] += b"n03\n"
    folder = put(source, "tiny-imagenet-200", "folder", members)
    with pytest.raises(DataError, match="train/<wnid>/images: 1 missing: n03"):
        data.load("tiny_imagenet")
    (folder / "wnids.txt").write_bytes(b"n01 n02")
    with pytest.raises(DataError, match="val/images: 1 not listed: val_9.JPEG"):
        data.load("tiny_imagenet")


@both
def test_imagenet(source, form, monkeypatch):
    monkeypatch.setattr(images, "BLOCK", 2)  # as in small, so in large
    members = {
        f"{split}/n{wnid}/n{wnid}_{n}.JPEG": flat(start + 10 * wnid + n, 300, 257 + n)
        for split, start in (("train", 0), ("val", 100))
        for wnid in (1, 2)
        for n in range(3)
    }
    put(source, "imagenet", form, members)
    found = data.load("imagenet")
    assert found.train_x.shape == (6, 3, 224, 224)
    assert numbers(found.train_x) == [10, 11, 12, 20, 21, 22]
    assert numbers(found.test_x) == [110, 111, 112, 120, 121, 122]
    assert found.test_y.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.sizes == "300x257 to 300x259"
    with pytest.raises(
        DataError, match=r"ImageNet: 2 classes \(n1, n2\) instead of 1000"
    ):
        data.check("imagenet")


def test_imagenet_needs_validation_images_by_class(source):
    members = {"train/n1/a.JPEG": flat(1), "val/ILSVRC2012_val_00000001.JPEG": flat(2)}
    unpack(source / "imagenet", members)
    with pytest.raises(DataError, match="imagenet: no images under val/<class>/"):
        data.load("imagenet")


# CIFAR-10 as FedPG splits it


def test_fedpgs_split_pools_both_parts(source):
    names = [
        f"{s}/{c}/{n}.png" for s in ("train", "test") for c in "ab" for n in range(5)
    ]
    unpack(source / "cifar10", {n: flat(i, 32, 32, "PNG") for i, n in enumerate(names)})
    found = data.load("cifar10_fs")
    assert numbers(found.train_x) == PERMUTED[:17]
    assert numbers(found.test_x) == PERMUTED[18:]  # one for validation is left out
    assert found.train_y.tolist() == [n // 5 % 2 for n in PERMUTED[:17]]
    assert found.title == "CIFAR-10 85/5/10"
    with pytest.raises(
        DataError, match=r"CIFAR-10 85/5/10: 2 classes \(a, b\) instead"
    ):
        data.check("cifar10_fs")
    assert data.load("cifar10").fingerprint != found.fingerprint


def test_fedpgs_split_of_jpegs_says_so(source):
    pack(source / "cifar10-jpeg.zip", pictures())
    assert data.load("cifar10_fs").title == "CIFAR-10 85/5/10 (JPEG)"


def test_every_set_of_images_says_how_to_get_it(source):
    names = ["flowers", "defungi", "realwaste", "femnist", "office_caltech"]
    for name in [*names, "ham10000_lesion", "tiny_imagenet", "imagenet", "cifar10_fs"]:
        entry = data.DATASETS[name]
        with pytest.raises(DataError) as caught:
            data.load(name)
        assert entry.place in str(caught.value)
        assert str(caught.value).endswith(f"licence: {entry.page}")
        assert entry.page.startswith("http")
        if name != "cifar10_fs":
            page = Path(data.__file__).parent / "guides" / f"{entry.guide or name}.md"
            told = " ".join(page.read_text().split())
            assert entry.page.removeprefix("http") in told
            assert f"Licence: {entry.licence.split(' (')[0].split(',')[0]}" in told
            assert f"fedlib data check {entry.guide or name}" in told

"""A folder of one's own becomes a data set."""

import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedlib import data


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """Take away again what a test adds."""
    monkeypatch.setattr(data.catalogue, "DATASETS", {**data.DATASETS})
    monkeypatch.setattr(data.folder, "DATASETS", data.catalogue.DATASETS)


def write(folder: Path, **classes: tuple[int, int]) -> Path:
    """Write so many images of one grey value, 6 x 4 pixels, for each class."""
    for name, (count, grey) in classes.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            image = Image.new("RGB", (6, 4), (grey, grey, 255 - grey))
            image.save(folder / name / f"{i}.png")
    return folder


def test_classes_split_size_and_normalisation(tmp_path):
    folder = write(tmp_path / "mine", dark=(8, 51), light=(8, 204))
    data.add_folder("mine", folder, side=5, title="Mine")
    found = data.load("mine")
    assert found.title == "Mine"
    assert found.classes == ("dark", "light")
    assert found.train_x.shape == (12, 3, 5, 5)
    assert found.train_y.bincount().tolist() == [6, 6]  # three quarters of each
    assert found.test_y.bincount().tolist() == [2, 2]
    assert found.mean == (0.5, 0.5, 0.5)  # of 0.2 and 0.8
    assert found.std == (0.3, 0.3, 0.3)
    assert found.train_x[found.train_y == 0][:, 2].unique().tolist() == [204]


def test_grey_images_from_a_zip_are_the_folders(tmp_path):
    folder = write(tmp_path / "mine", dark=(4, 0), light=(4, 255))
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as file:
        for path in sorted(folder.rglob("*.png")):
            file.write(path, path.relative_to(tmp_path).as_posix())
    data.add_folder("zipped", tmp_path / "mine.zip", side=4, grey=True, trained=0.5)
    data.add_folder("mine", folder, side=4, grey=True, trained=0.5)
    one, other = data.load("zipped"), data.load("mine")
    assert one.train_x.shape == (4, 1, 4, 4)
    assert torch.equal(one.train_x, other.train_x)
    assert one.fingerprint == other.fingerprint


def test_normalisation_is_of_training_images_from_all_over(tmp_path, monkeypatch):
    """Of many images some are measured, but not those of the first classes alone."""
    monkeypatch.setattr(data.folder, "MEASURED", 5)
    folder = write(tmp_path / "mine", a=(8, 0), b=(8, 255))
    data.add_folder("mine", folder, side=4, grey=True)
    assert data.load("mine").std[0] > 0.1


def test_flat_images_can_be_normalised(tmp_path):
    data.add_folder("flat", write(tmp_path / "flat", a=(2, 9), b=(2, 9)), grey=True)
    assert data.load("flat").std == (0.001,)


@pytest.mark.parametrize(
    ("classes", "text"),
    [
        ({"a": (4, 0)}, "mine: got images of 1 classes, expected <class>/<image>"),
        ({"a": (4, 0), "b": (1, 0)}, "got images of 2 classes, 1 of b, expected"),
    ],
)
def test_a_folder_that_cannot_be_split_is_refused(tmp_path, classes, text):
    with pytest.raises(data.DataError, match=text):
        data.add_folder("mine", write(tmp_path / "mine", **classes))


def test_arguments_out_of_range_are_refused(tmp_path):
    folder = write(tmp_path / "mine", a=(4, 0), b=(4, 9))
    for name, more, text in (
        ("digits", {}, "name: got 'digits', which is taken"),
        ("my shapes", {}, "name: got 'my shapes', expected a-z"),
        ("mine", {"side": 0}, "side: got 0"),
        ("mine", {"trained": 1.0}, "trained: got 1.0"),
    ):
        with pytest.raises(ValueError, match=text):
            data.add_folder(name, folder, **more)
    data.add_folder("mine", folder)
    data.add_folder("mine", folder)  # a cell that is run again


def test_a_class_without_images_and_a_folder_that_is_not_there_are_named(tmp_path):
    """The class was left out without a word."""
    folder = write(tmp_path / "mine", dark=(8, 51), light=(8, 204), none=(0, 0))
    (folder / ".hidden").mkdir()
    with pytest.raises(data.DataError, match=r"mine: no image in none; fill or remove"):
        data.add_folder("mine", folder, side=5)
    (folder / "none").rmdir()
    data.add_folder("mine", folder, side=5)
    with pytest.raises(data.DataError, match="nowhere, which does not exist"):
        data.add_folder("other", tmp_path / "nowhere", side=5)

"""The commands of ``fedlib data``: what they print, how they exit."""

import pytest
from click.testing import CliRunner, Result

from fedlib import data
from fedlib.cli import main
from fedlib.support import paths
from tests.data.test_data import pictures
from tests.on_disk import pack, write_idx


def fedlib(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["data", *arguments])


def rows(text: str) -> dict[str, str]:
    return {line.split()[0]: line for line in text.splitlines()}


def test_status(source, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")  # nothing is cut
    write_idx(source / "MNIST")
    pack(source / "cifar10.zip", pictures() | {"train/cat/bad.png": b"no image"})
    data.load("cifar10", unreadable="skip")
    shown = rows(fedlib("status").output)
    assert set(data.DATASETS) | {"name", "searched:"} == set(shown)
    assert shown["digits"].split()[1:] == [
        *("digits", "built", "in", "no", "comes", "with", "scikit-learn")
    ]
    size = (source / "cifar10.zip").stat().st_size / 1000
    line = f"CIFAR-10 present {size:.1f} kB yes, 1 left out cifar10.zip"
    assert shown["cifar10"].split()[1:] == line.split()
    assert shown["mnist"].split()[1:3] == ["MNIST", "present"]
    assert "missing" in shown["fashion"]
    assert " fetch fashion" in shown["fashion"]
    assert shown["searched:"].endswith(str(paths.data_dirs()[1]))


def test_status_of_data_that_need_a_form(source, monkeypatch):
    entry = data.DATASETS["fashion"]._replace(downloads=())
    monkeypatch.setitem(data.DATASETS, "fashion", entry)
    assert " guide fashion" in rows(fedlib("status").output)["fashion"]


def test_check_names_what_it_left_out(source, monkeypatch):
    counts = ([3, 1], [0, 1])
    entry = data.DATASETS["cifar10"]._replace(classes=2, per_class=counts)
    monkeypatch.setitem(data.DATASETS, "cifar10", entry)
    path = source / "cifar10.zip"
    pack(path, pictures() | {"train/cat/bad.png": b"no image"})
    refused = fedlib("check", "cifar10")
    assert refused.exit_code == 1
    assert refused.output.startswith("Error: CIFAR-10: 1 unreadable image: train/cat")
    assert "--unreadable skip" in refused.output
    result = fedlib("check", "cifar10", "--unreadable", "skip")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[1].split() == ["train", "cat", "2", "3"]
    assert "images found: 32x32 pixels" in lines
    assert any(line.startswith("left out, unreadable: train/cat/bad") for line in lines)
    assert lines[-1] == "cifar10: ok"


def test_check_does_not_excuse_what_is_absent(source, monkeypatch):
    entry = data.DATASETS["cifar10"]._replace(classes=2, per_class=([5, 1], [0, 1]))
    monkeypatch.setitem(data.DATASETS, "cifar10", entry)
    pack(source / "cifar10.zip", pictures() | {"train/cat/bad.png": b"no image"})
    result = fedlib("check", "cifar10", "--unreadable", "skip")
    assert result.exit_code == 1
    told = "Error: CIFAR-10: train cat: 2 instead of 5; 1 unreadable left out: train/"
    assert result.output.startswith(told)


def test_fetch_goes_on_after_a_failure(monkeypatch):
    monkeypatch.delenv("FEDLIB_DATA", raising=False)
    result = fedlib("fetch", "mnist", "digits", "fashion", "--offline")
    assert result.exit_code == 1
    errors = [x for x in result.output.splitlines() if x.startswith("Error: ")]
    assert [error.split()[1] for error in errors] == ["MNIST", "Fashion-MNIST"]
    assert "digits comes with scikit-learn; there is nothing to fetch" in result.output
    assert data.DATASETS["mnist"].downloads[0].hash in result.output


def test_a_wrong_name_stops_before_the_first_download():
    result = fedlib("fetch", "digits", "mnits")
    assert result.exit_code == 2
    assert result.output.startswith("Error: dataset: got 'mnits', expected one of")
    assert fedlib("fetch").exit_code == 2


@pytest.mark.parametrize("name", ["cifar10", "digits"])
def test_guide(name):
    result = fedlib("guide", name)
    assert (result.exit_code, result.output) == (0, data.guide(name))


def test_guide_of_nothing():
    result = fedlib("guide", "mnits")
    assert result.exit_code == 2
    assert "expected one of" in result.output

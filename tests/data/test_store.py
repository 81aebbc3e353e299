"""Decoded data: whole or absent, made once, checked; and what is missing or wrong."""

import functools
import gzip
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fedlib import data
from fedlib.data import DataError, store
from fedlib.data.types import Block, Raw
from fedlib.support.paths import ROOT
from tests.data.test_data import assert_tiny_idx, pictures
from tests.on_disk import idx, pixels, unpack, write_idx


def test_the_fingerprint_is_of_the_content(source, tmp_path, monkeypatch):
    write_idx(source / "MNIST")
    first = data.load("mnist").fingerprint
    other = tmp_path / "other"
    write_idx(other / "MNIST", packed=False)
    monkeypatch.setenv("FEDLIB_DATA", str(other))
    assert data.load("mnist").fingerprint == first
    changed = pixels(6, 28, 28)
    changed[0, 0, 0] ^= 1
    (other / "MNIST" / "raw" / "train-images-idx3-ubyte").write_bytes(idx(changed))
    assert data.load("mnist").fingerprint != first


def test_other_classes_than_the_sets_own_are_told(source, caplog):
    """C05's siblings: what is stored as numbers shifts as folders do."""
    write_idx(source / "MNIST")
    data.load("mnist")
    (line,) = caplog.messages
    assert line == (
        "MNIST has images of 3 classes (3, 7, 9) instead of 10, numbered without gaps"
    )
    with pytest.raises(
        DataError, match=r"3 classes \(3, 7, 9\) instead of 10; 6 train"
    ):
        data.check("mnist")


# the decoded file


def counted(monkeypatch) -> list[str]:
    """Return the list of data sets decoded from now on."""
    real, seen = store._decode, []

    def decode(name, *rest):
        seen.append(name)
        real(name, *rest)

    monkeypatch.setattr(store, "_decode", decode)
    return seen


def decoded_folder(cache: Path) -> Path:
    (folder,) = (p for p in (cache / "decoded").iterdir() if p.is_dir())
    return folder


@pytest.mark.parametrize("file", ["train_x.npy", "test_x.npy", "labels.safetensors"])
@pytest.mark.parametrize("damage", ["half", "empty", "noise", "absent"])
def test_a_damaged_decoded_file_is_decoded_again(
    source, own_cache, monkeypatch, damage, file
):
    write_idx(source / "MNIST")
    seen = counted(monkeypatch)
    first = data.load("mnist")
    data.load("mnist")
    assert seen == ["mnist"]
    path = decoded_folder(own_cache) / file
    content = path.read_bytes()
    path.unlink()  # the old file stays mapped
    broken = {"half": content[: len(content) // 2], "empty": b"", "noise": b"\xff" * 99}
    if damage != "absent":
        path.write_bytes(broken[damage])
    store._open.cache_clear()
    again = data.load("mnist")
    assert seen == ["mnist", "mnist"]
    assert_tiny_idx(again)
    assert again.fingerprint == first.fingerprint
    store._open.cache_clear()
    assert_tiny_idx(data.load("mnist"))
    assert len(seen) == 2  # whole again


def overwritten(folder: Path, name: str, change) -> None:
    """Change a decoded split as someone would who writes into a cache."""
    path = folder / f"{name}.npy"
    x = np.load(path)
    path.unlink()  # the old file stays mapped
    np.save(path, change(x))


def relabelled(folder: Path, tensors: dict | None = None, **about: str) -> None:
    path = folder / "labels.safetensors"
    with safe_open(path, "pt") as file:
        found = {key: file.get_tensor(key) for key in file.keys()}
        told = file.metadata()
    kept = {k: v for k, v in (found | (tensors or {})).items() if v is not None}
    save_file(kept, path, {k: v for k, v in (told | about).items() if v != "gone"})


CHANGES = {
    "zeros": lambda f: overwritten(f, "train_x", lambda x: x * 0),
    "inverted": lambda f: overwritten(f, "test_x", lambda x: 255 - x),
    "floats": lambda f: overwritten(f, "train_x", lambda x: x.astype(np.float32)),
    "flat": lambda f: overwritten(f, "train_x", lambda x: x[:, 0]),
    "fewer": lambda f: overwritten(f, "train_x", lambda x: x[:-1]),
    "two sizes": lambda f: overwritten(f, "test_x", lambda x: x[..., :9]),
    "label 1009": lambda f: relabelled(f, {"train_y": torch.full((6,), 1009)}),
    "three labels": lambda f: relabelled(f, {"train_y": torch.arange(3)}),
    "real labels": lambda f: relabelled(f, {"train_y": torch.zeros(6)}),
    "negative label": lambda f: relabelled(f, {"test_y": torch.full((4,), -1)}),
    "other labels": lambda f: relabelled(f, {"test_y": torch.zeros(4).long()}),
    "no labels": lambda f: relabelled(f, {"test_y": None}),
    "no classes": lambda f: relabelled(f, classes="gone"),
    "classes no list": lambda f: relabelled(f, classes='{"a": 1}'),
    "classes no text": lambda f: relabelled(f, classes="[1, 2, 3]"),
    "classes no JSON": lambda f: relabelled(f, classes="["),
    "fewer classes": lambda f: relabelled(f, classes='["3"]'),
    "another hash": lambda f: relabelled(f, fingerprint="0" * 16),
    "groups": lambda f: relabelled(f, groups='["a"]'),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_decoded_data_that_are_not_what_was_written_are_decoded_again(
    source, own_cache, monkeypatch, caplog, kind
):
    write_idx(source / "MNIST")
    first = data.load("mnist").fingerprint
    seen = counted(monkeypatch)
    store._open.cache_clear()
    data.load("mnist")
    assert seen == []
    CHANGES[kind](decoded_folder(own_cache))
    store._open.cache_clear()
    again = data.load("mnist")
    assert seen == ["mnist"]
    assert_tiny_idx(again)
    assert again.fingerprint == first
    assert "decoded mnist in the cache is damaged (" in caplog.text


def test_what_has_been_hashed_is_hashed_again_when_its_files_change(
    source, own_cache, monkeypatch
):
    write_idx(source / "MNIST")
    data.load("mnist")
    real, hashed = store.fingerprint, []
    monkeypatch.setattr(store, "fingerprint", lambda p: hashed.append(1) or real(p))
    for _ in range(2):
        store._open.cache_clear()
        data.load("mnist")
    assert hashed == []
    os.utime(decoded_folder(own_cache) / "train_x.npy")
    for _ in range(2):
        store._open.cache_clear()
        data.load("mnist")
    assert hashed == [1]


def test_who_may_not_write_reads_decoded_data(source, own_cache, monkeypatch):
    write_idx(source / "MNIST")
    data.load("mnist")
    folder = decoded_folder(own_cache)
    for path in (folder, *folder.iterdir()):  # as a umask of 022 has it
        assert path.stat().st_mode & 0o044 == 0o044, path
    store._open.cache_clear()
    monkeypatch.setattr(store, "locked", lambda *_: pytest.fail("locked to read"))
    (folder / store.SEEN).unlink()

    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(store, "write_text", refused)
    assert_tiny_idx(data.load("mnist"))


def test_a_changed_source_is_decoded_anew(source, monkeypatch):
    write_idx(source / "MNIST")
    seen = counted(monkeypatch)
    data.load("mnist")
    path = source / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx(255 - pixels(6, 28, 28))))
    os.utime(path, ns=(10**18, 10**18))
    changed = data.load("mnist")
    assert seen == ["mnist", "mnist"]
    assert np.array_equal(changed.train_x[:, 0].numpy(), 255 - pixels(6, 28, 28))


TWINS = """
import os, sys, time
from pathlib import Path
from fedlib import data
from fedlib.data import store

tally, go, decode = Path(sys.argv[1]), time.monotonic() + 0.3, store._decode

def slow(*rest):
    with open(tally, "a") as file:
        file.write("decoded ")
    time.sleep(0.5)
    decode(*rest)

store._decode = slow
child = os.fork()
while time.monotonic() < go:
    pass
found = data.load("mnist")
assert found.train_y.tolist() == [0, 1, 2, 0, 1, 2]
print(found.fingerprint, flush=True)
if child:
    sys.exit(os.waitpid(child, 0)[1])
os._exit(0)
"""


@pytest.mark.slow  # a fresh process imports the library
def test_two_processes_decode_once(source, tmp_path):
    write_idx(source / "MNIST")
    tally = tmp_path / "tally"
    done = subprocess.run(
        [sys.executable, "-c", TWINS, str(tally)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert tally.read_text().split() == ["decoded"]
    assert done.stdout.split() == [data.load("mnist").fingerprint] * 2


def test_the_source_folder_may_be_read_only(source):
    write_idx(source / "MNIST")
    unpack(source / "cifar10", pictures())

    def listing():
        every = [source, *sorted(source.rglob("*"))]
        return [(p, p.stat().st_mtime_ns, p.stat().st_size) for p in every]

    before = listing()
    folders = [p for p, *_ in before if p.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert_tiny_idx(data.load("mnist"))
        assert len(data.load("cifar10").train_y) == 3
        assert listing() == before  # also where root may write everywhere
    finally:
        for folder in folders:
            folder.chmod(0o755)


@pytest.mark.parametrize(
    ("order", "names", "numbers"),
    [
        ((), ("MNIST", "SYN", "USPS"), [2, 0, 1]),
        (("USPS", "SYN", "MNIST"), ("USPS", "SYN", "MNIST"), [0, 2, 1]),
    ],
    ids=["sorted", "the entry's"],
)
def test_the_order_of_groups(monkeypatch, order, names, numbers):
    blocks = [
        Block(torch.zeros(3, 1, 2, 2).byte(), [0, 1, 0], ["USPS", "MNIST", "SYN"])
    ]
    entry = data.DATASETS["digits"]._replace(
        read=lambda sources, notes: Raw(blocks, blocks), groups=order
    )
    monkeypatch.setitem(data.DATASETS, "domains", entry)
    found = data.load("domains").groups
    assert found is not None
    assert found.names == names
    assert found.train.tolist() == numbers
    assert found.test.tolist() == numbers


# missing, counted, listed


def test_the_message_of_a_missing_data_set_says_where_and_what_to_do(source, own_cache):
    for name, place in {"fashion": "FashionMNIST/raw/", "cifar10": "cifar10-"}.items():
        with pytest.raises(DataError) as caught:
            data.load(name)
        told = str(caught.value)
        assert told.startswith(data.DATASETS[name].title)
        assert f"Looked in: {source}, {own_cache / 'data'}" in told
        assert place in told
        assert "FEDLIB_DATA" in told
        assert f"fedlib data fetch {name}" in told
        assert told.endswith(f"licence: {data.DATASETS[name].page}")


def test_an_unknown_name_lists_the_known_ones():
    for function in (data.load, data.fetch):
        with pytest.raises(ValueError, match=r"got 'mnits', expected one of .*'mnist'"):
            function("mnits")


@pytest.mark.parametrize("name", ["digits", "noise"])
def test_check_of_embedded_data_is_official(name):
    found = data.check(name)
    assert (found["images"] == found["official"]).all()
    assert len(found) == 20
    assert found["images"].sum() == {"digits": 1797, "noise": 2400}[name]


def test_check_lists_all_differences(monkeypatch):
    entry = data.DATASETS["digits"]
    train, test = (list(counts) for counts in entry.per_class)
    train[3] += 1
    test[0] -= 2
    changed = entry._replace(per_class=(train, test))
    monkeypatch.setitem(data.DATASETS, "digits", changed)
    told = "^digits: train 3: 137 instead of 138; test 0: 45 instead of 43$"
    with pytest.raises(DataError, match=told):
        data.check("digits")


def test_check_of_data_without_some_classes(source):
    write_idx(source / "MNIST")
    told = (
        r"MNIST: 3 classes \(3, 7, 9\) instead of 10; 6 training images instead of 60"
    )
    with pytest.raises(DataError, match=told):
        data.check("mnist")


def test_a_killed_decode_leaves_nothing_behind(source, own_cache, monkeypatch):
    write_idx(source / "MNIST")

    def killed(*_):  # as by SIGKILL: nothing is tidied up
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(store.shutil, "rmtree", lambda *_, **__: None)
        patch.setattr(store, "_write_labels", killed)
        with pytest.raises(SystemExit):
            data.load("mnist")
    (left,) = (p for p in (own_cache / "decoded").iterdir() if p.is_dir())
    assert left.name.startswith(".mnist-")
    assert_tiny_idx(data.load("mnist"))
    assert decoded_folder(own_cache).name.startswith("mnist-")


def test_check_finds_one_changed_byte_and_decodes_again(own_cache):
    first = data.load("digits")
    path = decoded_folder(own_cache) / "test_x.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()  # the old file stays mapped
    path.write_bytes(content)
    store._open.cache_clear()
    broken = data.load("digits")
    assert broken.fingerprint == first.fingerprint  # the reader cannot tell
    data.check("digits")
    again = data.load("digits")
    for kind in ("train_x", "train_y", "test_x", "test_y"):
        assert torch.equal(getattr(again, kind), getattr(first, kind))


def test_status_says_what_is_here(source):
    write_idx(source / "MNIST")
    members = pictures()
    unpack(source / "cifar10", members)
    found = data.status().set_index("name")
    here = {"digits", "noise", "mnist", "cifar10", "cifar10_fs"}
    assert set(found.index[found["present"]]) == here
    assert found.loc["mnist", "source"].startswith(str(source))
    sizes = sum(p.stat().st_size for p in (source / "MNIST" / "raw").iterdir())
    assert found.loc["mnist", "bytes"] == sizes
    assert found.loc["cifar10", "bytes"] == sum(map(len, members.values()))


# real data


@pytest.fixture(scope="session")
def decoded_once(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("decoded")


@pytest.fixture
def real(decoded_once, monkeypatch):
    """Return ``data.load`` on real data, decoded once for all tests, or skip."""
    if not os.environ.get("FEDLIB_DATA"):
        pytest.skip("FEDLIB_DATA is not set: no real data")
    monkeypatch.setenv("FEDLIB_CACHE", str(decoded_once))

    @functools.wraps(data.load)
    def load(name: str) -> data.Dataset:
        if not data.locate(name):
            pytest.skip(f"FEDLIB_DATA has no {name}")
        return data.load(name)

    return load


@pytest.mark.parametrize(
    ("name", "train", "test", "shape"),
    [
        ("mnist", 60_000, 10_000, (1, 28, 28)),
        ("fashion", 60_000, 10_000, (1, 28, 28)),
        pytest.param(*("cifar10", 50_000, 10_000, (3, 32, 32)), marks=pytest.mark.slow),
    ],
)
def test_real_data_have_the_official_counts(real, name, train, test, shape):
    found = real(name)
    assert found.train_x.shape == (train, *shape)
    assert found.test_x.shape == (test, *shape)
    assert len(found.classes) == 10
    counts = data.check(name)
    assert (counts["images"] == counts["official"]).all()
    assert counts["images"].sum() == train + test


@pytest.mark.slow  # decodes CIFAR-10 first
def test_the_second_load_of_cifar10_is_fast(real):
    first = real("cifar10")
    store._open.cache_clear()
    begun = time.perf_counter()
    second = real("cifar10")
    assert time.perf_counter() - begun < 1
    assert second.fingerprint == first.fingerprint
    assert torch.equal(second.test_x[-1], first.test_x[-1])

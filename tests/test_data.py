"""Data sets: every format read, every fault named, nothing half-written kept."""

import functools
import gc
import gzip
import hashlib
import http.server
import io
import os
import pickle
import struct
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets as tv

from fedlib import data
from fedlib.data import DataError
from fedlib.paths import ROOT
from fedlib.rng import generator


def pixels(*shape: int, name: str = "pixels") -> np.ndarray:
    drawn = torch.randint(0, 256, shape, generator=generator(0, name))
    return drawn.to(torch.uint8).numpy()


@pytest.fixture
def source(tmp_path, monkeypatch) -> Path:
    """Return an empty folder that data are looked for in."""
    folder = tmp_path / "source"
    folder.mkdir()
    monkeypatch.setenv("FEDLIB_DATA", str(folder))
    return folder


# IDX


def idx(values: np.ndarray) -> bytes:
    """Return an IDX file: two zero bytes, type 8, dimensions, sizes, values."""
    head = bytes([0, 0, 8, values.ndim]) + struct.pack(
        f">{values.ndim}I", *values.shape
    )
    return head + values.tobytes()


TRAIN_Y = np.array([3, 7, 9, 3, 7, 9], dtype=np.uint8)
TEST_Y = np.array([9, 3, 3, 7], dtype=np.uint8)


def idx_files() -> dict[str, bytes]:
    return {
        "train-images-idx3-ubyte": idx(pixels(6, 28, 28)),
        "train-labels-idx1-ubyte": idx(TRAIN_Y),
        "t10k-images-idx3-ubyte": idx(pixels(4, 28, 28, name="test")),
        "t10k-labels-idx1-ubyte": idx(TEST_Y),
    }


def write_idx(folder: Path, packed: bool = True) -> None:
    raw = folder / "raw"
    raw.mkdir(parents=True)
    for name, content in idx_files().items():
        if packed:
            (raw / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (raw / name).write_bytes(content)


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
    assert not list((own_cache / "decoded").glob("*.safetensors"))


def test_as_many_labels_as_images(source):
    write_idx(source / "MNIST", packed=False)
    path = source / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    path.write_bytes(idx(TRAIN_Y[:-1]))
    with pytest.raises(DataError, match="MNIST: 6 train images, 5 labels"):
        data.load("mnist")


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


# CIFAR-10 as images and as batches


def picture(number: int, kind: str = "JPEG", side: int = 32) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(pixels(side, side, 3, name=f"picture {number}"))
    image.save(buffer, kind, quality=90)
    return buffer.getvalue()


def decoded(content: bytes) -> torch.Tensor:
    with Image.open(io.BytesIO(content)) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def pictures() -> dict[str, bytes]:
    """Return members out of order; the reader sorts them by name."""
    names = ["train/dog/b.jpg", "train/cat/a.jpeg", "train/cat/c.JPG", "test/dog/a.png"]
    kinds = {"png": "PNG"}
    return {
        name: picture(number, kinds.get(name[-3:], "JPEG"))
        for number, name in enumerate(names)
    }


def pack(path: Path, members: dict[str, bytes], prefix: str = "") -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(prefix + name, content)


def unpack(folder: Path, members: dict[str, bytes]) -> None:
    for name, content in members.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


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
    assert found.augment == data.Augment(4, True)


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
    told = r"is \(16, 16\), the others" if fault == "other size" else "is not a readab"
    with pytest.raises(DataError, match=f"cifar10.*{name} {told}"):
        data.load("cifar10")
    assert not list((own_cache / "decoded").glob("*.safetensors"))


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


@pytest.mark.parametrize("kind", [np.int32, np.int8, np.float32])
def test_a_negative_label_is_refused_with_value_and_position(kind):
    labels = np.array([3, 7, -1, 9], dtype=kind)
    with pytest.raises(
        DataError, match=r"labels: got -1(\.0)? at position 2, expected"
    ):
        data.map_labels(labels)


# the decoded file


def counted(monkeypatch) -> list[str]:
    """Return the list of data sets decoded from now on."""
    real, seen = data._decode, []

    def decode(name, *rest):
        seen.append(name)
        real(name, *rest)

    monkeypatch.setattr(data, "_decode", decode)
    return seen


@pytest.mark.parametrize("damage", ["half", "empty", "noise"])
def test_a_damaged_decoded_file_is_decoded_again(
    source, own_cache, monkeypatch, damage
):
    write_idx(source / "MNIST")
    seen = counted(monkeypatch)
    first = data.load("mnist")
    data.load("mnist")
    assert seen == ["mnist"]
    (path,) = (own_cache / "decoded").glob("*.safetensors")
    content = path.read_bytes()
    path.unlink()  # the old file stays mapped
    broken = {"half": content[: len(content) // 2], "empty": b"", "noise": b"\xff" * 99}
    path.write_bytes(broken[damage])
    data._open.cache_clear()
    again = data.load("mnist")
    assert seen == ["mnist", "mnist"]
    assert_tiny_idx(again)
    assert again.fingerprint == first.fingerprint
    data._open.cache_clear()
    assert_tiny_idx(data.load("mnist"))
    assert len(seen) == 2  # whole again


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

tally, go, decode = Path(sys.argv[1]), time.monotonic() + 0.3, data._decode

def slow(*rest):
    with open(tally, "a") as file:
        file.write("decoded ")
    time.sleep(0.5)
    decode(*rest)

data._decode = slow
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


def test_offline_nothing_is_fetched_and_the_message_says_what_to_do(
    source, monkeypatch
):
    def refuse(*_, **__):
        raise AssertionError("downloaded")

    monkeypatch.setattr(tv.mnist, "download_and_extract_archive", refuse)
    monkeypatch.setenv("FEDLIB_OFFLINE", "1")
    with pytest.raises(DataError) as caught:
        data.fetch("mnist")
    for told in (
        "MNIST: FEDLIB_OFFLINE is set",
        "MNIST/raw/",
        str(source),
        "t10k-labels-idx1-ubyte.gz (md5 ec29112dd5afa0611ce80d1b7f02629c)",
        *tv.MNIST.mirrors,
    ):
        assert told in str(caught.value)
    with pytest.raises(DataError, match="cifar-10-python.tar.gz .md5 c58f30108f718f9"):
        data.fetch("cifar10")


@pytest.mark.parametrize("name", ["digits", "noise"])
def test_there_is_nothing_to_fetch_for_embedded_data(name):
    with pytest.raises(DataError, match=f"{name} .*there is nothing to fetch"):
        data.fetch(name)


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
    changed = {**data.DATASETS, "digits": entry._replace(per_class=(train, test))}
    monkeypatch.setattr(data, "DATASETS", changed)
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


def test_check_finds_one_changed_byte_and_decodes_again(own_cache):
    first = data.load("digits")
    (path,) = (own_cache / "decoded").glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()  # the old file stays mapped
    path.write_bytes(content)
    data._open.cache_clear()
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
    assert found["present"].to_dict() == {
        "digits": True,
        "noise": True,
        "mnist": True,
        "fashion": False,
        "cifar10": True,
    }
    assert found.loc["mnist", "source"].startswith(str(source))
    sizes = sum(p.stat().st_size for p in (source / "MNIST" / "raw").iterdir())
    assert found.loc["mnist", "bytes"] == sizes
    assert found.loc["cifar10", "bytes"] == sum(map(len, members.values()))


# fetch, from a server of this machine


class Mirrors(http.server.BaseHTTPRequestHandler):
    """Serve ``/good/<file>``; answer 503 elsewhere."""

    files: dict[str, bytes]
    asked: list[str]
    cut = 0  # bytes that the good mirror leaves out of a file

    def do_GET(self) -> None:
        self.asked.append(self.path)
        folder, _, name = self.path[1:].partition("/")
        if folder != "good":
            self.send_error(503)
            return
        content = self.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) - self.cut])

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def mirrors(monkeypatch):
    """Point torchvision's MNIST to two local mirrors, the first one down."""
    files = {f"{k}.gz": gzip.compress(v) for k, v in idx_files().items()}
    handler = type("Handler", (Mirrors,), {"files": files, "asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    root = f"http://127.0.0.1:{server.server_port}"
    sums = {
        k: hashlib.md5(v, usedforsecurity=False).hexdigest() for k, v in files.items()
    }
    monkeypatch.setattr(tv.MNIST, "mirrors", [f"{root}/down/", f"{root}/good/"])
    monkeypatch.setattr(tv.MNIST, "resources", list(sums.items()))
    monkeypatch.delenv("FEDLIB_OFFLINE", raising=False)
    monkeypatch.delenv("FEDLIB_DATA", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield handler
    gc.collect()  # torchvision leaves the sockets of a failed download open
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_fetch_takes_the_next_mirror_when_one_is_down(mirrors, own_cache):
    assert data.fetch("mnist") == own_cache / "data"
    assert any(path.startswith("/down/") for path in mirrors.asked)
    assert [p.name for p in (own_cache / "data").iterdir()] == ["MNIST"]
    assert_tiny_idx(data.load("mnist"))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("fault", ["truncated", "another content", "all down"])
def test_a_failed_fetch_keeps_nothing_and_the_next_one_works(
    mirrors, own_cache, monkeypatch, fault
):
    name = "t10k-labels-idx1-ubyte.gz"  # the last file; the others arrive
    good = mirrors.files[name]
    with monkeypatch.context() as patch:
        if fault == "truncated":
            patch.setattr(mirrors, "cut", 5)
        elif fault == "all down":
            patch.setattr(tv.MNIST, "mirrors", tv.MNIST.mirrors[:1])
        else:
            patch.setitem(mirrors.files, name, gzip.compress(idx(TEST_Y[::-1].copy())))
        with pytest.raises(
            DataError, match="(?s)MNIST: download failed .*; nothing kept"
        ):
            data.fetch("mnist")
    assert list((own_cache / "data").iterdir()) == []
    with pytest.raises(DataError, match="MNIST is not here"):
        data.load("mnist")
    assert mirrors.files[name] == good
    data.fetch("mnist")
    assert_tiny_idx(data.load("mnist"))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_failed_fetch_leaves_what_was_there(mirrors, monkeypatch):
    data.fetch("mnist")
    before = data.load("mnist").fingerprint
    monkeypatch.setattr(tv.MNIST, "mirrors", tv.MNIST.mirrors[:1])
    with pytest.raises(DataError, match="nothing kept"):
        data.fetch("mnist")
    assert data.load("mnist").fingerprint == before


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
        if not data._locate(name):
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
    data._open.cache_clear()
    begun = time.perf_counter()
    second = real("cifar10")
    assert time.perf_counter() - begun < 1
    assert second.fingerprint == first.fingerprint
    assert torch.equal(second.test_x[-1], first.test_x[-1])

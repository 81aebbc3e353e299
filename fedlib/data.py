"""Data sets: found on disk, decoded once, loaded as tensors.

``load`` never downloads; ``fetch`` does, with torchvision's own classes and mirrors.
Folders are searched in the order of ``fedlib.paths.data_dirs``. What is found is
decoded once into a safetensors file of the cache and memory-mapped afterwards.
"""

import functools
import gzip
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from filelock import FileLock
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import Tensor
from torchvision import datasets as tv

from fedlib.augment import Augment
from fedlib.files import atomic_write
from fedlib.paths import cache_dir, data_dirs
from fedlib.rng import generator

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png"}
SPLITS = ("train", "test")
DAMAGE = (  # what readers raise on a file that is cut off or something else
    AssertionError,
    EOFError,
    RuntimeError,
    ValueError,
    gzip.BadGzipFile,
    zipfile.BadZipFile,
    zlib.error,
)


class DataError(FileNotFoundError):
    """A data set is missing, incomplete or unreadable; the message says what to do."""

    def __str__(self) -> str:
        """Return the message alone."""
        return str(self.args[0])


class Dataset(NamedTuple):
    """Both splits of a data set, as stored: no transform applied."""

    name: str
    train_x: Tensor  # uint8 [n, c, h, w]
    train_y: Tensor  # int64 [n], 0..C-1
    test_x: Tensor
    test_y: Tensor
    classes: tuple[str, ...]  # the original label of each class
    mean: tuple[float, ...]  # of the papers' normalisation, per channel, in [0, 1]
    std: tuple[float, ...]
    augment: Augment | None  # of training images
    title: str  # as tables print it
    fingerprint: str  # hash of the content


class Raw(NamedTuple):
    """What a reader returns before labels are mapped."""

    train_x: Tensor
    train_y: list
    test_x: Tensor
    test_y: list
    title: str


class Entry(NamedTuple):
    """How one data set is found, read, normalised and checked."""

    title: str
    find: Callable[[Path], list[Path]]  # folder -> files of the source, [] if absent
    read: Callable[[list[Path]], Raw]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment | None
    per_class: tuple[list[int], list[int]]  # official counts, train and test
    place: str  # where a person puts the files
    page: str = ""  # origin and licence
    origin: Any = None  # torchvision's class that downloads it
    files: tuple[str, ...] = ()  # all of these are needed, each plain or with .gz


def map_labels(raw: Iterable) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels mapped to 0..C-1 in sorted order, and the original ones.

    Raises
    ------
    DataError
        A negative label, naming value and position.
    """
    values = [v.item() if isinstance(v, np.generic | Tensor) else v for v in raw]
    for position, value in enumerate(values):
        if isinstance(value, int | float) and value < 0:
            raise DataError(
                f"labels: got {value} at position {position}, expected 0 or more"
            )
    names = sorted(set(values))
    place = {name: number for number, name in enumerate(names)}
    return torch.tensor([place[v] for v in values]), tuple(str(n) for n in names)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what a reader raises on a damaged file into a message that names it."""
    try:
        yield
    except DAMAGE as error:
        reason = str(error) or type(error).__name__
        raise DataError(
            f"{path} is damaged ({reason}); replace it, or remove it and fetch again"
        ) from error


# MNIST family: IDX files, gzipped or not


def _idx_files(folder: str) -> tuple[str, ...]:
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    return tuple(f"{folder}/raw/{s}-{k}" for s in ("train", "t10k") for k in kinds)


def _plain_or_gz(root: Path, name: str) -> list[Path]:
    return [p for p in (root / name, root / f"{name}.gz") if p.exists()][:1]


def _find_idx(folder: str) -> Callable[[Path], list[Path]]:
    def find(root: Path) -> list[Path]:
        found = [_plain_or_gz(root, name) for name in _idx_files(folder)]
        return [path for paths in found for path in paths] if all(found) else []

    return find


def _read_idx(title: str) -> Callable[[list[Path]], Raw]:
    def read(paths: list[Path]) -> Raw:
        parts = []
        with tempfile.TemporaryDirectory() as scratch:
            for path in paths:
                images = "images" in path.name
                reader = (
                    tv.mnist.read_image_file if images else tv.mnist.read_label_file
                )
                with _reading(path):
                    plain = path
                    if path.suffix == ".gz":
                        plain = Path(scratch) / path.stem
                        with gzip.open(path) as packed, open(plain, "wb") as out:
                            shutil.copyfileobj(packed, out)
                    parts.append(reader(str(plain)))
        train_x, train_y, test_x, test_y = parts
        return Raw(
            train_x.unsqueeze(1),
            train_y.tolist(),
            test_x.unsqueeze(1),
            test_y.tolist(),
            title,
        )

    return read


# CIFAR-10: torchvision's batches, or images by class in a folder or a zip


def _find_cifar10(root: Path) -> list[Path]:
    batches = root / "cifar-10-batches-py"
    if batches.is_dir():
        return [batches]
    for name in ("cifar10-jpeg.zip", "cifar10.zip", "cifar10"):
        if (root / name).exists():
            return [root / name]
    return []


def _read_cifar10(paths: list[Path]) -> Raw:
    (path,) = paths
    with _reading(path):
        if path.name != "cifar-10-batches-py":
            title = "CIFAR-10 (JPEG)" if "jpeg" in path.name else "CIFAR-10"
            return read_image_tree(path, title)
        parts = []
        for train in (True, False):
            split = tv.CIFAR10(str(path.parent), train=train, download=False)
            parts += [
                torch.from_numpy(split.data).permute(0, 3, 1, 2),
                [split.classes[label] for label in split.targets],
            ]
    return Raw(parts[0], parts[1], parts[2], parts[3], "CIFAR-10")


def _members(path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield image names ``split/class/file`` in sorted order, and how to open each."""
    if path.is_dir():
        files = (p for p in path.glob("*/*/*") if p.suffix.lower() in IMAGE_SUFFIXES)
        for file in sorted(files):
            yield file.relative_to(path).as_posix(), functools.partial(open, file, "rb")
        return
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            pure = PurePosixPath(name)
            if pure.is_absolute() or ".." in pure.parts:
                raise DataError(
                    f"{path.name}: member {name!r} leaves the archive; refused"
                )
            if pure.suffix.lower() in IMAGE_SUFFIXES:
                yield name, functools.partial(archive.open, name)


def read_image_tree(path: Path, title: str) -> Raw:
    """Read ``train|test/<class>/*`` images from a folder or a zip, RGB, one size.

    Raises
    ------
    DataError
        An unreadable image or one of another size, named; a split without images.
    """
    images: dict[str, list[np.ndarray]] = {s: [] for s in SPLITS}
    labels: dict[str, list[str]] = {s: [] for s in SPLITS}
    size = None
    for name, opened in _members(path):
        parts = PurePosixPath(name).parts
        if len(parts) < 3 or parts[-3] not in SPLITS:
            continue
        try:
            with opened() as file, Image.open(file) as image:  # type: ignore[attr-defined]
                size = size or image.size
                if image.size != size:
                    raise DataError(
                        f"{path.name}: {name} is {image.size}, the others are {size}"
                    )
                images[parts[-3]].append(np.asarray(image.convert("RGB")))
        except (OSError, SyntaxError, ValueError) as error:  # as Pillow raises them
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path.name}: {name} is not a readable image") from error
        labels[parts[-3]].append(parts[-2])
    for split in SPLITS:
        if not images[split]:
            raise DataError(f"{path.name}: no images under {split}/<class>/")
    arrays = [torch.from_numpy(np.stack(images[s])).permute(0, 3, 1, 2) for s in SPLITS]
    return Raw(arrays[0], labels["train"], arrays[1], labels["test"], title)


# Embedded and generated


def _read_digits(paths: list[Path]) -> Raw:
    """Return scikit-learn's digits; of each class the first 75 % are for training."""
    found: Any = load_digits()
    x = torch.from_numpy((found.images * 255 / 16).round().astype(np.uint8)).unsqueeze(
        1
    )
    y = torch.from_numpy(found.target.astype(np.int64))
    rows = [torch.nonzero(y == c).flatten() for c in range(10)]
    train = torch.cat([r[: len(r) * 3 // 4] for r in rows]).sort().values
    test = torch.cat([r[len(r) * 3 // 4 :] for r in rows]).sort().values
    return Raw(x[train], y[train].tolist(), x[test], y[test].tolist(), "digits")


def _read_noise(paths: list[Path]) -> Raw:
    """Return noise of CIFAR-10's shape: 200 training and 40 test images per class."""
    draw = generator(0, "noise dataset")
    x = torch.randint(0, 256, (2400, 3, 32, 32), generator=draw).to(torch.uint8)
    y = (torch.arange(2400) % 10).tolist()
    return Raw(x[:2000], y[:2000], x[2000:], y[2000:], "noise")


def _always(root: Path) -> list[Path]:
    return [Path(__file__)]


GREY = ((0.1307,), (0.3081,))
MNIST_COUNTS = (
    [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
)
DIGITS_COUNTS = (
    [133, 136, 132, 137, 135, 136, 135, 134, 130, 135],
    [45, 46, 45, 46, 46, 46, 46, 45, 44, 45],
)
DATASETS = {
    "digits": Entry(
        title="digits",
        find=_always,
        read=_read_digits,
        mean=(0.306,),
        std=(0.375,),
        augment=None,
        per_class=DIGITS_COUNTS,
        place="comes with scikit-learn",
    ),
    "noise": Entry(
        title="noise",
        find=_always,
        read=_read_noise,
        mean=(0.5,) * 3,
        std=(0.29,) * 3,
        augment=None,
        per_class=([200] * 10, [40] * 10),
        place="is generated",
    ),
    "mnist": Entry(
        title="MNIST",
        find=_find_idx("MNIST"),
        read=_read_idx("MNIST"),
        mean=GREY[0],
        std=GREY[1],
        augment=None,
        per_class=MNIST_COUNTS,
        place="MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]",
        page="https://huggingface.co/datasets/ylecun/mnist",
        origin=tv.MNIST,
        files=_idx_files("MNIST"),
    ),
    "fashion": Entry(
        title="Fashion-MNIST",
        find=_find_idx("FashionMNIST"),
        read=_read_idx("Fashion-MNIST"),
        mean=GREY[0],
        std=GREY[1],
        augment=None,
        per_class=([6000] * 10, [1000] * 10),
        place="FashionMNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]",
        page="https://github.com/zalandoresearch/fashion-mnist",
        origin=tv.FashionMNIST,
        files=_idx_files("FashionMNIST"),
    ),
    "cifar10": Entry(
        title="CIFAR-10",
        find=_find_cifar10,
        read=_read_cifar10,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        augment=Augment(4, True),
        per_class=([5000] * 10, [1000] * 10),
        place="cifar-10-batches-py/, or images as cifar10/{train,test}/<class>/, or "
        "those folders in cifar10-jpeg.zip",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        origin=tv.CIFAR10,
    ),
}


def _entry(name: str) -> Entry:
    if name not in DATASETS:
        raise ValueError(f"dataset: got {name!r}, expected one of {list(DATASETS)}")
    return DATASETS[name]


def _locate(name: str) -> list[Path]:
    for root in data_dirs():
        found = _entry(name).find(root)
        if found:
            return found
    return []


def _shallow(source: Path) -> list[Path]:
    """Return a source and, of a folder, two levels: their times tell of new files."""
    return [source, *sorted(source.glob("*")), *sorted(source.glob("*/*"))]


def _decoded_path(name: str, sources: list[Path]) -> Path:
    """Return the cache file of a source; another source has another file."""
    parts = [p for source in sources for p in _shallow(source)]
    facts = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in parts]
    mark = hashlib.sha256(json.dumps([2, facts]).encode()).hexdigest()[:12]
    return cache_dir() / "decoded" / f"{name}-{mark}.safetensors"


def _fingerprint(parts: Iterable[Tensor]) -> str:
    content = hashlib.sha256()
    for part in parts:
        content.update(part.numpy().tobytes())
    return content.hexdigest()[:16]


def _decode(name: str, sources: list[Path], path: Path) -> None:
    raw = DATASETS[name].read(sources)
    for split in SPLITS:
        images, labels = (len(getattr(raw, f"{split}_{kind}")) for kind in "xy")
        if images != labels:
            raise DataError(f"{raw.title}: {images} {split} images, {labels} labels")
    mapped, names = map_labels([*raw.train_y, *raw.test_y])
    tensors = {
        "train_x": raw.train_x.contiguous(),
        "train_y": mapped[: len(raw.train_y)].clone(),
        "test_x": raw.test_x.contiguous(),
        "test_y": mapped[len(raw.train_y) :].clone(),
    }
    metadata = {
        "title": raw.title,
        "classes": json.dumps(names),
        "fingerprint": _fingerprint(tensors.values()),
    }
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, metadata)


@functools.lru_cache(maxsize=4)
def _open(name: str, path: Path) -> Dataset:
    entry = DATASETS[name]
    with safe_open(path, "pt") as file:
        about = file.metadata()
        tensors = [file.get_tensor(f"{s}_{kind}") for s in SPLITS for kind in "xy"]
    train_x, train_y, test_x, test_y = tensors
    return Dataset(
        name,
        train_x,
        train_y,
        test_x,
        test_y,
        tuple(json.loads(about["classes"])),
        entry.mean,
        entry.std,
        entry.augment,
        about["title"],
        about["fingerprint"],
    )


def _gaps(entry: Entry) -> str:
    """Return which files are missing where some of them are."""
    told = ""
    for root in data_dirs():
        gaps = [name for name in entry.files if not _plain_or_gz(root, name)]
        if 0 < len(gaps) < len(entry.files):
            told += f" {root} lacks {', '.join(gaps)}."
    return told


def load(name: str) -> Dataset:
    """Return a data set, decoding it into the cache when it is new.

    Raises
    ------
    DataError
        Not found: says what is missing, where it was looked for and how to get it.
        Damaged: names the file.
    ValueError
        Unknown name.
    """
    entry = _entry(name)
    sources = _locate(name)
    if not sources:
        looked = ", ".join(str(root) for root in data_dirs())
        raise DataError(
            f"{entry.title} is not here. Looked in: {looked}.{_gaps(entry)} "
            f"Put {entry.place} into one of them (FEDLIB_DATA names the first), or "
            f"run: fedlib data fetch {name}. Origin and licence: {entry.page}"
        )
    path = _decoded_path(name, sources)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if not path.exists():
            _decode(name, sources, path)
        try:
            return _open(name, path)
        except SafetensorError:  # damaged on disk: the source is whole, decode it again
            path.unlink()
            _decode(name, sources, path)
            return _open(name, path)


def _urls(origin: Any) -> str:
    """Return what torchvision would download, with hashes."""
    if issubclass(origin, tv.MNIST):
        files = ", ".join(f"{file} (md5 {md5})" for file, md5 in origin.resources)
        return f"{files} from {' or '.join(origin.mirrors)}"
    return f"{origin.url} (md5 {origin.tgz_md5})"


def fetch(name: str) -> Path:
    """Download a data set with torchvision and return the folder that holds it.

    It is downloaded beside its place and moved there when complete, so that nothing
    half-finished stays.

    Raises
    ------
    DataError
        ``FEDLIB_OFFLINE`` is set, every mirror failed, or nothing is to be downloaded.
    """
    entry = _entry(name)
    if entry.origin is None:
        raise DataError(f"{entry.title} {entry.place}; there is nothing to fetch")
    if os.environ.get("FEDLIB_OFFLINE", "0") != "0":
        raise DataError(
            f"{entry.title}: FEDLIB_OFFLINE is set; put {entry.place} into "
            f"{data_dirs()[0]}. A machine with a network gets {_urls(entry.origin)}"
        )
    target = cache_dir() / "data"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".fetch-") as scratch:
        try:
            entry.origin(scratch, download=True)
        except (OSError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{entry.title}: download failed ({error}); nothing kept"
            ) from error
        for part in Path(scratch).iterdir():
            if part.is_dir():
                shutil.rmtree(target / part.name, ignore_errors=True)
                os.replace(part, target / part.name)
    return target


def status() -> pd.DataFrame:
    """Return which data sets are here, and from where."""
    rows = []
    for name, entry in DATASETS.items():
        sources = _locate(name)
        files = [p for source in sources for p in (source, *source.rglob("*"))]
        size = sum(p.stat().st_size for p in files if p.is_file())
        where = (
            entry.place if entry.find is _always else str(sources[0]) if sources else ""
        )
        rows.append((name, entry.title, bool(sources), where, size))
    return pd.DataFrame(rows, columns=["name", "title", "present", "source", "bytes"])


def check(name: str) -> pd.DataFrame:
    """Return images per class and split, compared with the official counts.

    A decoded file whose content is not what was written is decoded again first.

    Raises
    ------
    DataError
        A count differs; all differences are listed.
    """
    data, wanted = load(name), DATASETS[name].per_class
    if _fingerprint((data.train_x, data.train_y, data.test_x, data.test_y)) != (
        data.fingerprint
    ):
        _decoded_path(name, _locate(name)).unlink()
        _open.cache_clear()
        data = load(name)
    if len(data.classes) != len(wanted[0]):
        raise DataError(
            f"{data.title}: {len(data.classes)} classes ({', '.join(data.classes)}) "
            f"instead of {len(wanted[0])}; {len(data.train_y)} training images instead "
            f"of {sum(wanted[0])}, {len(data.test_y)} test images instead of "
            f"{sum(wanted[1])}"
        )
    rows, wrong = [], []
    for split, y, counts in zip(
        SPLITS, (data.train_y, data.test_y), wanted, strict=True
    ):
        found = Counter(y.tolist())
        for c, official in enumerate(counts):
            rows.append((split, data.classes[c], found[c], official))
            if found[c] != official:
                wrong.append(
                    f"{split} {data.classes[c]}: {found[c]} instead of {official}"
                )
    if wrong:
        raise DataError(f"{data.title}: " + "; ".join(wrong))
    return pd.DataFrame(rows, columns=["split", "class", "images", "official"])

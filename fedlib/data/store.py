"""Decoded data sets: one uint8 array per split, memory-mapped, whole or absent.

A data set is decoded into a folder of its own: ``train_x.npy`` and ``test_x.npy``, and
labels with what else is known in ``labels.safetensors``. The folder is built under
another name and renamed when it is complete.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedlib.data.catalogue import entry_of
from fedlib.data.labels import map_labels
from fedlib.data.types import (
    SPLITS,
    Block,
    DataError,
    Dataset,
    Groups,
    Notes,
)
from fedlib.support.files import locked, opened_to_others, write_text
from fedlib.support.paths import cache_dir

log = logging.getLogger(__name__)

LAYOUT = 3  # of the folder; another number decodes everything again
SHOWN = 20  # unreadable images that a message names
Policy = Literal["refuse", "skip"]


def _shallow(source: Path) -> list[Path]:
    """Return a source and, of a folder, two levels: their times tell of new files."""
    return [source, *sorted(source.glob("*")), *sorted(source.glob("*/*"))]


def decoded_folder(name: str, sources: list[Path]) -> Path:
    """Return the folder of a decoded source; another source has another folder."""
    parts = [p for source in sources for p in _shallow(source)]
    facts = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in parts]
    mark = hashlib.sha256(json.dumps([LAYOUT, facts]).encode()).hexdigest()[:12]
    return cache_dir() / "decoded" / f"{name}-{mark}"


def _write_images(blocks: Iterable[Block], path: Path) -> tuple[list, list[str]]:
    """Write images as they come; return their labels and groups.

    The header is written again at the end, when the number of images is known: NumPy
    pads it so that the first axis may grow.
    """
    labels: list = []
    groups: list[str] = []
    shape: tuple[int, ...] | None = None

    def header(file: Any, count: int, rest: tuple[int, ...]) -> None:
        about = {"descr": "|u1", "fortran_order": False, "shape": (count, *rest)}
        np.lib.format.write_array_header_1_0(file, about)

    with open(path, "wb") as file:
        for block in blocks:
            x = block.x.contiguous().numpy()
            if shape is None:
                shape = x.shape[1:]
                header(file, 0, shape)
            if x.shape[1:] != shape:
                raise DataError(f"images: got {x.shape[1:]} after {shape}")
            if len(block.y) != len(x):
                raise DataError(
                    f"{len(x)} {path.stem[:-2]} images, {len(block.y)} labels"
                )
            x.tofile(file)
            labels += block.y
            groups += block.group or []
        if shape is None or not labels:
            raise DataError(f"no {path.stem.removesuffix('_x')} images")
        file.seek(0)
        header(file, len(labels), shape)
        file.flush()
        os.fsync(file.fileno())
    return labels, groups


def fingerprint(parts: Iterable[Tensor]) -> str:
    """Return a hash of the content of tensors."""
    content = hashlib.sha256()
    for part in parts:
        content.update(np.ascontiguousarray(part.numpy()).data)
    return content.hexdigest()[:16]


def content(data: Dataset) -> list[Tensor]:
    """Return everything that a fingerprint is of."""
    groups = [] if data.groups is None else [data.groups.train, data.groups.test]
    return [data.train_x, data.train_y, data.test_x, data.test_y, *groups]


def _images(folder: Path, split: str) -> Tensor:
    # copy on write: the file cannot be changed through the tensor
    return torch.from_numpy(np.load(folder / f"{split}_x.npy", mmap_mode="c"))


def _refuse(name: str, notes: Notes) -> None:
    bad = notes.unreadable
    more = f" and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    raise DataError(
        f"{entry_of(name).title}: {len(bad)} unreadable image{'s' * (len(bad) > 1)}: "
        f"{'; '.join(bad[:SHOWN])}{more}. Replace them, or leave them out: "
        f"fedlib data check {name} --unreadable skip"
    )


def _decode(name: str, sources: list[Path], folder: Path, unreadable: Policy) -> None:
    """Read a source into ``folder``, which appears when it is complete."""
    entry = entry_of(name)
    for left in folder.parent.glob(f".{folder.name}-*"):  # of a killed process
        shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        notes = Notes()
        raw = entry.read(sources, notes)
        try:
            read = [
                _write_images(getattr(raw, s), scratch / f"{s}_x.npy") for s in SPLITS
            ]
        except DataError as error:
            if notes.unreadable and unreadable == "refuse":
                _refuse(name, notes)
            raise DataError(f"{raw.title or entry.title}: {error}") from error
        if notes.unreadable and unreadable == "refuse":
            _refuse(name, notes)
        _write_labels(scratch, raw.title or entry.title, entry.groups, read, notes)
        opened_to_others(scratch)
        os.replace(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write_labels(
    folder: Path,
    title: str,
    order: tuple[str, ...],
    read: list[tuple[list, list[str]]],
    notes: Notes,
) -> None:
    (train_y, train_group), (test_y, test_group) = read
    mapped, classes = map_labels([*train_y, *test_y])
    tensors = {
        "train_y": mapped[: len(train_y)].clone(),
        "test_y": mapped[len(train_y) :].clone(),
    }
    of, groups = map_labels([*train_group, *test_group], order)
    if len(of):
        tensors["train_group"] = of[: len(train_group)].clone()
        tensors["test_group"] = of[len(train_group) :].clone()
    parts = [
        _images(folder, "train"),
        tensors["train_y"],
        _images(folder, "test"),
        tensors["test_y"],
        *(tensors[f"{s}_group"] for s in SPLITS if len(of)),
    ]
    sizes = ""
    if notes.sizes:
        low, high = (
            tuple(map(pick, zip(*notes.sizes, strict=True))) for pick in (min, max)
        )
        sizes = " to ".join(dict.fromkeys(f"{w}x{h}" for w, h in (low, high)))
    about = {
        "title": title,
        "classes": json.dumps(classes),
        "groups": json.dumps(groups),
        "skipped": json.dumps(notes.unreadable),
        "sizes": sizes,
        "fingerprint": fingerprint(parts),
    }
    save_file(tensors, folder / "labels.safetensors", about)


FILES = ("train_x.npy", "test_x.npy", "labels.safetensors")
SEEN = "checked.json"  # sizes and times of the files when their content was hashed
ABOUT = ("title", "classes", "groups", "skipped", "sizes", "fingerprint")


class _Damaged(ValueError):
    """A decoded folder is not what was written."""


def _expect(right: bool, what: str) -> None:
    if not right:
        raise _Damaged(what)


@functools.lru_cache(maxsize=4)
def _open(name: str, folder: Path) -> Dataset:
    """Read a decoded folder.

    Raises
    ------
    ValueError
        Something in it is missing, of another shape or type, or out of range, or its
        content is not that of its fingerprint.
    """
    entry = entry_of(name)
    with safe_open(folder / "labels.safetensors", "pt") as file:
        about = file.metadata() or {}
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}
    _expect(all(key in about for key in ABOUT), f"expected {', '.join(ABOUT)}")
    names = {key: _texts(about[key]) for key in ("classes", "groups", "skipped")}
    images = {split: _images(folder, split) for split in SPLITS}
    for split, x in images.items():
        _expect(x.dtype == torch.uint8 and x.ndim == 4, f"{split} images are none")
        _expect(x.shape[1:] == images["train"].shape[1:], "images of two shapes")
        _numbers(tensors, f"{split}_y", len(x), len(names["classes"]))
    groups = None
    if names["groups"]:
        for split, x in images.items():
            _numbers(tensors, f"{split}_group", len(x), len(names["groups"]))
        groups = Groups(tensors["train_group"], tensors["test_group"], names["groups"])
    found = Dataset(
        name,
        images["train"],
        tensors["train_y"],
        images["test"],
        tensors["test_y"],
        names["classes"],
        entry.mean,
        entry.std,
        entry.augment,
        about["title"],
        about["fingerprint"],
        groups,
        names["skipped"],
        about["sizes"],
    )
    _check_content(folder, found)
    count = len(found.classes)
    if entry.classes not in (None, count):
        shown = ", ".join(found.classes[:SHOWN]) + ", ..." * (count > SHOWN)
        told = "%s has images of %d classes (%s) instead of %d, numbered without gaps"
        log.warning(told, found.title, count, shown, entry.classes)
    return found


def _texts(text: str) -> tuple[str, ...]:
    found = json.loads(text)
    right = isinstance(found, list) and all(isinstance(each, str) for each in found)
    _expect(right, "expected a list of texts")
    return tuple(found)


def _numbers(tensors: dict[str, Tensor], name: str, count: int, names: int) -> None:
    """Check labels or groups: one for each image, each with a name."""
    _expect(name in tensors, f"{name} is missing")
    y = tensors[name]
    _expect(y.dtype == torch.int64 and list(y.shape) == [count], f"{name} are none")
    low, high = int(y.min()), int(y.max())
    _expect(0 <= low and high < names, f"{name}: {low} to {high} of {names} names")


def _check_content(folder: Path, data: Dataset) -> None:
    """Hash what is stored, unless its files are as they were when that was done."""
    there = [(folder / name).stat() for name in FILES]
    marks = [[about.st_size, about.st_mtime_ns, about.st_ino] for about in there]
    text, seen = json.dumps([data.fingerprint, marks]), folder / SEEN
    if seen.is_file() and seen.read_bytes() == text.encode():
        return
    _expect(fingerprint(content(data)) == data.fingerprint, "other bits than written")
    with contextlib.suppress(OSError):  # someone else's folder: hash it each time
        write_text(seen, text)


def stored(name: str, sources: list[Path], unreadable: Policy = "refuse") -> Dataset:
    """Return a data set from its decoded folder, decoding it first where needed.

    To read what is there needs no right to write.

    Raises
    ------
    DataError
        The source is damaged, or has unreadable images and they are not to be skipped.
    PermissionError
        The folder of decoded data cannot be written to, and has not this one.
    """
    folder = decoded_folder(name, sources)
    found = _opened(name, folder)
    if found is not None:
        return found
    with locked(folder.with_name(f"{folder.name}.lock"), entry_of(name).title):
        found = _opened(name, folder)  # another process may have decoded it meanwhile
        if found is not None:
            return found
        if folder.exists():
            forget(folder)
        _decode(name, sources, folder, unreadable)
        return _open(name, folder)


def _opened(name: str, folder: Path) -> Dataset | None:
    """Return a data set from its decoded folder; None where it is absent or damaged."""
    if not folder.exists():
        return None
    try:
        return _open(name, folder)
    except (SafetensorError, OSError, EOFError, ValueError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        log.warning("decoded %s in the cache is damaged (%s); decoded again", name, why)
        return None


def forget(folder: Path) -> None:
    """Remove a decoded folder."""
    shutil.rmtree(folder)
    _open.cache_clear()

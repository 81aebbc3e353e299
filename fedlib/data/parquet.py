"""Images in Parquet files, as Hugging Face lays them out; read row group by row group.

A file has a column of images (their bytes, as a file holds them) and one of labels. The
files of a split are ``train-00000-of-00002.parquet`` and so on, beside those of the
other.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlib.data.image_files import Files
from fedlib.data.images import BLOCK, Item, decode
from fedlib.data.sources import reading
from fedlib.data.types import SPLITS, Block, DataError, Notes, Raw

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MOST_ROWS = 5 * 10**6  # of one file
DENSE = 16  # times that images grow when a file is unpacked; they are packed already
IN_MEMORY = 2**29  # bytes of images
SPARE = 2**20  # bytes that they may grow besides
NAME = re.compile(r"(train|test)(?:-(\d+)-of-(\d+))?\.parquet")
IMAGES = ("image", "img")


def parquet_in(*folders: str) -> Callable[[Path], list[Path]]:
    """Return a finder of both splits' files in a folder or a folder inside it."""

    def find(root: Path) -> list[Path]:
        for folder in folders:
            for place in (root / folder, *sorted((root / folder).glob("*/"))):
                found = [p for p in sorted(place.glob("*")) if NAME.fullmatch(p.name)]
                if {NAME.sub(r"\1", p.name) for p in found} == set(SPLITS):
                    return found
        return []

    return find


def read_parquet(
    paths: list[Path],
    notes: Notes,
    shape: tuple[int, int, int],
    label: str = "label",
    named: bool = False,
) -> Raw:
    """Read the files that ``parquet_in`` found.

    Parameters
    ----------
    paths : list of Path
    notes : Notes
    shape : tuple of int
    label : str
        The column of labels.
    named : bool
        Labels are replaced by their names, where the file has them.

    Raises
    ------
    DataError
        Files of a split are missing, or belong to two copies.
    """
    parts = [_complete(paths, split) for split in SPLITS]
    train, test = (_blocks(part, notes, shape, label, named) for part in parts)
    return Raw(train, test)


def _complete(paths: list[Path], split: str) -> list[Path]:
    """Return the files of a split, all of them."""
    found = {p.name: p for p in paths if p.name.startswith(split)}
    totals = {NAME.sub(r"\3", name) for name in found}
    if len(totals) != 1:
        raise DataError(
            f"{paths[0].parent}: {', '.join(found)} are not of one copy; keep one"
        )
    total = totals.pop()
    width = len(total)
    whole = [
        f"{split}-{number:0{width}}-of-{total}.parquet"
        for number in range(int(total or 0))
    ]
    gaps = [name for name in whole if name not in found]
    if gaps:
        raise DataError(f"{paths[0].parent} lacks {', '.join(gaps)}")
    return list(found.values())


def _column(file: "pq.ParquetFile", path: Path, names: tuple[str, ...]) -> str:
    present = file.schema_arrow.names
    for name in names:
        if name in present:
            return name
    raise DataError(
        f"{path}: columns {', '.join(present)}, expected {' or '.join(names)}"
    )


def _names(file: "pq.ParquetFile", path: Path, label: str) -> list[str]:
    """Return the names of labels that Hugging Face keeps beside the columns."""
    metadata: dict[bytes, bytes] = file.schema_arrow.metadata or {}
    with reading(path, AttributeError):
        about = json.loads(metadata.get(b"huggingface", b"{}"))
        found = about.get("info", {}).get("features", {}).get(label, {})
        names = found.get("names", [])
        if not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
            raise ValueError(f"names of {label}: expected a list of texts")
    return names


def _refuse_bomb(file: "pq.ParquetFile", path: Path, column: str) -> None:
    """Refuse a file that says it holds far more than its size, before it is unpacked.

    Raises
    ------
    DataError
        Too many rows, or images that grow as no packed image does.
    """
    about, size = file.metadata, path.stat().st_size
    if about.num_rows > min(MOST_ROWS, size):
        raise DataError(f"{path}: {about.num_rows} rows in {size} bytes; refused")
    groups = range(about.num_row_groups)
    unpacked = sum(_unpacked(file, number, column) for number in groups)
    if unpacked > DENSE * size + SPARE:
        raise DataError(f"{path}: {unpacked} bytes of images in {size}; refused")


def _unpacked(file: "pq.ParquetFile", number: int, column: str) -> int:
    """Return the bytes of a column in a row group, without packing."""
    group = file.metadata.row_group(number)
    parts = (group.column(place) for place in range(group.num_columns))
    return sum(
        part.total_uncompressed_size
        for part in parts
        if part.path_in_schema.split(".")[0] == column
    )


def _checked(value: Any, names: list[str], place: str) -> Any:
    """Return a label, or its name; one that is none is refused by its place."""
    if isinstance(value, str):
        return value
    whole = isinstance(value, int)
    if not whole or value < 0 or (names and value >= len(names)):
        wanted = f"0 to {len(names) - 1}" if names else "0 or more"
        raise DataError(f"{place}: label {value}, expected {wanted}")
    return names[value] if names else value


def _rows(
    file: "pq.ParquetFile", path: Path, columns: list[str]
) -> Iterator[Iterator[tuple[bytes, Any]]]:
    """Yield the bytes of an image and its label, for some rows at a time."""
    for group in range(file.metadata.num_row_groups):
        # all rows may share one value: a batch has as many as memory has room for
        most = IN_MEMORY // max(1, _unpacked(file, group, columns[0]))
        size = min(BLOCK, max(1, most))
        batches = file.iter_batches(size, row_groups=[group], columns=columns)
        while True:
            with reading(path):
                batch = next(batches, None)
            if batch is None:
                break
            yield map(_cell, *(batch.column(column) for column in columns))


def _cell(image: "pa.Scalar", label: "pa.Scalar") -> tuple[bytes, Any]:
    """Return one row; what is no bytes is no image."""
    content = image.as_py()
    content = content.get("bytes") if isinstance(content, dict) else content
    return content if isinstance(content, bytes) else b"", label.as_py()


def _blocks(
    paths: list[Path],
    notes: Notes,
    shape: tuple[int, int, int],
    label: str,
    named: bool,
) -> Iterator[Block]:
    import pyarrow.parquet as pq
    import torch

    for path in paths:
        with reading(path):
            file = pq.ParquetFile(path)
        with file:
            columns = [_column(file, path, IMAGES), _column(file, path, (label,))]
            names = _names(file, path, label) if named else []
            _refuse_bomb(file, path, columns[0])
            place = (f"{path.name}:{row}" for row in itertools.count())
            for rows in _rows(file, path, columns):
                arrays, y = [], []
                for (content, value), at in zip(rows, place, strict=False):
                    files = Files([at], lambda _, content=content: content)
                    array = decode(files, Item(at, value), shape, None, notes)
                    if array is not None:
                        arrays.append(array)
                        y.append(_checked(value, names, at))
                if arrays:
                    x = torch.from_numpy(np.stack(arrays))
                    yield Block(x.permute(0, 3, 1, 2), y)

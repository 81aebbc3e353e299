"""HAM10000: skin lesions in two folders and a table, with three test sets."""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from fedlib.data import splits
from fedlib.data.image_files import images_of, opened
from fedlib.data.images import Item, blocks, square
from fedlib.data.sources import first_of, reading
from fedlib.data.types import DataError, Entry, Notes, Raw

if TYPE_CHECKING:
    import pandas as pd

SHAPE = (3, 64, 64)
TABLE = "HAM10000_metadata"  # with .csv, as Kaggle names it, or without
COLUMNS = ["lesion_id", "image_id", "dx"]
SHOWN = 10  # images or rows that a message names
COUNTS = [327, 514, 1099, 115, 1113, 6705, 142]  # akiec, bcc, bkl, df, mel, nv, vasc


def _sources(path: Path) -> list[Path]:
    """Return a folder and the zips in it, or one zip."""
    return [path, *sorted(path.glob("*.zip"))] if path.is_dir() else [path]


def _table(
    path: Path, names: list[str], read: Callable[[str], bytes]
) -> "pd.DataFrame":
    """Return the table, by image."""
    import pandas as pd

    found = [n for n in names if PurePosixPath(n).name in (TABLE, f"{TABLE}.csv")]
    if not found:
        raise DataError(f"{path.name}: no {TABLE}.csv")
    with reading(path / found[0]):
        table = pd.read_csv(io.BytesIO(read(found[0])), sep=None, engine="python")
    lacks = [column for column in COLUMNS if column not in table]
    if lacks:
        raise DataError(f"{found[0]}: no column {', '.join(lacks)}")
    return table.drop_duplicates("image_id").set_index("image_id").sort_index()


def _same(path: Path, images: set[str], rows: set[str]) -> None:
    """Refuse images without a row, and rows without an image."""
    wrong = []
    for kind, names in (
        ("images without a row of the table", images - rows),
        ("rows of the table without an image", rows - images),
    ):
        if names:
            more = ", ..." if len(names) > SHOWN else ""
            shown = ", ".join(sorted(names)[:SHOWN])
            wrong.append(f"{len(names)} {kind}: {shown}{more}")
    if wrong:
        raise DataError(f"{path.name}: {'; '.join(wrong)}")


def _read_ham(
    paths: list[Path], notes: Notes, split: "Callable[[pd.DataFrame], splits.Split]"
) -> Raw:
    """Read all images in the order of their names, each with its row's diagnosis."""
    (path,) = paths
    sources = _sources(path)
    with opened(sources) as files:
        names = images_of(files.names)
        table = _table(path, files.names, files.read)
    names.reverse()  # of images that are there twice, the first counts
    of = {PurePosixPath(name).stem: name for name in names}
    _same(path, set(of), set(table.index))
    items = [Item(of[str(image)], str(dx)) for image, dx in table["dx"].items()]
    try:
        rows = split(table)
    except ValueError as error:
        raise DataError(f"{path.name}: {error}") from error
    train, test = (
        blocks(sources, [items[row] for row in part], notes, SHAPE, square(64))
        for part in rows
    )
    return Raw(train, test)


def _balanced(table: "pd.DataFrame") -> splits.Split:
    return splits.balanced(table["dx"].tolist())


def _lesions(table: "pd.DataFrame") -> splits.Split:
    return splits.whole_groups(table["dx"].tolist(), table["lesion_id"].tolist())


def _stratified(table: "pd.DataFrame") -> splits.Split:
    return splits.stratified(table["dx"].tolist())


TWENTY = ([n - 20 for n in COUNTS], [20] * 7)
FIFTH = ([n - n // 5 for n in COUNTS], [n // 5 for n in COUNTS])

HAM = Entry(
    title="HAM10000",
    shape=SHAPE,
    find=first_of("ham10000", "HAM10000", "ham10000.zip"),
    read=partial(_read_ham, split=_balanced),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    place="ham10000/ with HAM10000_metadata.csv and HAM10000_images_part_1/ and _2/, "
    "or their zips, or all of it in ham10000.zip",
    licence="CC BY-NC 4.0",
    page="https://doi.org/10.7910/DVN/DBW86T",
    classes=7,
    per_class=TWENTY,
    guide="ham10000",
)

ENTRIES = {
    "ham10000": HAM,
    "ham10000_lesion": HAM._replace(
        title="HAM10000 (by lesion)", read=partial(_read_ham, split=_lesions)
    ),
    "ham10000_stratified": HAM._replace(
        title="HAM10000 (stratified)",
        read=partial(_read_ham, split=_stratified),
        per_class=FIFTH,
    ),
}

"""Images of a folder or a zip, decoded in order, faults named.

They are read as torchvision's ``ImageFolder`` reads them: EXIF orientation ignored,
transparency dropped. Decoding holds Python's lock, so threads do not make it faster.
"""

import io
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedlib.data.image_files import Files, listing, opened
from fedlib.data.types import SPLITS, Block, DataError, Notes, Raw

FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP", "PPM")  # as Pillow names them
BLOCK = 256  # images decoded before they are written: all that memory holds
MOST_PIXELS = 2**28 // 3  # of one image: a quarter of a GiB as RGB
DENSE = 2**12  # pixels per byte of a file, of images with more than
MANY = 2**22  # pixels; no encoder packs a photograph so densely


class Item(NamedTuple):
    """One image of a data set."""

    name: str  # inside the folder or zip, with forward slashes
    label: str | int
    group: str | None = None


Prepare = Callable[[Image.Image], Image.Image]

# Adam7: first column and row of each pass, and the steps between its pixels
PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4))
PASSES += ((1, 0, 2, 2), (0, 1, 1, 2))
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a pixel, by PNG's colour type


def check_png(content: bytes) -> None:
    """Refuse a PNG that has fewer rows than its header says, before it is decoded.

    Pillow leaves what is missing black where the compressed data end as they should.

    Raises
    ------
    ValueError
        Rows are missing.
    """
    width, height, bits, colour, _, _, interlaced = struct.unpack_from(
        ">IIBBBBB", content, 16
    )
    wanted = 0
    for x, y, dx, dy in PASSES if interlaced else ((0, 0, 1, 1),):
        columns, rows = max(0, -((x - width) // dx)), max(0, -((y - height) // dy))
        size = (columns * bits * SAMPLES.get(colour, 1) + 7) // 8
        wanted += rows * (1 + size) if columns else 0
    unpacker, found = zlib.decompressobj(), 0
    for part in _png_data(content):
        while part and found < wanted and not unpacker.eof:
            found += len(unpacker.decompress(part, 1 << 16))
            part = unpacker.unconsumed_tail
    while found < wanted and (part := unpacker.decompress(b"", 1 << 16)):
        found += len(part)
    if found < wanted:
        raise ValueError(f"image file is truncated: {found} of {wanted} bytes of rows")


def _png_data(content: bytes) -> Iterator[bytes]:
    """Yield the compressed parts of a PNG."""
    place = 8  # behind the signature
    while place + 8 <= len(content):
        (size,) = struct.unpack_from(">I", content, place)
        kind = content[place + 4 : place + 8]
        if kind == b"IDAT":
            yield content[place + 8 : place + 8 + size]
        if kind == b"IEND":
            return
        place += 12 + size


def square(side: int) -> Prepare:
    """Return how an image becomes a square, whatever its shape.

    Pillow's bilinear filter, which smooths where it shrinks: what torchvision's
    ``Resize((side, side))`` does to images from ``ImageFolder``.
    """
    return lambda image: image.resize((side, side), Image.Resampling.BILINEAR)


def centre(shorter: int, side: int) -> Prepare:
    """Return how an image becomes its central square.

    torchvision's ``Resize(shorter)`` (bilinear, smoothed) and ``CenterCrop(side)``.
    """
    from torchvision.transforms import v2

    steps = v2.Compose([v2.Resize(shorter), v2.CenterCrop(side)])

    def prepare(image: Image.Image) -> Image.Image:
        longer = max(image.size) * shorter // min(image.size)
        if longer * shorter > MOST_PIXELS:
            raise ValueError(f"would become {shorter} by {longer} pixels")
        return steps(image)

    return prepare


def _image(content: bytes) -> Image.Image:
    """Return an image of which the header has been read.

    This is ``Image.open`` without its warning about large images, which could only be
    silenced for all threads of the process; their size is checked here instead.
    """
    Image.init()
    for name in FORMATS:
        factory, accepts = Image.OPEN[name]
        if accepts is None or accepts(content[:16]) is True:
            image = factory(io.BytesIO(content), "")
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise ValueError(
                    f"{width}x{height} pixels, expected at most {MOST_PIXELS}"
                )
            if width * height > max(MANY, DENSE * len(content)):
                raise ValueError(f"{width}x{height} pixels in {len(content)} bytes")
            if name == "PNG":
                check_png(content)
            return image
    raise UnidentifiedImageError("cannot identify image file")


def _converted(image: Image.Image, mode: str) -> Image.Image:
    """Return an image of any mode as ``"L"`` or ``"RGB"``.

    Of 16 bits per pixel the upper 8 remain; palettes are looked up; transparency is
    dropped.
    """
    if image.mode == "F":
        raise ValueError("pixels are floating-point numbers")
    if image.mode.startswith("I"):
        upper = np.clip(np.asarray(image) // 256, 0, 255)
        image = Image.fromarray(upper.astype(np.uint8))
    elif "transparency" in image.info:
        image = image.convert("RGBA")  # else Pillow warns about palettes
    return image.convert(mode)


def decode(
    files: Files,
    item: Item,
    shape: tuple[int, int, int],
    prepare: Prepare | None,
    notes: Notes,
) -> np.ndarray | None:
    """Decode one image as [h, w, c], or note why not."""
    channels, height, width = shape
    try:
        with _image(files.read(item.name)) as image:
            size = image.size
            pixels = _converted(image, "L" if channels == 1 else "RGB")
        if prepare:
            pixels = prepare(pixels)
        if pixels.size != (width, height):
            found = "x".join(map(str, pixels.size))
            raise ValueError(f"{found} pixels instead of {width}x{height}")
    except Exception as error:  # damaged bytes make decoders raise almost anything
        why = str(error) or type(error).__name__
        notes.unreadable.append(f"{item.name}: {why}")
        return None
    notes.sizes[size] += 1
    return np.asarray(pixels).reshape(height, width, channels)


def blocks(
    paths: Sequence[Path],
    items: Sequence[Item],
    notes: Notes,
    shape: tuple[int, int, int],
    prepare: Prepare | None = None,
) -> Iterator[Block]:
    """Decode images in the order of ``items``; note those that cannot be read.

    Parameters
    ----------
    paths : sequence of Path
        What ``opened`` takes.
    items : sequence of Item
        Named as ``listing(paths)`` names them.
    notes : Notes
        Receives unreadable images and the sizes of the others as found.
    shape : tuple of int
        Channels (1: grey, 3: RGB), height and width of every image, once prepared.
    prepare : callable, optional
        ``square``, ``centre`` or the like.
    """
    import torch

    with opened(paths) as files:
        for start in range(0, len(items), BLOCK):
            arrays, kept = [], []
            for item in items[start : start + BLOCK]:
                array = decode(files, item, shape, prepare, notes)
                if array is not None:
                    arrays.append(array)
                    kept.append(item)
            if kept:
                x = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
                groups = [str(i.group) for i in kept if i.group is not None]
                yield Block(x, [i.label for i in kept], groups or None)


# trees


def by_class(names: Sequence[str]) -> list[Item]:
    """Return the items of ``<class>/.../<file>``, in ``ImageFolder``'s order.

    A folder that holds all classes, and what lies beside it, is stepped into.
    """
    rest = {name: name for name in names}
    while True:
        rest = {name: r for name, r in rest.items() if "/" in r}
        first = {r.split("/", 1)[0] for r in rest.values()}
        if len(first) != 1 or all(r.count("/") == 1 for r in rest.values()):
            return [Item(name, r.split("/", 1)[0]) for name, r in rest.items()]
        rest = {name: r.split("/", 1)[1] for name, r in rest.items()}


def by_split(names: Sequence[str], splits: Sequence[str]) -> dict[str, list[Item]]:
    """Return the items of ``.../<split>/<class>/<file>``."""
    found: dict[str, list[Item]] = {split: [] for split in splits}
    for name in names:
        parts = name.split("/")
        if len(parts) >= 3 and parts[-3] in found:
            found[parts[-3]].append(Item(name, parts[-2]))
    return found


def read_tree(
    path: Path,
    notes: Notes,
    shape: tuple[int, int, int],
    title: str | None = None,
    *,
    splits: tuple[str, str] = SPLITS,
    prepare: Prepare | None = None,
) -> Raw:
    """Read ``train|test/<class>/*`` from a folder or a zip.

    Raises
    ------
    DataError
        A split without images.
    """
    items = by_split(listing([path]), splits)
    for split in splits:
        if not items[split]:
            raise DataError(f"{path.name}: no images under {split}/<class>/")
    train, test = (blocks([path], items[s], notes, shape, prepare) for s in splits)
    return Raw(train, test, title)

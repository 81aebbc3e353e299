"""Images in folders and zips: what is listed, decoded, prepared, refused and named."""

import io
import stat
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from fedlib.data import DataError, image_files, images
from fedlib.data.images import Item
from fedlib.data.types import Notes
from tests.on_disk import decoded, pack, picture, pixels, unpack


def stored(where: Path, form: str, members: dict[str, bytes]) -> Path:
    """Write members as a folder or as a zip."""
    if form == "folder":
        unpack(where / "some", members)
        return where / "some"
    pack(where / "some.zip", members)
    return where / "some.zip"


def saved(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def read(path: Path, *names: str, shape=(3, 8, 8), prepare=None):
    """Decode images and return them with what was noted."""
    notes = Notes()
    items = [Item(name, 0) for name in names]
    found = list(images.blocks([path], items, notes, shape, prepare))
    return (torch.cat([b.x for b in found]) if found else None), notes


both = pytest.mark.parametrize("form", ["folder", "zip"])


# what is listed

TREE = ["a/2.png", "a/10.png", "a b/1.JPG", "a/sub/0.png", "B/x.bmp", "a/z.txt"]
HIDDEN = ["__MACOSX/a/._2.png", "a/._2.png", ".thumbs/1.png", "a/.DS_Store"]


@both
def test_names_are_listed_as_imagefolder_lists_them(tmp_path, form):
    members = dict.fromkeys([*TREE, *HIDDEN, "beside.png"], b"")
    path = stored(tmp_path, form, members)
    order = ["B/x.bmp", "a/10.png", "a/2.png", "a/sub/0.png", "a b/1.JPG"]
    listed = image_files.listing([path])
    assert listed == ["beside.png", *order]
    assert [(i.name, i.label) for i in images.by_class(listed)] == [
        (name, name.split("/")[0]) for name in order
    ]
    if form == "folder":
        for name in HIDDEN:
            (path / name).unlink()
        samples = ImageFolder(path, allow_empty=True).samples
        theirs = [Path(name).relative_to(path).as_posix() for name, _ in samples]
        assert theirs == order


def test_a_folder_that_holds_all_classes_is_stepped_into():
    names = ["main/logo.png", "main/Waste/Glass/a.jpg", "main/Waste/Metal/b.jpg"]
    assert images.by_class(names) == [Item(names[1], "Glass"), Item(names[2], "Metal")]
    assert images.by_class(["a.jpg"]) == []


def test_linked_folders_are_followed(tmp_path):
    unpack(tmp_path / "elsewhere", {"cat/a.png": picture(1, "PNG", 8)})
    unpack(tmp_path / "some", {"dog/b.png": picture(2, "PNG", 8)})
    (tmp_path / "some" / "cat").symlink_to(tmp_path / "elsewhere" / "cat")
    (tmp_path / "some" / "dog" / "dead.png").symlink_to(tmp_path / "nowhere.png")
    names = image_files.listing([tmp_path / "some"])
    assert names == ["cat/a.png", "dog/b.png", "dog/dead.png"]
    x, notes = read(tmp_path / "some", *names)
    assert torch.equal(x[0], decoded(picture(1, "PNG", 8)))
    assert len(x) == 2
    (told,) = notes.unreadable
    assert told.startswith("dog/dead.png: ")
    assert "No such file" in told


def test_a_circle_of_links_is_refused(tmp_path):
    unpack(tmp_path / "some", {"cat/a.png": b""})
    (tmp_path / "some" / "cat" / "up").symlink_to(tmp_path / "some")
    with pytest.raises(DataError, match=r"cat/up is a link to a folder that it lies"):
        image_files.listing([tmp_path / "some"])


def test_several_sources_are_one(tmp_path):
    unpack(tmp_path / "part_1", {"a.png": picture(1, "PNG", 8)})
    pack(tmp_path / "part_2.zip", {"a.png": picture(2, "PNG", 8)})
    paths = [tmp_path / "part_1", tmp_path / "part_2.zip"]
    assert image_files.listing(paths) == ["part_1/a.png", "part_2.zip/a.png"]
    items = [Item(name, 0) for name in reversed(image_files.listing(paths))]
    (block,) = images.blocks(paths, items, Notes(), (3, 8, 8))
    assert torch.equal(block.x[0], decoded(picture(2, "PNG", 8)))
    assert torch.equal(block.x[1], decoded(picture(1, "PNG", 8)))


# zips that are refused


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../evil.png", "leaves the archive"),
        ("a/../../evil.png", "leaves the archive"),
        ("/etc/evil.png", "leaves the archive"),
        ("C:/evil.png", "leaves the archive"),
        ("c:evil.png", "leaves the archive"),
        ("a\\..\\evil.png", "has a backslash"),
        ("../evil.txt", "leaves the archive"),  # not only images
        ("__MACOSX/../../evil.png", "leaves the archive"),
    ],
)
def test_members_that_leave_their_zip_are_refused(tmp_path, name, why):
    pack(tmp_path / "some.zip", {"a/b.png": picture(1), name: picture(2)})
    with pytest.raises(DataError) as caught:
        image_files.listing([tmp_path / "some.zip"])
    assert str(caught.value) == f"some.zip: member {name!r} {why}; refused"


def test_members_that_are_links_are_refused(tmp_path):
    member = zipfile.ZipInfo("a/link.png")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(DataError, match="member 'a/link.png' is a link; refused"):
        image_files.listing([tmp_path / "some.zip"])


def test_what_is_no_zip_is_named(tmp_path):
    (tmp_path / "some.zip").write_bytes(b"<html>sign in</html>")
    with pytest.raises(DataError, match="some.zip is damaged .*not a zip file"):
        image_files.listing([tmp_path / "some.zip"])


# faults of single images


def chunk(kind: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + check


def huge(width: int, height: int) -> bytes:
    """Return a PNG that says it is huge; there are no pixels to decode."""
    about = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", about) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


@both
@pytest.mark.parametrize("side", [9_460, 13_000, 40_000])  # Pillow warns, warns, raises
def test_a_huge_image_is_refused_by_its_header(tmp_path, form, side):
    path = stored(tmp_path, form, {"a.png": huge(side, side), "b.png": picture(1)})
    x, notes = read(path, "a.png", "b.png", shape=(3, 32, 32))
    assert len(x) == 1
    told = f"a.png: {side}x{side} pixels, expected at most 89478485"
    assert notes.unreadable == [told]


def test_a_huge_image_is_refused_in_every_thread(tmp_path):
    unpack(tmp_path / "some", {"a.png": huge(13_000, 13_000)})
    told: list[str] = []

    def refuse() -> None:
        for _ in range(20):
            told.extend(read(tmp_path / "some", "a.png")[1].unreadable)

    threads = [threading.Thread(target=refuse) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 80
    assert set(told) == {"a.png: 13000x13000 pixels, expected at most 89478485"}


def damage_directory(path: Path, offset: int, kind: str, value: int) -> None:
    """Write a number into the first entry of a zip's central directory."""
    content = bytearray(path.read_bytes())
    struct.pack_into(kind, content, content.index(b"PK\x01\x02") + offset, value)
    path.write_bytes(content)


def test_a_member_of_absurd_size_is_refused(tmp_path):
    pack(tmp_path / "some.zip", {"a.png": picture(1)})
    damage_directory(tmp_path / "some.zip", 24, "<I", 4_000_000_000)
    _, notes = read(tmp_path / "some.zip", "a.png")
    told = "a.png: 4000000000 bytes, expected at most 268435456"
    assert notes.unreadable == [told]


def test_a_file_of_absurd_size_is_refused(tmp_path):
    with open(tmp_path / "a.png", "wb") as file:
        file.truncate(2**28 + 1)  # takes no room
    _, notes = read(tmp_path, "a.png")
    assert notes.unreadable == ["a.png: 268435457 bytes, expected at most 268435456"]


def test_members_that_cannot_be_unpacked_are_named(tmp_path):
    path = tmp_path / "some.zip"
    pack(path, {"a.png": picture(1, side=8)})
    damage_directory(path, 16, "<I", 12345)  # the sum that its bytes should have
    assert read(path, "a.png")[1].unreadable == ["a.png: Bad CRC-32 for file 'a.png'"]
    pack(path, {"a.png": picture(1, side=8)})
    damage_directory(path, 8, "<H", 1)  # says that it is encrypted
    (told,) = read(path, "a.png")[1].unreadable
    assert "a.png" in told
    assert "encrypted" in told


def png(rows: int, side: int, kind: int = 0, interlaced: bool = False) -> bytes:
    """Return a PNG of ``side`` rows that holds the first ``rows`` of them."""
    width = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind] * side
    about = struct.pack(">IIBBBBB", side, side, 8, kind, 0, 0, interlaced)
    data = zlib.compress(bytes(rows * (width + 1)))
    parts = [chunk(b"IHDR", about)]
    parts += [chunk(b"PLTE", bytes(768))] if kind == 3 else []
    parts += [chunk(b"IDAT", data[i : i + 7]) for i in range(0, len(data), 7)]
    return b"\x89PNG\r\n\x1a\n" + b"".join([*parts, chunk(b"IEND", b"")])


@pytest.mark.parametrize("kind", [0, 2, 3, 4, 6])
def test_rows_that_are_missing_are_not_black(tmp_path, kind):
    names = ("whole.png", "four.png", "none.png")
    members = dict(zip(names, (png(n, 32, kind) for n in (32, 4, 0)), strict=True))
    unpack(tmp_path / "some", members)
    x, notes = read(tmp_path / "some", *names, shape=(3, 32, 32))
    assert len(x) == 1
    told = [text.split(":")[:2] for text in notes.unreadable]
    assert told == [[n, " image file is truncated"] for n in names[1:]]


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "I;16"])
@pytest.mark.parametrize("side", [1, 3, 8, 13])
def test_rows_of_whole_pngs_are_counted_right(mode, side):
    drawn = Image.fromarray(pixels(side, side, name="rows"))
    images.check_png(saved(drawn.convert("I;16" if mode == "I;16" else mode)))


@pytest.mark.parametrize("side", [1, 2, 3, 5, 8, 13])
def test_interlaced_rows_are_counted_as_libpng_writes_them(side):
    wanted = 0
    starts = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4))
    for x, y, dx, dy in (*starts, (1, 0, 2, 2), (0, 1, 1, 2)):
        # by hand: pixels of a pass, a byte each, and one byte a row
        columns, rows = len(range(x, side, dx)), len(range(y, side, dy))
        wanted += rows * (1 + columns) if columns else 0
    about = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 1)
    for missing in (0, 1):
        data = chunk(b"IDAT", zlib.compress(bytes(wanted - missing)))
        content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", about) + data
        content += chunk(b"IEND", b"")
        if missing:
            with pytest.raises(ValueError, match=f"{wanted - 1} of {wanted} bytes"):
                images.check_png(content)
        else:
            images.check_png(content)
            assert Image.open(io.BytesIO(content)).convert("L").size == (side, side)


def test_many_pixels_in_few_bytes_are_refused(tmp_path):
    """74 bytes cost 3.6 GB and were decoded as black."""
    unpack(tmp_path / "some", {"a.png": huge(9_000, 9_000)})
    assert len(huge(9_000, 9_000)) < 74
    (told,) = read(tmp_path / "some", "a.png")[1].unreadable
    assert told == "a.png: 9000x9000 pixels in 57 bytes"


@both
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (picture(1, side=64)[:-300], "image file is truncated"),
        (picture(1, "PNG", side=64)[:-3000], "image file is truncated"),
        (b"", "cannot identify image file"),
        (b"P", "cannot identify image file"),
        (b"<html>sign in</html>", "cannot identify image file"),
        (b"\x89PNG\r\n\x1a\n", ""),  # in Pillow's words
        (saved(Image.new("F", (8, 8)), "TIFF"), "pixels are floating-point numbers"),
        (picture(1, side=9), "9x9 pixels instead of 8x8"),
    ],
    ids=["jpeg", "png", "empty", "letter", "page", "header", "floats", "size"],
)
def test_a_faulty_image_is_named_with_why(tmp_path, form, content, why):
    members = {"x/a.jpg": content, "x/b.jpg": picture(2, side=8)}
    path = stored(tmp_path, form, members)
    x, notes = read(path, "x/a.jpg", "x/b.jpg")
    assert torch.equal(x[0], decoded(members["x/b.jpg"]))
    (told,) = notes.unreadable
    assert told.startswith("x/a.jpg: ")
    assert why in told
    assert len(told) > len("x/a.jpg: ")
    assert notes.sizes == {(8, 8): 1}


# what is decoded


def sixteen_bits() -> Image.Image:
    values = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1024 + 77
    return Image.fromarray(values)


def palette() -> Image.Image:
    image = Image.fromarray((np.arange(64) % 4).astype(np.uint8).reshape(8, 8), "L")
    image = image.convert("P")
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120])
    return image


NOISE = pixels(8, 8, 4, name="modes")
GREY = np.repeat(NOISE[..., :1], 3, 2)
PALETTE = np.array([[10, 20, 30], [40, 50, 60], [70, 80, 90], [100, 110, 120]])
MODES = {
    "RGB": (Image.fromarray(NOISE[..., :3]), {}, NOISE[..., :3]),
    "RGBA": (Image.fromarray(NOISE), {}, NOISE[..., :3]),  # transparency is dropped
    "L": (Image.fromarray(NOISE[..., 0]), {}, GREY),
    "LA": (Image.fromarray(NOISE[..., 0]).convert("LA"), {}, GREY),
    "1": (Image.fromarray(NOISE[..., 0] > 127), {}, (GREY > 127) * 255),
    "P": (palette(), {}, PALETTE[np.arange(64) % 4].reshape(8, 8, 3)),
    "P with transparency": (
        palette(),
        {"transparency": bytes([0, 128, 255, 255])},
        PALETTE[np.arange(64) % 4].reshape(8, 8, 3),
    ),
    "16 bits": (sixteen_bits(), {}, np.arange(64).reshape(8, 8, 1).repeat(3, 2) * 4),
}


@both
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_rgb(tmp_path, form, mode):
    image, options, expected = MODES[mode]
    path = stored(tmp_path, form, {"a.png": saved(image, **options)})
    x, notes = read(path, "a.png")
    assert not notes.unreadable
    assert np.array_equal(x[0].permute(1, 2, 0).numpy(), expected)


def test_colours_of_print(tmp_path):
    ink = Image.new("CMYK", (8, 8), (255, 0, 0, 0))  # all cyan
    unpack(tmp_path, {"a.jpg": saved(ink, "JPEG", quality=100)})
    x, _ = read(tmp_path, "a.jpg")
    assert x[0, :, 0, 0].tolist() == [0, 255, 255]


def test_colour_becomes_grey(tmp_path):
    flat = saved(Image.new("RGB", (8, 8), (200, 100, 50)))
    unpack(tmp_path, {"a.png": flat, "b.png": saved(Image.new("L", (8, 8), 77))})
    x, _ = read(tmp_path, "a.png", "b.png", shape=(1, 8, 8))
    assert x.shape == (2, 1, 8, 8)
    assert x[:, 0, 0, 0].tolist() == [
        124,
        77,
    ]  # (299 * 200 + 587 * 100 + 114 * 50)/1000


def test_the_orientation_that_a_camera_notes_is_ignored(tmp_path):
    image = Image.fromarray(NOISE[..., :3])
    exif = image.getexif()
    exif[0x0112] = 6  # turned by a quarter
    unpack(tmp_path, {"a.png": saved(image, exif=exif), "b.png": saved(image)})
    x, _ = read(tmp_path, "a.png", "b.png")
    assert torch.equal(x[0], x[1])
    assert np.array_equal(x[0].permute(1, 2, 0).numpy(), NOISE[..., :3])


# how it is prepared


@both
@pytest.mark.parametrize(
    ("prepare", "shape", "theirs"),
    [
        (images.square(8), (3, 8, 8), [transforms.Resize((8, 8))]),
        (
            images.centre(16, 12),
            (3, 12, 12),
            [transforms.Resize(16), transforms.CenterCrop(12)],
        ),
    ],
    ids=["square", "centre"],
)
def test_images_of_any_size_as_torchvision_prepares_them(
    tmp_path, form, prepare: Callable, shape, theirs
):
    sizes = [(40, 23), (23, 40), (8, 8), (5, 7)]
    noise = [pixels(h, w, 3, name=f"{w}x{h}") for w, h in sizes]
    names = [f"c/{n}.png" for n in range(4)]
    contents = [saved(Image.fromarray(array)) for array in noise]
    path = stored(tmp_path, form, dict(zip(names, contents, strict=True)))
    x, notes = read(path, *names, shape=shape, prepare=prepare)
    unpack(tmp_path / "theirs", dict(zip(names, contents, strict=True)))
    steps = transforms.Compose([*theirs, transforms.PILToTensor()])
    assert torch.equal(
        x, torch.stack([image for image, _ in ImageFolder(tmp_path / "theirs", steps)])
    )
    assert notes.sizes == dict.fromkeys(sizes, 1)  # as found


def test_a_ribbon_does_not_become_huge(tmp_path):
    unpack(tmp_path, {"a.png": saved(Image.new("RGB", (2, 6000)))})
    _, notes = read(tmp_path, "a.png", prepare=images.centre(256, 224))
    assert notes.unreadable == ["a.png: would become 256 by 768000 pixels"]


@both
def test_blocks_are_small_and_keep_their_order(tmp_path, form, monkeypatch):
    monkeypatch.setattr(images, "BLOCK", 2)
    members = {f"{n}.png": picture(n, "PNG", 8) for n in range(7)}
    members["3.png"] = members["4.png"] = members["5.png"] = b""
    path = stored(tmp_path, form, members)
    items = [Item(f"{n}.png", n, f"of {n % 2}") for n in (6, 5, 4, 3, 2, 1, 0)]
    notes = Notes()
    blocks = images.blocks([path], items, notes, (3, 8, 8))
    first = next(blocks)
    assert first.y == [6]
    assert first.group == ["of 0"]
    assert len(notes.unreadable) == 1  # nothing is read ahead
    rest = list(blocks)
    assert [b.y for b in rest] == [[2, 1], [0]]
    assert torch.equal(rest[0].x[1], decoded(members["1.png"]))
    assert [told[:5] for told in notes.unreadable] == ["5.png", "4.png", "3.png"]


def test_what_ends_like_an_image_is_what_torchvision_takes_for_one():
    assert image_files.IMG_EXTENSIONS == IMG_EXTENSIONS

"""Small copies of data sets in their real on-disk formats."""

import gzip
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedlib.core.rng import generator


def pixels(*shape: int, name: str = "pixels") -> np.ndarray:
    drawn = torch.randint(0, 256, shape, generator=generator(0, name))
    return drawn.to(torch.uint8).numpy()


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


def picture(number: int, kind: str = "JPEG", side: int = 32) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(pixels(side, side, 3, name=f"picture {number}"))
    image.save(buffer, kind, quality=90)
    return buffer.getvalue()


def decoded(content: bytes) -> torch.Tensor:
    with Image.open(io.BytesIO(content)) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def pack(path: Path, members: dict[str, bytes], prefix: str = "") -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(prefix + name, content)


def unpack(folder: Path, members: dict[str, bytes]) -> None:
    for name, content in members.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

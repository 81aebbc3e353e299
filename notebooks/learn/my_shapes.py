"""Images, a net, clients and a method of your own; page 40 opens it piece by piece.

Copy this file, change what you like, and name yours to ``own.use``. What it adds has
the names of the five lines at its end.
"""

import os
import tempfile
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image
from pydantic import Field
from torch import Tensor, nn

from fedlib import data, papers
from fedlib.blocks import shared_model
from fedlib.core.layers import Conv2d, Linear, MaxPool2d, Sequential
from fedlib.core.messages import Model
from fedlib.core.method import Context, Logged
from fedlib.core.net import Shape, State
from fedlib.core.nets import Parts
from fedlib.core.rng import seed_of
from fedlib.core.tree import tree_map
from fedlib.partitions import Partition
from fedlib.partitions.common import SchemeSettings, finished, split_by
from fedlib.runs import own
from fedlib.support.paths import cache_dir

SIDE, PER_CLASS = 12, 120  # pixels, images
KINDS = ("cross", "disc", "ring", "square")


# images: you have yours already, in a folder for each class


def shape(kind: str, draw: np.random.Generator) -> np.ndarray:
    """Return one noisy grey image ``[SIDE, SIDE]`` of a shape somewhere in it."""
    radius = draw.uniform(2.5, 4.5)
    y, x = np.abs(np.mgrid[:SIDE, :SIDE] - draw.uniform(4.5, 6.5, (2, 1, 1)))
    inside = {
        "cross": (np.minimum(x, y) < 0.8) & (np.maximum(x, y) < radius),
        "disc": np.hypot(x, y) < radius,
        "ring": np.abs(np.hypot(x, y) - radius) < 0.8,
        "square": np.maximum(x, y) < 0.9 * radius,
    }[kind]
    grey = draw.normal(70, 45, (SIDE, SIDE)) + draw.uniform(60, 150) * inside
    return grey.clip(0, 255).astype(np.uint8)


def drawn(folder: Path) -> Path:
    """Write all images, ``<class>/<number>.png``, unless they are there."""
    if not folder.is_dir():
        draw = np.random.default_rng(0)
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent))
        for kind in KINDS:
            (scratch / kind).mkdir()
            for i in range(PER_CLASS):
                Image.fromarray(shape(kind, draw)).save(scratch / kind / f"{i:03d}.png")
        os.replace(scratch, folder)
    return folder


# a net: what maps an image to two embeddings and logits


def small_cnn(shape: Shape, classes: int) -> Parts:
    """Return low encoder, high encoder with an embedding of 32 numbers, and head."""
    side = shape[1] // 4
    return (
        Sequential(Conv2d(shape[0], 8, 3, padding=1), nn.ReLU(), MaxPool2d()),
        Sequential(
            *(Conv2d(8, 16, 3, padding=1), nn.ReLU(), MaxPool2d()),
            *(nn.Flatten(), Linear(16 * side * side, 32), nn.ReLU()),
        ),
        Sequential(Linear(32, classes)),
    )


# clients: who holds which images


class Stairs(SchemeSettings):
    """Every client has all classes, and each more images than the one before it."""

    scheme: Literal["stairs"] = "stairs"
    step: float = Field(default=1.0, ge=0)  # 0: all alike


def stairs(
    train_labels: Tensor, test_labels: Tensor, *, clients: int, seed: int, step: float
) -> Partition:
    """Give client k ``1 + k * step`` times as many images as client 0, at random."""
    draw = np.random.default_rng(seed_of(seed, "stairs"))
    shares = 1 + step * np.arange(clients)
    parts = split_by(draw.permutation(len(train_labels)), shares / shares.sum())
    return finished(parts, train_labels, test_labels)


# a method: FedAvg whose server has momentum (Hsu et al., 2019)


class HP(shared_model.HP):
    """Hyper-parameters: those of FedAvg, and one."""

    momentum: float = Field(default=0.5, ge=0, lt=1)  # 0: FedAvg


class Server(NamedTuple):
    """What the server keeps: the model, and how it last moved."""

    model: Model
    velocity: State


def init(ctx: Context) -> tuple[Server, shared_model.Client]:
    """Begin as FedAvg does, at rest."""
    server, mine = shared_model.init(ctx)
    return Server(server.model, tree_map(lambda w: 0 * w, server.model.params)), mine


def merge(ctx: Context, server: Server, up: shared_model.Up) -> tuple[Server, Logged]:
    """Average the models as FedAvg does, then go on a little as the server moved."""
    averaged, logged = shared_model.merge(ctx, server, up)
    mean, before = averaged.model.params, server.model.params
    moved = {k: mean[k] + ctx.hp.momentum * v for k, v in server.velocity.items()}
    velocity = {k: moved[k] - before[k] for k in moved}
    return Server(averaged.model._replace(params=moved), velocity), logged


METHOD = shared_model.BASE._replace(
    name="fedavgm", source="Hsu et al., 2019", hp=HP, init=init, merge=merge
)

own.add_method("fedavgm", "FedAvgM", __name__)
own.add_net("small_cnn", small_cnn)
own.add_scheme(Stairs, stairs)
data.add_folder("my_shapes", drawn(cache_dir() / "my_shapes"), side=SIDE, grey=True)
papers.add("fedmps", "my_shapes", like="digits", net="small_cnn", clients=4)

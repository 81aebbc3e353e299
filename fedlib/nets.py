"""The networks of the papers, cut into low encoder, high encoder and head.

A net is a shape; its weights are data. ``Net.init`` draws a state (a dict of tensors),
and calling the net with a state computes embeddings and logits, so that K clients are K
states stacked along a leading axis.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedlib.layers import Conv2d, Dropout, Linear, MaxPool2d

State = dict[str, Tensor]


class Out(NamedTuple):
    """What a forward pass returns for a batch of B samples."""

    low: Tensor  # [B, d_low] unit vectors: the flattened low-level map (z^l)
    high: Tensor  # [B, d_high] unit vectors: the embedding that the head sees (z^h)
    logits: Tensor  # [B, C]


class TwoLevel(nn.Module):
    """Low encoder, high encoder and head, with both embeddings L2-normalised.

    The low embedding is a side output: the high encoder continues from the map before
    normalisation. The head sees the *normalised* high embedding (FedMPS, Section IV-A3
    and its released code); every method runs on this same forward pass.
    """

    def __init__(self, low: nn.Module, high: nn.Module, head: nn.Module):
        super().__init__()
        self.low = low
        self.high = high
        self.head = head

    def forward(self, x: Tensor) -> Out:
        """Map images ``[B, c, h, w]`` to embeddings and logits."""
        features = self.low(x)
        low = F.normalize(features.flatten(1), eps=1e-12)
        high = F.normalize(self.high(features).flatten(1), eps=1e-12)
        return Out(low, high, self.head(high))


class Net(NamedTuple):
    """A network as a function of its state."""

    name: str
    module: TwoLevel  # structure only; its own weights are never used
    shape: tuple[int, int, int]  # of an input image
    classes: int

    def init(self, generator: torch.Generator) -> State:
        """Draw a state: torch's default initialisation from a named generator."""
        state = {k: v.detach().clone() for k, v in self.module.state_dict().items()}
        for name, layer in self.module.named_modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
                nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
                bound = 1 / math.sqrt(weight[0].numel())
                nn.init.uniform_(bias, -bound, bound, generator=generator)
        return state

    @property
    def buffers(self) -> frozenset[str]:
        """Names in the state that are not trained (BatchNorm statistics)."""
        return frozenset(
            self.init_names() - {n for n, _ in self.module.named_parameters()}
        )

    def init_names(self) -> set[str]:
        """Return all names of a state."""
        return set(self.module.state_dict())

    @property
    def dropout_keys(self) -> list[str]:
        """Names of the dropout keys that a training step sets."""
        return [n for n, _ in self.module.named_buffers() if n.endswith(".key")]

    def __call__(self, state: State, x: Tensor, *, train: bool = False) -> Out:
        """Return embeddings and logits of ``x`` ``[B, c, h, w]`` under ``state``.

        In train mode BatchNorm statistics in ``state`` are updated in place.
        """
        return functional_call(self.module.train(train), state, (x,))

    def head(self, state: State, high: Tensor, *, train: bool = False) -> Tensor:
        """Return logits ``[B, C]`` of high embeddings under a state of the head."""
        return functional_call(self.module.head.train(train), state, (high,))

    def head_state(self, state: State) -> State:
        """Return the head's part of a state, named as the head alone names it."""
        return {
            k.removeprefix("head."): v
            for k, v in state.items()
            if k.startswith("head.")
        }

    def embedding_sizes(self) -> tuple[int, int]:
        """Return ``(d_low, d_high)``."""
        with torch.no_grad():
            out = self.module.eval()(torch.zeros(1, *self.shape))
        return out.low.shape[1], out.high.shape[1]

    def parameter_count(self) -> int:
        """Return the number of trained parameters."""
        return sum(p.numel() for p in self.module.parameters())


def _lenet(shape: tuple[int, int, int], classes: int) -> TwoLevel:
    """MOON's CIFAR net without its projection head (FedMPS: CIFAR-10, Flowers ...)."""
    return TwoLevel(
        nn.Sequential(
            *(Conv2d(shape[0], 6, 5), nn.ReLU(), MaxPool2d()),
            *(Conv2d(6, 16, 5), nn.ReLU(), MaxPool2d()),
        ),
        nn.Sequential(nn.Flatten(), Linear(400, 120), nn.ReLU()),
        nn.Sequential(Linear(120, 84), nn.ReLU(), Linear(84, classes)),
    )


def _fashion_cnn(shape: tuple[int, int, int], classes: int) -> TwoLevel:
    """FedProto's Fashion-MNIST net: two convolutions with BatchNorm, one linear."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        conv = Conv2d(inputs, outputs, 5, padding=2)
        return [conv, nn.BatchNorm2d(outputs), nn.ReLU(), MaxPool2d()]

    return TwoLevel(
        nn.Sequential(*block(shape[0], 16)),
        nn.Sequential(*block(16, 32), nn.Flatten()),
        nn.Sequential(Linear(32 * (shape[1] // 4) * (shape[2] // 4), classes)),
    )


def _fedproto_cnn(
    shape: tuple[int, int, int], classes: int, *, kernel: int, dropout: float
) -> TwoLevel:
    """FedProto's nets for MNIST (first kernel 5) and Femnist (first kernel 3)."""
    height, width = (((side - kernel + 1) // 2 - 4) // 2 for side in shape[1:])
    return TwoLevel(
        nn.Sequential(
            *(Conv2d(shape[0], 10, kernel), MaxPool2d(), nn.ReLU(), Conv2d(10, 20, 5)),
            *(Dropout(dropout, channels=True), MaxPool2d(), nn.ReLU()),
        ),
        nn.Sequential(nn.Flatten(), Linear(20 * height * width, 50), nn.ReLU()),
        nn.Sequential(Dropout(dropout), Linear(50, classes)),
    )


def _digits_cnn(shape: tuple[int, int, int], classes: int) -> TwoLevel:
    """Ours, for the embedded 8 x 8 digits of the quick preset."""
    return TwoLevel(
        nn.Sequential(
            *(Conv2d(shape[0], 8, 3, padding=1), nn.ReLU(), MaxPool2d()),
            *(Conv2d(8, 16, 3, padding=1), nn.ReLU(), MaxPool2d()),
        ),
        nn.Sequential(nn.Flatten(), Linear(64, 32), nn.ReLU()),
        nn.Sequential(Linear(32, 16), nn.ReLU(), Linear(16, classes)),
    )


def _mnist_cnn(shape: tuple[int, int, int], classes: int) -> TwoLevel:
    return _fedproto_cnn(shape, classes, kernel=5, dropout=0.5)


def _mnist_cnn_plain(shape: tuple[int, int, int], classes: int) -> TwoLevel:
    return _fedproto_cnn(shape, classes, kernel=5, dropout=0.0)


def _femnist_cnn(shape: tuple[int, int, int], classes: int) -> TwoLevel:
    return _fedproto_cnn(shape, classes, kernel=3, dropout=0.5)


# name -> (builder, image shape it needs; None for a free side)
NETS: dict[str, tuple[Callable[..., TwoLevel], tuple[int | None, ...]]] = {
    "lenet": (_lenet, (None, 32, 32)),
    "fashion_cnn": (_fashion_cnn, (None, None, None)),
    "mnist_cnn": (_mnist_cnn, (None, None, None)),
    "mnist_cnn_plain": (_mnist_cnn_plain, (None, None, None)),
    "femnist_cnn": (_femnist_cnn, (None, None, None)),
    "digits_cnn": (_digits_cnn, (None, 8, 8)),
}


def build(name: str, shape: tuple[int, int, int], classes: int) -> Net:
    """Return a net by name for images of ``shape`` (channels, height, width).

    Raises
    ------
    ValueError
        Unknown name, or a shape that the net does not take.
    """
    if name not in NETS:
        raise ValueError(f"net: got {name!r}, expected one of {', '.join(NETS)}")
    builder, needed = NETS[name]
    if any(n not in (None, s) for n, s in zip(needed, shape, strict=True)):
        raise ValueError(f"net {name}: images are {shape}, expected {needed}")
    with torch.random.fork_rng(devices=[]):  # layers draw weights that nobody uses
        module = builder(shape, classes)
    return Net(name, module, shape, classes)

"""The networks of the papers, cut into low encoder, high encoder and head.

What a network is, ``net`` says.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import nn

from fedlib.core.layers import (
    BatchNorm2d,
    Conv2d,
    Dropout,
    Linear,
    MaxPool2d,
    MeanPool2d,
    Sequential,
)
from fedlib.core.net import Net, Shape, TwoLevel

if TYPE_CHECKING:
    from torchvision.models import resnet

Parts = tuple[nn.Module, nn.Module, nn.Module]  # low encoder, high encoder, head


def _block(conv: Conv2d, *, norm: bool = True, pool: bool = True) -> list[nn.Module]:
    """Return a convolution with what follows it in most nets."""
    after = [BatchNorm2d(conv.out_channels)] if norm else []
    return [conv, *after, nn.ReLU(), *([MaxPool2d()] if pool else [])]


def _lenet(shape: Shape, classes: int) -> Parts:
    """MOON's CIFAR net without its projection head (FedMPS: CIFAR-10, Flowers ...)."""
    return (
        Sequential(
            *(Conv2d(shape[0], 6, 5), nn.ReLU(), MaxPool2d()),
            *(Conv2d(6, 16, 5), nn.ReLU(), MaxPool2d()),
        ),
        Sequential(nn.Flatten(), Linear(400, 120), nn.ReLU()),
        Sequential(Linear(120, 84), nn.ReLU(), Linear(84, classes)),
    )


def _fashion_cnn(shape: Shape, classes: int) -> Parts:
    """FedProto's Fashion-MNIST net: two convolutions with BatchNorm, one linear."""
    return (
        Sequential(*_block(Conv2d(shape[0], 16, 5, padding=2))),
        Sequential(*_block(Conv2d(16, 32, 5, padding=2)), nn.Flatten()),
        Sequential(Linear(32 * (shape[1] // 4) * (shape[2] // 4), classes)),
    )


def _fedproto_cnn(shape: Shape, classes: int, *, kernel: int, dropout: float) -> Parts:
    """FedProto's nets for MNIST (first kernel 5) and Femnist (first kernel 3)."""
    height, width = (((side - kernel + 1) // 2 - 4) // 2 for side in shape[1:])
    return (
        Sequential(
            *(Conv2d(shape[0], 10, kernel), MaxPool2d(), nn.ReLU(), Conv2d(10, 20, 5)),
            *(Dropout(dropout, channels=True), MaxPool2d(), nn.ReLU()),
        ),
        Sequential(nn.Flatten(), Linear(20 * height * width, 50), nn.ReLU()),
        Sequential(Dropout(dropout), Linear(50, classes)),
    )


def _digits_cnn(shape: Shape, classes: int) -> Parts:
    """Ours, for the embedded 8 x 8 digits of the quick preset."""
    return (
        Sequential(
            *(Conv2d(shape[0], 8, 3, padding=1), nn.ReLU(), MaxPool2d()),
            *(Conv2d(8, 16, 3, padding=1), nn.ReLU(), MaxPool2d()),
        ),
        Sequential(nn.Flatten(), Linear(64, 32), nn.ReLU()),
        Sequential(Linear(32, 16), nn.ReLU(), Linear(16, classes)),
    )


def _digits(shape: Shape, classes: int, *, norm: bool) -> Parts:
    """Ours, for quick runs: 8 x 8 images, 32 raw embeddings, one linear head."""
    return (
        Sequential(
            *_block(Conv2d(shape[0], 8, 3, padding=1), norm=norm),
            *_block(Conv2d(8, 16, 3, padding=1), norm=norm),
        ),
        Sequential(nn.Flatten(), Linear(64, 32)),
        Sequential(Linear(32, classes)),
    )


def _fedpa_cnn(shape: Shape, classes: int) -> Parts:
    """FedPA's net for MNIST, FashionMNIST and EMNIST (its released code)."""
    height, width = (-(-side // 4) for side in shape[1:])
    return (
        Sequential(
            *_block(Conv2d(shape[0], 6, 3, stride=2, padding=1), pool=False),
            *_block(Conv2d(6, 16, 3, stride=2, padding=1), pool=False),
        ),
        Sequential(nn.Flatten(), Linear(16 * height * width, 32)),  # no activation
        Sequential(Linear(32, classes)),
    )


def _fedpa_cnn_celeba(shape: Shape, classes: int) -> Parts:
    """FedPA's net for CelebA (its released code)."""
    return (
        Sequential(
            *_block(Conv2d(shape[0], 16, 3, stride=2, padding=1)),
            *_block(Conv2d(16, 32, 3, stride=2, padding=1)),
        ),
        Sequential(
            *_block(Conv2d(32, 64, 3, stride=2, padding=1)),
            *(nn.Flatten(), Linear(64, 32)),
        ),
        Sequential(Linear(32, classes)),
    )


def _convnet5(shape: Shape, classes: int) -> Parts:
    """FedPG's FEMNIST net: FederatedScope's ConvNet5, cut before its linear layers."""
    height, width = shape[1] // 32, shape[2] // 32
    if not height or not width:
        raise ValueError(f"net convnet5: images are {shape}, needs 32 pixels a side")
    widths = (32, 64, 64, 128, 128)
    later = (_block(Conv2d(a, b, 5, padding=2)) for a, b in pairwise(widths))
    return (
        Sequential(*_block(Conv2d(shape[0], 32, 5, padding=2))),
        Sequential(*(layer for block in later for layer in block), nn.Flatten()),
        Sequential(
            Linear(128 * height * width, 2048), nn.ReLU(), Linear(2048, classes)
        ),
    )


def _by_client(module: nn.Module) -> nn.Module:
    """Turn torchvision's layers into ours; weights, names and results stay."""
    ours = {
        nn.Conv2d: Conv2d,
        nn.Linear: Linear,
        nn.BatchNorm2d: BatchNorm2d,
    }
    for layer in module.modules():
        layer.__class__ = ours.get(type(layer), type(layer))
        if isinstance(layer, nn.ReLU):
            layer.inplace = False  # under vmap a write in place costs a copy
    return module


def _cifar_stem(channels: int, width: int) -> nn.Module:
    """Return a 3 x 3 convolution that keeps the size, for images of 32 pixels."""
    conv = Conv2d(channels, width, 3, padding=1, bias=False)
    return Sequential(*_block(conv, pool=False))


def _imagenet_stem(channels: int) -> nn.Module:
    """Return torchvision's stem, which divides the side by 4."""
    conv = Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    pool = MaxPool2d(3, stride=2, padding=1)
    return Sequential(*_block(conv, pool=False), pool)


def _resnet10(shape: Shape, classes: int, *, width: int) -> Parts:
    """FedHPro's ResNet10: CIFAR stem and four stages of one torchvision block."""
    from torchvision.models import resnet  # seconds, which most nets need not

    def stage(inputs: int, outputs: int) -> nn.Module:
        """Halve the side and double the channels."""
        narrow = resnet.conv1x1(inputs, outputs, 2)
        shortcut = Sequential(narrow, BatchNorm2d(outputs))
        return resnet.BasicBlock(inputs, outputs, 2, shortcut)

    widths = (width, 2 * width, 4 * width, 8 * width)
    stages = (stage(a, b) for a, b in pairwise(widths))
    blocks = Sequential(resnet.BasicBlock(width, width), *stages, MeanPool2d())
    return (
        _cifar_stem(shape[0], width),
        _by_client(blocks),
        Sequential(Linear(widths[-1], classes)),
    )


def _resnet(
    shape: Shape, classes: int, *, make: "Callable[..., resnet.ResNet]", cifar: bool
) -> Parts:
    """Torchvision's ResNet (FedPG, GFPL) with its own stem, or with the CIFAR stem."""
    net = make(num_classes=classes)
    stages = (net.layer1, net.layer2, net.layer3, net.layer4)
    return (
        _cifar_stem(shape[0], 64) if cifar else _imagenet_stem(shape[0]),
        _by_client(Sequential(*stages, MeanPool2d())),
        Sequential(_by_client(net.fc)),
    )


def _make18(num_classes: int) -> "resnet.ResNet":
    from torchvision.models import resnet

    return resnet.resnet18(num_classes=num_classes)


def _make50(num_classes: int) -> "resnet.ResNet":
    from torchvision.models import resnet

    return resnet.resnet50(num_classes=num_classes)


_resnet18 = partial(_resnet, make=_make18)
_resnet50 = partial(_resnet, make=_make50)


def _mnist_cnn(shape: Shape, classes: int) -> Parts:
    return _fedproto_cnn(shape, classes, kernel=5, dropout=0.5)


def _mnist_cnn_plain(shape: Shape, classes: int) -> Parts:
    return _fedproto_cnn(shape, classes, kernel=5, dropout=0.0)


def _femnist_cnn(shape: Shape, classes: int) -> Parts:
    return _fedproto_cnn(shape, classes, kernel=3, dropout=0.5)


def _femnist_cnn_80(shape: Shape, classes: int) -> Parts:
    """FedProto's net for Femnist with an embedding of 80 (GFPL, Section 5.1)."""
    low, _, _ = _femnist_cnn(shape, classes)
    height, width = (((side - 2) // 2 - 4) // 2 for side in shape[1:])
    high = Sequential(nn.Flatten(), Linear(20 * height * width, 80), nn.ReLU())
    return low, high, Sequential(Dropout(0.5), Linear(80, classes))


def _resnet18_128(shape: Shape, classes: int) -> Parts:
    """ResNet18 with one more layer, to an embedding of 128 (GFPL, Section 5.1)."""
    low, high, _ = _resnet18(shape, classes, cifar=False)
    narrow = Sequential(high, Linear(512, 128), nn.ReLU())
    return low, narrow, Sequential(Linear(128, classes))


class _Kind(NamedTuple):
    """How to build a net, and what its paper does."""

    build: Callable[[Shape, int], Parts]
    shape: tuple[int | None, ...] = (None, None, None)  # of an image; None: any size
    embedding: Literal["unit", "raw"] = "raw"
    rule: Literal["torch", "he"] = "torch"  # of initialisation
    pooled: bool = False  # low embedding: channel means of the map


NETS = {
    "lenet": _Kind(_lenet, (None, 32, 32), "unit"),
    "fashion_cnn": _Kind(_fashion_cnn, embedding="unit"),
    "mnist_cnn": _Kind(_mnist_cnn, embedding="unit"),
    "mnist_cnn_plain": _Kind(_mnist_cnn_plain, embedding="unit"),
    "femnist_cnn": _Kind(_femnist_cnn, embedding="unit"),
    "femnist_cnn_80": _Kind(_femnist_cnn_80, embedding="unit"),
    "digits_cnn": _Kind(_digits_cnn, (None, 8, 8), "unit"),
    "digits_linear": _Kind(partial(_digits, norm=False), (None, 8, 8)),
    "digits_bn": _Kind(partial(_digits, norm=True), (None, 8, 8)),
    "fedpa_cnn": _Kind(_fedpa_cnn),
    "fedpa_cnn_celeba": _Kind(_fedpa_cnn_celeba, (None, 84, 84)),
    "resnet10": _Kind(partial(_resnet10, width=32), pooled=True),
    "resnet10_w64": _Kind(partial(_resnet10, width=64), pooled=True),
    "resnet18": _Kind(partial(_resnet18, cifar=False), rule="he", pooled=True),
    "resnet18_128": _Kind(_resnet18_128, rule="he", pooled=True),
    "resnet50": _Kind(partial(_resnet50, cifar=False), rule="he", pooled=True),
    "resnet18_cifar": _Kind(partial(_resnet18, cifar=True), rule="he", pooled=True),
    "resnet50_cifar": _Kind(partial(_resnet50, cifar=True), rule="he", pooled=True),
    "convnet5": _Kind(_convnet5, pooled=True),
}


def build(
    name: str,
    shape: Shape,
    classes: int,
    embedding: Literal["unit", "raw"] | None = None,
) -> Net:
    """Return a net by name for images of ``shape`` (channels, height, width).

    Parameters
    ----------
    embedding : "unit" or "raw", optional
        Whether embeddings are L2-normalised; by default as in the net's paper.

    Raises
    ------
    ValueError
        Unknown name or embedding, or a shape that the net does not take.
    """
    if name not in NETS:
        raise ValueError(f"net: got {name!r}, expected one of {', '.join(NETS)}")
    kind = NETS[name]
    if any(n not in (None, s) for n, s in zip(kind.shape, shape, strict=True)):
        raise ValueError(f"net {name}: images are {shape}, expected {kind.shape}")
    chosen = kind.embedding if embedding is None else embedding
    if chosen not in ("unit", "raw"):
        raise ValueError(f"embedding: got {embedding!r}, expected unit or raw")
    with torch.random.fork_rng(devices=[]):  # layers draw weights that nobody uses
        parts = kind.build(shape, classes)
    module = TwoLevel(*parts, unit=chosen == "unit", pooled=kind.pooled)
    return Net(name, module, shape, classes, kind.rule)

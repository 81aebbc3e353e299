"""A net with one linear layer as its head: gradients in closed form."""

import torch
from torch import Tensor, nn

from fedlib.core.net import Net, State


def name_in(net: Net) -> str:
    """Return how a net's state names its one linear head, such as ``head.0``.

    Raises
    ------
    ValueError
        The head is more than one linear layer.
    """
    layers = net.module.head.named_modules(prefix="head")
    leaves = [(name, layer) for name, layer in layers if not list(layer.children())]
    if len(leaves) != 1 or not isinstance(leaves[0][1], nn.Linear):
        kinds = ", ".join(type(layer).__name__ for _, layer in leaves)
        raise ValueError(
            f"net: the head of {net.name!r} is {kinds}, expected one linear layer, "
            "where gradients for embeddings have a closed form"
        )
    return leaves[0][0]


def linear(net: Net, state: State) -> tuple[Tensor, Tensor]:
    """Return weight ``[..., C, d]`` and bias ``[..., C]`` of a net's linear head."""
    name = name_in(net)
    return state[f"{name}.weight"], state[f"{name}.bias"]


def within(head: State) -> State:
    """Return a state of the head alone, named as the whole net names it."""
    return {f"head.{name}": value for name, value in head.items()}


def residual(logits: Tensor, label: Tensor) -> Tensor:
    """Return softmax minus one-hot ``[..., C]``: cross-entropy's gradient for logits.

    Labels ``[...]`` below 0 have no one-hot vector.
    """
    hot = label.unsqueeze(-1) == torch.arange(logits.shape[-1])
    return torch.softmax(logits, -1) - hot.to(logits.dtype)


def weight_gradient(z: Tensor, miss: Tensor) -> Tensor:
    """Return the mean gradient ``[..., C, d + 1]`` of a linear head over n samples.

    Parameters
    ----------
    z : Tensor
        Embeddings ``[..., n, d]``.
    miss : Tensor
        Their residuals ``[..., n, C]``.

    Returns
    -------
    Tensor
        The last column belongs to the bias.
    """
    inputs = torch.cat([z, torch.ones_like(z[..., :1])], -1)
    return miss.transpose(-1, -2) @ inputs / z.shape[-2]

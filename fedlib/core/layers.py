"""The hot layers, each with its own batching rule over clients.

``torch.func.vmap`` lets a loss be written for one client and run for K at once, but
its convolutions and pooling are slow on CPU. The layers below are torch's own for one
client; under ``vmap`` they compute all clients in one call: convolution as a grouped
convolution and pooling in ``channels_last`` layout, linear as ``bmm``, cross-entropy on
flattened logits. Gradients come from torch's autograd in both cases. BatchNorm needs
no rule: torch's own is as fast.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import (
    TransformType,
    is_batchedtensor,
    peek_interpreter_stack,
)


def batched_by(plain: Callable[..., Tensor], rule: Callable[..., tuple]) -> Callable:
    """Return ``plain`` as a function whose ``vmap`` is ``rule``.

    Outside ``vmap``, and under ``torch.func.grad`` inside it, ``plain`` runs as it is,
    with torch's own derivatives of any order.

    Parameters
    ----------
    plain : callable
        Maps tensors and constants to one tensor, for one client.
    rule : callable
        ``rule(clients, in_dims, *args) -> (output, output_dim)``, where ``in_dims[i]``
        is the client dimension of argument i, or None where all clients share it.
    """

    class Op(torch.autograd.Function):
        @staticmethod
        def forward(*args):
            return plain(*args)

        @staticmethod
        def setup_context(ctx, inputs, output):
            """Save nothing: autograd differentiates the rule itself."""

        @staticmethod
        def vmap(info, in_dims, *args):
            return rule(info.batch_size, in_dims, *args)

    def call(*args) -> Tensor:
        return Op.apply(*args) if _over_clients(args) else plain(*args)

    return call


def _over_clients(args: tuple) -> bool:
    """Return whether a ``vmap`` is the innermost transform and maps an argument."""
    innermost = peek_interpreter_stack()
    return (
        innermost is not None
        and innermost.key() == TransformType.Vmap
        and any(isinstance(a, Tensor) and is_batchedtensor(a) for a in args)
    )


def _clients_at(x: Tensor, dim: int | None, clients: int, to: int) -> Tensor:
    """Return ``x`` with its client dimension moved to ``to`` (added when shared)."""
    if dim is None:
        return x.unsqueeze(to).expand(*x.shape[:to], clients, *x.shape[to:])
    return x.movedim(dim, to)


def _as_channels(x: Tensor) -> Tensor:
    """Fold ``[B, K, C, H, W]`` to ``[B, K*C, H, W]`` in channels_last layout."""
    return x.flatten(1, 2).contiguous(memory_format=torch.channels_last)


def _conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int
) -> Tensor:
    return F.conv2d(x, weight, bias, stride, padding)


def _conv_rule(clients, in_dims, x, weight, bias, stride, padding):
    weight = _clients_at(weight, in_dims[1], clients, 0).flatten(0, 1)
    if bias is not None:
        bias = _clients_at(bias, in_dims[2], clients, 0).flatten(0, 1)
    x = _as_channels(_clients_at(x, in_dims[0], clients, 1))
    weight = weight.contiguous(memory_format=torch.channels_last)
    out = F.conv2d(x, weight, bias, stride, padding, groups=clients)
    return out.unflatten(1, (clients, -1)), 1


def _pool(x: Tensor, size: int, stride: int, padding: int) -> Tensor:
    return F.max_pool2d(x, size, stride, padding)


def _pool_rule(clients, in_dims, x, size, stride, padding):
    out = F.max_pool2d(_as_channels(x.movedim(in_dims[0], 1)), size, stride, padding)
    return out.unflatten(1, (clients, -1)), 1


def _linear_rule(clients, in_dims, x, weight, bias):
    x = _clients_at(x, in_dims[0], clients, 0)
    weight = _clients_at(weight, in_dims[1], clients, 0)
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2)), 0
    bias = _clients_at(bias, in_dims[2], clients, 0)
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2)), 0


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


def _cross_entropy_rule(clients, in_dims, logits, target):
    logits = _clients_at(logits, in_dims[0], clients, 0)
    target = _clients_at(target, in_dims[1], clients, 0)
    each = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    return each.unflatten(0, (clients, -1)).mean(1), 0


def _dropout_mask(like: Tensor, key: Tensor, rate: float) -> Tensor:
    drawn = torch.rand(like.shape, generator=torch.Generator().manual_seed(int(key)))
    return (drawn >= rate).to(like) / (1 - rate)


def _dropout_mask_rule(clients, in_dims, like, key, rate):
    like = _clients_at(like, in_dims[0], clients, 0)
    keys = _clients_at(key, in_dims[1], clients, 0)
    masks = [
        _dropout_mask(one, k, rate) for one, k in zip(like, keys.tolist(), strict=True)
    ]
    return torch.stack(masks), 0


conv2d = batched_by(_conv, _conv_rule)
max_pool2d = batched_by(_pool, _pool_rule)
linear = batched_by(F.linear, _linear_rule)
cross_entropy = batched_by(_cross_entropy, _cross_entropy_rule)
dropout_mask = batched_by(_dropout_mask, _dropout_mask_rule)


class Conv2d(nn.Conv2d):
    """``torch.nn.Conv2d`` with a batching rule; stride and padding are square."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, C, H, W]`` to ``[B, C', H', W']``."""
        stride, padding = self.stride[0], int(self.padding[0])
        return conv2d(x, self.weight, self.bias, stride, padding)


class MaxPool2d(nn.Module):
    """Max-pooling over ``size`` x ``size`` windows; by default side by side."""

    def __init__(self, size: int = 2, *, stride: int | None = None, padding: int = 0):
        super().__init__()
        self.size = size
        self.stride = size if stride is None else stride
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, C, H, W]`` to ``[B, C, H', W']``."""
        return max_pool2d(x, self.size, self.stride, self.padding)


class MeanPool2d(nn.Module):
    """The mean of every map, at any image size; torch maps it fast over clients."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, C, H, W]`` to ``[B, C]``."""
        return x.mean((-2, -1))


class Linear(nn.Linear):
    """``torch.nn.Linear`` with a batching rule, for ``[B, d]`` inputs."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, d]`` to ``[B, d']``."""
        return linear(x, self.weight, self.bias)


class Dropout(nn.Module):
    """Dropout whose mask depends on a key that the training loop sets per client.

    The buffer ``key`` is the seed of the mask. A training step writes a new key for
    each client, so a client's masks do not depend on who trains beside it.

    Parameters
    ----------
    rate : float in [0, 1)
        Probability of an element (or a whole channel) being set to 0.
    channels : bool
        Drop whole feature maps, as ``torch.nn.Dropout2d``.
    """

    key: Tensor

    def __init__(self, rate: float = 0.5, *, channels: bool = False):
        super().__init__()
        self.rate = rate
        self.channels = channels
        key = torch.zeros((), dtype=torch.int64)
        self.register_buffer("key", key, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` with a random part set to 0 and the rest scaled up."""
        if not self.training or self.rate == 0:
            return x
        like = x.detach()[..., :1, :1] if self.channels else x.detach()
        return x * dropout_mask(like, self.key, self.rate)

"""The hot layers, each with its own batching rule over clients.

``torch.func.vmap`` lets a loss be written for one client and run for K at once, but
its convolutions and pooling are slow on CPU. The layers below are torch's own for one
client; under ``vmap`` they compute all clients in one call: convolution as a grouped
convolution and pooling in ``channels_last`` layout, linear as ``bmm``, cross-entropy on
flattened logits. Gradients come from torch's autograd in both cases. BatchNorm needs
no rule: torch's own is as fast.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import (
    TransformType,
    _add_batch_dim,
    _unwrap_batched,
    is_batchedtensor,
    peek_interpreter_stack,
)
from torch._functorch.pyfunctorch import (
    VmapInterpreter,
    retrieve_current_functorch_interpreter,
)

from fedlib.core import compiled


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

    def call(*args) -> Tensor:
        if not _over_clients(args):
            return plain(*args)
        mapping = cast("VmapInterpreter", retrieve_current_functorch_interpreter())
        level = mapping.level()
        pairs = [
            _unwrap_batched(a, level) if isinstance(a, Tensor) else (a, None)
            for a in args
        ]
        values, in_dims = zip(*pairs, strict=True)
        with mapping.lower():
            out, dim = rule(mapping.batch_size(), in_dims, *values)
        return _add_batch_dim(out, dim, level)

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
    weight = _clients_at(weight, in_dims[1], clients, 0)
    if bias is not None:
        bias = _clients_at(bias, in_dims[2], clients, 0)
    x = _clients_at(x, in_dims[0], clients, 0)
    if compiled.convolves(x, weight, stride, padding):
        return compiled.conv2d(x, weight, bias, padding), 0
    x = _as_channels(x.transpose(0, 1))
    weight = weight.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    bias = None if bias is None else bias.flatten(0, 1)
    out = F.conv2d(x, weight, bias, stride, padding, groups=clients)
    return out.unflatten(1, (clients, -1)), 1


def _pool(x: Tensor, size: int, stride: int, padding: int) -> Tensor:
    return F.max_pool2d(x, size, stride, padding)


def _pool_rule(clients, in_dims, x, size, stride, padding):
    x = x.movedim(in_dims[0], 0)
    if compiled.pools(x, size, stride, padding):
        return compiled.max_pool2d(x), 0
    out = F.max_pool2d(_as_channels(x.transpose(0, 1)), size, stride, padding)
    return out.unflatten(1, (clients, -1)), 1


def _block(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    return _pool(F.relu(_conv(x, weight, bias, 1, padding)), 2, 2, 0)


def _block_rule(clients, in_dims, x, weight, bias, padding):
    images = _clients_at(x, in_dims[0], clients, 0)
    windows = _clients_at(weight, in_dims[1], clients, 0)
    if compiled.convolves(images, windows, 1, padding):
        bias = bias if bias is None else _clients_at(bias, in_dims[2], clients, 0)
        return compiled.conv_relu_pool(images, windows, bias, padding), 0
    out, dim = _conv_rule(clients, in_dims, x, weight, bias, 1, padding)
    return _pool_rule(clients, (dim,), F.relu(out), 2, 2, 0)


class _Products(torch.autograd.Function):
    """``x`` ``[K, B, d]`` by ``weight`` ``[K, d', d]`` plus ``bias`` ``[K, d']``.

    torch's own gradient of the weights lies in memory the other way round, and is
    copied before the optimiser's step: slower than all products together.
    """

    @staticmethod
    def forward(x, weight, bias):
        weight = weight.transpose(1, 2)
        if bias is None:
            return torch.bmm(x, weight)
        return torch.baddbmm(bias.unsqueeze(1), x, weight)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx, grad):
        # Of the type that autocast gave the products; torch casts back what is returned
        x, weight = (tensor.to(grad.dtype) for tensor in ctx.saved_tensors)
        on_x, on_weight, on_bias = ctx.needs_input_grad
        return (
            torch.bmm(grad, weight) if on_x else None,
            torch.bmm(grad.transpose(1, 2), x) if on_weight else None,
            grad.sum(1) if on_bias else None,
        )


def _norm(x, weight, bias, mean, variance, training, momentum, eps, pooled) -> Tensor:
    out = F.batch_norm(x, mean, variance, weight, bias, training, momentum, eps)
    return _pool(F.relu(out), 2, 2, 0) if pooled else out


def _norm_rule(clients, in_dims, x, weight, bias, mean, variance, *how):
    """Normalise per client; the running statistics are updated where they lie."""
    training, momentum, eps, pooled = how
    x = _clients_at(x, in_dims[0], clients, 0)
    weight = _clients_at(weight, in_dims[1], clients, 0)
    bias = _clients_at(bias, in_dims[2], clients, 0)
    mean = _clients_at(mean, in_dims[3], clients, 0)
    variance = _clients_at(variance, in_dims[4], clients, 0)
    if compiled.normalises(x) and min(x.shape[3:]) > 1:
        running = None if training else (mean, variance)
        out, now, spread = compiled.batch_norm(
            x, weight, bias, running, eps, pooled=pooled
        )
        if training:
            count = x[0, :, 0].numel()
            mean.lerp_(now, momentum)
            variance.lerp_(spread * (count / (count - 1)), momentum)
        return out, 0
    # Copies, which autograd keeps while the running ones change
    statistics = [t.flatten(0, 1).clone() for t in (mean, variance)]
    x, weight, bias = x.transpose(0, 1).flatten(1, 2), weight.flatten(), bias.flatten()
    out = _norm(x, weight, bias, statistics[0], statistics[1], *how)
    if training:
        for before, after in zip((mean, variance), statistics, strict=True):
            before.copy_(after.view_as(before))
    return out.unflatten(1, (clients, -1)), 1


def _linear_rule(clients, in_dims, x, weight, bias):
    x = _clients_at(x, in_dims[0], clients, 0)
    weight = _clients_at(weight, in_dims[1], clients, 0)
    if bias is not None:
        bias = _clients_at(bias, in_dims[2], clients, 0)
    return _Products.apply(x, weight, bias), 0


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


def _cross_entropy_rule(clients, in_dims, logits, target):
    logits = _clients_at(logits, in_dims[0], clients, 0)
    target = _clients_at(target, in_dims[1], clients, 0)
    per_sample = F.cross_entropy(
        logits.flatten(0, 1), target.flatten(), reduction="none"
    )
    return per_sample.unflatten(0, (clients, -1)).mean(1), 0


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
conv_relu_pool = batched_by(_block, _block_rule)
batch_norm = batched_by(_norm, _norm_rule)
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


class BatchNorm2d(nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d`` with a batching rule, with ReLU and pooling if asked."""

    def forward(self, x: Tensor, pooled: bool = False) -> Tensor:
        """Map ``[B, C, H, W]`` to the same shape, or to half of it."""
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        statistics = (self.weight, self.bias, self.running_mean, self.running_var)
        return batch_norm(
            x, *statistics, self.training, self.momentum, self.eps, pooled
        )


BLOCKS = (
    [Conv2d, nn.ReLU, MaxPool2d],
    [Conv2d, MaxPool2d, nn.ReLU],
    [BatchNorm2d, nn.ReLU, MaxPool2d],
)


class Sequential(nn.Sequential):
    """``torch.nn.Sequential`` that computes a block of layers as one where it can.

    A block is a convolution of stride 1 or BatchNorm, with ReLU and pooling by 2 x 2,
    after a convolution in either order, which gives the same numbers. A layer that
    someone watches by a hook is called by itself.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` through all layers."""
        layers: list[Any] = [layer for layer in self if not _is_idle(layer)]
        while layers:
            first = layers[0]
            if _is_block(layers[:3]):
                layers = layers[3:]
                if isinstance(first, BatchNorm2d):
                    x = first(x, pooled=True)
                else:
                    padding = int(first.padding[0])
                    x = conv_relu_pool(x, first.weight, first.bias, padding)
            else:
                x = layers.pop(0)(x)
        return x


def _is_idle(layer: nn.Module) -> bool:
    """Return whether a layer is a dropout that drops nothing."""
    return isinstance(layer, Dropout) and not (layer.training and layer.rate)


def _is_block(layers: list[Any]) -> bool:
    """Return whether three layers can be computed as one."""
    kinds = [type(layer) for layer in layers]
    if kinds not in BLOCKS:
        return False
    pool = next(layer for layer in layers if isinstance(layer, MaxPool2d))
    watched = any(m._forward_hooks or m._forward_pre_hooks for m in layers)
    steps = isinstance(layers[0], Conv2d) and layers[0].stride[0] > 1
    halves = (pool.size, pool.stride, pool.padding) == (2, 2, 0)
    return halves and not watched and not steps


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

"""Convolution and pooling over clients as torch functions on the compiled kernels.

``FEDLIB_KERNEL`` says who computes: ``numba``, as without it, or ``torch``, whose
grouped convolution then serves all shapes. With numba a shape alone decides, so that a
run always takes the same path: square windows of 3 or 5 with stride 1, fewer than 32
input channels, and rows long enough for the kernels' tiles. The two differ by rounding
(below 1e-5, tested).
"""

# pyright: reportCallIssue=false
# It does not count arrays that a kernel gets from one generator

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

KERNELS = ("numba", "torch")
SIZES, OUTPUTS, SPAN = (3, 5), 4, 16  # what `kernels` has tiles for
CHANNELS = 32  # of the input: from here on torch is as fast, in ResNet's layers faster


def chosen() -> str:
    """Return the kernel that ``FEDLIB_KERNEL`` names, by default "numba".

    Raises
    ------
    ValueError
        It names none of KERNELS.
    """
    name = os.environ.get("FEDLIB_KERNEL", "numba")
    if name not in KERNELS:
        raise ValueError(f"FEDLIB_KERNEL: got {name!r}, expected one of {KERNELS}")
    return name


@contextmanager
def computed_by(kernel: str) -> Iterator[None]:
    """Let one of KERNELS compute in here, whatever ``FEDLIB_KERNEL`` says."""
    before = os.environ.get("FEDLIB_KERNEL")
    os.environ["FEDLIB_KERNEL"] = kernel
    try:
        yield
    finally:
        del os.environ["FEDLIB_KERNEL"]
        if before is not None:
            os.environ["FEDLIB_KERNEL"] = before


def _served(*tensors: Tensor) -> bool:
    """Return whether the kernels take these tensors: float32 on the CPU, not empty."""
    return chosen() == "numba" and all(
        t.dtype == torch.float32 and t.device.type == "cpu" and t.numel()
        for t in tensors
    )


def convolves(x: Tensor, weight: Tensor, stride: int, padding: int) -> bool:
    """Return whether `conv2d` serves ``x`` ``[K, B, C, H, W]`` and ``[K, O, C, S, S]``.

    The input's gradient is a convolution as well, with C outputs and rows of W: a first
    layer, whose input has few channels and needs no gradient, is served, too.
    """
    _, batch, channels, height, width = x.shape
    outputs, tall, wide = weight.shape[1], *weight.shape[3:]
    row = (width + 2 * padding - wide + 1) * batch
    back = channels >= OUTPUTS and width * batch >= SPAN
    return (
        (stride == 1 and tall == wide and wide in SIZES and 0 <= padding < wide)
        and channels < CHANNELS
        and (outputs >= OUTPUTS and row >= SPAN and height + 2 * padding >= tall)
        and (back or not x.requires_grad)
        and _served(x, weight)
    )


class _Convolution(torch.autograd.Function):
    """Convolve ``[K, C, H, W, B]`` with ``[K, O, C, S, S]`` and add ``[K, O]``."""

    @staticmethod
    def forward(x, weight, bias, padding):
        from fedlib.core.kernels import correlate

        size, batch = weight.shape[-1], x.shape[-1]
        tall, wide = (side + 2 * padding - size + 1 for side in x.shape[2:4])
        out = x.new_empty(*weight.shape[:2], tall, wide * batch)
        src = _beside(x.flatten(3), padding * batch)
        arrays = (t.detach().numpy() for t in (out, src, weight, bias))
        correlate(*arrays, padding, batch)
        return out.unflatten(3, (wide, batch))

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, _, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # of a gradient: torch knows its derivative
            return *_torch_gradients(grad, x, weight, ctx.padding, needed), None
        grad = grad.contiguous()
        return (
            _input_gradient(grad, x, weight, ctx.padding) if needed[0] else None,
            _weight_gradient(grad, x, weight, ctx.padding) if needed[1] else None,
            _bias_gradient(grad) if needed[2] else None,
            None,
        )


def _beside(rows: Tensor, zeros: int) -> Tensor:
    """Return rows with zeros on their left and right."""
    return F.pad(rows, (zeros, zeros)) if zeros else rows.contiguous()


def _input_gradient(grad: Tensor, x: Tensor, weight: Tensor, padding: int) -> Tensor:
    """Correlate the outputs' gradient with the windows turned round."""
    from fedlib.core.kernels import correlate

    batch, around = x.shape[-1], weight.shape[-1] - 1 - padding
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    turned = weight.flip(-1, -2).transpose(1, 2).contiguous()
    src = _beside(grad.flatten(3), around * batch)
    bias = x.new_zeros(x.shape[:2])
    arrays = (t.numpy() for t in (out.flatten(3), src, turned, bias))
    correlate(*arrays, around, batch)
    return out


def _weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, padding: int) -> Tensor:
    from fedlib.core.kernels import weight_gradient

    batch = x.shape[-1]
    out = torch.empty_like(weight, memory_format=torch.contiguous_format)
    src = _beside(x.flatten(3), padding * batch)
    arrays = (t.numpy() for t in (out, src, grad.flatten(3)))
    weight_gradient(*arrays, padding, batch)
    return out


def _bias_gradient(grad: Tensor) -> Tensor:
    from fedlib.core.kernels import bias_gradient

    out = grad.new_empty(grad.shape[:2])
    bias_gradient(out.numpy(), grad.flatten(3).numpy())
    return out


def _torch_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, padding: int, needed: tuple[bool, ...]
) -> list[Tensor | None]:
    """Return torch's gradients, which have derivatives of their own."""
    clients = len(x)

    def as_images(t: Tensor) -> Tensor:
        return t.permute(4, 0, 1, 2, 3).flatten(1, 2)

    on_x, on_weight, on_bias = torch.ops.aten.convolution_backward(
        as_images(grad),
        as_images(x),
        weight.flatten(0, 1),
        [clients * weight.shape[1]],
        [1, 1],
        [padding, padding],
        [1, 1],
        False,
        [0, 0],
        clients,
        list(needed),
    )
    if on_x is not None:
        on_x = on_x.unflatten(1, (clients, -1)).permute(1, 2, 3, 4, 0)
    return [
        on_x,
        None if on_weight is None else on_weight.unflatten(0, (clients, -1)),
        None if on_bias is None else on_bias.unflatten(0, (clients, -1)),
    ]


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """Convolve ``[K, B, C, H, W]`` with each client's ``[K, O, C, S, S]``.

    The result ``[K, B, O, H', W']`` is a view of memory that holds the batch innermost,
    which the next layer takes as it is.
    """
    if bias is None:
        bias = weight.new_zeros(weight.shape[:2])
    inner = x.permute(0, 2, 3, 4, 1).contiguous()
    out = _Convolution.apply(inner, weight.contiguous(), bias.contiguous(), padding)
    return out.permute(0, 4, 1, 2, 3)


def pools(x: Tensor, size: int, stride: int, padding: int) -> bool:
    """Return whether `max_pool2d` serves ``[K, B, C, H, W]``: 2 x 2, side by side."""
    fits = size == stride == 2 and padding == 0 and min(x.shape[3:]) > 1
    inner = x.permute(0, 2, 3, 4, 1).is_contiguous()
    return fits and inner and _served(x)


class _Pooling(torch.autograd.Function):
    """Pool ``[N, H, W, B]`` over windows of 2 x 2."""

    @staticmethod
    def forward(x):
        from fedlib.core.kernels import pool

        images, height, width, batch = x.shape
        out = x.new_empty(images, height // 2, width // 2 * batch)
        where = torch.empty_like(out, dtype=torch.uint8)
        pool(*(t.detach().numpy() for t in (x.flatten(2), out, where)), batch)
        return out.unflatten(2, (-1, batch)), where

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shape = inputs[0].shape
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, grad, _):
        from fedlib.core.kernels import unpool

        (where,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _spread(grad, where.view(grad.shape), ctx.shape)
        src = grad.new_zeros(ctx.shape)
        grad = grad.contiguous().flatten(2)
        unpool(*(t.numpy() for t in (grad, where, src.flatten(2))), ctx.shape[-1])
        return src


def _spread(grad: Tensor, where: Tensor, shape: torch.Size) -> Tensor:
    """Do what ``unpool`` does, in torch's differentiable operations."""
    corners = [torch.where(where == i, grad, 0) for i in range(4)]
    rows = [torch.stack(corners[i : i + 2], 3).flatten(2, 3) for i in (0, 2)]
    full = torch.stack(rows, 2).flatten(1, 2)
    below, beside = (shape[i] - full.shape[i] for i in (1, 2))
    return F.pad(full, (0, 0, 0, beside, 0, below))


def max_pool2d(x: Tensor) -> Tensor:
    """Pool ``[K, B, C, H, W]``, a view of memory with the batch innermost, by 2 x 2."""
    inner = x.permute(0, 2, 3, 4, 1)
    out, _ = _Pooling.apply(inner.flatten(0, 1))
    return out.unflatten(0, inner.shape[:2]).permute(0, 4, 1, 2, 3)


class _Block(torch.autograd.Function):
    """`_Convolution`, ReLU and `_Pooling` in one: the maps between are not kept."""

    @staticmethod
    def forward(x, weight, bias, padding):
        from fedlib.core.kernels import block

        size, batch = weight.shape[-1], x.shape[-1]
        tall, wide = (side + 2 * padding - size + 1 for side in x.shape[2:4])
        out = x.new_empty(*weight.shape[:2], tall // 2, wide // 2 * batch)
        where = torch.empty_like(out, dtype=torch.uint8)
        src = _beside(x.flatten(3), padding * batch)
        arrays = (t.detach().numpy() for t in (out, where, src, weight, bias))
        block(*arrays, padding, batch, tall, wide * batch)
        return out.unflatten(3, (wide // 2, batch)), where

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, _, ctx.padding = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, output[1])

    @staticmethod
    def backward(ctx, grad, _):
        from fedlib.core.kernels import block_gradient

        x, weight, where = ctx.saved_tensors
        padding, needed = ctx.padding, ctx.needs_input_grad[:3]
        size, batch = weight.shape[-1], x.shape[-1]
        tall, wide = (side + 2 * padding - size + 1 for side in x.shape[2:4])
        if torch.is_grad_enabled():
            places = where.view(grad.shape).flatten(0, 1)
            shape = torch.Size((len(places), tall, wide, batch))
            full = _spread(grad.flatten(0, 1), places, shape)
            full = full.unflatten(0, grad.shape[:2])
            return *_torch_gradients(full, x, weight, padding, needed), None
        grad = grad.contiguous().flatten(3)
        on_weight, on_x = torch.empty_like(weight), torch.empty_like(x)
        on_bias = weight.new_empty(weight.shape[:2])
        turned = weight.flip(-1, -2).transpose(1, 2).contiguous()
        src = _beside(x.flatten(3), padding * batch)
        zeros = x.new_zeros(x.shape[:2])
        on = tuple(t.numpy() for t in (on_weight, on_bias, on_x.flatten(3)))
        arrays = (t.numpy() for t in (grad, where, src, turned, zeros))
        block_gradient(on, *arrays, padding, batch, tall, wide * batch, needed[0])
        return on_x if needed[0] else None, on_weight, on_bias, None


def conv_relu_pool(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int
) -> Tensor:
    """Do `conv2d`, ReLU and `max_pool2d` in one."""
    if bias is None:
        bias = weight.new_zeros(weight.shape[:2])
    inner = x.permute(0, 2, 3, 4, 1).contiguous()
    out, _ = _Block.apply(inner, weight.contiguous(), bias.contiguous(), padding)
    return out.permute(0, 4, 1, 2, 3)


def normalises(x: Tensor) -> bool:
    """Return whether `batch_norm` serves ``[K, B, C, H, W]``: the batch innermost."""
    return x.permute(0, 2, 3, 4, 1).is_contiguous() and _served(x)


class _Normalisation(torch.autograd.Function):
    """Normalise ``[K, C, H, W, B]``; with ``pooled`` ReLU and `_Pooling` follow.

    Weight, bias, mean and variance ``[K, C]``: the last two the batch's, or ``fixed``.
    """

    @staticmethod
    def forward(x, weight, bias, mean, variance, fixed, eps, pooled):
        from fedlib.core import kernels

        scale = weight / (variance + eps).sqrt()
        shift = bias - mean * scale
        factors = [t.detach().flatten().numpy() for t in (scale, shift)]
        if not pooled:
            out, where = torch.empty_like(x), x.new_empty(0, dtype=torch.uint8)
            src, into = (_planes(t).flatten(1).numpy() for t in (x, out))
            kernels.scaled(src, *factors, into)
            return out, where
        clients, channels, height, width, batch = x.shape
        out = x.new_empty(clients, channels, height // 2, width // 2, batch)
        where = torch.empty_like(out, dtype=torch.uint8)
        src, into, places = (_planes(t).numpy() for t in (x, out, where))
        kernels.scaled_block(src, *factors, into, places, batch)
        return out, where

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, _, mean, variance, ctx.fixed, ctx.eps, ctx.pooled = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, mean, variance, output[1])

    @staticmethod
    def backward(ctx, grad, _):
        from fedlib.core import kernels

        x, weight, mean, variance, where = ctx.saved_tensors
        nothing = (None,) * 5
        if torch.is_grad_enabled():
            return *_torch_norm_gradients(ctx, grad), *nothing
        spread = 1 / (variance + ctx.eps).sqrt()
        on, sums = torch.empty_like(x), x.new_empty(weight.numel(), 2)
        factors = [t.flatten().numpy() for t in (weight * spread, mean, spread)]
        factors.append(ctx.fixed)
        planes = [_planes(t) for t in (on, grad.contiguous(), x)]
        if ctx.pooled:
            into, pull, src, places = (t.numpy() for t in (*planes, _planes(where)))
            arrays = (into, sums.numpy(), pull, places, src)
            kernels.scaled_block_gradient(*arrays, *factors, x.shape[-1])
        else:
            into, pull, src = (t.flatten(1).numpy() for t in planes)
            kernels.scaled_gradient(into, sums.numpy(), pull, src, *factors)
        on_weight, on_bias = sums.view(*weight.shape, 2).unbind(-1)
        return on, on_weight, on_bias, *nothing


def _planes(x: Tensor) -> Tensor:
    """Return ``[K, C, H, W, B]`` as ``[K * C, H, W * B]``, without its history."""
    return x.detach().flatten(0, 1).flatten(2)


def _torch_norm_gradients(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients in torch's operations, which have derivatives."""
    x, weight, mean, variance, where = ctx.saved_tensors
    inside = (2, 3, 4)
    if ctx.pooled:
        shape = x.flatten(0, 1).shape
        full = _spread(grad.flatten(0, 1), where.flatten(0, 1), shape)
        grad = full.view(x.shape)

    def wide(t: Tensor) -> Tensor:
        return t[..., None, None, None]

    if not ctx.fixed:  # again, as functions of x
        mean, variance = x.mean(inside), x.var(inside, correction=0)
    spread = 1 / (variance + ctx.eps).sqrt()
    unit = (x - wide(mean)) * wide(spread)
    on_weight, on_bias = (grad * unit).sum(inside), grad.sum(inside)
    if not ctx.fixed:
        count = x[0, 0].numel()
        grad = grad - wide(on_bias / count) - unit * wide(on_weight / count)
    return grad * wide(weight * spread), on_weight, on_bias


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor, Tensor] | None,
    eps: float,
    *,
    pooled: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise ``[K, B, C, H, W]`` by running or by the batch's mean and variance.

    With ``pooled`` ReLU and pooling by 2 x 2 follow.

    Returns
    -------
    tuple of Tensor
        Images as `conv2d`'s, and the mean and variance (over n) ``[K, C]``.
    """
    from fedlib.core import kernels

    inner = x.permute(0, 2, 3, 4, 1)
    weight, bias = weight.contiguous(), bias.contiguous()
    if running is None:
        mean, variance = weight.new_empty(2, *weight.shape).unbind(0)
        arrays = (t.flatten().numpy() for t in (mean, variance))
        kernels.moments(_planes(inner).flatten(1).numpy(), *arrays)
    else:
        mean, variance = (t.detach().contiguous() for t in running)
    fixed = running is not None
    out, _ = _Normalisation.apply(
        inner, weight, bias, mean, variance, fixed, eps, pooled
    )
    return out.permute(0, 4, 1, 2, 3), mean, variance

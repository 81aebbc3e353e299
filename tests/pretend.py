"""A pretended GPU: torch believes that tensors lie there, the CPU computes them.

It has a GPU's rules (no operation on tensors of two devices, no NumPy, no draw from a
CPU's generator) and the CPU's numbers. So code that would stop on a GPU stops here, and
what runs must agree with the CPU. It cannot show a GPU's rounding or speed, nor what
only a CUDA kernel refuses. Its tensors say that they are on torch's ``meta`` device,
which has no memory of its own to fall back on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

CPU, GPU = torch.device("cpu"), torch.device("meta")
FUSED = "torch.optim.optimizer._get_fused_kernels_supported_devices"
aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default}  # between devices
INDEXED = {  # indices may lie on the CPU
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}


class There(Tensor):
    """A tensor on the pretended GPU."""

    held: Tensor  # where its numbers really are

    @staticmethod
    def __new__(cls, held: Tensor):
        made = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=GPU,
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatch(func, args, kwargs or {})

    # Numbers on a GPU can be read; torch refuses it for subclasses and meta tensors
    def tolist(self):
        return self.cpu().tolist()

    def item(self):
        return self.cpu().item()

    def __bool__(self):
        return bool(self.cpu())

    def __int__(self):
        return int(self.cpu())

    __index__ = __int__

    def __float__(self):
        return float(self.cpu())


def _tensors(tree) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _place(device) -> torch.device:
    return CPU if device is None else torch.device(device)


def _refuse(func, args, kwargs) -> None:
    """Raise where a GPU does: numbers without dimensions alone may cross."""
    given = _tensors((args, kwargs))
    homes = {t.device for t in given if t.ndim} or {t.device for t in given}
    if func in INDEXED and args[0].device == GPU:
        homes = {t.device for t in _tensors((args[0], *args[2:])) if t.ndim}
    if len(homes) > 1 and func not in COPIES:
        raise RuntimeError(f"{func}: tensors on two devices")
    drawn_on = {*homes, _place(kwargs.get("device"))}
    if isinstance(kwargs.get("generator"), torch.Generator) and GPU in drawn_on:
        raise RuntimeError(f"{func}: expected a generator of the GPU, got the CPU's")


def dispatch(func, args, kwargs):
    """Compute an operation on the CPU; its result is where a GPU would leave it."""
    _refuse(func, args, kwargs)
    given = _tensors((args, kwargs))
    there = any(isinstance(t, There) for t in given)
    if func is aten.copy_.default:
        there = isinstance(args[0], There)
    if kwargs.get("device") is not None:
        there = _place(kwargs["device"]) == GPU
        kwargs = kwargs | {"device": CPU}
    args, kwargs = tree_map_only(There, lambda t: t.held, (args, kwargs))
    made = func(*args, **kwargs)
    if not there:
        return made
    known = {id(t.held): t for t in given if isinstance(t, There)}  # written in place

    def placed(value):
        if not isinstance(value, Tensor):
            return value
        return known[id(value)] if id(value) in known else There(value)

    return tree_map(placed, made)


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return dispatch(func, args, kwargs or {})


class _Made(TorchFunctionMode):
    """Tensors made of numbers, which torch leaves empty on its meta device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in {torch.tensor, torch.as_tensor} and not isinstance(args[0], Tensor):
            place = kwargs.get("device") or torch.get_default_device()
            return func(*args, **kwargs | {"device": CPU}).to(place)
        return func(*args, **kwargs)


@contextmanager
def gpu() -> Iterator[torch.device]:
    """Pretend that there is a GPU, and return it."""
    fused = mock.patch(FUSED, return_value=[CPU.type, GPU.type])
    with fused, _Dispatch(), _Made():
        yield GPU

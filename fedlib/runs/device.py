"""Where runs compute: on the CPU, or on a GPU with the same random numbers.

Methods, nets and the training loop name no device. ``computing`` sends what they make
to the chosen one. Their generators stay on the CPU (``core/rng.py``), so every device
draws the same cohorts, batches, weights and noise; what a GPU adds is rounding.

Logs, checkpoints and results are written from the CPU. On the CPU nothing here acts.
"""

import copy
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from fedlib.blocks import virtual_images
from fedlib.core import compiled
from fedlib.core.shards import Shards
from fedlib.runs.federation import Federation

CPU = torch.device("cpu")
# Functions that hand a tensor's memory to NumPy, which cannot read a GPU's
TO_NUMPY = {Tensor.numpy, Tensor.__array__}


def chosen() -> torch.device:
    """Return the device that ``FEDLIB_DEVICE`` names, by default the CPU.

    ``cpu``, ``cuda``, ``cuda:N`` (from 0), or ``auto``: a GPU where torch sees one.

    Raises
    ------
    ValueError
        The name is none of these, or there is no such GPU.
    """
    name = os.environ.get("FEDLIB_DEVICE", "cpu")
    expected = "expected 'cpu', 'cuda', 'cuda:N' or 'auto'"
    if not re.fullmatch(r"cpu|auto|cuda(:\d+)?", name):
        raise ValueError(f"FEDLIB_DEVICE: got {name!r}, {expected}")
    count = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if count else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(
            f"FEDLIB_DEVICE: got {name!r}, but torch {torch.__version__} sees {count} "
            f"GPU(s); {expected} for what this machine has"
        )
    return device


def of_process(number: int) -> str:
    """Return the device of one of several processes: GPUs in turn, if none is named.

    Parameters
    ----------
    number : int >= 0
        Which process.
    """
    device = chosen()
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", number % torch.cuda.device_count())
    return str(device)


def describe(device: torch.device) -> str:
    """Return a device's name, with the model of a GPU: ``cuda (NVIDIA ...)``."""
    if device.type != "cuda":
        return str(device)
    return f"{device} ({torch.cuda.get_device_name(device)})"


def kernel() -> str:
    """Return who computes convolutions on the CPU, with its version."""
    if compiled.chosen() == "torch":
        return f"torch {torch.__version__}"
    import numba  # a second, which most commands need not

    return f"numba {numba.__version__}"


class _Placing(TorchFunctionMode):
    """Let code that names no device work on one, where ``torch.device`` does not.

    - A draw from a generator happens on the generator's CPU; its result moves.
    - NumPy reads a copy on the CPU.
    - ``nn.utils.skip_init`` names the CPU for the empty weights it makes; they move.
    """

    def __init__(self, device: torch.device):
        super().__init__()
        self.device = device

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch."""
        kwargs = kwargs or {}
        if isinstance(kwargs.get("generator"), torch.Generator):
            return self._drawn(func, args, kwargs)
        if func in TO_NUMPY:
            return func(args[0].cpu(), *args[1:], **kwargs)
        if func is torch.empty_like and kwargs.get("device") in ("cpu", CPU):
            kwargs = kwargs | {"device": self.device}
        return func(*args, **kwargs)

    def _drawn(
        self, func: Callable[..., Tensor], args: tuple, kwargs: dict[str, Any]
    ) -> Tensor:
        given: list[tuple[Tensor, Tensor]] = []  # here, and its copy on the CPU

        def near(here: Tensor) -> Tensor:
            given.append((here, here.cpu()))
            return given[-1][1]

        args, kwargs = tree_map_only(Tensor, near, (args, kwargs))
        with CPU:
            drawn = func(*args, **kwargs)
        for here, there in given:
            if drawn is there:  # a draw in place, as of first weights
                with torch.no_grad():
                    return here.copy_(drawn)
        return drawn.to(self.device)


@contextmanager
def _from_numpy(device: torch.device) -> Iterator[None]:
    """Let ``torch.from_numpy``, which modes do not see, give tensors on a device."""
    plain = torch.from_numpy
    torch.from_numpy = lambda array: plain(array).to(device)
    try:
        yield
    finally:
        torch.from_numpy = plain


@contextmanager
def computing(device: torch.device) -> Iterator[None]:
    """Compute on a device; on a GPU with float32 products and fixed orders of sums.

    Where torch has no operation with a fixed order, it warns and names the operation.
    Tensors from before must be moved: a federation by ``moved``, others by ``.to``.
    """
    if device == CPU:
        yield
        return
    # cuBLAS keeps the order of its sums only with a workspace of fixed size
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.get_deterministic_debug_mode()
    exact = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
    virtual_images.make.cache_clear()  # it keeps images on the device they are made on
    torch.set_deterministic_debug_mode("warn")
    try:
        with exact, device, _Placing(device), _from_numpy(device):
            yield
    finally:
        torch.set_deterministic_debug_mode(before)
        virtual_images.make.cache_clear()


def _shards(shards: Shards, device: torch.device) -> Shards:
    index = [rows.to(device) for rows in shards.index]
    return shards._replace(x=shards.x.to(device), y=shards.y.to(device), index=index)


def moved(fed: Federation, device: torch.device) -> Federation:
    """Return a federation whose data and net lie on a device; ``fed`` is unchanged."""
    if device == CPU:
        return fed
    net = fed.ctx.net
    net = net._replace(module=copy.deepcopy(net.module).to(device))
    return fed._replace(
        ctx=replace(fed.ctx, net=net),
        partition=fed.partition._replace(owns=fed.partition.owns.to(device)),
        train=_shards(fed.train, device),
        test=_shards(fed.test, device),
        full=None if fed.full is None else _shards(fed.full, device),
    )

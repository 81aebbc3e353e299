"""Every method computes the same on each kernel as client by client.

The oracle is an ordinary loop: no ``vmap``, each client's loss by torch's own layers.
"""

from itertools import islice

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedlib import registry
from fedlib.core import local
from fedlib.core.tree import flatten
from fedlib.runs.federation import federation
from tests.runs.test_runner import small

KERNELS = ("numba", "torch")
NEAR = {"fedpa": 1e-4}  # its weights grow to 5 in three rounds, and rounding with them


def one_by_one(function):
    """Do what ``vmap`` does in a loop; what a client writes in place is kept."""

    def call(*args):
        count = next(len(v) for v in flatten(dict(enumerate(args))).values())
        each = [
            function(*(tree_map(lambda leaf, k=k: leaf[k], a) for a in args))
            for k in range(count)
        ]
        return tree_map(lambda *leaves: torch.stack(leaves), *each)

    return call


def after_three_rounds(method: str) -> dict[str, Tensor]:
    after = next(islice(federation(small(method)).rounds(), 2, None))
    return flatten({"server": after.server, "mine": after.mine})


@pytest.mark.parametrize("method", registry.METHODS)
def test_both_kernels_agree_with_a_loop_over_clients(method, monkeypatch):
    """Server and clients, relative to the largest value of each tensor."""
    found = {}
    for kernel in KERNELS:
        monkeypatch.setenv("FEDLIB_KERNEL", kernel)
        found[kernel] = after_three_rounds(method)
    monkeypatch.setattr(local, "vmap", one_by_one)
    wanted = after_three_rounds(method)
    for kernel, ours in found.items():
        assert ours.keys() == wanted.keys()
        for name, theirs in wanted.items():
            if not theirs.is_floating_point():
                assert torch.equal(ours[name], theirs), (kernel, name)
                continue
            size = float(theirs.abs().nan_to_num().max()) if theirs.numel() else 0
            torch.testing.assert_close(
                ours[name],
                theirs,
                rtol=0,
                atol=NEAR.get(method, 1e-5) * max(size, 1),
                equal_nan=True,
                msg=lambda text, at=(kernel, name): f"{at}: {text}",
            )

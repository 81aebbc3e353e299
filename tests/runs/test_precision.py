"""Nets in bfloat16: what leaves them is float32, and so is all that is kept."""

from itertools import islice

import pytest
import torch
from torch.func import vmap

from fedlib.core import nets
from fedlib.core.rng import generator
from fedlib.core.tree import flatten
from fedlib.runs import address
from fedlib.runs.federation import federation
from tests.runs.test_runner import small

NEAR = 0.02  # of the largest value: a product of bfloat16 has 8 bits


def near(found, wanted) -> bool:
    return bool((found - wanted).abs().max() <= NEAR * wanted.abs().max())


@pytest.mark.parametrize("name", ["digits_cnn", "digits_bn"])
@pytest.mark.parametrize("kernel", ["numba", "torch"])
def test_outputs_and_gradients_are_float32_and_near_those_in_float32(
    name, kernel, monkeypatch
):
    monkeypatch.setenv("FEDLIB_KERNEL", kernel)
    net = nets.build(name, (1, 8, 8), 10)
    half = net._replace(precision="bfloat16")
    each = [net.init(generator(seed, "w")) for seed in range(2)]
    state = {k: torch.stack([one[k] for one in each]) for k in each[0]}
    x = torch.randn(2, 9, 1, 8, 8, generator=generator(0, "x"))
    full, out = (vmap(one)(state, x) for one in (net, half))
    for ours, wanted in zip(out, full, strict=True):
        assert ours.dtype == torch.float32
        assert near(ours, wanted)
    assert not torch.equal(out.logits, full.logits)
    for client, own in enumerate(each):
        for ours, alone in zip(out, half(own, x[client]), strict=True):
            assert near(ours[client], alone)
    head = {k: v.requires_grad_() for k, v in state.items() if k.startswith("head.")}
    grads = [
        torch.autograd.grad(
            vmap(one)(state | head, x).logits.square().sum(), [*head.values()]
        )
        for one in (net, half)
    ]
    for wanted, ours in zip(*grads, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - wanted).norm() <= 5 * NEAR * wanted.norm()  # ReLUs that turn


@pytest.mark.parametrize(
    "method", ["fedavg", "gfpl", "fedpa", "fedmps", "fedhpro", "fedpg"]
)
def test_models_prototypes_and_losses_are_float32(method, monkeypatch):
    monkeypatch.setenv("FEDLIB_KERNEL", "torch")  # in which convolutions are, too
    full, half = (
        next(islice(federation(small(method, precision=p)).rounds(), 0, None))
        for p in ("float32", "bfloat16")
    )
    for kept in ("server", "mine", "up", "terms"):
        wanted, ours = (flatten({"": getattr(r, kept)}) for r in (full, half))
        assert {k: v.dtype for k, v in ours.items()} == {
            k: v.dtype for k, v in wanted.items()
        }
    found, there = half.terms["supervised"], full.terms["supervised"]
    assert near(found, there)
    assert not torch.equal(found, there)


def test_a_run_in_bfloat16_is_another_run():
    runs = [small(precision=p) for p in ("float32", "bfloat16")]
    assert len({address.key(spec) for spec in runs}) == 2

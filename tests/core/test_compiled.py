"""The compiled kernels against torch's own layers, client by client."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedlib.core import compiled, kernels, layers
from fedlib.core.rng import generator

# clients, batch, channels, height, width, outputs, window, padding
SHAPES = {
    "MNIST, first": (2, 8, 1, 28, 28, 10, 5, 0),
    "MNIST, second": (2, 8, 10, 12, 12, 20, 5, 0),
    "LeNet, second, a short batch": (2, 5, 6, 14, 14, 16, 5, 0),
    "padded": (2, 8, 4, 14, 14, 6, 5, 2),
    "window of 3, odd sides and channels": (2, 3, 5, 9, 11, 7, 3, 1),
    "padding as wide as the window allows": (2, 4, 4, 6, 5, 5, 3, 2),
    "digits, batch of one lane more": (3, 9, 8, 4, 4, 16, 3, 1),
}


def rand(*shape: int, name: str) -> Tensor:
    return torch.randn(*shape, generator=generator(0, name))


def arguments(shape: tuple[int, ...]) -> list[Tensor]:
    """Return images, weights and biases; a first layer's images need no gradient."""
    clients, batch, channels, height, width, outputs, window, _ = shape
    x = rand(clients, batch, channels, height, width, name="x")
    scale = (channels * window**2) ** -0.5
    weight = rand(clients, outputs, channels, window, window, name="w") * scale
    bias = rand(clients, outputs, name="b")
    x.requires_grad_(channels >= compiled.OUTPUTS)
    return [x, weight.requires_grad_(), bias.requires_grad_()]


def plain(pooled: bool, padding: int, x: Tensor, weight: Tensor, bias: Tensor):
    out = F.conv2d(x, weight, bias, padding=padding)
    return F.max_pool2d(F.relu(out), 2) if pooled else out


def each(call, *stacked: Tensor) -> Tensor:
    return torch.stack([call(*one) for one in zip(*stacked, strict=True)])


def close(found, wanted) -> None:
    for one, other in zip(found, wanted, strict=True):
        size = float(other.detach().abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * max(size, 1))


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_convolution_equals_torch(shape, pooled):
    """Outputs, gradients, and gradients of gradients, alone and with ReLU and pool."""
    padding, args = shape[-1], arguments(shape)
    assert compiled.convolves(*args[:2], 1, padding)

    def ours(x, weight, bias):
        if pooled:
            return layers.conv_relu_pool(x, weight, bias, padding)
        return layers.conv2d(x, weight, bias, 1, padding)

    together = vmap(ours)(*args)
    apart = each(lambda *one: plain(pooled, padding, *one), *args)
    close([together], [apart])
    needed = [t for t in args if t.requires_grad]
    pull = rand(*apart.shape, name="pull")
    first = [
        torch.autograd.grad((out.square() * pull).sum(), needed, create_graph=True)
        for out in (together, apart)
    ]
    close(*first)
    second = [
        torch.autograd.grad(sum(g.square().sum() for g in grads), needed)
        for grads in first
    ]
    close(*second)
    once = [
        torch.autograd.grad(out, needed, pull)
        for out in (
            vmap(ours)(*args),
            each(lambda *one: plain(pooled, padding, *one), *args),
        )
    ]
    close(*once)


@pytest.mark.parametrize("whose", ["nobody's", "all clients'", "each client's"])
def test_a_block_takes_any_bias(whose):
    x, weight, own = arguments(SHAPES["padded"])
    bias = {"nobody's": None, "all clients'": own[0]}.get(whose, own)
    shared = whose != "each client's"
    rule = vmap(layers.conv_relu_pool, in_dims=(0, 0, None if shared else 0, None))
    ones = [bias] * len(x) if shared else bias
    wanted = [plain(True, 2, *one) for one in zip(x, weight, ones, strict=True)]
    close([rule(x, weight, bias, 2)], [torch.stack(wanted)])


@pytest.mark.parametrize("batch", [3, 8, 9])
def test_of_equal_largest_values_the_first_is_pooled(batch):
    """Whole numbers, so that windows tie: the gradient goes where torch's goes."""
    x, weight, bias = arguments((2, batch, 8, 6, 6, 8, 3, 1))
    whole = [part.detach().sign().requires_grad_() for part in (x, weight)]
    whole.append(torch.zeros_like(bias).requires_grad_())
    found = vmap(layers.conv_relu_pool, in_dims=(0, 0, 0, None))(*whole, 1)
    wanted = each(lambda *one: plain(True, 1, *one), *whole)
    assert torch.equal(found, wanted)
    pull = rand(*found.shape, name="pull")
    close(*(torch.autograd.grad(out, whole, pull) for out in (found, wanted)))


@pytest.mark.parametrize("how", [(3, 2, 0), (2, 1, 0), (2, 2, 1)], ids=str)
def test_other_pooling_behind_a_convolution_is_torchs(how):
    """Its input has the batch innermost, as the kernel for 2 x 2 takes it."""
    stacked = arguments(SHAPES["padded"])

    def pooled(pool, convolve):
        return lambda x, weight, bias: pool(convolve(x, weight, bias, 1, 2), *how)

    found = vmap(pooled(layers.max_pool2d, layers.conv2d))(*stacked)
    close([found], [each(pooled(F.max_pool2d, F.conv2d), *stacked)])


@pytest.mark.parametrize("batch", [3, 8, 17])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("pooled", [False, True])
def test_batch_norm_equals_torch(batch, training, pooled):
    """Outputs, running statistics and both derivatives."""
    clients, channels = 2, 5
    x = rand(clients, channels, 6, 7, batch, name="x") * 2 + 1
    x = x.permute(0, 4, 1, 2, 3)
    assert compiled.normalises(x)
    weight, bias, mean = (rand(clients, channels, name=n) for n in "wbm")
    variance = rand(clients, channels, name="v").square() + 0.3
    args = [t.requires_grad_() for t in (x, weight, bias)]

    def call(layer, running, x, weight, bias):
        return layer(x, weight, bias, *running, training, 0.1, 1e-5, pooled)

    def torchs(x, weight, bias, mean, variance, *settings):
        out = F.batch_norm(x, mean, variance, weight, bias, *settings[:3])
        return F.max_pool2d(F.relu(out), 2) if settings[3] else out

    ours, theirs = ([mean.clone(), variance.clone()] for _ in range(2))
    together = vmap(lambda m, v, *a: call(layers.batch_norm, (m, v), *a))(*ours, *args)
    apart = each(lambda m, v, *a: call(torchs, (m, v), *a), *theirs, *args)
    close([together, *ours], [apart, *theirs])
    pull = rand(*apart.shape, name="pull")
    for order in ("first", "second"):
        found = []
        for out in (together, apart):
            grads = torch.autograd.grad(
                (out**3 * pull).sum(), args, create_graph=True, retain_graph=True
            )
            if order == "second":
                grads = torch.autograd.grad(sum(g.square().sum() for g in grads), args)
            found.append(grads)
        close(*found)


def test_a_variance_far_from_zero_is_not_cancelled():
    rows = 1000 + rand(4, 257, name="far")
    mean, variance = torch.empty(4), torch.empty(4)
    kernels.moments(rows.numpy(), mean.numpy(), variance.numpy())
    wanted = torch.var_mean(rows.double(), 1, correction=0)
    for one, other in zip((variance, mean), wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=0)


def test_a_sequence_of_layers_equals_its_layers_one_by_one():
    """Blocks are found in both orders, dropout of nothing is skipped."""
    net = layers.Sequential(
        *(layers.Conv2d(1, 4, 3, padding=1), layers.MaxPool2d(), torch.nn.ReLU()),
        *(layers.Conv2d(4, 8, 3), layers.Dropout(0.0), torch.nn.ReLU()),
        *(layers.MaxPool2d(), layers.BatchNorm2d(8), torch.nn.ReLU()),
    )
    x = rand(3, 8, 1, 14, 14, name="x")
    state = {k: v.detach() for k, v in net.state_dict().items()}
    stacked = {k: torch.stack([v] * 3) for k, v in state.items()}

    def whole(state, x):
        return torch.func.functional_call(net, state, (x,))

    def single(state, x):
        for name, layer in net.named_children():
            own = {
                k.removeprefix(f"{name}."): v
                for k, v in state.items()
                if k.startswith(f"{name}.")
            }
            x = torch.func.functional_call(layer, own, (x,))
        return x

    torch.testing.assert_close(vmap(whole)(stacked, x), vmap(single)(stacked, x))


def test_a_block_has_the_bits_of_its_layers():
    """Methods that watch layers equal those that do not, where the loss is the same."""
    x, weight, bias = arguments(SHAPES["MNIST, second"])

    def fused(x, weight, bias):
        return layers.conv_relu_pool(x, weight, bias, 0)

    def apart(x, weight, bias):
        out = layers.conv2d(x, weight, bias, 1, 0)
        return layers.max_pool2d(F.relu(out), 2, 2, 0)

    pull = rand(2, 8, 20, 4, 4, name="pull")
    outs = [vmap(call)(x, weight, bias) for call in (fused, apart)]
    assert torch.equal(*outs)
    grads = [torch.autograd.grad(out, [x, weight, bias], pull) for out in outs]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_a_watched_layer_is_called_by_itself():
    seen = []
    net = layers.Sequential(
        layers.Conv2d(1, 4, 3), torch.nn.ReLU(), layers.MaxPool2d(2)
    )
    net[1].register_forward_pre_hook(lambda _, given: seen.append(given[0].shape))
    net(rand(2, 1, 6, 6, name="x"))
    assert seen == [(2, 4, 4, 4)]


def test_a_client_computes_the_same_bits_in_any_company():
    x, weight, bias = arguments(SHAPES["MNIST, second"])

    def call(x, weight, bias):
        return layers.conv_relu_pool(x, weight, bias, 0)

    pull = rand(2, 8, 20, 4, 4, name="pull")
    both = vmap(call)(x, weight, bias)
    alone = vmap(call)(x[1:], weight[1:], bias[1:])
    assert torch.equal(both[1:], alone)
    grads = [
        torch.autograd.grad(out, weight, g)[0][1]
        for out, g in ((both, pull), (alone, pull[1:]))
    ]
    assert torch.equal(*grads)


def test_what_is_no_number_stays_visible():
    """It passes ReLU and pooling, and is the largest of its window."""
    x, weight, bias = (t.detach() for t in arguments(SHAPES["padded"]))
    x[1, 2, 0, 5, 5] = float("nan")
    out = vmap(lambda *a: layers.conv_relu_pool(*a, 2))(x, weight, bias)
    ref = each(lambda *a: plain(True, 2, *a), x, weight, bias)
    assert ref.isnan().any()
    assert torch.equal(out.isnan(), ref.isnan())


REFUSED = {
    "stride": ((2, 8, 4, 14, 14, 8, 3, 1), 2),
    "window of 4": ((2, 8, 4, 14, 14, 8, 4, 1), 1),
    "window of 1": ((2, 8, 4, 14, 14, 8, 1, 0), 1),
    "three outputs": ((2, 8, 4, 14, 14, 3, 3, 1), 1),
    "many channels": ((2, 8, 33, 6, 6, 8, 3, 1), 1),
    "short rows": ((2, 3, 4, 5, 5, 8, 3, 0), 1),
    "few channels whose gradient is wanted": ((2, 8, 2, 14, 14, 8, 3, 1), 1),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_shapes_are_torchs(case):
    shape, stride = REFUSED[case]
    x, weight, bias = arguments(shape)
    x.requires_grad_()
    padding = shape[-1]
    assert not compiled.convolves(x, weight, stride, padding)
    out = vmap(lambda *a: layers.conv2d(*a, stride, padding))(x, weight, bias)
    ref = each(lambda *a: F.conv2d(*a, stride, padding), x, weight, bias)
    close([out], [ref])


def test_a_setting_leaves_all_shapes_to_torch(monkeypatch):
    args = arguments(SHAPES["MNIST, first"])
    assert compiled.convolves(*args[:2], 1, 0)
    assert not compiled.convolves(*(t.double() for t in args[:2]), 1, 0)
    monkeypatch.setenv("FEDLIB_KERNEL", "torch")
    assert not compiled.convolves(*args[:2], 1, 0)
    monkeypatch.setenv("FEDLIB_KERNEL", "cuda")
    with pytest.raises(ValueError, match=r"FEDLIB_KERNEL: got 'cuda', expected one of"):
        compiled.convolves(*args[:2], 1, 0)
    with compiled.computed_by("torch"):
        assert compiled.chosen() == "torch"
    assert os.environ["FEDLIB_KERNEL"] == "cuda"


GRADIENT_OF_A_ROW = """
import numpy as np
from fedlib.core import kernels
def random(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)
rows, side, batch = 3, 8, 5
src, grad = random(rows, side, side * batch), random(rows, side // 2, side // 2 * batch)
where, on = np.zeros(grad.shape, np.uint8), np.empty_like(src)
sums, factors = np.empty((rows, 2), np.float32), random(3, rows)
kernels.scaled_block_gradient(on, sums, grad, where, src, *factors, False, batch)
print(on.tobytes().hex(), sums.tobytes().hex())
"""


def test_the_process_that_compiles_has_the_bits_of_those_that_read_it(tmp_path):
    """A sum in any order has one order, whoever compiled it."""
    call = [sys.executable, "-c", GRADIENT_OF_A_ROW]
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run(call, env=env, check=True, capture_output=True).stdout
        for _ in range(2)
    )
    assert first == second

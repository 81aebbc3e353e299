"""The batching rules against torch's own layers, client by client."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

from fedlib.core import layers, nets
from fedlib.core.rng import generator

K, B = 3, 4


def rand(*shape: int, name: str = "x") -> torch.Tensor:
    return torch.randn(*shape, generator=generator(0, name), dtype=torch.float64)


CASES = {
    "conv": (
        lambda x, w, b: layers.conv2d(x, w, b, 1, 1),
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        [(B, 2, 6, 6), (5, 2, 3, 3), (5,)],
    ),
    "conv with stride": (
        lambda x, w, b: layers.conv2d(x, w, b, 2, 1),
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1),
        [(B, 2, 7, 6), (5, 2, 3, 3), (5,)],
    ),
    "conv without bias": (
        lambda x, w: layers.conv2d(x, w, None, 1, 0),
        lambda x, w: F.conv2d(x, w),
        [(B, 2, 6, 6), (5, 2, 3, 3)],
    ),
    "pool": (
        lambda x: layers.max_pool2d(x, 2, 2, 0),
        lambda x: F.max_pool2d(x, 2),
        [(B, 2, 6, 6)],
    ),
    "overlapping pool": (
        lambda x: layers.max_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool2d(x, 3, stride=2, padding=1),
        [(B, 2, 7, 6)],
    ),
    "linear without bias": (
        lambda x, w: layers.linear(x, w, None),
        F.linear,
        [(B, 5), (3, 5)],
    ),
    "linear": (layers.linear, F.linear, [(B, 5), (3, 5), (3,)]),
    "cross_entropy": (
        lambda z: layers.cross_entropy(z, torch.tensor([0, 2, 1, 1])),
        lambda z: F.cross_entropy(z, torch.tensor([0, 2, 1, 1])),
        [(B, 3)],
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shared", [None, 0])
def test_rule_equals_plain_layer(case, shared):
    """Outputs and gradients of K clients at once equal K separate calls.

    ``shared`` makes one argument common to all clients (in_dim None).
    """
    ours, torchs, shapes = CASES[case]
    if shared is not None and len(shapes) == 1:
        shared = None
    args = [
        rand(*((K, *s) if i != shared else s), name=f"{case}{i}").requires_grad_()
        for i, s in enumerate(shapes)
    ]
    dims = tuple(None if i == shared else 0 for i in range(len(shapes)))
    together = vmap(ours, in_dims=dims)(*args)
    apart = torch.stack(
        [
            torchs(*(a if d is None else a[k] for a, d in zip(args, dims, strict=True)))
            for k in range(K)
        ]
    )
    torch.testing.assert_close(together, apart)
    weight = rand(*apart.shape, name="weight")
    found = torch.autograd.grad((together * weight).sum(), args)
    wanted = torch.autograd.grad((apart * weight).sum(), args)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("case", CASES)
def test_one_client_is_the_plain_layer(case):
    """Without vmap the layer is torch's, and its gradient passes gradcheck."""
    ours, torchs, shapes = CASES[case]
    args = [rand(*s, name=f"{case}{i}").requires_grad_() for i, s in enumerate(shapes)]
    torch.testing.assert_close(ours(*args), torchs(*args), rtol=0, atol=0)
    assert torch.autograd.gradcheck(ours, args)


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_gradients(case):
    """Outside vmap the derivatives of the gradient are torch's."""
    ours, _, shapes = CASES[case]
    args = [rand(*s, name=f"{case}{i}").requires_grad_() for i, s in enumerate(shapes)]
    assert torch.autograd.gradgradcheck(ours, args, fast_mode=True)


@pytest.mark.parametrize("case", CASES)
def test_grad_inside_and_around_vmap(case):
    """``torch.func.grad`` in either order, with an argument that clients share."""
    ours, torchs, shapes = CASES[case]
    shared = [rand(*s, name=f"{case}{i}") for i, s in enumerate(shapes[1:], 1)]
    x = rand(K, *shapes[0], name=f"{case}0")

    def loss(call, x):
        return call(x, *shared).square().sum()

    wanted = torch.stack([grad(partial(loss, torchs))(one) for one in x])
    inside = vmap(grad(partial(loss, ours)))(x)
    around = grad(lambda x: vmap(partial(loss, ours))(x).sum())(x)
    torch.testing.assert_close(inside, wanted)
    torch.testing.assert_close(around, wanted)


def test_grad_of_each_clients_loss_with_its_own_data():
    """``grad`` of weights inside ``vmap``, images and biases from outside ``grad``."""
    w, b, x = rand(K, 3, 5, name="w"), rand(K, 3, name="b"), rand(K, B, 5)

    def slope(call, w, b, x):
        return grad(lambda w: call(x, w, b).square().sum())(w)

    wanted = [slope(F.linear, *one) for one in zip(w, b, x, strict=True)]
    found = vmap(partial(slope, layers.linear))(w, b, x)
    torch.testing.assert_close(found, torch.stack(wanted))


def test_an_op_that_no_client_differs_in_keeps_its_gradient():
    """Inside vmap, on tensors that all clients share."""
    x, w = rand(B, 5), rand(3, 5, name="w").requires_grad_()

    def one(scale):
        return (scale * layers.linear(x, w, None)).sum()

    total = vmap(one)(torch.tensor([1.0, 2.0])).sum()
    (found,) = torch.autograd.grad(total, w)
    torch.testing.assert_close(found, 3 * x.sum(0).expand(3, 5))


def test_the_rule_is_used_over_clients_and_nowhere_else():
    """Speed rests on it: the rule sees the clients, the plain function does not."""
    calls = []

    def plain(x):
        calls.append("plain")
        return x * 2

    def rule(clients, in_dims, x):
        calls.append(f"{clients} clients")
        return x * 2, in_dims[0]

    op = layers.batched_by(plain, rule)
    x = torch.ones(3, 2)
    for call in (op, vmap(op), vmap(lambda _: op(torch.ones(1)))):
        call(x)
    assert calls == ["plain", "3 clients", "plain"]


def test_layers_hand_their_settings_to_the_op():
    """The modules equal torch's, alone and over clients."""
    with torch.random.fork_rng(devices=[]):
        conv = layers.Conv2d(2, 4, 3, stride=2, padding=1, bias=False).double()
    pairs = [
        (conv, lambda x: F.conv2d(x, conv.weight, None, 2, 1)),
        (layers.MaxPool2d(), nn.MaxPool2d(2)),
        (layers.MaxPool2d(3), nn.MaxPool2d(3)),
        (layers.MaxPool2d(3, stride=2, padding=1), nn.MaxPool2d(3, 2, 1)),
        (layers.MeanPool2d(), lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1)),
    ]
    x = rand(K, B, 2, 9, 8)
    for ours, torchs in pairs:
        wanted = torch.stack([torchs(one) for one in x])
        torch.testing.assert_close(vmap(ours)(x), wanted)
        torch.testing.assert_close(ours(x[0]), wanted[0])


def test_dropout_mask_depends_on_the_key_only():
    """A client's mask is the same alone and beside others; the mean is kept."""
    layer = layers.Dropout(0.4)
    x = torch.ones(K, 50, 80)
    keys = torch.tensor([5, 2**61 + 1, 5])

    def one(sample, key):
        return torch.func.functional_call(layer, {"key": key}, (sample,))

    together = vmap(one)(x, keys)
    assert torch.equal(together[0], together[2])
    assert not torch.equal(together[0], together[1])
    assert torch.equal(one(x[1], keys[1]), together[1])
    assert together.unique().tolist() == pytest.approx([0.0, 1 / 0.6])
    assert abs(float((together > 0).float().mean()) - 0.6) < 0.03


def test_dropout_of_channels_and_eval_mode():
    layer = layers.Dropout(0.5, channels=True)
    out = layer(torch.ones(40, 6, 3, 3))
    per_map = out.flatten(2)
    assert torch.equal(per_map.amin(-1), per_map.amax(-1))
    assert 0 < float((per_map[..., 0] == 0).float().mean()) < 1
    assert torch.equal(layer.eval()(out), out)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters", "low", "high"),
    [
        ("lenet", (3, 32, 32), 10, 62_006, 400, 120),
        ("lenet", (3, 32, 32), 5, 61_581, 400, 120),
        ("lenet", (3, 32, 32), 9, 61_921, 400, 120),
        ("fashion_cnn", (1, 28, 28), 10, 29_034, 3_136, 1_568),
        ("femnist_cnn", (1, 28, 28), 62, 24_332, 320, 50),
        ("femnist_cnn", (1, 128, 128), 62, 849_332, 16_820, 50),
        ("mnist_cnn", (1, 28, 28), 10, 21_840, 320, 50),
    ],
)
def test_nets_of_fedmps(name, shape, classes, parameters, low, high):
    """FedMPS's networks: parameters, and sizes of both embeddings."""
    net = nets.build(name, shape, classes)
    assert net.parameter_count() == parameters
    assert net.embedding_sizes() == (low, high)
    state = net.init(generator(0, "init"))
    out = net(state, torch.randn(3, *shape, generator=generator(0, "x")))
    torch.testing.assert_close(out.low.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(out.high.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(net.head(net.head_state(state), out.high), out.logits)


def test_fashion_net_has_98_buffer_values():
    net = nets.build("fashion_cnn", (1, 28, 28), 10)
    state = net.init(generator(0, "init"))
    assert sum(state[name].numel() for name in net.buffers) == 98


def test_a_net_refuses_images_of_another_size():
    with pytest.raises(ValueError, match=r"net lenet: images are \(1, 28, 28\)"):
        nets.build("lenet", (1, 28, 28), 10)
    with pytest.raises(ValueError, match="expected one of"):
        nets.build("lent", (3, 32, 32), 10)

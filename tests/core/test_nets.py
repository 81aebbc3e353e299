"""Every net against its published size, torch's own modules and loops over clients."""

import copy
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torchvision.models import resnet

from fedlib.core import layers, nets
from fedlib.core.net import Net, Out, State, TwoLevel
from fedlib.core.rng import generator

UNIT = ["lenet", "fashion_cnn", "mnist_cnn", "mnist_cnn_plain", "femnist_cnn"]
UNIT += ["digits_cnn"]

# net, image, classes: trained numbers, statistics, counters, d_low, d_high
SIZES = [
    ("fedpa_cnn", (1, 28, 28), 10, 26_434, 44, 2, 784, 32),
    ("fedpa_cnn", (1, 28, 28), 26, 26_962, 44, 2, 784, 32),
    ("fedpa_cnn_celeba", (3, 84, 84), 2, 25_954, 224, 3, 800, 32),
    ("resnet10", (3, 32, 32), 10, 1_226_400 + 2_570, 2_880, 12, 32, 256),
    ("resnet10", (3, 64, 64), 200, 1_226_400 + 51_400, 2_880, 12, 32, 256),
    ("resnet10", (3, 64, 64), 7, 1_226_400 + 1_799, 2_880, 12, 32, 256),
    ("resnet10_w64", (3, 32, 32), 10, 4_898_112 + 5_130, 5_760, 12, 64, 512),
    ("resnet18", (3, 32, 32), 10, 11_181_642, 9_600, 20, 64, 512),
    ("resnet18", (3, 32, 32), 100, 11_227_812, 9_600, 20, 64, 512),
    ("resnet18_cifar", (3, 32, 32), 10, 11_173_962, 9_600, 20, 64, 512),
    ("resnet50", (3, 32, 32), 100, 23_712_932, 53_120, 53, 64, 2048),
    ("resnet50_cifar", (3, 32, 32), 100, 23_705_252, 53_120, 53, 64, 2048),
    ("convnet5", (1, 64, 64), 62, 1_947_710, 832, 5, 32, 512),
    ("digits_linear", (1, 8, 8), 10, 3_658, 0, 0, 64, 32),
    ("digits_bn", (1, 8, 8), 10, 3_706, 48, 2, 64, 32),
]


@pytest.mark.parametrize(
    ("name", "shape", "classes", "trained", "statistics", "counters", "low", "high"),
    SIZES,
)
def test_sizes_of_the_papers_nets(
    name, shape, classes, trained, statistics, counters, low, high
):
    """FedPA's, FedHPro's, FedPG's and GFPL's; on "meta", where nothing is drawn."""
    with torch.device("meta"):
        net = nets.build(name, shape, classes)
        out = net.module.eval()(torch.zeros(2, *shape))
    assert [part.shape for part in out] == [(2, low), (2, high), (2, classes)]
    assert net.parameter_count() == trained
    held = [b for n, b in net.module.state_dict().items() if n in net.buffers]
    assert sum(b.numel() for b in held if b.is_floating_point()) == statistics
    assert sum(b.numel() for b in held if not b.is_floating_point()) == counters
    assert not net.dropout_keys


def test_gfpls_net_for_femnist_has_an_embedding_of_80():
    """28 less 2 is 26, halved 13, less 4 is 9, halved 4: 20 channels of 4 x 4."""
    with torch.device("meta"):
        net = nets.build("femnist_cnn_80", (1, 28, 28), 62)
        out = net.module.eval()(torch.zeros(2, 1, 28, 28))
    assert [part.shape for part in out] == [(2, 320), (2, 80), (2, 62)]
    first, second = 10 * 9 + 10, 20 * 10 * 25 + 20
    assert net.parameter_count() == first + second + (320 + 1) * 80 + (80 + 1) * 62


# Small images: the same layers, quickly
SMALL = {
    "fedpa_cnn": (1, 28, 28),
    "fedpa_cnn_celeba": (3, 84, 84),
    "resnet10": (3, 8, 8),
    "bottleneck": (3, 36, 36),
    "convnet5": (1, 32, 32),
    "digits_linear": (1, 8, 8),
    "digits_bn": (1, 8, 8),
}
CLASSES = 4


@cache
def small(name: str) -> Net:
    """Build a net once."""
    shape = SMALL.get(name, (3, 12, 12))
    if name != "bottleneck":
        return nets.build(name, shape, CLASSES)
    with torch.random.fork_rng(devices=[]):
        parts = nets._resnet(shape, CLASSES, make=two_stages, cifar=False)
    module = TwoLevel(*parts, unit=False, pooled=True)
    return Net(name, module, shape, CLASSES, "he")


def two_stages(num_classes: int) -> resnet.ResNet:
    """ResNet-50's stem and its first two stages, with one block each."""
    whole = resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1])
    whole.layer3, whole.layer4 = nn.Sequential(), nn.Sequential()
    whole.fc = nn.Linear(512, num_classes)
    return whole


def drawn(net: Net, seed: int = 0) -> State:
    """Draw a state in double precision, with BatchNorm statistics of their own."""
    state = net.init(generator(seed, "init"))
    noise = generator(seed, "statistics")
    for key, value in state.items():
        if key.endswith("running_mean"):
            value.normal_(std=0.3, generator=noise)
        if key.endswith("running_var"):
            value.uniform_(0.5, 2, generator=noise)
    return {k: v.double() if v.is_floating_point() else v for k, v in state.items()}


def images(net: Net, *leading: int) -> torch.Tensor:
    draw = generator(0, "x")
    return torch.randn(*leading, *net.shape, generator=draw, dtype=torch.float64)


def copies(state: State) -> State:
    return {k: v.clone() for k, v in state.items()}


def torchs(net: Net, state: State, *, train: bool) -> TwoLevel:
    """Return the net as a plain torch module that holds ``state``."""
    module = copy.deepcopy(net.module).double()
    back = {layers.Conv2d: nn.Conv2d, layers.Linear: nn.Linear}
    for parent in list(module.modules()):
        for key, layer in parent.named_children():
            layer.__class__ = back.get(type(layer), type(layer))
            if isinstance(layer, layers.MaxPool2d):
                pool = nn.MaxPool2d(layer.size, layer.stride, layer.padding)
                setattr(parent, key, pool)
            if isinstance(layer, layers.MeanPool2d):
                setattr(parent, key, nn.AdaptiveAvgPool2d(1))
    module.load_state_dict(copies(state))
    return module.train(train)


def assert_close(one: dict, other: dict, **tolerance) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        torch.testing.assert_close(
            value, other[key], msg=lambda m, k=key: f"{k}: {m}", **tolerance
        )


@pytest.mark.parametrize("name", SMALL)
def test_clients_at_once_equal_a_loop_over_torch_modules(name):
    """Outputs, gradients, running statistics and counters, in train mode."""
    net = small(name)
    clients = 3
    each = [drawn(net, seed) for seed in range(clients)]
    state = {k: torch.stack([one[k] for one in each]) for k in each[0]}
    params = {k: v.requires_grad_() for k, v in state.items() if k not in net.buffers}
    x = images(net, clients, 3)
    y = torch.arange(3).expand(clients, 3) % CLASSES

    def loss(state, x, y):
        out = net(state, x, train=True)
        side = out.low.square().mean() + out.high.square().mean()
        return layers.cross_entropy(out.logits, y) + side, out

    total, outs = vmap(loss)(state, x, y)
    grads = torch.autograd.grad(total.sum(), list(params.values()))
    for client, one in enumerate(each):
        module = torchs(net, one, train=True)
        out = module(x[client])
        side = out.low.square().mean() + out.high.square().mean()
        (F.cross_entropy(out.logits, y[client]) + side).backward()
        mine = Out(*(part[client] for part in outs))
        assert_close(mine._asdict(), out._asdict(), rtol=1e-5, atol=1e-8)
        assert_close(
            {k: g[client] for k, g in zip(params, grads, strict=True)},
            {k: p.grad for k, p in module.named_parameters()},
            rtol=1e-5,
            atol=1e-8,
        )
        after = module.state_dict()
        for key in net.buffers:
            torch.testing.assert_close(state[key][client], after[key])


@pytest.mark.parametrize("name", SMALL)
def test_one_client_without_vmap_is_the_torch_module(name):
    """Eval mode without gradients, and the gradient of the images when frozen."""
    net = small(name)
    state, x = drawn(net), images(net, 2)
    before = copies(state)
    module = torchs(net, state, train=False)
    with torch.no_grad():
        out = net(state, x)
    assert_close(out._asdict(), module(x)._asdict(), rtol=1e-9, atol=1e-12)
    assert all(torch.equal(v, before[k]) for k, v in state.items())
    x.requires_grad_()
    wanted = torch.autograd.grad(module(x).logits[:, 0].sum(), x)[0]
    found = torch.autograd.grad(net(state, x).logits[:, 0].sum(), x)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    assert float(found.abs().max()) > 0
    functional = grad(lambda x: net(state, x).logits[:, 0].sum())(x.detach())
    torch.testing.assert_close(functional, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["fedpa_cnn", "resnet10", "digits_bn"])
def test_gradients_of_images_over_clients(name):
    """``grad`` inside ``vmap``, and autograd through ``vmap``; one frozen net for all.

    FedPG differentiates a frozen net with respect to images.
    """
    net = small(name)
    state, x = drawn(net), images(net, 2, 3)
    wanted = torch.stack(
        [grad(lambda x: net(state, x).high.square().sum())(one) for one in x]
    )
    inside = vmap(grad(lambda x: net(state, x).high.square().sum()))(x)
    torch.testing.assert_close(inside, wanted, rtol=1e-9, atol=1e-12)
    x.requires_grad_()
    outside = torch.autograd.grad(vmap(partial(net, state))(x).high.square().sum(), x)
    torch.testing.assert_close(outside[0], wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["fedpa_cnn", "convnet5", "digits_linear"])
def test_gradients_of_embeddings_through_the_head(name):
    """FedPA differentiates many clients' heads with respect to shared embeddings."""
    net = small(name)
    each = [net.head_state(drawn(net, seed)) for seed in range(3)]
    heads = {k: torch.stack([one[k] for one in each]) for k in each[0]}
    size = net.embedding_sizes()[1]
    draw = generator(0, "high")
    high = torch.randn(4, size, generator=draw, dtype=torch.float64).requires_grad_()
    together = vmap(net.head, in_dims=(0, None))(heads, high)
    (found,) = torch.autograd.grad(together.square().sum(), high)
    wanted = torch.zeros_like(found)
    for head in each:
        one = functional_call(net.module.head, head, (high,)).square().sum()
        wanted += torch.autograd.grad(one, high)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_gradients_of_gradients_match_finite_differences():
    """Gradient matching (FedHPro) needs second derivatives of the layers."""
    net = small("fedpa_cnn")
    state = drawn(net)
    weight = state["head.0.weight"].requires_grad_()

    def matching(high):
        logits = net.head(net.head_state(state), high)
        return torch.autograd.grad(
            F.cross_entropy(logits, torch.tensor([0, 1])), weight, create_graph=True
        )[0]

    draw = generator(0, "high")
    high = torch.randn(2, 32, generator=draw, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(matching, high)


TORCHVISION = {"low.0": "conv1", "low.1": "bn1", "head.0": "fc"}
TORCHVISION |= {f"high.{stage}": f"layer{stage + 1}" for stage in range(4)}


def renamed(state: State) -> State:
    """Return a state under torchvision's names."""
    renamed = {}
    for key, value in state.items():
        part = ".".join(key.split(".")[:2])
        rest = key.removeprefix(part)
        one_block = part.startswith("high") and not rest[1].isdigit()
        renamed[TORCHVISION[part] + ".0" * one_block + rest] = value
    return renamed


@pytest.mark.parametrize("name", ["resnet18", "resnet18_cifar", "resnet10_w64"])
def test_resnets_are_torchvisions(name):
    """Logits and statistics of torchvision's whole net, CIFAR stem put in by hand."""
    net = small(name)
    with torch.device("meta"):
        blocks = [1, 1, 1, 1] if name == "resnet10_w64" else [2, 2, 2, 2]
        whole = resnet.ResNet(resnet.BasicBlock, blocks, num_classes=CLASSES)
        if name != "resnet18":
            whole.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
            whole.maxpool = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    state = net.init(generator(0, "init"))
    whole.load_state_dict(renamed(copies(state)), assign=True)
    x = images(net, 4).float()
    for train in (True, False):
        found, wanted = net(state, x, train=train).logits, whole.train(train)(x)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert_close(renamed(state), dict(whole.state_dict()), rtol=1e-4, atol=1e-4)


def test_images_of_any_size_are_averaged():
    """An oblong image: the embeddings are the means of its maps."""
    net = small("resnet10")
    state = drawn(net)
    module = torchs(net, state, train=False)
    x = torch.cat([images(net, 2), images(net, 2).flip(0)], -1)
    low = module.low(x)
    high = nn.Sequential(*list(module.high.children())[:-1])(low)
    assert (low.shape, high.shape) == ((2, 32, 8, 16), (2, 256, 1, 2))
    out = net(state, x)
    torch.testing.assert_close(out.low, low.mean((2, 3)))
    torch.testing.assert_close(out.high, high.mean((2, 3)))


@pytest.mark.parametrize("name", [*UNIT, *(n for n in SMALL if n != "bottleneck")])
def test_embeddings_are_unit_or_raw(name):
    """By default as in the net's paper; unit embeddings are the raw ones, scaled."""
    shape = {"digits_cnn": (1, 8, 8), "lenet": (3, 32, 32), **SMALL}.get(
        name, (1, 28, 28)
    )
    raw = nets.build(name, shape, CLASSES, "raw")
    unit = nets.build(name, shape, CLASSES, "unit")
    state = drawn(raw)
    x = images(raw, 3)
    one, other = raw(state, x), unit(state, x)
    torch.testing.assert_close(other.low, one.low / one.low.norm(dim=1, keepdim=True))
    norm = one.high.norm(dim=1, keepdim=True)
    torch.testing.assert_close(other.high, one.high / norm)
    assert float((norm - 1).abs().min()) > 1e-3
    for net, out in ((raw, one), (unit, other)):
        logits = net.head(net.head_state(state), out.high)
        torch.testing.assert_close(logits, out.logits)
    default = nets.build(name, shape, CLASSES)(state, x)
    wanted = other if name in UNIT else one
    assert all(torch.equal(a, b) for a, b in zip(default, wanted, strict=True))


def test_digits_linear_by_hand():
    """Convolve, ReLU, pool twice; a linear map without activation; a linear head."""
    net = small("digits_linear")
    state, x = drawn(net), images(net, 5)
    z = x
    for layer in ("low.0", "low.3"):
        z = F.conv2d(z, state[f"{layer}.weight"], state[f"{layer}.bias"], padding=1)
        z = F.max_pool2d(z.clamp(min=0), 2)
    high = z.flatten(1) @ state["high.1.weight"].T + state["high.1.bias"]
    logits = high @ state["head.0.weight"].T + state["head.0.bias"]
    out = net(state, x)
    assert_close(out._asdict(), {"low": z.flatten(1), "high": high, "logits": logits})
    assert bool((high < 0).any())


def test_fedpa_by_hand():
    """Two strided convolutions with BatchNorm; features are raw and signed."""
    net = small("fedpa_cnn")
    state, x = drawn(net), images(net, 3)
    z = x
    for conv, norm, side in (("low.0", "low.1", 14), ("low.3", "low.4", 7)):
        z = F.conv2d(z, state[f"{conv}.weight"], state[f"{conv}.bias"], 2, 1)
        assert z.shape[-2:] == (side, side)
        z = (z - z.mean((0, 2, 3), keepdim=True)) / torch.sqrt(
            z.var((0, 2, 3), keepdim=True, correction=0) + 1e-5
        )
        z = z * state[f"{norm}.weight"].view(1, -1, 1, 1)
        z = (z + state[f"{norm}.bias"].view(1, -1, 1, 1)).clamp(min=0)
    high = z.flatten(1) @ state["high.1.weight"].T + state["high.1.bias"]
    out = net(state, x, train=True)
    torch.testing.assert_close(out.high, high, rtol=1e-7, atol=1e-9)
    assert bool((high < 0).any())


def levels_by_hand(name: str, module: TwoLevel, x: torch.Tensor) -> list:
    """Walk through a torch module; keep the channel means before each level's ReLU."""
    low, high = list(module.low.children()), list(module.high.children())
    seen: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.sum((2, 3)) / x[0, 0].numel() if x.ndim == 4 else x)
        return x.clamp(min=0)

    if name == "digits_bn":  # conv, norm, ReLU, pool twice; flatten, linear
        for conv, norm, pool in (low[:2] + low[3:4], low[4:6] + low[7:]):
            x = pool(keep(norm(conv(x))))
        return [*seen, high[1](x.flatten(1))]
    if name == "mnist_cnn_plain":  # conv, pool, ReLU; conv, dropout, pool, ReLU; linear
        x = keep(low[1](low[0](x)))
        x = keep(low[5](low[3](x)))
        keep(high[1](x.flatten(1)))
        return seen
    x = keep(low[1](low[0](x)))
    if name == "resnet18":
        x = low[3](x)  # the stem's pooling
    for stage in high[:4]:
        blocks: list[Any] = list(stage.children()) if name == "resnet18" else [stage]
        for block in blocks:
            inner = block.bn1(block.conv1(x)).clamp(min=0)
            shortcut = x if block.downsample is None else block.downsample(x)
            before = block.bn2(block.conv2(inner)) + shortcut
            x = before.clamp(min=0)
        keep(before)
    return seen


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("digits_bn", [8, 16, 32]),
        ("mnist_cnn_plain", [10, 20, 50]),
        ("resnet10", [32, 32, 64, 128, 256]),
        ("resnet18", [64, 64, 128, 256, 512]),
    ],
)
def test_levels_are_channel_means_before_the_relu(name, widths):
    """Two clients at once in train mode and one in eval mode; outputs as without."""
    shape = {"mnist_cnn_plain": (1, 28, 28), "resnet18": (3, 8, 8), **SMALL}[name]
    net = nets.build(name, shape, CLASSES)
    each = [drawn(net, seed) for seed in range(2)]
    stacked = {k: torch.stack([one[k] for one in each]) for k in each[0]}
    x = images(net, 2, 3)
    outs, found = vmap(partial(net.levels, train=True))(copies(stacked), x)
    assert [z.shape for z in found] == [(2, 3, width) for width in widths]
    plain = vmap(partial(net, train=True))(stacked, x)
    assert_close(outs._asdict(), plain._asdict(), rtol=0, atol=0)
    for client, one in enumerate(each):
        wanted = levels_by_hand(name, torchs(net, one, train=True), x[client])
        for z, w in zip(found, wanted, strict=True):
            torch.testing.assert_close(z[client], w, rtol=1e-6, atol=1e-9)
    out, alone = net.levels(each[0], x[0])
    wanted = levels_by_hand(name, torchs(net, each[0], train=False), x[0])
    for z, w in zip(alone, wanted, strict=True):
        torch.testing.assert_close(z, w, rtol=1e-6, atol=1e-9)
    assert any(bool((z < 0).any()) for z in alone)
    assert_close(out._asdict(), net(each[0], x[0])._asdict(), rtol=0, atol=0)
    assert not any(m._forward_pre_hooks for m in net.module.modules())


def test_a_methods_own_weights_are_not_the_nets():
    net = small("digits_bn")
    state, x = drawn(net), images(net, 3)
    more = copies(state) | {"own.projection.weight": torch.full((3, 3), float("nan"))}
    for train in (False, True):
        one, other = net(state, x, train=train), net(more, x, train=train)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    for key in net.buffers:  # the statistics moved in the given tensors
        assert torch.equal(state[key], more[key])
        assert not torch.equal(state[key], drawn(net)[key])
    assert net.head_state(more).keys() == {"0.weight", "0.bias"}
    assert not any(key.startswith("own.") for key in net.buffers)


@pytest.mark.parametrize("name", ["fedpa_cnn", "resnet10", "resnet18", "convnet5"])
def test_initial_weights_follow_the_rule(name):
    """Torch's default: uniform in 1/sqrt(fan_in). Torchvision: N(0, 2 / fan_out)."""
    net = small(name)
    state = net.init(generator(3, "init"))
    modules = dict(net.module.named_modules())
    for key, value in state.items():
        layer = modules[key.rpartition(".")[0]]
        if isinstance(layer, nn.BatchNorm2d):
            one = key.endswith(("weight", "running_var"))
            assert torch.equal(value, torch.full_like(value, float(one)))
        elif name == "resnet18" and isinstance(layer, nn.Conv2d):
            fan_out = value.shape[0] * value[0, 0].numel()
            assert float(value.std()) == pytest.approx((2 / fan_out) ** 0.5, rel=0.03)
            assert abs(float(value.mean())) < 5 * (2 / fan_out / value.numel()) ** 0.5
            assert float(value.abs().max()) > 3 * float(value.std())  # not uniform
        else:
            fan_in = state[key.rpartition(".")[0] + ".weight"][0].numel()
            assert float(value.abs().max()) <= fan_in**-0.5
            if value.numel() > 500:
                wanted = fan_in**-0.5 / 3**0.5
                assert float(value.std()) == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize("name", SMALL)
def test_the_generator_drives_all_weights(name):
    """Same name, same bits; another seed moves every tensor that is drawn."""
    net = small(name)
    one, again, other = (net.init(generator(s, "init")) for s in (1, 1, 2))
    fixed = {k for k, v in one.items() if v.unique().numel() == 1}
    for key, value in one.items():
        assert torch.equal(value, again[key])
        assert torch.equal(value, other[key]) == (key in fixed)
    norms = [n for n, m in net.module.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert fixed == {k for k in one if k.rpartition(".")[0] in norms}


def test_building_leaves_torchs_generator_alone():
    before = torch.random.get_rng_state()
    nets.build("resnet10", (3, 8, 8), CLASSES)
    nets.build("digits_bn", (1, 8, 8), CLASSES)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "shape", "embedding", "message"),
    [
        ("convnet5", (1, 28, 28), None, r"images are \(1, 28, 28\), needs 32 pixels"),
        ("convnet5", (1, 64, 31), None, "needs 32 pixels a side"),
        ("fedpa_cnn_celeba", (3, 64, 64), None, r"expected \(None, 84, 84\)"),
        ("digits_linear", (1, 28, 28), None, r"expected \(None, 8, 8\)"),
        ("resnet11", (3, 32, 32), None, "got 'resnet11', expected one of lenet"),
        ("resnet10", (3, 8, 8), "cosine", "got 'cosine', expected unit or raw"),
        ("resnet10", (3, 8, 8), "", "got '', expected unit or raw"),
    ],
)
def test_a_net_that_cannot_be_built(name, shape, embedding, message):
    with pytest.raises(ValueError, match=message):
        nets.build(name, shape, CLASSES, embedding)


def test_fedpa_takes_images_of_other_sizes():
    """CIFAR's 32 pixels halve twice to 8: 3 * 6 * 9 + 6, 6 * 16 * 9 + 16, 1024 * 32."""
    net = nets.build("fedpa_cnn", (3, 32, 32), 10)
    convolutions = (3 * 6 * 9 + 6) + (6 * 16 * 9 + 16) + 2 * (6 + 16)
    assert net.parameter_count() == convolutions + (16 * 64 * 32 + 32) + 330
    assert net(drawn(net), images(net, 2)).high.shape == (2, 32)


def test_every_call_has_its_own_mode():
    """The head alone leaves a mode behind; BatchNorm and dropout follow each call."""
    net = nets.build("mnist_cnn", (1, 28, 28), CLASSES)
    state, x = drawn(net), images(net, 2)
    quiet = net(state, x)
    for busy in (
        lambda: net(state, x, train=True).logits,
        lambda: net.head(net.head_state(state), quiet.high, train=True),
    ):
        assert not torch.equal(busy(), quiet.logits)
        assert torch.equal(net(state, x).logits, quiet.logits)
        assert not any(layer.training for layer in net.module.modules())

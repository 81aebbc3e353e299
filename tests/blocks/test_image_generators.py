"""FedPG's image generators: the released sizes, shapes, BatchNorm."""

import pytest
import torch
from torch import nn

from fedlib.blocks import image_generators
from fedlib.core.rng import generator


@pytest.mark.parametrize(
    ("classes", "shape", "parameters"),
    [
        (10, (3, 32, 32), 3_909_504),
        (100, (3, 32, 32), 3_921_024),
        (62, (1, 64, 64), 4_965_760),
    ],
)
def test_fully_connected_generator_has_the_released_number_of_parameters(
    classes, shape, parameters
):
    module = image_generators.build("fc", classes, shape).module
    assert sum(p.numel() for p in module.parameters()) == parameters


def test_layers_of_the_fully_connected_generator():
    layers = list(image_generators.build("fc", 10, (3, 32, 32)).module)
    block = [nn.Linear, nn.BatchNorm1d, nn.LeakyReLU]
    assert [type(x) for x in layers] == [*block * 4, nn.Linear, nn.Tanh, nn.Unflatten]
    linear = [x for x in layers if isinstance(x, nn.Linear)]
    widths = [522, 128, 256, 512, 1024, 3072]
    assert [x.in_features for x in linear] + [linear[-1].out_features] == widths
    slopes = [x.negative_slope for x in layers if isinstance(x, nn.LeakyReLU)]
    assert slopes == [0.2] * 4


def test_convolutional_generator_which_is_ours():
    """Linear to 256 maps of an eighth, BN, then 128, 64 and 64 maps, then c."""

    def conv(a, b):
        return 9 * a * b + b

    for classes, (c, h, w) in ((10, (3, 32, 32)), (62, (1, 64, 64))):
        first = 256 * (h // 8) * (w // 8)
        wanted = (512 + classes) * first + first + 2 * first
        wanted += conv(256, 128) + 2 * 128 + conv(128, 64) + 2 * 64
        wanted += conv(64, 64) + 2 * 64 + conv(64, c)
        module = image_generators.build("conv", classes, (c, h, w)).module
        assert sum(p.numel() for p in module.parameters()) == wanted
    doubled = [m.size for m in module if isinstance(m, nn.Upsample)]
    assert doubled == [(16, 16), (32, 32), (64, 64)]


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (2, 5, 7)])
@pytest.mark.parametrize("kind", ["fc", "conv"])
def test_images_have_the_shape_of_the_net_and_lie_within_one(kind, shape):
    network = image_generators.build(kind, 4, shape, noise=6)
    state = network.init(generator(0, "g"))
    noise, y = torch.rand(5, 6), torch.tensor([0, 1, 2, 3, 0])
    images = network(state, noise, y)
    assert images.shape == (5, *shape)
    assert images.abs().max() <= 1
    assert not torch.equal(images, network(state, noise, y.flip(0)))  # labels count
    assert not torch.equal(images[0], images[4])  # and so does noise
    torch.testing.assert_close(network(state, noise[:1], y[:1])[0], images[0])


def test_training_mode_moves_batchnorm_statistics_and_eval_mode_does_not():
    network = image_generators.build("fc", 4, (1, 8, 8), noise=6)
    state = network.init(generator(0, "g"))
    before = {k: v.clone() for k, v in state.items()}
    noise, y = torch.rand(5, 6), torch.tensor([0, 1, 2, 3, 0])
    network(state, noise, y)
    assert all(torch.equal(v, before[k]) for k, v in state.items())
    network(state, noise, y, train=True)
    changed = {k for k, v in state.items() if not torch.equal(v, before[k])}
    assert changed == set(network.buffers)


@pytest.mark.parametrize("kind", ["fc", "conv"])
def test_idle_biases_are_those_without_a_gradient(kind):
    """BatchNorm takes them away; every other parameter has a gradient."""
    network = image_generators.build(kind, 4, (1, 8, 8), noise=6)
    state = {k: v.double() for k, v in network.init(generator(0, "g")).items()}
    held = network.buffers
    state = {k: v if k in held else v.requires_grad_() for k, v in state.items()}
    y = torch.arange(8) % 4
    noise = torch.rand(8, 6, generator=generator(0, "n"), dtype=torch.float64)
    images = network(state, noise, y, train=True)
    (
        images
        * torch.rand(images.shape, generator=generator(0, "w"), dtype=torch.float64)
    ).sum().backward()
    largest = {k: float(v.grad.abs().max()) for k, v in state.items() if k not in held}
    idle = {k for k, size in largest.items() if size < 1e-9}
    assert idle == image_generators.idle(network)
    assert len(idle) == 4

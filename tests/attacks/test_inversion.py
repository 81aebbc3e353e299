"""Query inversion: it recovers images where it can, and fails where it must."""

import math
import re

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlib import data
from fedlib.attacks import inversion
from fedlib.core.rng import generator


def psnr(truth: Tensor, found: Tensor) -> float:
    """Return 10 log10(peak^2 / mse), peak 2, from the mean error over all pixels."""
    square = np.square(truth.numpy() - found.numpy()).mean()
    return 10 * math.log10(4 / square)


def orthogonal(size: int) -> Tensor:
    """Return a random rotation, which loses nothing."""
    return torch.linalg.qr(torch.randn(size, size, generator=generator(0, "map")))[0]


def digits() -> tuple[Tensor, Tensor]:
    """Return training and test images within [-0.8, 0.8], where tanh gets to."""
    found = data.load("digits")
    return 0.8 * (found.train_x / 127.5 - 1), 0.8 * (found.test_x / 127.5 - 1)


def attack(images: Tensor, codes: Tensor, **options) -> torch.nn.Module:
    """Train the narrow decoder of the tests."""
    channels, side = images.shape[1:3]
    decoder = inversion.fsha_decoder(codes.shape[1], channels, side, width=16)
    settings = {"steps": 600, "batch": 64, "learning_rate": 3e-3, "seed": 0}
    return inversion.invert(decoder, images, codes, **settings | options).decoder


def test_invertible_encoder_is_inverted():
    train, test = digits()
    rotation = orthogonal(64)
    decoder = attack(train, train.flatten(1) @ rotation)
    found = inversion.decode(decoder, test.flatten(1) @ rotation)
    mean = train.mean(0, keepdim=True).expand_as(test)
    assert psnr(test, mean) < 14
    assert psnr(test, found) > 30


def test_codes_of_other_images_give_nothing():
    train, test = digits()
    rotation = orthogonal(64)
    order = torch.randperm(len(train), generator=generator(0, "shuffle"))
    decoder = attack(train, train[order].flatten(1) @ rotation)
    found = inversion.decode(decoder, test.flatten(1) @ rotation)
    mean = train.mean(0, keepdim=True).expand_as(test)
    assert psnr(test, found) < psnr(test, mean) + 1


def test_large_colour_images_are_inverted():
    """Images that mix eight waves are known from eight numbers."""
    pick = generator(0, "waves")
    place = torch.linspace(0, 2 * math.pi, 32)
    waves = torch.stack(
        [
            torch.cos(a * place[:, None] + b * place[None, :] + c)
            for a in (0, 1, 2)
            for b in (1, 2, 3)
            for c in (0.0, 1.0, 2.0)
        ]
    )
    waves = waves.reshape(9, 3, 32, 32)[:8] / 8
    mixed = torch.rand(400, 8, generator=pick) * 2 - 1
    images = torch.einsum("nk,kchw->nchw", mixed, waves)
    codes = mixed @ orthogonal(8)
    decoder = attack(images[:300], codes[:300], steps=250)
    assert psnr(images[300:], torch.zeros(100, 3, 32, 32)) < 25
    assert psnr(images[300:], inversion.decode(decoder, codes[300:])) > 30


@pytest.mark.parametrize("loss", ["mse", "l1_ssim"])
@pytest.mark.parametrize("build", [inversion.fsha_decoder, inversion.fire_decoder])
def test_losses_fall_and_seeds_decide(build, loss):
    train, _ = digits()
    codes = train.flatten(1)
    decoder = build(64, 1, 8)
    options = {"steps": 30, "batch": 16, "learning_rate": 1e-3, "loss": loss}
    first = inversion.invert(decoder, train, codes, seed=0, **options)
    again = inversion.invert(decoder, train, codes, seed=0, **options)
    other = inversion.invert(decoder, train, codes, seed=1, **options)
    assert first.losses.loss.iloc[-5:].mean() < 0.8 * first.losses.loss.iloc[0]
    assert first.losses.equals(again.losses)
    assert not first.losses.equals(other.losses)
    assert list(first.losses.step) == list(range(1, 31))


def test_the_given_decoder_is_not_touched():
    train, _ = digits()
    decoder = inversion.fsha_decoder(64, 1, 8, width=4)
    before = {name: value.clone() for name, value in decoder.state_dict().items()}
    attack(train, train.flatten(1), steps=2)
    inversion.invert(
        decoder,
        train,
        train.flatten(1),
        steps=2,
        batch=4,
        learning_rate=0.1,
        seed=0,
    )
    assert all(v.equal(before[k]) for k, v in decoder.state_dict().items())


@pytest.mark.parametrize(("channels", "side"), [(1, 8), (1, 28), (3, 32), (3, 64)])
@pytest.mark.parametrize("build", [inversion.fsha_decoder, inversion.fire_decoder])
def test_decoders_make_images_of_every_size(build, channels, side):
    found = build(5, channels, side)(100 * torch.ones(2, 5))
    assert found.shape == (2, channels, side, side)
    assert found.abs().max() <= 1


def kernels(module: torch.nn.Module) -> list[tuple[int, ...]]:
    """Return the shapes of all weights, in order."""
    return [tuple(v.shape) for k, v in module.named_parameters() if "weight" in k]


def test_decoders_are_those_of_the_papers():
    released = inversion.fsha_decoder(520, 3, 32, hidden="linear")
    assert kernels(released) == [
        (256 * 4 * 4, 520),
        (256, 256, 3, 3),
        (256, 128, 3, 3),
        (128, 3, 3, 3),
    ]
    assert [type(m).__name__ for m in released][-2:] == ["ConvTranspose2d", "Tanh"]
    assert not any(isinstance(m, torch.nn.ReLU) for m in released)
    ours = [type(m).__name__ for m in inversion.fsha_decoder(520, 3, 32)]
    assert ours.count("ReLU") == 3
    assert ours[-2:] == ["ConvTranspose2d", "Tanh"]
    fire = inversion.fire_decoder(512, 3, 32)
    assert kernels(fire) == [
        (256 * 4 * 4, 512),
        *[(32, 256, 1, 1), (128, 32, 1, 1), (128, 32, 3, 3)],
        *[(16, 256, 1, 1), (64, 16, 1, 1), (64, 16, 3, 3)],
        *[(16, 128, 1, 1), (32, 16, 1, 1), (32, 16, 3, 3)],
        (3, 64, 1, 1),
    ]


def test_loss_of_a_shift_by_hand():
    truth = torch.zeros(2, 1, 8, 8, dtype=torch.float64)
    found = torch.full_like(truth, 0.5)
    # Flat images, 0.5 and 0.75 in [0, 1]: (2 m n + c1) / (m^2 + n^2 + c1)
    similar = (2 * 0.5 * 0.75 + 1e-4) / (0.5**2 + 0.75**2 + 1e-4)
    assert inversion.difference(truth, found, "mse") == 0.25
    assert float(inversion.difference(truth, found, "l1_ssim")) == pytest.approx(
        0.5 + 0.1 * (1 - similar), abs=1e-9
    )


def test_curve_is_means_of_equal_stretches():
    found = inversion.curve([{"loss": float(i)} for i in range(250)])
    assert list(found.step[:2]) == [3, 6]
    assert list(found.loss[:2]) == [1.0, 4.0]
    assert (found.step.iloc[-1], found.loss.iloc[-1]) == (250, 249.0)
    assert len(inversion.curve([{"loss": 0.0}] * 10_000)) == 100


@pytest.mark.parametrize("side", [4, 30, 36, 100])
def test_sides_that_do_not_halve_are_refused(side):
    with pytest.raises(ValueError, match=f"side: got {side}, expected"):
        inversion.fsha_decoder(4, 1, side)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(4, 8, 8)}, "images: got shape (4, 8, 8)"),
        ({"images": torch.full((4, 1, 8, 8), 1.5)}, "images: got values from 1.5"),
        ({"images": torch.full((4, 1, 8, 8), math.nan)}, "images: got values from nan"),
        ({"codes": torch.zeros(5, 2)}, "codes: got 5, expected 4"),
        ({"codes": torch.zeros(4, 2, 2)}, "codes: got shape (4, 2, 2)"),
        ({"steps": 0}, "steps: got 0"),
        ({"batch": 0}, "batch: got 0"),
        ({"loss": "ssim"}, "loss: got 'ssim', expected mse or l1_ssim"),
    ],
)
def test_senseless_input_is_refused(change, message):
    given = {
        "images": torch.zeros(4, 1, 8, 8),
        "codes": torch.zeros(4, 2),
        "steps": 1,
        "batch": 2,
        "learning_rate": 1e-3,
        "seed": 0,
    } | change
    decoder = inversion.fsha_decoder(2, 1, 8, width=4)
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        inversion.invert(decoder, **given)


def test_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="hidden: got 'gelu', expected relu or linear"):
        inversion.fsha_decoder(4, 1, 8, hidden="gelu")

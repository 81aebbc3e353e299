"""Augmentation and normalisation against torchvision, sample by sample."""

import pytest
import torch
from torchvision.transforms import Compose, Normalize, ToTensor
from torchvision.transforms import functional as tv

from fedlib.core.augment import Augment, apply_augment, draw_augment, normalise
from fedlib.core.rng import generator
from fedlib.data import DATASETS


def images(count: int, *shape: int) -> torch.Tensor:
    drawn = torch.randint(0, 256, (count, *shape), generator=generator(0, "images"))
    return drawn.to(torch.uint8)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 20)], ids=str)
@pytest.mark.parametrize("padding", [0, 1, 4])
def test_equals_torchvision_sample_by_sample(shape, padding):
    x = images(60, *shape)
    draws = draw_augment(Augment(padding, True), 60, generator(1, "draws"))
    high = 2 * padding
    draws[:4, :2] = torch.tensor([[0, 0], [high, high], [0, high], [high, 0]])  # edges
    found = apply_augment(x, draws, padding)
    assert found.dtype == torch.uint8
    assert found.shape == x.shape
    for image, (row, column, flip), ours in zip(x, draws.tolist(), found, strict=True):
        wanted = tv.crop(tv.pad(image, padding, fill=0), row, column, *shape[1:])
        assert torch.equal(ours, tv.hflip(wanted) if flip else wanted)


def test_the_middle_without_a_flip_is_the_image_itself():
    x = images(3, 3, 8, 8)
    before = x.clone()
    middle = torch.tensor([[4, 4, 0]] * 3)
    assert torch.equal(apply_augment(x, middle, 4), x)
    apply_augment(x, torch.tensor([[0, 1, 1]] * 3), 4)
    assert torch.equal(x, before)


def test_draws_are_uniform_and_in_range():
    count, padding = 18_000, 4
    draws = draw_augment(Augment(padding, True), count, generator(2, "draws"))
    assert draws.shape == (count, 3)
    assert draws.dtype == torch.int64
    places = draws[:, 0] * 9 + draws[:, 1]  # 81 places, 222 draws each
    seen = torch.bincount(places, minlength=81)
    assert len(seen) == 81
    chi_square = float(((seen - count / 81) ** 2 / (count / 81)).sum())
    assert chi_square < 80 + 4 * (2 * 80) ** 0.5  # mean 80, sd sqrt(160)
    assert float(draws[:, 2].double().mean()) == pytest.approx(0.5, abs=0.015)
    flipped = draws[draws[:, 2] == 1, 0].double()  # crop and flip are independent
    assert float(flipped.mean()) == pytest.approx(4, abs=0.12)


def test_draws_are_reproducible_and_a_flip_can_be_off():
    first, again = (
        draw_augment(Augment(4, True), 50, generator(3, "draws")) for _ in range(2)
    )
    assert torch.equal(first, again)
    other = draw_augment(Augment(4, True), 50, generator(4, "draws"))
    assert not torch.equal(first, other)
    unflipped = draw_augment(Augment(4, False), 50, generator(3, "draws"))
    assert torch.equal(unflipped[:, :2], first[:, :2])
    assert not unflipped[:, 2].any()
    assert first[:, 2].any()


@pytest.mark.parametrize("name", DATASETS)
def test_normalise_equals_torchvision(name):
    entry = DATASETS[name]
    channels = len(entry.mean)
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    x = every.expand(2, channels, 16, 16).clone()
    x[1] = x[1].flip(-1)
    transform = Compose([ToTensor(), Normalize(entry.mean, entry.std)])
    wanted = torch.stack([transform(i.permute(1, 2, 0).numpy()) for i in x])
    found = normalise(x, entry.mean, entry.std)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)

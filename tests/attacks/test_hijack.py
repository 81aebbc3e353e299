"""Prototype hijacking: the critic by hand, and codes that end up among the uploads."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib import data
from fedlib.attacks import hijack, inversion
from fedlib.core.rng import generator


def linear(weight: list[float], bias: float) -> nn.Module:
    """Return a critic whose score is weight . z + bias."""
    layer = nn.Linear(len(weight), 1)
    layer.weight.data = torch.tensor([weight])
    layer.bias.data = torch.tensor([bias])
    return layer


REAL = torch.tensor([[1.0, 0.0], [3.0, 2.0]])  # mean score under (3, 4), 1: 11
FAKE = torch.tensor([[0.0, 1.0], [0.0, -1.0]])  # mean score: 1


def test_gap_and_penalty_of_a_linear_critic_by_hand():
    judge = linear([3.0, 4.0], 1.0)
    assert hijack.gap(judge, REAL, FAKE).item() == 10.0
    mix = torch.tensor([[0.2], [0.9]])
    assert hijack.penalty(judge, REAL, FAKE, mix).item() == pytest.approx((5 - 1) ** 2)
    assert hijack.penalty(linear([0.6, 0.8], 0.0), REAL, FAKE, mix).item() < 1e-12


def test_penalty_is_taken_between_the_pairs():
    """The score z^2 / 2 per dimension has the point itself as its gradient."""

    class Square(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return z.square().sum(1, keepdim=True) / 2

    mix = torch.tensor([[0.25], [1.0]])
    # points (0.25, 0.75) and (3, 2): norms sqrt(0.625) and sqrt(13)
    expected = ((math.sqrt(0.625) - 1) ** 2 + (math.sqrt(13) - 1) ** 2) / 2
    found = hijack.penalty(Square(), REAL, FAKE, mix).item()
    assert found == pytest.approx(expected, rel=1e-6)


def test_penalty_moves_the_critic():
    judge = linear([3.0, 4.0], 1.0)
    hijack.penalty(judge, REAL, FAKE, torch.full((2, 1), 0.5)).backward()
    # d (|w| - 1)^2 / dw = 2 (|w| - 1) w / |w|
    torch.testing.assert_close(judge.weight.grad, 8 * torch.tensor([[0.6, 0.8]]))


def test_levels_have_length_one_each():
    found = hijack.unit(torch.tensor([[3.0, 4.0, 0.0, 2.0], [0, 0, 0, 0]]), [2, 2])
    assert found.tolist() == [[pytest.approx(0.6), pytest.approx(0.8), 0, 1], [0] * 4]
    codes = hijack.pilot([400, 120], 3, 32)(torch.rand(2, 3, 32, 32))
    assert codes.shape == (2, 520)
    torch.testing.assert_close(codes[:, :400].norm(dim=1), torch.ones(2))
    torch.testing.assert_close(codes[:, 400:].norm(dim=1), torch.ones(2))


def test_pilot_is_the_released_one():
    layers = hijack.pilot([120], 3, 32, hidden="linear")
    shapes = [tuple(v.shape) for k, v in layers.named_parameters() if "weight" in k]
    assert shapes == [
        (64, 3, 3, 3),
        (128, 64, 3, 3),
        (256, 128, 3, 3),
        (256, 256, 3, 3),
        (120, 4096),
    ]
    strides = [m.stride[0] for m in layers if isinstance(m, nn.Conv2d)]
    assert strides == [2, 2, 2, 1]


def energy(a: Tensor, b: Tensor) -> float:
    """Return the energy distance of two samples, 0 for one distribution."""

    def within(x: Tensor) -> float:
        return float(torch.cdist(x, x).sum() / (len(x) * (len(x) - 1)))

    return 2 * float(torch.cdist(a, b).mean()) - within(a) - within(b)


def toy() -> tuple[Tensor, Tensor]:
    """Return digits, and unit codes in three clusters."""
    pick = generator(0, "clusters")
    centre = F.normalize(torch.randn(3, 8, generator=pick))
    near = centre[torch.randint(3, (200,), generator=pick)]
    near = near + 0.1 * torch.randn(200, 8, generator=pick)
    return data.load("digits").train_x / 127.5 - 1, F.normalize(near)


def attack(images: Tensor, prototypes: Tensor, **options) -> hijack.Hijacking:
    """Run the hijack with the tests' narrow networks."""
    settings = {
        "steps": 300,
        "batch": 32,
        "learning_rate": 1e-3,
        "critic_rate": 3e-3,
        "weight": 0.1,
        "seed": 0,
    }
    return hijack.hijack(
        hijack.pilot([8], 1, 8, width=16),
        inversion.fsha_decoder(8, 1, 8, width=16),
        hijack.critic(8, width=32),
        images,
        prototypes,
        **settings | options,
    )


def test_codes_end_up_among_the_uploads():
    images, prototypes = toy()
    apart = attack(images, prototypes, weight=0.0)
    drawn = attack(images, prototypes)
    before = energy(apart.pilot(images[:500]), prototypes)
    after = energy(drawn.pilot(images[:500]), prototypes)
    assert before > 0.3
    assert after < before / 3
    assert drawn.losses.reconstruction.iloc[-1] < 0.7 * images.var()


def test_seeds_decide_and_modules_stay():
    images, prototypes = toy()
    first, again, other = (
        attack(images, prototypes, steps=3, seed=s) for s in (0, 0, 1)
    )
    assert first.losses.equals(again.losses)
    assert not first.losses.equals(other.losses)
    assert list(first.losses) == ["step", "reconstruction", "gap"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.full((4, 1, 8, 8), 2.0)}, "images: got values from 2.0"),
        ({"prototypes": torch.zeros(0, 8)}, "prototypes: got shape (0, 8)"),
        ({"steps": 0}, "steps: got 0"),
        ({"weight": -1.0}, "weight: got -1.0"),
        ({"weight": math.nan}, "weight: got nan"),
    ],
)
def test_senseless_input_is_refused(change, message):
    given = {"images": torch.zeros(4, 1, 8, 8), "prototypes": torch.zeros(3, 8)}
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        attack(**given | change)

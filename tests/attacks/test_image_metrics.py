"""Likeness, ranks and areas against numbers worked out by hand."""

import math

import pytest
import torch
from skimage.metrics import structural_similarity

from fedlib.attacks import image_metrics
from fedlib.core.rng import generator


def images(count: int, channels: int, side: int, seed: int = 0) -> torch.Tensor:
    draw = generator(seed, "test images")
    return 2 * torch.rand(count, channels, side, side, generator=draw) - 1


def test_psnr_by_hand():
    """A step of 0.2 of [-1, 1] is 0.1 of [0, 1]: an error of 0.01, which is 20 dB."""
    truth = torch.zeros(2, 1, 8, 8)
    found = torch.full((2, 1, 8, 8), 0.2)
    found[1] = 0
    found[1, 0, 0, 0] = 1.0  # one pixel of 64 is off by 0.5
    table = image_metrics.likeness(truth, found)
    assert table["mse"].tolist() == pytest.approx([0.01, 0.25 / 64])
    psnr = [20.0, -10 * math.log10(0.25 / 64)]
    assert table["psnr"].tolist() == pytest.approx(psnr, abs=1e-5)


def test_an_image_is_infinitely_like_itself():
    x = images(3, 3, 32)
    table = image_metrics.likeness(x, x)
    assert (table["psnr"] == math.inf).all()
    assert table["ssim"].tolist() == pytest.approx([1.0, 1.0, 1.0])


def test_ssim_of_flat_images_by_hand():
    """Without structure only the means count: 2ab + c over a^2 + b^2 + c."""
    a, b, c = 0.25, 0.75, 0.01**2
    expected = (2 * a * b + c) / (a * a + b * b + c)
    truth, found = (torch.full((1, 1, 8, 8), 2 * v - 1) for v in (a, b))
    assert image_metrics.likeness(truth, found)["ssim"][0] == pytest.approx(expected)
    assert float(image_metrics.ssim(truth, found)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("shape", [(1, 8), (3, 32), (1, 28), (3, 6)])
def test_the_differentiable_ssim_is_scikit_images(shape):
    truth = images(4, *shape).double()
    found = (truth + 0.4 * images(4, *shape, seed=1)).clamp(-1, 1)
    found[3] = -truth[3]  # worse than nothing: negative
    ours = image_metrics.ssim(truth, found)
    size = min(7, shape[1] - 1 + shape[1] % 2)
    for x, y, value in zip((truth + 1) / 2, (found + 1) / 2, ours, strict=True):
        expected = structural_similarity(
            x.numpy(), y.numpy(), data_range=1.0, channel_axis=0, win_size=size
        )
        assert float(value) == pytest.approx(expected, abs=1e-12)
    assert ours[3] < 0
    told = image_metrics.likeness(truth, found)["ssim"]
    assert told.tolist() == pytest.approx(ours.tolist(), abs=1e-12)


def test_ssim_has_a_gradient():
    truth = images(2, 1, 8).double()
    found = (0.5 * truth).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: image_metrics.ssim(truth, x), found)


@pytest.mark.parametrize(
    ("truth", "found", "told"),
    [
        (torch.zeros(2, 1, 8, 8), torch.zeros(2, 8, 8), r"\(2, 8, 8\).*N, c, h, w"),
        (torch.zeros(2, 1, 8, 8), torch.zeros(3, 1, 8, 8), "N, c, h, w"),
        (torch.zeros(2, 1, 8, 8), torch.full((2, 1, 8, 8), 1.5), r"found: got .* 1\.5"),
        (torch.full((2, 1, 8, 8), torch.nan), torch.zeros(2, 1, 8, 8), "truth: .*nan"),
    ],
)
def test_what_is_no_pair_of_images_is_refused(truth, found, told):
    for metric in (image_metrics.likeness, image_metrics.ssim):
        with pytest.raises(ValueError, match=told):
            metric(truth, found)


def test_ranks_by_hand_with_ties():
    """Distances to the code 0: 3, 1, 1, 5, 1. Three share the ranks 1, 2, 3."""
    codes = torch.zeros(1, 1)
    candidates = torch.tensor([3.0, -1, 1, 5, 1]).view(1, 5, 1)
    contributors = torch.tensor([[0, 2, 3]])
    found = image_metrics.ranks(codes, contributors, candidates)
    assert found.tolist() == [[4.0, 2.0, 5.0]]


def test_the_contributor_of_its_own_code_ranks_first():
    draw = generator(0, "codes")
    candidates = torch.randn(6, 50, 4, generator=draw)
    at = torch.randint(50, (6, 1), generator=draw)
    codes = candidates[torch.arange(6), at[:, 0]]
    assert (image_metrics.ranks(codes, at, candidates) == 1).all()
    other = (at + 1) % 50
    assert (image_metrics.ranks(codes, other, candidates) > 1).all()


def test_ranks_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match=r"got shapes \(2, 3\), \(2, 1\), \(2, 9, 4\)"):
        image_metrics.ranks(
            torch.zeros(2, 3),
            torch.zeros(2, 1, dtype=torch.int64),
            torch.zeros(2, 9, 4),
        )


@pytest.mark.parametrize(
    ("members", "others", "expected"),
    [
        ([2.0, 3.0], [0.0, 1.0], 1.0),
        ([0.0], [1.0, 2.0], 0.0),
        ([1.0], [1.0, 1.0], 0.5),
        # pairs: 3 > 2, 3 > 1, 1 < 2, 1 = 1: two and a half of four
        ([3.0, 1.0], [2.0, 1.0], 0.625),
    ],
)
def test_auc_by_hand(members, others, expected):
    found = image_metrics.auc(torch.tensor(members), torch.tensor(others))
    assert found == pytest.approx(expected)

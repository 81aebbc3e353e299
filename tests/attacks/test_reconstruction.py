"""The optimisation attack succeeds where it can, and is one attack per image."""

import pytest
import torch

from fedlib.attacks import image_metrics
from fedlib.attacks.reconstruction import optimise, total_variation
from fedlib.core.rng import generator

SHAPE = (1, 8, 8)


def blobs(count: int) -> torch.Tensor:
    """Return smooth images in [-0.9, 0.9]."""
    rough = torch.randn(count, 1, 3, 3, generator=generator(0, "blobs"))
    return (
        0.9 * torch.nn.functional.interpolate(rough, SHAPE[1:], mode="bicubic").tanh()
    )


def orthogonal(size: int) -> torch.Tensor:
    matrix = torch.randn(size, size, generator=generator(1, "matrix"))
    return torch.linalg.qr(matrix).Q


def attacked(codes, encode, steps=300, **changes) -> torch.Tensor:
    settings = {"learning_rate": 0.05, "tv": 0.0, "seed": 0} | changes
    return optimise(encode, codes, SHAPE, steps=steps, **settings)


def test_an_orthogonal_encoder_is_inverted():
    """It hides nothing: above 30 dB, far from what a class mean or a draw reaches."""
    truth, matrix = blobs(6), orthogonal(64)

    def encode(x):
        return x.flatten(1) @ matrix

    found = attacked(encode(truth), encode)
    assert found.abs().max() <= 1
    assert (image_metrics.likeness(truth, found)["psnr"] > 30).all()
    mean = truth.mean(0, keepdim=True).expand_as(truth)
    assert (image_metrics.likeness(truth, mean)["psnr"] < 20).all()


def test_a_code_that_loses_half_the_image_is_met_but_not_the_image():
    truth, matrix = blobs(4), orthogonal(64)[:, :8]

    def encode(x):
        return x.flatten(1) @ matrix

    codes = encode(truth)
    found = attacked(codes, encode)
    assert torch.allclose(encode(found), codes, atol=0.02)
    assert (image_metrics.likeness(truth, found)["psnr"] < 25).all()


def test_an_average_gives_the_average_of_images_under_a_linear_encoder():
    truth, matrix = blobs(6), orthogonal(64)

    def encode(x):
        return x.flatten(1) @ matrix

    found = attacked(encode(truth).mean(0, keepdim=True), encode)
    mean = truth.mean(0, keepdim=True)
    assert image_metrics.likeness(mean, found)["psnr"][0] > 30


def test_images_do_not_see_each_other():
    truth, matrix = blobs(3), orthogonal(64)

    def encode(x):
        return x.flatten(1) @ matrix

    codes = encode(truth)
    whole = attacked(codes, encode, steps=20, tv=0.1)
    changed = codes.clone()
    changed[1:] = 3.0
    again = attacked(changed, encode, steps=20, tv=0.1)
    torch.testing.assert_close(again[0], whole[0], rtol=0, atol=1e-6)
    assert not torch.allclose(again[1], whole[1], atol=1e-2)


def test_total_variation_by_hand():
    image = torch.zeros(2, 1, 2, 3)
    image[0, 0, 0] = torch.tensor([0.0, 1.0, 3.0])
    # across: 1, 2, 0, 0 of 4; down: 0, 1, 3 of 3
    assert total_variation(image).tolist() == pytest.approx([3 / 4 + 4 / 3, 0.0])


def test_variation_weight_smooths():
    truth, matrix = blobs(4), orthogonal(64)[:, :8]

    def encode(x):
        return x.flatten(1) @ matrix

    codes = encode(truth)
    rough, smooth = (attacked(codes, encode, tv=v) for v in (0.0, 0.1))
    assert (total_variation(smooth) < total_variation(rough)).all()


def test_seed_decides():
    codes = torch.ones(2, 8)
    matrix = orthogonal(64)[:, :8]
    first, same, other = (
        attacked(codes, lambda x: x.flatten(1) @ matrix, steps=3, seed=s)
        for s in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_a_start_near_the_image_is_kept_where_the_code_says_nothing():
    """Of 64 directions the code has 8; the others stay as they began."""
    truth, matrix = blobs(4), orthogonal(64)[:, :8]

    def encode(x):
        return x.flatten(1) @ matrix

    near = 0.9 * truth
    found = attacked(encode(truth), encode, start=near)
    psnr = image_metrics.likeness(truth, found)["psnr"]
    assert (
        psnr
        > image_metrics.likeness(truth, attacked(encode(truth), encode))["psnr"] + 5
    ).all()
    with pytest.raises(
        ValueError, match=r"start: got shape \(3, 1, 8, 8\), expected \(4,"
    ):
        attacked(encode(truth), encode, start=near[:3])


@pytest.mark.parametrize(
    ("codes", "steps", "told"),
    [
        (torch.zeros(3), 5, r"codes: got shape \(3,\)"),
        (torch.ones(1, 2), 0, "steps: got 0"),
    ],
)
def test_illegal_arguments_are_refused(codes, steps, told):
    with pytest.raises(ValueError, match=told):
        attacked(codes, lambda x: x.flatten(1), steps=steps)

"""How alike images are, and how well a code tells whose images it was made of.

What attacks on prototypes are measured by: likeness of a reconstruction to the image,
rank of the true images among candidates, and telling them from others.
"""

# pandas and scikit-image ship no types, and those that pyright infers are wrong here.
# pyright: reportArgumentType=false

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from scipy.stats import rankdata
from skimage.metrics import (
    mean_squared_error,
    peak_signal_noise_ratio,
    structural_similarity,
)
from sklearn.metrics import roc_auc_score
from torch import Tensor

WINDOW = 7  # pixels a side over which SSIM compares, where an image is that large
K1, K2 = 0.01, 0.03  # of SSIM (Wang et al., IEEE TIP 2004)


def _both(truth: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """Return images as they are measured, in [0, 1]."""
    if truth.ndim != 4 or truth.shape != found.shape:
        raise ValueError(
            f"truth, found: got shapes {tuple(truth.shape)}, {tuple(found.shape)}, "
            "expected [N, c, h, w] twice"
        )
    for name, images in (("truth", truth), ("found", found)):
        most = float(images.detach().abs().amax())
        if not most <= 1 + 1e-5:
            raise ValueError(f"{name}: got values up to {most}, expected [-1, 1]")
    return (truth + 1) / 2, (found + 1) / 2


def window(side: int) -> int:
    """Return the side of SSIM's window: 7, or the largest odd one in the image."""
    return min(WINDOW, side - 1 + side % 2)


def ssim(truth: Tensor, found: Tensor) -> Tensor:
    """Return the structural similarity ``[N]`` of images, differentiable.

    The same number as scikit-image's, which ``likeness`` reports, so that a decoder is
    trained on what it is measured by. (torchmetrics pads before it compares, which
    moves the number of 8 x 8 digits.)

    Parameters
    ----------
    truth, found : Tensor
        ``[N, c, h, w]`` in [-1, 1].

    Notes
    -----
    Wang et al., Image Quality Assessment, IEEE TIP 2004: means of local statistics over
    square windows that lie in the image, sample covariances, all channels alike.
    """
    a, b = _both(truth, found)
    size = window(min(a.shape[2:]))

    def local(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, size, stride=1)

    mean_a, mean_b = local(a), local(b)
    unbiased = size**2 / (size**2 - 1)
    var_a = unbiased * (local(a * a) - mean_a**2)
    var_b = unbiased * (local(b * b) - mean_b**2)
    cov = unbiased * (local(a * b) - mean_a * mean_b)
    c1, c2 = K1**2, K2**2
    light = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    structure = (2 * cov + c2) / (var_a + var_b + c2)
    return (light * structure).mean((1, 2, 3))


def likeness(truth: Tensor, found: Tensor) -> pd.DataFrame:
    """Return how alike each pair of images is.

    Parameters
    ----------
    truth, found : Tensor
        ``[N, c, h, w]`` in [-1, 1]; measured in [0, 1].

    Returns
    -------
    DataFrame
        One row per pair: psnr in dB (infinite where they are equal), ssim (1 where they
        are equal), mse.

    Raises
    ------
    ValueError
        Shapes that differ, or values outside [-1, 1].
    """
    a, b = (x.detach().double().numpy() for x in _both(truth, found))
    size = window(min(a.shape[2:]))
    rows = []
    for x, y in zip(a, b, strict=True):
        with np.errstate(divide="ignore"):  # equal images: infinitely alike
            psnr = peak_signal_noise_ratio(x, y, data_range=1.0)
        alike = structural_similarity(
            x, y, data_range=1.0, win_size=size, channel_axis=0
        )
        rows.append((float(psnr), float(alike), float(mean_squared_error(x, y))))
    return pd.DataFrame(rows, columns=["psnr", "ssim", "mse"])


def ranks(codes: Tensor, contributors: Tensor, candidates: Tensor) -> Tensor:
    """Return each contributor's rank among candidates by distance to the code.

    Parameters
    ----------
    codes : Tensor
        ``[N, d]``, such as averages of embeddings.
    contributors : Tensor
        int64 ``[N, n]``, which candidates each code was made of.
    candidates : Tensor
        ``[N, M, d]``, the embeddings of each code's candidates.

    Returns
    -------
    Tensor
        ``[N, n]``, 1 for the nearest candidate; equally near ones share the mean of
        their ranks.

    Raises
    ------
    ValueError
        Shapes that do not fit.
    """
    rows, count = len(codes), len(contributors)
    if candidates.ndim != 3 or rows != count or candidates[:, 0].shape != codes.shape:
        raise ValueError(
            f"codes, contributors, candidates: got shapes {tuple(codes.shape)}, "
            f"{tuple(contributors.shape)}, {tuple(candidates.shape)}, expected [N, d], "
            "[N, n], [N, M, d]"
        )
    apart = torch.linalg.vector_norm((candidates - codes[:, None]).double(), dim=2)
    return torch.from_numpy(rankdata(apart.numpy(), axis=1)).gather(1, contributors)


def auc(members: Tensor, others: Tensor) -> float:
    """Return the area under the ROC curve of scores that are to tell members.

    Parameters
    ----------
    members, others : Tensor
        ``[n]`` and ``[m]`` scores, higher for what is taken for a member.

    Returns
    -------
    float
        The share of pairs in which the member scores higher, a tie counting half: 0.5
        is chance.
    """
    truth = np.repeat([1, 0], [len(members), len(others)])
    return float(roc_auc_score(truth, torch.cat([members, others]).numpy()))

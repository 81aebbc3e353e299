r"""Gaussian mixtures: what GFPL sends in place of class means.

A mixture of a class is up to M diagonal Gaussians with weights. As prototypes, mixtures
are dense over classes: mean and standard deviation :math:`[C, M, d]`, weight
:math:`[C, M]`, count :math:`[C]`; weight 0 marks an absent component and count 0 an
absent class. A leading client axis stacks the mixtures of K clients.
"""

import warnings
from typing import Literal, NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

Distance = Literal["sum", "mean"]
Linkage = Literal["batch", "strict"]
Weighting = Literal["counted", "pi"]

MAX_ITERATIONS, TOLERANCE = 100, 1e-3  # of expectation-maximisation
LEAST_MASS = 1e-6  # samples; a component that explains fewer is dropped


class Mixtures(NamedTuple):
    """Diagonal Gaussian mixtures, one per class."""

    mean: Tensor  # [..., C, M, d] float; rows of absent components are 0
    std: Tensor  # [..., C, M, d] float > 0; rows of absent components are 0
    weight: Tensor  # [..., C, M] float >= 0, sums to 1 over a present class
    count: Tensor  # [..., C] int64 >= 0, samples behind the mixture

    @property
    def known(self) -> Tensor:
        """Mask ``[..., C]`` of the classes that have a mixture."""
        return self.count > 0

    @property
    def present(self) -> Tensor:
        """Mask ``[..., C, M]`` of the components that exist."""
        return self.weight > 0

    def sent(self) -> tuple[int, int]:
        """Return the floats and integers of a message: present components only.

        A component is d means, d standard deviations and a weight; a class is a count.
        """
        components = int(self.present.sum())
        return components * (2 * self.mean.shape[-1] + 1), int(self.known.sum())


def empty(*shape: int) -> Mixtures:
    """Return mixtures of shape ``[..., C, M, d]`` that know no class."""
    return Mixtures(
        torch.zeros(shape),
        torch.zeros(shape),
        torch.zeros(shape[:-1]),
        torch.zeros(shape[:-2], dtype=torch.int64),
    )


def fill(first: Mixtures, second: Mixtures) -> Mixtures:
    """Return ``first`` with its absent classes taken from ``second``."""
    known = first.known
    per_component, per_value = known[..., None], known[..., None, None]
    return Mixtures(
        torch.where(per_value, first.mean, second.mean),
        torch.where(per_value, first.std, second.std),
        torch.where(per_component, first.weight, second.weight),
        torch.where(known, first.count, second.count),
    )


def _padded(x: Tensor, size: int) -> Tensor:
    """Return ``x`` ``[m, ...]`` as float32 with zeros up to ``[size, ...]``."""
    padded = torch.zeros(size, *x.shape[1:])
    padded[: len(x)] = x
    return padded


class Components(NamedTuple):
    """The present components of one class, in float64."""

    mean: Tensor  # [m, d]
    var: Tensor  # [m, d] > 0
    weight: Tensor  # [m] > 0


def components(mixtures: Mixtures, label: int) -> Components:
    """Return the present components of a class of mixtures ``[C, M, d]``."""
    here = mixtures.present[label]
    mean, std, weight = (x[label][here].double() for x in mixtures[:3])
    return Components(mean, std.square(), weight)


def stack(fits: list[Components], count: Tensor, size: int) -> Mixtures:
    """Return the mixtures ``[C, size, d]`` of C classes from their components."""
    return Mixtures(
        torch.stack([_padded(c.mean, size) for c in fits]),
        torch.stack([_padded(c.var.sqrt(), size) for c in fits]),
        torch.stack([_padded(c.weight, size) for c in fits]),
        count,
    )


def single(x: Tensor, floor: float) -> Components:
    """Return one Gaussian with the mean and the floored variance of x ``[N, d]``."""
    var = x.var(0, correction=0).clamp(min=floor)
    return Components(x.mean(0, keepdim=True), var[None], x.new_ones(1))


def fit(x: Tensor, number: int, *, floor: float, seed: int) -> Components:
    """Fit a mixture to points x ``[N, d]`` by expectation-maximisation.

    Parameters
    ----------
    number : int >= 1
        Components; fewer where there are fewer distinct points.
    floor : float > 0
        Added to every variance (scikit-learn's ``reg_covar``), and its least value.
    seed : int
        Of the k-means++ start.

    Notes
    -----
    A component that explains less than a millionth of a sample is dropped. Where the
    fit breaks down, or a point is not finite, one Gaussian stands for all points.
    """
    x = x.double()
    number = min(number, len(x.unique(dim=0)))
    if number == 1:
        return single(x, floor)
    centre = x.mean(0)  # sums of squares lose fewer digits around 0
    model = GaussianMixture(
        number,
        covariance_type="diag",
        init_params="k-means++",
        max_iter=MAX_ITERATIONS,
        tol=TOLERANCE,
        reg_covar=floor,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        try:
            model.fit((x - centre).numpy())  # Eq. (5), Eq. (6)
        except ValueError:  # a point is not finite, or a variance came out below 0
            return single(x, floor)
    fitted = Components(
        torch.from_numpy(model.means_) + centre,
        torch.from_numpy(model.covariances_).clamp(min=floor),
        torch.from_numpy(model.weights_),
    )
    if not all(part.isfinite().all() for part in fitted):
        return single(x, floor)
    heavy = fitted.weight * len(x) > LEAST_MASS
    weight = fitted.weight[heavy] / fitted.weight[heavy].sum()
    return Components(fitted.mean[heavy], fitted.var[heavy], weight)


def fit_classes(
    x: Tensor,
    y: Tensor,
    number: int,
    *,
    classes: int,
    floor: float,
    generator: torch.Generator,
) -> Mixtures:
    """Fit one mixture per class ``[C, number, d]`` to x ``[N, d]`` of labels y ``[N]``.

    A class without a point is absent. Every class has a seed of its own.
    """
    count = y.bincount(minlength=classes)
    seeds = torch.randint(2**31, (classes,), generator=generator).tolist()
    nothing = Components(x[:0], x[:0], x.new_zeros(0))
    fits = [
        fit(x[y == label], number, floor=floor, seed=seeds[label]) if n else nothing
        for label, n in enumerate(count.tolist())
    ]
    return stack(fits, count, number)


def bhattacharyya(
    mean1: Tensor,
    var1: Tensor,
    mean2: Tensor,
    var2: Tensor,
    reduce: Distance = "sum",
) -> Tensor:
    r"""Return the Bhattacharyya distance of diagonal Gaussians ``[..., d]``.

    .. math:: D_B = \sum_k \frac{(\mu_{1k} - \mu_{2k})^2}{8 \bar v_k}
        + \frac12 \ln \frac{\bar v_k}{\sqrt{v_{1k} v_{2k}}}, \quad
        \bar v = \frac{v_1 + v_2}{2}

    Parameters
    ----------
    reduce : "sum" or "mean"
        Over dimensions: the sum is the distance (GFPL, Eq. 8); the mean does not grow
        with d.

    Notes
    -----
    With d = 1 it is GFPL's Eq. 7. Logarithms of variances are subtracted, so that tiny
    variances do not underflow.
    """
    middle = (var1 + var2) / 2
    apart = (mean1 - mean2).square() / (8 * middle)
    wider = (middle.log() - (var1.log() + var2.log()) / 2) / 2
    per_axis = apart + wider
    return (
        per_axis.sum(-1) if reduce == "sum" else per_axis.mean(-1)
    )  # Eq. (7), Eq. (8)


def pool(local: Mixtures, weighting: Weighting = "counted") -> Mixtures:
    """Put the components of K clients side by side, per class.

    Parameters
    ----------
    local : Mixtures
        Stacked over clients, ``[K, C, M, d]``.
    weighting : "counted" or "pi"
        A component's weight is its share times the client's samples of the class, or
        its share alone; normalised over the class in both cases.

    Returns
    -------
    Mixtures
        ``[C, K * M, d]``; the count is the sum over clients.
    """
    scale = local.count if weighting == "counted" else local.known
    weight = (local.weight * scale.unsqueeze(-1)).transpose(0, 1).flatten(1)
    total = weight.sum(1, keepdim=True)
    return Mixtures(
        local.mean.transpose(0, 1).flatten(1, 2),
        local.std.transpose(0, 1).flatten(1, 2),
        weight / torch.where(total > 0, total, 1.0),
        local.count.sum(0),
    )


def ordered(pooled: Components) -> Components:
    """Sort components by their numbers, so that nothing depends on who sent them."""
    content = torch.cat([pooled.mean, pooled.var, pooled.weight[:, None]], 1)
    order = torch.from_numpy(np.lexsort(content.T.flip(0).numpy()))
    return Components(*(part[order] for part in pooled))


def distances(pooled: Components, reduce: Distance = "sum") -> Tensor:
    """Return the distances ``[m, m]`` between the components of a class."""
    mean, var, _ = pooled
    rows = zip(mean, var, strict=True)
    return torch.stack([bhattacharyya(m, v, mean, var, reduce) for m, v in rows])


def clusters(apart: Tensor, threshold: float, linkage: Linkage = "batch") -> Tensor:
    """Group components whose distances ``apart`` ``[m, m]`` are small, greedily.

    The first component left is a seed. All components closer than ``threshold`` to
    every member join the seed's cluster at once, until none is left (GFPL, Algorithm
    1); those that join at once are not compared with each other. Under
    ``linkage="strict"`` they join one at a time.

    Returns
    -------
    Tensor
        ``[m]`` int64, the cluster of each component, numbered from 0.
    """
    close = apart < threshold
    cluster = torch.full((len(apart),), -1)
    for number in range(len(apart)):
        left = cluster < 0
        joining = torch.arange(len(apart)) == left.to(torch.int8).argmax()
        if not left.any():
            break
        while joining.any():
            cluster[joining] = number
            joining = (cluster < 0) & close[:, cluster == number].all(1)
            if linkage == "strict":
                joining = joining & (joining.cumsum(0) == 1)
    return cluster


def match_moments(pooled: Components, cluster: Tensor) -> Components:
    """Replace each cluster by the Gaussian with its weight, mean and variances.

    Mean and variances of the whole mixture do not change.
    """
    members = cluster == torch.arange(int(cluster.max()) + 1).unsqueeze(1)
    share = members * pooled.weight
    weight = share.sum(1)
    share = share / weight.unsqueeze(1)
    mean = share @ pooled.mean
    off = pooled.mean - mean[cluster]
    return Components(mean, share @ (pooled.var + off.square()), weight)


class Fused(NamedTuple):
    """Global mixtures, and what fusing did."""

    mixtures: Mixtures  # [C, size, d]
    received: int  # components before
    kept: int  # components after
    apart: Tensor  # [pairs] distances of the components received, within a class


def fuse(
    pooled: Mixtures,
    threshold: float,
    *,
    reduce: Distance = "sum",
    linkage: Linkage = "batch",
    size: int | None = None,
) -> Fused:
    """Merge the near components of every class of mixtures ``[C, M, d]``.

    Parameters
    ----------
    threshold : float
        Components closer than this merge.
    reduce, linkage
        As in ``bhattacharyya`` and ``clusters``.
    size : int, optional
        Components to pad the result to; M without it.

    Notes
    -----
    The result does not depend on the order of the components.
    """
    clustered: list[Components] = []
    pairs: list[Tensor] = []
    received = int(pooled.present.sum())
    for label in range(len(pooled.count)):
        mine = ordered(components(pooled, label))
        if len(mine.weight):
            apart = distances(mine, reduce)
            pairs.append(apart[torch.ones_like(apart).triu(1).bool()])
            mine = match_moments(mine, clusters(apart, threshold, linkage))
        clustered.append(mine)
    mixtures = stack(clustered, pooled.count, size or pooled.weight.shape[1])
    left = int(mixtures.present.sum())
    return Fused(mixtures, received, left, torch.cat([*pairs, torch.zeros(0).double()]))


def sample(
    mixtures: Mixtures, number: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw ``number`` points of every known class of mixtures ``[C, M, d]``.

    Returns
    -------
    tuple of Tensor
        Points ``[known * number, d]`` and their classes.
    """
    label = mixtures.known.nonzero().squeeze(1)
    mean, std, weight = (part[label] for part in mixtures[:3])
    rows = torch.multinomial(weight, number, replacement=True, generator=generator)
    chosen = rows.unsqueeze(-1).expand(-1, -1, mean.shape[-1])
    noise = torch.randn(chosen.shape, generator=generator)
    points = mean.gather(1, chosen) + std.gather(1, chosen) * noise  # Eq. (4)
    return points.flatten(0, 1), label.repeat_interleave(number)


def log_density(x: Tensor, mixtures: Mixtures) -> Tensor:
    r"""Return :math:`\ln p(x)` ``[B, C]`` in float64 of x ``[B, d]`` per class.

    Absent classes have minus infinity. The squares are expanded into two matrix
    products, so that nothing of size ``[B, C, M, d]`` is made.
    """
    here = mixtures.present
    mean, std = (part.double().flatten(0, 1) for part in mixtures[:2])  # [C M, d]
    var = torch.where(here.flatten()[:, None], std.square(), 1.0)
    x = x.double()
    square = x.square() @ (1 / var).T - 2 * x @ (mean / var).T
    square = square + (mean.square() / var).sum(1)
    normaliser = (2 * torch.pi * var).log().sum(1)
    density = (-(square + normaliser) / 2).unflatten(-1, here.shape)
    density = torch.where(here, density + mixtures.weight.double().log(), float("-inf"))
    return density.logsumexp(-1)  # Eq. (4)

"""GFPL against the paper: numpy oracles, a round by hand, edge cases, ablations."""

import math
from dataclasses import replace
from functools import cache
from itertools import islice

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.patches import Ellipse
from scipy.stats import multivariate_normal
from sklearn.cluster import kmeans_plusplus
from sklearn.mixture import GaussianMixture

from fedlib.baselines import local
from fedlib.blocks import mixtures
from fedlib.blocks.mixtures import Components, Mixtures
from fedlib.core import nets, readouts
from fedlib.core.augment import Augment
from fedlib.core.log import NOT_EVALUATED
from fedlib.core.messages import sizes as message_sizes
from fedlib.core.method import NonFiniteError, Round, rounds
from fedlib.core.rng import generator
from fedlib.core.shards import plan_of
from fedlib.core.tree import flatten, stack
from fedlib.methods import gfpl
from fedlib.methods.gfpl import HP, METHOD
from fedlib.papers.gfpl import plots
from tests.conftest import toy_context, toy_shards

SIZES = [24, 17, 9, 16]
FLOOR = 1e-6
EXACT = {"rtol": 0, "atol": 0}


def draw(*shape: int, name: str = "z") -> torch.Tensor:
    return torch.randn(*shape, generator=generator(3, name), dtype=torch.float64)


def play(count: int, *, sizes=SIZES, net="digits_linear", chunk=None, **hp):
    ctx = toy_context(METHOD, len(sizes), net=net, chunk=chunk, **hp)
    return list(islice(rounds(METHOD, ctx, toy_shards(sizes)), count))


def assert_same(one, other, **tolerance):
    left, right = flatten(one), flatten(other)
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(
            value, right[name], msg=lambda m, n=name: f"{n}: {m}", **tolerance
        )


def toy_components(m: int, d: int, *, seed: int = 0, spread: float = 1.0) -> Components:
    g = generator(seed, "components")
    mean = spread * torch.randn(m, d, generator=g, dtype=torch.float64)
    var = 0.2 + torch.rand(m, d, generator=g, dtype=torch.float64)
    weight = 0.1 + torch.rand(m, generator=g, dtype=torch.float64)
    return Components(mean, var, weight / weight.sum())


def as_mixtures(*each: Components, size: int = 0) -> Mixtures:
    count = torch.tensor([10 * len(c.weight) for c in each])
    return mixtures.stack(list(each), count, size or max(len(c.weight) for c in each))


# The simplex: Eq. (9) and (10)


@pytest.mark.parametrize(("classes", "size"), [(2, 2), (3, 3), (10, 50), (100, 128)])
def test_simplex_has_unit_vertices_at_equal_angles(classes, size):
    z = gfpl.simplex(classes, size, generator(0, "etf")).double().numpy()
    assert z.shape == (size, classes)
    gram = z.T @ z
    wanted = np.full((classes, classes), -1 / (classes - 1))
    np.fill_diagonal(wanted, 1.0)
    np.testing.assert_allclose(gram, wanted, atol=1e-6)


def test_simplex_is_the_formula_of_the_paper():
    """Q by Gram-Schmidt, its columns' signs as LAPACK's; then Eq. (10) as printed."""
    k, d = 4, 7
    a = torch.randn(d, k, generator=generator(0, "etf"), dtype=torch.float64).numpy()
    q = np.zeros_like(a)
    for column in range(k):
        rest = a[:, column].copy()
        for before in range(column):
            rest -= (q[:, before] @ a[:, column]) * q[:, before]
        q[:, column] = rest / np.linalg.norm(rest)
    q *= np.sign((np.linalg.qr(a)[0] * q).sum(0))
    wanted = math.sqrt(k / (k - 1)) * q @ (np.eye(k) - np.ones((k, k)) / k)
    found = gfpl.simplex(k, d, generator(0, "etf"))
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-6)


@pytest.mark.parametrize(("classes", "size"), [(100, 80), (4, 3), (1, 5)])
def test_too_few_dimensions_are_refused(classes, size):
    """Table 3 as printed gives CIFAR-100 80 dimensions."""
    with pytest.raises(ValueError, match=rf"projection_size: got {size} for {classes}"):
        gfpl.simplex(classes, size, generator(0, "etf"))


def test_a_context_with_too_small_a_projection_is_refused_unless_there_is_none():
    ctx = toy_context(METHOD, 2, projection_size=3)
    with pytest.raises(ValueError, match="projection_size: got 3 for 4 classes"):
        METHOD.init(ctx)
    server, mine = METHOD.init(
        toy_context(METHOD, 2, projection_size=3, dual_classifier=False)
    )
    assert server.simplex.numel() == 0
    assert not any(name.startswith("own.") for name in mine.state)


# The losses: Eq. (11) to (14)

B, C, D, DP = 5, 4, 6, 7
Y = torch.tensor([0, 2, 3, 0, 1])


def toy_state() -> dict[str, torch.Tensor]:
    return {
        "own.projection.weight": draw(DP, D, name="w"),
        "own.projection.bias": draw(DP, name="b"),
    }


def vertices() -> torch.Tensor:
    return gfpl.simplex(C, DP, generator(0, "etf")).double()


def test_losses_equal_loops():
    z, logits, state, v = draw(B, D), draw(B, C, name="g"), toy_state(), vertices()
    w, b = (value.numpy() for value in state.values())
    alignment, supervised = 0.0, 0.0
    for i in range(B):
        hat = w @ z[i].numpy() + b
        h = hat / math.sqrt(sum(float(x) ** 2 for x in hat))
        c = int(Y[i])
        alignment += 0.5 * (float(h @ v[:, c].numpy()) - 1) ** 2 / B
        e = np.exp(logits[i].numpy())
        supervised += -math.log(e[c] / e.sum()) / B
    found = gfpl.losses(state, z, logits, Y, v, HP(align_weight=2.5))
    assert float(found.terms["alignment"]) == pytest.approx(alignment, rel=1e-12)
    assert float(found.terms["supervised"]) == pytest.approx(supervised, rel=1e-12)
    assert float(found.total) == pytest.approx(2.5 * alignment + supervised, rel=1e-12)


def test_alignment_by_hand():
    """Aligned 0, orthogonal 1/2, opposite 2."""
    v = torch.eye(3, dtype=torch.float64)
    h = torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]]).double()
    y = torch.tensor([0, 1, 1])
    each = [float(gfpl.dot_regression(h[i : i + 1], y[i : i + 1], v)) for i in range(3)]
    assert each == [0.0, 0.5, 2.0]
    assert float(gfpl.dot_regression(h, y, v)) == pytest.approx(2.5 / 3)


def test_projections_have_unit_length_and_zero_stays_finite():
    state = toy_state()
    h = gfpl.projection(state, 1e3 * draw(B, D))
    torch.testing.assert_close(h.norm(dim=1), torch.ones(B).double())
    blank = {name: torch.zeros_like(value) for name, value in state.items()}
    z = draw(B, D).requires_grad_()
    alignment = gfpl.dot_regression(gfpl.projection(blank, z), Y, vertices())
    (gradient,) = torch.autograd.grad(alignment, z)
    assert float(alignment.detach()) == 0.5
    assert torch.isfinite(gradient).all()


def test_gradients_in_float64():
    z, logits = draw(B, D).requires_grad_(), draw(B, C, name="g").requires_grad_()
    w, b = (value.requires_grad_() for value in toy_state().values())
    v = vertices()

    def total(z, w, b, logits):
        state = {"own.projection.weight": w, "own.projection.bias": b}
        return gfpl.losses(state, z, logits, Y, v, HP()).total

    assert torch.autograd.gradcheck(total, (z, w, b, logits))
    assert torch.autograd.gradcheck(
        lambda h: gfpl.dot_regression(h, Y, v), draw(B, DP).requires_grad_()
    )
    assert torch.autograd.gradcheck(
        lambda z, w, b: gfpl.projection(
            {"own.projection.weight": w, "own.projection.bias": b}, z
        ),
        (z, w, b),
    )


# Mixtures: Eq. (4), (5) and (6)


def blobs(count: int = 60, d: int = 3) -> torch.Tensor:
    centres = 2 * draw(3, d, name="centres")
    return centres[torch.arange(count) % 3] + 0.5 * draw(count, d, name="blobs")


def normal_density(x, mean, var) -> float:
    """One diagonal Gaussian at one point, dimension after dimension."""
    p = 1.0
    for k in range(len(x)):
        p *= math.exp(-((x[k] - mean[k]) ** 2) / (2 * var[k]))
        p /= math.sqrt(2 * math.pi * var[k])
    return p


def em_step(x, mean, var, weight, floor):
    """Eq. (5) and (6) by loops; the floor is added to the variances."""
    n, big = len(weight), len(x)
    gamma = np.zeros((n, big))
    for j in range(big):
        each = [weight[i] * normal_density(x[j], mean[i], var[i]) for i in range(n)]
        for i in range(n):
            gamma[i, j] = each[i] / sum(each)
    mean, var = np.zeros_like(mean), np.zeros_like(var)
    for i in range(n):
        mass = gamma[i].sum()
        mean[i] = sum(gamma[i, j] * x[j] for j in range(big)) / mass
        var[i] = sum(gamma[i, j] * (x[j] - mean[i]) ** 2 for j in range(big)) / mass
    return mean, var + floor, gamma.sum(1) / big


def test_one_iteration_is_the_e_step_and_the_m_step(monkeypatch):
    """From k-means++'s centres; the floor is wide so that no density underflows."""
    monkeypatch.setattr(mixtures, "MAX_ITERATIONS", 1)
    x, n, floor, seed = blobs(), 3, 0.3, 5
    found = mixtures.fit(x, n, floor=floor, seed=seed)
    centred = (x - x.mean(0)).numpy()
    start, _ = kmeans_plusplus(centred, n, random_state=seed)
    wanted = em_step(centred, start, np.full((n, 3), floor), np.full(n, 1 / n), floor)
    np.testing.assert_allclose(found.mean - x.mean(0), wanted[0], rtol=1e-9)
    np.testing.assert_allclose(found.var, wanted[1], rtol=1e-9)
    np.testing.assert_allclose(found.weight, wanted[2], rtol=1e-9)


def test_the_fit_is_a_fixed_point_of_both_steps(monkeypatch):
    monkeypatch.setattr(mixtures, "MAX_ITERATIONS", 2000)
    monkeypatch.setattr(mixtures, "TOLERANCE", 1e-14)
    x = blobs()
    found = mixtures.fit(x, 3, floor=FLOOR, seed=0)
    again = em_step(x.numpy(), *(part.numpy() for part in found), FLOOR)
    for part, wanted in zip(found, again, strict=True):
        np.testing.assert_allclose(part, wanted, rtol=1e-5)


def test_the_fit_is_scikit_learns():
    x = blobs()
    found = mixtures.fit(x, 4, floor=1e-3, seed=11)
    model = GaussianMixture(
        4,
        covariance_type="diag",
        init_params="k-means++",
        max_iter=100,
        tol=1e-3,
        reg_covar=1e-3,
        random_state=11,
    ).fit(x.numpy())
    np.testing.assert_allclose(found.mean, model.means_, rtol=1e-6)
    np.testing.assert_allclose(found.var, model.covariances_, rtol=1e-6)
    density = mixtures.log_density(x.float(), as_mixtures(found))[:, 0]
    np.testing.assert_allclose(density, model.score_samples(x.numpy()), atol=1e-4)


def test_one_component_is_the_class_mean():
    x = blobs()
    found = mixtures.fit(x, 1, floor=FLOOR, seed=0)
    np.testing.assert_allclose(found.mean[0], x.numpy().mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.var[0], x.numpy().var(0), rtol=1e-12)
    assert found.weight.tolist() == [1.0]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_no_more_components_than_samples(count):
    found = mixtures.fit(draw(count, 5), 4, floor=FLOOR, seed=0)
    assert len(found.weight) == min(4, count)
    assert float(found.weight.sum()) == pytest.approx(1)
    assert float(found.var.min()) >= FLOOR


def test_one_sample_is_a_point_of_the_least_variance():
    x = draw(1, 5)
    found = mixtures.fit(x, 4, floor=1e-3, seed=0)
    assert torch.equal(found.mean, x)
    assert found.var.tolist() == [[1e-3] * 5]


def test_duplicates_and_dead_dimensions():
    """Ten samples at two places: two components; a dead dimension has the floor."""
    x = draw(2, 5)[torch.arange(10) % 2]
    x[:, 3] = 0
    found = mixtures.fit(x, 4, floor=FLOOR, seed=0)
    assert len(found.weight) == 2
    torch.testing.assert_close(found.weight, torch.full((2,), 0.5).double())
    torch.testing.assert_close(
        found.mean.sort(0).values, x[:2].sort(0).values, rtol=0, atol=1e-9
    )
    assert float(found.var.min()) >= FLOOR
    assert float(found.var.max()) < 1.01 * FLOOR


def test_an_empty_component_is_dropped(monkeypatch):
    """scikit-learn keeps it with a weight of about 1e-17."""

    class Model:
        means_ = np.array([[1.0, 2], [3, 4], [5, 6]])
        covariances_ = np.ones((3, 2))
        weights_ = np.array([0.5 - 1e-15, 2e-15, 0.5 - 1e-15])

        def __init__(self, *args, **kwargs):
            pass

        def fit(self, x):
            return self

    monkeypatch.setattr(mixtures, "GaussianMixture", Model)
    x = draw(9, 2)
    found = mixtures.fit(x, 3, floor=FLOOR, seed=0)
    torch.testing.assert_close(
        found.mean - x.mean(0), torch.tensor([[1.0, 2], [5, 6]]).double()
    )
    assert float(found.weight.sum()) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("means", [np.nan, None])
def test_a_fit_that_breaks_down_falls_back_to_one_gaussian(monkeypatch, means):
    class Model:
        means_ = np.full((3, 2), np.nan)
        covariances_ = np.ones((3, 2))
        weights_ = np.full(3, 1 / 3)

        def __init__(self, *args, **kwargs):
            pass

        def fit(self, x):
            if means is None:
                raise ValueError("ill-defined empirical covariance")

    monkeypatch.setattr(mixtures, "GaussianMixture", Model)
    x = draw(9, 2)
    found = mixtures.fit(x, 3, floor=FLOOR, seed=0)
    assert len(found.weight) == 1
    torch.testing.assert_close(found.mean[0], x.mean(0))


def test_far_away_points_keep_their_variance():
    """Sums of squares around 1e7 would lose every digit of a variance of 1."""
    x = 1e7 + blobs(90)
    found = mixtures.fit(x, 1, floor=FLOOR, seed=0)
    wide = mixtures.fit(x, 2, floor=FLOOR, seed=0)
    assert len(wide.weight) == 2
    matched = mixtures.match_moments(wide, torch.zeros(2).long())
    torch.testing.assert_close(matched.var, found.var + FLOOR, rtol=1e-4, atol=1e-5)


def test_classes_are_fitted_apart():
    """An absent class is absent; a class does not depend on which others there are."""
    x, y = blobs().float(), torch.arange(60) % 3
    settings = {"classes": 5, "floor": FLOOR}
    found = mixtures.fit_classes(x, y, 4, generator=generator(0, "g"), **settings)
    assert found.count.tolist() == [20, 20, 20, 0, 0]
    assert found.known.tolist() == [True, True, True, False, False]
    assert not found.weight[3:].any()
    assert not found.mean[3:].any()
    only = y != 0
    fewer = mixtures.fit_classes(
        x[only], y[only], 4, generator=generator(0, "g"), **settings
    )
    for part, other in zip(found[:3], fewer[:3], strict=True):
        assert torch.equal(part[1], other[1])


# The distance: Eq. (7) and (8)


@pytest.mark.parametrize("pairs", [1, 2, 10, 37])
def test_logged_quantiles_are_distances_of_pairs(pairs):
    """A few at the variance floor, huge, move the mean and no quantile below them."""
    apart = draw(pairs, name="apart").abs()
    apart[apart.argmax()] = 1e9
    rows = sorted(apart.tolist())
    wanted = [rows[int(q * (pairs - 1))] for q in (0.1, 0.5, 0.9)]
    assert gfpl.quantiles(apart).tolist() == wanted
    assert gfpl.quantiles(apart)[1] == apart.median()
    assert gfpl.quantiles(apart[:0]).isnan().all()


def test_distance_of_one_dimension_is_eq_7():
    for m1, s1, m2, s2 in [(0.0, 1.0, 0.0, 1.0), (1.5, 0.3, -2.0, 4.0), (0, 1, 0, 9)]:
        wanted = 0.25 * (m1 - m2) ** 2 / (s1**2 + s2**2)
        wanted += 0.5 * math.log((s1**2 + s2**2) / (2 * s1 * s2))
        args = [draw(1) * 0 + x for x in (m1, s1**2, m2, s2**2)]
        assert float(mixtures.bhattacharyya(*args)) == pytest.approx(wanted, abs=1e-12)


def test_distance_is_eq_8_with_full_covariances():
    a, b = toy_components(2, 6), toy_components(2, 6, seed=1)
    for i in range(2):
        s1, s2 = (np.diag(c.var[i].numpy()) for c in (a, b))
        middle = (s1 + s2) / 2
        delta = (a.mean[i] - b.mean[i]).numpy()
        wanted = delta @ np.linalg.inv(middle) @ delta / 8
        determinants = np.linalg.det(s1) * np.linalg.det(s2)
        wanted += 0.5 * math.log(np.linalg.det(middle) / math.sqrt(determinants))
        args = (a.mean[i], a.var[i], b.mean[i], b.var[i])
        found = mixtures.bhattacharyya(*args)
        assert float(found) == pytest.approx(wanted, rel=1e-12)
        mean = mixtures.bhattacharyya(*args, reduce="mean")
        assert float(mean) == pytest.approx(wanted / 6, rel=1e-12)


def test_distances_of_a_class():
    """All pairs, symmetric, 0 to itself, also with dead dimensions at d = 512."""
    pooled = toy_components(7, 512)
    pooled.var[:, ::3] = FLOOR
    pooled.mean[:, ::3] = 0
    apart = mixtures.distances(pooled)
    assert apart.shape == (7, 7)
    torch.testing.assert_close(apart, apart.T)
    torch.testing.assert_close(apart.diagonal(), torch.zeros(7).double())
    wanted = mixtures.bhattacharyya(
        pooled.mean[2], pooled.var[2], pooled.mean[5], pooled.var[5]
    )
    assert float(apart[2, 5]) == pytest.approx(float(wanted), rel=1e-12)
    assert torch.isfinite(apart).all()
    assert float(apart[0, 1:].min()) > 0


@pytest.mark.parametrize(
    ("d", "samples", "expected"),
    [(50, 25, 1.1), (50, 50, 0.5), (50, 12, 2.5), (512, 25, 11.0), (512, 12, 25.0)],
)
def test_two_estimates_of_one_gaussian_are_far_apart(d, samples, expected):
    """About 0.02 d at 25 samples each: S_C = 1 merges nothing at d = 512."""
    x = draw(60, 2, samples, d, name=f"{d}/{samples}")
    mean, var = x.mean(2), x.var(2, correction=0)
    found = mixtures.bhattacharyya(mean[:, 0], var[:, 0], mean[:, 1], var[:, 1])
    assert float(found.mean()) == pytest.approx(expected, rel=0.12)


# Fusion: Algorithm 1


def slow_fusion(items, threshold, strict=False):
    """Algorithm 1 line by line, on a list of (mean, var, weight) of plain lists."""

    def distance(p, q):
        total = 0.0
        for m1, v1, m2, v2 in zip(p[0], p[1], q[0], q[1], strict=True):
            total += 0.25 * (m1 - m2) ** 2 / (v1 + v2)
            total += 0.5 * math.log((v1 + v2) / (2 * math.sqrt(v1 * v2)))
        return total

    left, groups = list(items), []
    while left:
        current = [left.pop(0)]
        while True:
            near = [p for p in left if all(distance(p, q) < threshold for q in current)]
            if not near:
                break
            near = near[:1] if strict else near
            current += near
            left = [p for p in left if not any(p is q for q in near)]
        groups.append(current)
    fused = []
    for group in groups:
        w = sum(p[2] for p in group)
        d = len(group[0][0])
        mean = [sum(p[2] * p[0][k] for p in group) / w for k in range(d)]
        var = [
            sum(p[2] * (p[1][k] + (p[0][k] - mean[k]) ** 2) for p in group) / w
            for k in range(d)
        ]
        fused.append([*mean, *var, w])
    return np.array(sorted(fused))


def as_rows(c: Components) -> np.ndarray:
    rows = torch.cat([c.mean, c.var, c.weight[:, None]], 1).tolist()
    return np.array(sorted(rows))


@pytest.mark.parametrize("linkage", ["batch", "strict"])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.8, 2.0, 1e9])
@pytest.mark.parametrize("seed", range(4))
def test_fusion_equals_algorithm_1(seed, threshold, linkage):
    pooled = toy_components(12, 2, seed=seed)
    order = mixtures.ordered(pooled)
    items = [tuple(x) for x in zip(*(part.tolist() for part in order), strict=True)]
    wanted = slow_fusion(items, threshold, linkage == "strict")
    groups = mixtures.clusters(mixtures.distances(order), threshold, linkage)
    found = mixtures.match_moments(order, groups)
    np.testing.assert_allclose(as_rows(found), wanted, rtol=1e-9)
    whole = mixtures.fuse(as_mixtures(pooled), threshold, linkage=linkage)
    assert whole.received == 12
    assert whole.kept == len(wanted)
    back = mixtures.components(whole.mixtures, 0)
    np.testing.assert_allclose(as_rows(back), wanted, rtol=1e-5, atol=1e-6)


def test_joining_at_once_and_one_at_a_time():
    """On a line at 0, -0.9 and 0.9: both are near the seed, not near each other."""
    apart = torch.tensor([[0.0, 0.9, 0.9], [0.9, 0, 1.8], [0.9, 1.8, 0]])
    assert mixtures.clusters(apart, 1.0).tolist() == [0, 0, 0]
    assert mixtures.clusters(apart, 1.0, "strict").tolist() == [0, 0, 1]
    assert mixtures.clusters(apart, 0.9).tolist() == [0, 1, 2]  # nearer than, not at
    chain = torch.tensor([[0.0, 0.9, 1.8], [0.9, 0, 0.9], [1.8, 0.9, 0]])
    assert mixtures.clusters(chain, 1.0).tolist() == [0, 0, 1]  # near every member


def test_identical_components_merge_into_themselves():
    one = toy_components(1, 5)
    twice = Components(*(torch.cat([part, part]) for part in one))
    merged = mixtures.match_moments(twice, torch.zeros(2).long())
    torch.testing.assert_close(merged.mean, one.mean)
    torch.testing.assert_close(merged.var, one.var)
    assert float(merged.weight) == pytest.approx(2 * float(one.weight))


@pytest.mark.parametrize("threshold", [0.5, 2.0, 1e9])
def test_fusion_preserves_the_moments_of_the_mixture(threshold):
    pooled = toy_components(15, 3, seed=2)

    def moments(c: Components) -> tuple[np.ndarray, np.ndarray]:
        w, mean, var = (x.numpy() for x in (c.weight[:, None], c.mean, c.var))
        first = (w * mean).sum(0)
        return first, (w * (var + mean**2)).sum(0) - first**2

    groups = mixtures.clusters(mixtures.distances(pooled), threshold)
    merged = mixtures.match_moments(pooled, groups)
    assert len(merged.weight) < 15
    for found, wanted in zip(moments(merged), moments(pooled), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_pooling_weighs_by_samples_or_not():
    """Two clients with 10 and 30 samples of class 0; class 1 has one owner."""
    weight = torch.tensor([[[0.5, 0.5], [0, 0]], [[0.25, 0.75], [1.0, 0]]])
    mean = torch.arange(8.0).view(2, 2, 2, 1)
    local_ones = Mixtures(mean, mean + 1, weight, torch.tensor([[10, 0], [30, 5]]))
    counted = mixtures.pool(local_ones)
    assert counted.weight[0].tolist() == [0.125, 0.125, 0.1875, 0.5625]
    assert counted.weight[1].tolist() == [0, 0, 1, 0]
    assert counted.count.tolist() == [40, 5]
    assert counted.mean[0, :, 0].tolist() == [0, 1, 4, 5]
    assert counted.std[1, :, 0].tolist() == [3, 4, 7, 8]
    plain = mixtures.pool(local_ones, "pi")
    assert plain.weight[0].tolist() == [0.25, 0.25, 0.125, 0.375]


def test_fusion_keeps_classes_apart_and_pads():
    """A class of one owner, an absent class, equal components of two classes."""
    one = toy_components(3, 4)
    nothing = Components(one.mean[:0], one.var[:0], one.weight[:0])
    found = mixtures.fuse(as_mixtures(one, nothing, one, size=5), 1e9, size=9)
    assert found.mixtures.mean.shape == (3, 9, 4)
    assert found.mixtures.present.sum(1).tolist() == [1, 0, 1]
    assert found.mixtures.known.tolist() == [True, False, True]
    assert (found.received, found.kept, len(found.apart)) == (6, 2, 6)
    weights = found.mixtures.weight.sum(1)
    torch.testing.assert_close(weights, torch.tensor([1.0, 0, 1]))


def test_fusion_does_not_depend_on_the_order_of_uploads():
    local_ones = stack(
        [
            as_mixtures(toy_components(4, 3, seed=s), toy_components(4, 3, seed=9 + s))
            for s in range(6)
        ]
    )
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    turned = Mixtures(*(part[order] for part in local_ones))
    found = [mixtures.fuse(mixtures.pool(x), 1.5) for x in (local_ones, turned)]
    assert 2 < found[0].kept < 48
    assert_same(found[0].mixtures, found[1].mixtures, rtol=0, atol=1e-6)


# Drawing and density: Eq. (4)


def test_density_is_the_mixtures():
    one, other = toy_components(3, 4), toy_components(2, 4, seed=5)
    x = draw(6, 4)
    known = as_mixtures(one, other)
    found = mixtures.log_density(x, known)
    for label, c in enumerate((one, other)):
        for i in range(6):
            p = sum(
                float(w) * multivariate_normal(m, np.diag(v)).pdf(x[i])
                for m, v, w in zip(*(part.numpy() for part in c), strict=True)
            )
            assert float(found[i, label]) == pytest.approx(math.log(p), rel=1e-4)


def test_density_of_narrow_components_keeps_its_digits():
    """Variance 1e-6 around a mean of 50: the squares are about 1e9."""
    point = Components(
        torch.full((1, 2), 50.0).double(),
        torch.full((1, 2), 1e-6).double(),
        torch.ones(1).double(),
    )
    x = torch.tensor([[50.001, 50.0]])
    off = float(x[0, 0]) - 50.0
    std = float(mixtures.stack([point], torch.ones(1).long(), 1).std[0, 0, 0])
    wanted = -0.5 * (off / std) ** 2 - math.log(2 * math.pi * std**2)
    found = mixtures.log_density(x, as_mixtures(point))
    assert float(found) == pytest.approx(wanted, abs=1e-4)


def test_samples_have_the_moments_of_the_mixture():
    c = Components(
        torch.tensor([[0.0, 5], [4, 5]]).double(),
        torch.tensor([[1.0, 0.25], [0.04, 0.25]]).double(),
        torch.tensor([0.25, 0.75]).double(),
    )
    nothing = Components(c.mean[:0], c.var[:0], c.weight[:0])
    known = as_mixtures(nothing, c, nothing)
    x, y = mixtures.sample(known, 40_000, generator(0, "draw"))
    assert y.tolist() == [1] * 40_000
    near_second = (x[:, 0] - 4).abs() < 1.2
    assert float(near_second.float().mean()) == pytest.approx(0.75, abs=0.01)
    np.testing.assert_allclose(x.mean(0), [3.0, 5.0], atol=0.03)
    var = 0.25 * 1 + 0.75 * 0.04 + 0.25 * 9 + 0.75 * 1
    np.testing.assert_allclose(x.var(0), [var, 0.25], rtol=0.03)


# Rounds: schedule, messages, what moves


def events(last: int, **hp) -> list[int]:
    return [t for t in range(1, last + 1) if gfpl.exchanges(HP(**hp), t)]


def test_exchange_rounds():
    assert events(100) == list(range(10, 101, 10))
    assert len(events(80)) == 8
    assert len(events(110)) == 11
    assert events(20, first_exchange=4, exchange_every=5) == [4, 9, 14, 19]
    multiples = {"schedule": "multiples", "first_exchange": 4, "exchange_every": 5}
    assert events(20, **multiples) == [5, 10, 15, 20]
    assert events(80, exchange_every=20) == [10, 30, 50, 70]
    assert events(80, exchange_every=20, schedule="multiples") == [20, 40, 60, 80]
    assert events(5, first_exchange=1, exchange_every=1) == [1, 2, 3, 4, 5]
    assert events(100, pseudo=False) == []


NOW = {"first_exchange": 1, "exchange_every": 1}


@cache
def plain_exchange() -> Round:
    """Return a round with an exchange under the defaults, played once."""
    return play(1, **NOW)[0]


def test_nothing_travels_between_exchanges_and_shapes_stay():
    played = play(5, first_exchange=2, exchange_every=2)
    shapes = [
        {k: v.shape for k, v in flatten([r.up, r.server, r.mine][part]).items()}
        for r in played
        for part in range(3)
    ]
    for r, later in enumerate(shapes[3:]):
        assert later == shapes[r % 3]
    for r in played:
        exchange = r.number in (2, 4)
        assert bool(r.up.mixtures.known.any()) == exchange
        assert (r.sent["up/mixtures"].floats > 0) == exchange
        assert (r.sent["down/mixtures"].floats > 0) == exchange
        assert r.sent["down/simplex"] == ((4 * 32 * 4, 0) if r.number == 1 else (0, 0))
        assert ("retrain_alignment" in r.terms) == exchange
        assert set(r.watched) == set(played[0].watched)
        assert all(math.isnan(v) != exchange for v in r.watched.values())
    assert torch.equal(played[2].server.mixtures.mean, played[1].server.mixtures.mean)
    assert not torch.equal(
        played[3].server.mixtures.mean, played[2].server.mixtures.mean
    )


def test_payload_is_what_the_paper_uploads():
    """n_i n (2 d + 1) floats up, components x (2 d + 1) down, where samples suffice."""
    (r,) = play(1, sizes=[60, 60], components=3, merge_threshold=0.0, **NOW)
    assert bool((r.up.mixtures.count >= 3).all())
    assert r.sent["up/mixtures"] == (2 * 4 * 3 * (2 * 32 + 1), 2 * 4)
    assert r.sent["down/mixtures"] == (2 * 4 * 6 * (2 * 32 + 1), 2 * 4)
    assert r.watched["received"] == 24
    assert r.watched["kept"] == 24
    assert r.watched["merged"] == 0


@pytest.mark.parametrize(
    ("d", "system", "amortised"), [(50, 32.3, 3.2), (512, 328.0, 32.8)]
)
def test_payload_conventions_of_table_1(d, system, amortised):
    """In thousands, 20 clients of 4 classes; and one client of 5 without weights."""
    up = mixtures.empty(20, 10, 4, d)
    up.weight[:, :4] = 0.25
    up.count[:, :4] = 100
    floats, ints = message_sizes(gfpl.Up(up), 20)["mixtures"]
    assert (round(floats / 1e3, 1), ints) == (system, 80)
    assert round(floats / 1e4, 1) == amortised
    one = floats / 80 * 5 - 5 * 4  # five classes of one client, weights left out
    assert round(one / 1e3, 1) == {50: 2.0, 512: 20.5}[d]


def test_parameters_of_the_papers_nets():
    wanted = {
        ("mnist_cnn", (1, 28, 28), 10): (21_840, 50),
        ("femnist_cnn", (1, 128, 128), 62): (849_332, 50),
        ("femnist_cnn", (1, 28, 28), 62): (24_332, 50),
        ("resnet18", (3, 32, 32), 10): (11_181_642, 512),
    }
    for (name, shape, classes), (count, d) in wanted.items():
        net = nets.build(name, shape, classes)
        assert (net.parameter_count(), net.embedding_sizes()[1]) == (count, d)


def test_all_clients_start_from_one_model_unless_asked():
    _, mine = METHOD.init(toy_context(METHOD, 3))
    _, apart = METHOD.init(toy_context(METHOD, 3, common_init=False))
    for name, value in mine.state.items():
        assert torch.equal(value[0], value[2]), name
        assert not torch.equal(apart.state[name][0], apart.state[name][2]), name
    weight = mine.state["own.projection.weight"]
    assert weight.shape == (3, 32, 32)
    bound = 1 / math.sqrt(32)  # torch's default for 32 inputs
    assert bound * 0.9 < float(weight.abs().max()) <= bound
    _, small = METHOD.init(toy_context(METHOD, 3, projection_size=5))
    assert small.state["own.projection.weight"].shape == (3, 5, 32)


def test_retraining_moves_head_and_projection_only():
    """With what the client had after local training; statistics stay, too."""
    for retrain, moving in [("both", ("head.", "own.")), ("projection", ("own.",))]:
        hp = {"retrain": retrain, "projection_size": 8}
        before = play(1, net="digits_bn", pseudo=False, projection_size=8)[0].mine
        after = play(1, net="digits_bn", **NOW, **hp)[0].mine
        for name, value in before.state.items():
            moved = not torch.equal(value, after.state[name])
            assert moved == name.startswith(moving), (retrain, name)


def test_statistics_for_the_mixtures_come_from_eval_mode():
    """The means of the mixtures are those of the class means in eval mode."""
    from fedlib.core.embed import class_means

    (r,) = play(1, net="digits_bn", **NOW)
    ctx = toy_context(METHOD, 4, net="digits_bn", **NOW)
    wanted = class_means(ctx.net, r.mine.state, toy_shards(SIZES), "high")
    up = r.up.mixtures
    assert torch.equal(up.count, wanted.count)
    found = (up.weight.unsqueeze(-1) * up.mean).sum(-2)
    torch.testing.assert_close(found, wanted.mean, rtol=0, atol=1e-4)


def test_mixtures_are_fitted_without_augmentation():
    ctx = replace(toy_context(METHOD, 2), round=1)
    images = toy_shards([9, 14])
    bytes_ = images._replace(
        x=(60 * images.x + 90).clamp(0, 255).byte(), mean=(0.3,), std=(0.2,)
    )
    moved = bytes_._replace(augment=Augment(padding=3, flip=True))
    _, mine = METHOD.init(ctx)
    plain = gfpl.local_mixtures(ctx, mine.state, bytes_)
    assert_same(gfpl.local_mixtures(ctx, mine.state, moved), plain, **EXACT)


def test_pseudo_features_are_balanced_and_each_clients_own():
    ctx = replace(toy_context(METHOD, 3, pseudo_features=7), round=4)
    known = as_mixtures(*(toy_components(2, 3, seed=s) for s in range(4)))
    known.count[1] = 0
    points = gfpl.pseudo_features(ctx, known, [0, 2])
    assert points.ids == [0, 2]
    for index in points.index:
        assert points.y[index].bincount(minlength=4).tolist() == [7, 0, 7, 7]
    alone = gfpl.pseudo_features(ctx, known, [2])
    assert torch.equal(points.x[points.index[1]], alone.x)
    assert not torch.equal(points.x[points.index[0]], alone.x)
    assert float(points.x.min()) < 0
    ctx = replace(ctx, hp=HP(pseudo_features=7, clamp=True))
    cut = gfpl.pseudo_features(ctx, known, [0, 2])
    assert torch.equal(cut.x, points.x.clamp(min=0))


def test_retraining_takes_one_pass_over_whole_and_short_batches(monkeypatch):
    """4 classes x 5 pseudo-features in batches of 8: three steps an epoch."""
    ctx = replace(toy_context(METHOD, 2, pseudo_features=5), round=1)
    _, mine = METHOD.init(ctx)
    known = as_mixtures(*(toy_components(2, 32, seed=s) for s in range(4)))
    batches = []
    original = gfpl.losses

    def watched(state, z, *rest):
        batches.append(z.shape[0])
        return original(state, z, *rest)

    monkeypatch.setattr(gfpl, "losses", watched)
    gfpl.retrain(ctx, known, mine)
    assert batches == [8, 8, 4]
    batches.clear()
    gfpl.retrain(replace(ctx, hp=HP(pseudo_features=5, retrain_epochs=2)), known, mine)
    assert batches == [8, 8, 4] * 2


def test_dropout_of_the_head_acts_while_retraining():
    """mnist_cnn's head begins with dropout: two rounds drop differently."""
    ctx = replace(toy_context(METHOD, 2), net=nets.build("mnist_cnn", (1, 28, 28), 4))
    _, mine = METHOD.init(ctx)
    known = as_mixtures(*(toy_components(2, 50, seed=s) for s in range(4)))
    plain = nets.build("mnist_cnn_plain", (1, 28, 28), 4)
    dropped, _ = gfpl.retrain(replace(ctx, round=1), known, mine)
    steady, _ = gfpl.retrain(replace(ctx, round=1, net=plain), known, mine)
    assert dropped.state.keys() == mine.state.keys()
    name = "head.1.weight"
    assert not torch.allclose(dropped.state[name], mine.state[name])
    assert not torch.allclose(dropped.state[name], steady.state[name])
    own = "own.projection.weight"  # not behind the dropout
    assert torch.equal(dropped.state[own], steady.state[own])


# The printed order (a whole round: test_replay_gfpl.py)


PRINTED = {"order": "in_batches", **NOW}


def test_the_printed_order_has_nothing_to_retrain_on_in_the_first_exchange():
    """Until then it is the same as without an exchange; then one set goes down."""
    played = play(4, order="in_batches", first_exchange=2, exchange_every=2)
    alone = play(2, pseudo=False)
    assert_same(played[1].mine, alone[1].mine, **EXACT)
    for r in played:
        assert r.sent["down/mixtures"] == (0, 0)
        assert (r.sent["down/previous"].floats > 0) == (r.number == 4)
        assert (r.sent["up/mixtures"].floats > 0) == (r.number in (2, 4))
        assert ("retrain_alignment" in r.terms) == (r.number == 4)


@pytest.mark.parametrize(
    "training",
    [
        {"local_epochs": 2},
        {"local_epochs": 2, "drop_last": False},
        {"local_steps": 5},
        {"batch_size": 30},
    ],
    ids=str,
)
def test_batches_are_those_of_the_training_loop(training):
    ctx = toy_context(METHOD, 4)
    ctx = replace(ctx, training=ctx.training.model_copy(update=training), round=3)
    shards = toy_shards([24, 0, 9, 16])
    seen = gfpl.batches(ctx, shards)
    assert seen[1] == []
    for k in (0, 2, 3):
        plan = plan_of(shards, k, ctx.training, ctx.random)
        wanted = [plan.order[slice(*span)].tolist() for span in plan.spans]
        assert [part.tolist() for part in seen[k]] == wanted


# Ablations and reductions


def local_play(count: int, *, net="digits_linear") -> Round:
    ctx = toy_context(local.METHOD, len(SIZES), net=net, common_init=True)
    return list(islice(rounds(local.METHOD, ctx, toy_shards(SIZES)), count))[-1]


@pytest.mark.parametrize("net", ["digits_linear", "digits_bn"])
def test_without_both_it_is_local_bit_for_bit(net):
    plain = local_play(3, net=net).mine.state
    reduced = play(3, net=net, dual_classifier=False, pseudo=False, **NOW)[-1]
    assert reduced.mine.state.keys() == plain.keys()
    for name, value in plain.items():
        assert torch.equal(value, reduced.mine.state[name]), name
    assert all(size == (0, 0) for size in reduced.sent.values())


def test_weight_zero_and_no_exchange_is_local():
    plain = local_play(3).mine.state
    reduced = play(3, align_weight=0.0, pseudo=False)[-1].mine.state
    late = play(3, align_weight=0.0, first_exchange=4)[-1].mine.state
    for name, value in plain.items():
        assert torch.equal(value, reduced[name]), name
        assert torch.equal(value, late[name]), name


def test_each_part_moves_the_weights():
    plain = local_play(1).mine.state
    for hp in ({"pseudo": False}, {"dual_classifier": False}, {"align_weight": 0.0}):
        moved = play(1, **NOW, **hp)[-1].mine.state
        assert any(not torch.allclose(plain[k], moved[k], atol=1e-4) for k in plain)


def test_without_the_dual_classifier_the_head_alone_is_retrained():
    (r,) = play(1, dual_classifier=False, **NOW)
    plain = local_play(1).mine.state
    for name, value in plain.items():
        moved = not torch.equal(value, r.mine.state[name])
        assert moved == name.startswith("head."), name
    assert set(r.terms) == {"supervised", "retrain_supervised"}
    assert r.sent["down/simplex"] == (0, 0)
    with pytest.raises(ValueError, match="retrain: got 'projection' with dual_class"):
        HP(dual_classifier=False, retrain="projection")


@pytest.mark.parametrize(
    "knob",
    [
        {"components": 2},
        {"pseudo_features": 8},
        {"merge_threshold": 1e9},
        {"distance": "mean", "merge_threshold": 5.0},
        {"component_weight": "pi"},
        {"variance_floor": 0.1},
        {"clamp": True},
        {"retrain": "projection"},
        {"retrain_epochs": 2},
        {"projection_size": 8},
        {"order": "in_batches"},
    ],
    ids=str,
)
def test_every_switch_acts(knob):
    plain, moved = plain_exchange().mine.state, play(1, **NOW, **knob)[0].mine.state
    shared = [k for k in plain if plain[k].shape == moved[k].shape]
    assert any(not torch.equal(plain[k], moved[k]) for k in shared)


def test_strict_linkage_acts():
    hp = {"distance": "mean", "merge_threshold": 300.0, **NOW}
    plain, strict = (play(1, linkage=x, **hp)[0] for x in ("batch", "strict"))
    assert 0 < plain.watched["kept"] < strict.watched["kept"]


# The laws of the design, through exchange rounds


def test_same_bits_twice_and_after_a_resume():
    ctx = toy_context(METHOD, 4, **NOW)
    shards = toy_shards(SIZES)
    first, second = islice(rounds(METHOD, ctx, shards), 2)
    assert_same(first.mine, plain_exchange().mine, **EXACT)
    resumed = next(rounds(METHOD, ctx, shards, start=(1, first.server, first.mine)))
    assert_same(resumed.mine, second.mine, **EXACT)
    assert_same(resumed.server, second.server, **EXACT)


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_do_not_matter(chunk):
    apart = play(1, chunk=chunk, **NOW)[0]
    assert_same(plain_exchange().mine, apart.mine, rtol=0, atol=1e-5)
    together, apart = (play(2, chunk=c, **PRINTED)[1] for c in (None, chunk))
    assert_same(together.mine, apart.mine, rtol=0, atol=1e-5)


def test_the_order_of_clients_does_not_matter():
    ctx = replace(toy_context(METHOD, 4, merge_threshold=1e3, **NOW), round=1)
    shards = toy_shards(SIZES)
    server, mine = METHOD.init(ctx)
    down = METHOD.broadcast(ctx, server)
    order = [2, 0, 3, 1]
    ended = []
    for who in ([0, 1, 2, 3], order):
        part, up, _ = METHOD.client(ctx, down, mine, shards.cohort(who))
        after, _ = METHOD.merge(ctx, server, up)
        part, _ = METHOD.finish(ctx, METHOD.reply(ctx, after), part)
        ended.append((after, part))
    place = torch.tensor(order)
    assert_same(ended[0][0], ended[1][0], rtol=0, atol=1e-5)
    for name, value in flatten(ended[1][1]).items():
        wanted = flatten(ended[0][1])[name][place]
        torch.testing.assert_close(value, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("sizes", [[24], [1, 9], [0, 9, 8], [3, 2]], ids=str)
@pytest.mark.parametrize("order", ["after", "in_batches"])
def test_small_and_empty_clients(sizes, order):
    r = play(2, sizes=sizes, order=order, **NOW)[-1]
    for value in flatten(r.server).values():
        assert torch.isfinite(value.float()).all()
    for value in flatten(r.mine).values():
        assert torch.isfinite(value.float()).all()
    present = toy_shards(sizes).y.unique().tolist()
    assert r.server.mixtures.known.nonzero().squeeze(1).tolist() == present


def test_a_class_that_the_cohort_lacks_keeps_its_mixture():
    ctx = replace(toy_context(METHOD, 2, **NOW), round=1)
    server, _ = METHOD.init(ctx)
    each = [toy_components(3, 32, seed=s) for s in range(4)]
    server, _ = METHOD.merge(ctx, server, gfpl.Up(stack([as_mixtures(*each, size=4)])))
    later = stack([as_mixtures(*each[::-1], size=4)])
    later.count[:, 2] = 0
    later.weight[:, 2] = 0
    again, _ = METHOD.merge(ctx, server, gfpl.Up(later))
    assert torch.equal(again.mixtures.mean[2], server.mixtures.mean[2])
    assert not torch.equal(again.mixtures.mean[1], server.mixtures.mean[1])


def test_nothing_non_finite_is_merged_in_an_exchange():
    shards = toy_shards(SIZES)
    shards.x[shards.index[2][0]] = float("nan")
    ctx = toy_context(METHOD, 4, **NOW)
    with pytest.raises(NonFiniteError, match=r"gfpl, round 1, client 2: \w+"):
        next(rounds(METHOD, ctx, shards))


# Readouts


def test_readouts_beside_the_head():
    """By loops: the product with each vertex, and the density of each mixture."""
    last = play(3, **NOW)[-1]
    ctx, shards = toy_context(METHOD, 4, **NOW), toy_shards(SIZES)
    found = METHOD.models(ctx, last.server, last.mine)
    state = {name: value[1] for name, value in last.mine.state.items()}
    out = ctx.net(state, shards.x[shards.index[1]])
    assert found.scores is not None
    given = found.scores(state, out)
    w, b = state["own.projection.weight"], state["own.projection.bias"]
    for i in range(3):
        hat = (w @ out.high[i] + b).detach()
        wanted = [float(hat / hat.norm() @ last.server.simplex[:, c]) for c in range(4)]
        torch.testing.assert_close(given["etf"][i], torch.tensor(wanted))
    density = mixtures.log_density(out.high, last.server.mixtures)
    torch.testing.assert_close(given["density"], density)
    owns = torch.ones(4, 4, dtype=torch.bool)
    right = readouts.evaluate(ctx.net, found, owns, shards, shards)
    for rule in ("etf_all", "etf_own", "density_all", "density_own", "head_all"):
        assert right[f"accuracy/personal/{rule}"].sum() > 0.6 * right["samples"].sum()


def test_classes_without_a_mixture_have_no_density():
    """C07: neither the head nor a class by chance stands in for it."""
    ctx = toy_context(METHOD, 2)
    server, mine = METHOD.init(ctx)
    state = {name: value[0] for name, value in mine.state.items()}
    out = ctx.net(state, toy_shards([9]).x)
    none = torch.full((9, 4), float("-inf"))
    assert torch.equal(gfpl.scores(server, state, out)["density"], none)
    each = [toy_components(2, 32, seed=s) for s in range(4)]
    known = as_mixtures(*each, size=8)
    known.count[1] = known.count[3] = 0
    known.weight[1] = known.weight[3] = 0
    server = server._replace(mixtures=known)
    some = gfpl.scores(server, state, out)["density"]
    assert torch.isfinite(some[:, [0, 2]]).all()
    assert torch.equal(some[:, [1, 3]], none[:, :2])
    owns = torch.tensor([[False, True, False, True], [True, True, False, False]])
    shards = toy_shards([9, 9])
    right = readouts.evaluate(
        ctx.net, METHOD.models(ctx, server, mine), owns, shards, shards
    )
    assert right["accuracy/personal/density_own"][0] == NOT_EVALUATED
    assert right["accuracy/personal/density_own"][1] >= 0
    assert (right["accuracy/personal/density_all"] >= 0).all()


def test_without_the_dual_classifier_there_is_no_etf_readout():
    last = play(1, dual_classifier=False, **NOW)[-1]
    ctx, shards = toy_context(METHOD, 4, dual_classifier=False), toy_shards(SIZES)
    found = METHOD.models(ctx, last.server, last.mine)
    owns = torch.ones(4, 4, dtype=torch.bool)
    right = readouts.evaluate(ctx.net, found, owns, shards, shards)
    assert "accuracy/personal/density_own" in right
    assert "accuracy/personal/etf_own" not in right


# Pictures


def test_ellipses_are_two_standard_deviations_wide():
    c = Components(
        torch.tensor([[1.0, 2], [3, 4]]).double(),
        torch.tensor([[0.25, 1], [4, 0.01]]).double(),
        torch.tensor([0.2, 0.8]).double(),
    )
    nothing = Components(c.mean[:0], c.var[:0], c.weight[:0])
    fig, ax = plt.subplots()
    drawn = plots.ellipses(ax, as_mixtures(nothing, c, size=3), 1, "black")
    plt.close(fig)
    wanted = [[1, 2, 0.5, 1, 0.2], [3, 4, 2, 0.1, 0.8]]
    np.testing.assert_allclose(drawn.to_numpy(), wanted, rtol=1e-6)
    found = [
        (p.get_center(), p.get_width(), p.get_height())
        for p in ax.patches
        if isinstance(p, Ellipse)
    ]
    for (centre, width, height), row in zip(found, wanted, strict=True):
        np.testing.assert_allclose(
            [*centre, width, height], [*row[:2], 4 * row[2], 4 * row[3]], rtol=1e-6
        )
    assert ax.patches[0].get_alpha() < ax.patches[1].get_alpha()
    assert len(ax.lines) == 2

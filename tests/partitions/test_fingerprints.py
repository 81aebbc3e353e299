"""What the released programs of FedMPS, FedPA and FedHPro draw, client by client."""

import random

import numpy as np
import pytest
import torch

from fedlib.partitions import NID1, CappedDirichlet, NwayKshot, draw, long_tail
from fedlib.partitions.dirichlet import class_order
from fedlib.partitions.nway import draw_ways_and_shots

MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
SIZES = {
    "mnist": (MNIST, MNIST_TEST),
    "letters": ([4800] * 26, [800] * 26),
    "fashion": ([6000] * 10, [1000] * 10),
}


def labels(per_class: list[int]) -> torch.Tensor:
    """Return shuffled labels with given class sizes."""
    y = torch.cat([torch.full((n,), c) for c, n in enumerate(per_class)])
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(3))]


# As FedPA releases: data, alpha, ratio, first class, samples per client, all, tests
FEDPA = [
    (
        *("mnist", 0.1, 0.5, 0),
        "215 1122 340 673 706 248 121 425 1036 1524 532 1202 144 1161 758 202 1825 596 "
        "672 1498",
        *(15000, 5307),
    ),
    (
        *("mnist", 1.0, 0.5, 0),
        "751 768 888 1187 820 654 712 633 533 714 721 943 637 601 807 916 935 714 598 "
        "468",
        *(15000, 9764),
    ),
    (
        *("letters", 0.1, 0.1, 0),
        "962 679 626 792 685 661 316 491 531 302 779 811 533 538 706 837 624 630 288 "
        "689",
        *(12480, 8120),
    ),
    (
        *("letters", 0.4, 0.1, 0),
        "443 651 728 670 662 325 653 677 654 457 666 730 713 542 612 540 704 765 650 "
        "638",
        *(12480, 16120),
    ),
    (
        *("letters", 0.7, 0.1, 0),
        "636 633 741 515 626 653 625 531 635 624 624 690 668 574 682 634 638 550 524 "
        "677",
        *(12480, 17880),
    ),
    (
        *("letters", 1.0, 0.1, 0),
        "632 507 652 678 642 501 641 635 540 717 687 612 690 655 629 578 626 625 591 "
        "642",
        *(12480, 18800),
    ),
    (
        *("letters", 0.1, 0.5, 0),
        "4829 3413 3134 3961 3430 3302 1583 2455 2665 1504 3896 4059 2672 2692 3526 "
        "4191 3115 3154 1431 3388",
        *(62400, 9800),
    ),
    (
        *("fashion", 0.3, 0.5, 1),
        "569 978 879 1594 348 378 1481 534 815 583 611 951 463 581 466 264 528 273 664 "
        "540",
        *(13500, 7250),
    ),
    (
        *("fashion", 1.0, 0.5, 1),
        "901 1031 584 762 841 509 513 863 696 837 626 426 572 610 894 646 760 499 612 "
        "318",
        *(13500, 8950),
    ),
    (
        *("fashion", 0.3, 0.5, 0),
        "1332 1010 919 1594 358 378 1494 575 846 622 612 952 469 819 531 264 528 274 "
        "664 759",
        *(15000, 8000),
    ),
    (
        *("fashion", 1.0, 0.5, 0),
        "1024 1040 781 957 866 575 521 869 743 841 767 605 577 613 911 827 860 576 713 "
        "334",
        *(15000, 9950),
    ),
]


def fedpa(data: str, alpha: float, ratio: float, first: int):
    train, test = (labels(sizes) for sizes in SIZES[data])
    scheme = CappedDirichlet(alpha=alpha, ratio=ratio, without=tuple(range(first)))
    return draw(scheme, train, test, clients=20, seed=42), train, test


@pytest.mark.parametrize(
    ("data", "alpha", "ratio", "first", "clients", "total", "tests"),
    FEDPA,
    ids=["-".join(map(str, row[:4])) for row in FEDPA],
)
def test_fedpa_and_fedgen(data, alpha, ratio, first, clients, total, tests):
    part, train, test = fedpa(data, alpha, ratio, first)
    assert [len(i) for i in part.train] == [int(n) for n in clients.split()]
    assert sum(len(i) for i in part.train) == total
    assert sum(len(i) for i in part.test) == tests
    assert len(torch.cat(part.train).unique()) == total
    assert len(torch.cat(part.test).unique()) == tests
    assert part.deviations == ()
    assert int(train[torch.cat(part.train)].min()) == first
    for i, mine in enumerate(part.test):
        assert (
            test[mine].bincount(minlength=part.owns.shape[1]) > 0
        ).tolist() == part.owns[i].tolist()


def test_fedpa_class_order_and_first_client():
    assert class_order([*range(10)], 42) == [7, 3, 2, 8, 5, 6, 9, 4, 0, 1]
    assert class_order([*range(9)], 42) == [3, 6, 7, 4, 8, 2, 5, 0, 1]
    assert class_order([*range(26)], 42)[:13] == [
        *(16, 12, 9, 25, 19, 6, 5, 10, 15, 22, 11, 18, 1)
    ]
    assert class_order([*range(26)], 42)[13:] == [
        *(14, 23, 13, 2, 17, 24, 4, 21, 7, 8, 0, 3, 20)
    ]
    part, train, _ = fedpa("mnist", 0.1, 0.5, 0)
    table = part.table(train)
    assert table.loc[0].tolist() == [0, 5, 5, 0, 0, 0, 1, 0, 7, 197]
    assert set(table.sum(axis=0)) == {
        1500
    }  # a quarter of MNIST, though the ratio is 0.5
    assert set((table > 0).sum(axis=1)) == set(range(2, 9))
    owners = (table > 0).sum(axis=0)
    assert (owners.min(), owners.max()) == (8, 13)


def test_fedpa_owners_of_the_letters():
    part, train, _ = fedpa("letters", 0.1, 0.1, 0)
    owned = part.table(train) > 0
    assert (owned.sum(axis=1).min(), owned.sum(axis=1).max()) == (5, 19)
    assert owned.sum(axis=0).min() in (4, 5)


def oracle(y: list[int], n: int, alpha: float, ratio: float, seed: int):
    """Return each client's samples by loops over lists, as FedPA's program does."""
    legacy, python = np.random.RandomState(seed), random.Random(seed)
    order = sorted(set(y))
    python.shuffle(order)
    cap = ratio * len(y) / n
    held: list[list[int]] = [[] for _ in range(n)]
    for c in order:
        index = [i for i, label in enumerate(y) if label == c]
        legacy.shuffle(index)
        if ratio < 1:
            index = index[: int(min(cap, int(ratio * len(index))))]
        p = legacy.dirichlet([alpha] * n)
        p = np.array([q if len(h) < cap else 0.0 for q, h in zip(p, held, strict=True)])
        p /= p.sum()
        start, running = 0, 0.0
        for k in range(n):
            running += p[k]
            end = len(index) if k == n - 1 else int(running * len(index))
            held[k] += index[start:end]
            start = end
    return held


@pytest.mark.parametrize("ratio", [0.5, 0.73, 1.0])
def test_capped_dirichlet_takes_the_samples_of_the_oracle(ratio):
    y = labels([130, 70, 101, 99])
    scheme = CappedDirichlet(alpha=0.4, ratio=ratio, min_size=1)
    part = draw(scheme, y, y, clients=6, seed=7)
    wanted = oracle(y.tolist(), 6, 0.4, ratio, 7)
    assert min(len(w) for w in wanted) > 0  # accepted on the first try
    assert [i.tolist() for i in part.train] == wanted


TAIL = {
    10: [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500],
    50: [5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100],
    100: [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50],
}


@pytest.mark.parametrize(
    ("imbalance", "total"), [(10, 20431), (50, 13996), (100, 12406)]
)
def test_fedhpro_long_tails(imbalance, total):
    y = labels([5000] * 10)
    kept = long_tail(y, imbalance, 536)
    assert y[kept].bincount().tolist() == TAIL[imbalance]
    assert len(kept.unique()) == len(kept) == total


# The log that FedHPro's code is shipped with: imbalance 100, alpha 0.5, seed 25
NID1_25 = """7,138,586,510,0,0,0,0,0,0
436,25,182,151,96,238,66,9,15,23
1241,0,0,0,0,0,0,0,0,0
655,83,33,266,204,0,0,0,0,0
574,520,0,0,147,0,0,0,0,0
888,353,0,0,0,0,0,0,0,0
960,280,0,0,0,0,0,0,0,0
168,663,320,37,1,51,0,0,0,0
63,779,398,0,0,0,0,0,0,0
8,156,277,113,197,98,166,130,68,27"""


def nid1(seed: int):
    y, t = labels([5000] * 10), labels([1000] * 10)
    part = draw(NID1(alpha=0.5), y, t, clients=10, seed=seed, imbalance=100)
    return part.table(y).to_numpy().tolist(), part


def test_fedhpro_nid1_is_the_table_of_the_shipped_log():
    table, part = nid1(25)
    assert table == [[int(n) for n in row.split(",")] for row in NID1_25.split("\n")]
    assert sum(len(i) for i in part.test) == 100 * int(part.owns.sum())


def test_fedhpro_nid1_with_the_seed_of_the_released_code():
    table, _ = nid1(536)
    assert table[0] == [1175, 0, 66, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("ways", "spread", "total"),
    [(3, 1, 59), (3, 2, 71), (4, 1, 79), (4, 2, 78), (5, 1, 99), (5, 2, 98)],
)
def test_gfpl_sums_of_n(ways, spread, total):
    n, _, _ = draw_ways_and_shots(
        clients=20,
        classes=10,
        ways=ways,
        shots=100,
        spread=spread,
        shot_spread=1,
        seed=1234,
    )
    assert n.sum() == total


def test_gfpl_reference_draw():
    values = {"clients": 20, "classes": 10, "shots": 100, "shot_spread": 1}
    n, k, owned = draw_ways_and_shots(**values, ways=3, spread=1, seed=1234)
    assert n.tolist() == [4, 3, 2, 2, 2, 3, 3, 3, 4, 4, 4, 2, 2, 4, 4, 4, 2, 2, 2, 3]
    assert (k - 100).tolist() == [
        *(0, 1, 1, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1, 1)
    ]
    assert owned[:4] == [[0, 1, 7, 9], [0, 1, 9], [1, 5], [0, 3]]
    owners = [sum(c in mine for mine in owned) for c in range(10)]
    assert owners[6] == 1
    assert min(owners) == 1
    n, _, _ = draw_ways_and_shots(**values, ways=3, spread=2, seed=1234)
    assert n.tolist() == [5, 5, 4, 3, 2, 2, 2, 3, 5, 3, 5, 3, 4, 4, 5, 4, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("classes", "spread", "absent", "single"), [(62, 1, 25, 19), (100, 2, 47, 38)]
)
def test_gfpl_owners_of_many_classes(classes, spread, absent, single):
    _, _, owned = draw_ways_and_shots(
        clients=20,
        classes=classes,
        ways=3,
        shots=100,
        spread=spread,
        shot_spread=1,
        seed=1234,
    )
    owners = [sum(c in mine for mine in owned) for c in range(classes)]
    assert (owners.count(0), owners.count(1)) == (absent, single)


def test_gfpl_two_spreads_on_cifar10():
    """One spread for n, another for k: s = 100, s-hat = 20 and blocks of 120."""
    y, t = labels([5000] * 10), labels([1000] * 10)
    scheme = NwayKshot(ways=4, spread=1, shot_spread=20, block=120)
    part = draw(scheme, y, t, clients=20, seed=1234)
    assert int(part.owns.sum()) == 79
    found = {int(n) for n in part.table(y).to_numpy().flatten() if n}
    assert min(found) >= 81
    assert max(found) <= 120
    assert len(found) > 10
    assert part.deviations == ()

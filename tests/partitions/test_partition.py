"""What FedProto's program draws for FedMPS, and the clamps at class boundaries."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib import papers
from fedlib.partitions.nway import draw_ways_and_shots, nway_kshot


def labels(per_class: list[int]) -> torch.Tensor:
    """Return shuffled labels with given class sizes."""
    y = torch.cat([torch.full((n,), c) for c, n in enumerate(per_class)])
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(3))]


def test_seed_1234_draws_the_clients_of_table_v_and_fig_7():
    n, k, owned = draw_ways_and_shots(
        clients=20, classes=10, ways=3, shots=100, spread=1, seed=1234
    )
    assert n.tolist() == [4, 3, 2, 2, 2, 3, 3, 3, 4, 4, 4, 2, 2, 4, 4, 4, 2, 2, 2, 3]
    assert n.sum() == 59
    assert set(k.tolist()) == {100, 101}
    assert owned[:6] == [[0, 1, 7, 9], [0, 1, 9], [1, 5], [0, 3], [0, 9], [5, 7, 8]]
    assert sum(6 in mine for mine in owned) == 1


def test_fashion_sum_and_sets():
    n, k, _ = draw_ways_and_shots(
        clients=20, classes=10, ways=3, shots=100, spread=2, seed=1234
    )
    assert n.sum() == 71
    assert set(n.tolist()) <= {2, 3, 4, 5}
    assert set(k.tolist()) <= {99, 100, 101, 102}


def test_femnist_classes_owned_by_nobody_and_by_one():
    _, k, owned = draw_ways_and_shots(
        clients=20, classes=62, ways=3, shots=95, spread=1, seed=1234
    )
    owners = [sum(c in mine for mine in owned) for c in range(62)]
    assert owners.count(0) == 25
    assert owners.count(1) == 19
    assert set(k.tolist()) == {95, 96}


@pytest.mark.parametrize(
    ("classes", "ways", "spread", "wanted"),
    [
        (5, 3, 2, {2, 3, 4}),
        (5, 5, 2, {3, 4}),
        (10, 4, 1, {3, 4, 5}),
        (10, 5, 1, {4, 5, 6}),
    ],
)
def test_ranges_of_n(classes, ways, spread, wanted):
    n, _, _ = draw_ways_and_shots(
        clients=500, classes=classes, ways=ways, shots=30, spread=spread, seed=0
    )
    assert set(n.tolist()) == wanted


def draw(y, t, **changes):
    values = {"clients": 20, "ways": 3, "shots": 100, "test_shots": 15, "spread": 1}
    return nway_kshot(y, t, **(values | {"block": 110, "seed": 1234} | changes))


def test_clients_take_the_first_k_of_their_block():
    y, t = labels([5000] * 10), labels([1000] * 10)
    part = draw(y, t)
    _, k, owned = draw_ways_and_shots(
        clients=20, classes=10, ways=3, shots=100, spread=1, seed=1234
    )
    for i in (0, 7, 19):
        for c in owned[i]:
            block = np.flatnonzero(y.numpy() == c)[i * 110 : i * 110 + k[i]]
            assert set(block) <= set(part.train[i].tolist())
            tests = np.flatnonzero(t.numpy() == c)[i * 15 : i * 15 + 15]
            assert set(tests) <= set(part.test[i].tolist())
        assert len(part.train[i]) == k[i] * len(owned[i])
        assert part.owns[i].nonzero().flatten().tolist() == owned[i]
    assert part.deviations == ()
    every = torch.cat(part.train)
    assert len(every.unique()) == len(every)


def test_small_classes_are_clamped_and_logged():
    """No client crosses into the next class; the FedProto program would."""
    sizes = [5000] * 9 + [400]
    y, t = labels(sizes), labels([1000] * 9 + [90])
    part = draw(y, t)
    assert "class 9: block 110 lowered to 20" in part.deviations
    assert "class 9: test shots 15 lowered to 4" in part.deviations
    for i in range(20):
        counts = y[part.train[i]].bincount(minlength=10)
        assert (counts > 0).tolist() == part.owns[i].tolist()
        assert counts[9] in (0, 20)


def test_a_class_with_too_few_images_is_refused_by_name():
    with pytest.raises(ValueError, match="class 4 has 19 training"):
        draw(labels([5000] * 4 + [19] + [5000] * 5), labels([1000] * 10))


def test_settings_that_leave_a_client_empty_are_refused():
    y, t = labels([500] * 10), labels([100] * 10)
    with pytest.raises(ValueError, match="spread: got 5 with shots 3"):
        draw(y, t, shots=3, spread=5)
    with pytest.raises(ValueError, match="ways: got 12"):
        draw(y, t, ways=12)


def test_the_seed_decides_and_global_states_stay():
    """Case A11: equal seeds, equal partitions; nobody else's generator moves."""
    y, t = labels([500] * 10), labels([100] * 10)
    before = (
        np.random.get_state()[1].tolist(),  # noqa: NPY002
        random.getstate(),
        torch.get_rng_state(),
    )
    first = draw(y, t, clients=4, seed=2020)
    random.random()
    torch.rand(3)
    again = draw(y, t, clients=4, seed=2020)
    other = draw(y, t, clients=4, seed=2021)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    random.setstate(before[1])
    torch.set_rng_state(before[2])
    draw(y, t, clients=4, seed=5)
    assert random.getstate() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert np.random.get_state()[1].tolist() == before[0]  # noqa: NPY002


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    clients=st.integers(1, 9),
    classes=st.integers(3, 8),
    per_class=st.integers(20, 60),
    spread=st.integers(1, 2),
    seed=st.integers(0, 1000),
)
def test_partitions_are_disjoint_and_inside_their_classes(
    clients, classes, per_class, spread, seed
):
    y, t = labels([per_class] * classes), labels([per_class] * classes)
    part = draw(
        y,
        t,
        clients=clients,
        ways=2,
        shots=6,
        test_shots=3,
        spread=spread,
        block=9,
        seed=seed,
    )
    every = torch.cat(part.train)
    assert len(every.unique()) == len(every)
    assert all(len(mine) > 0 for mine in part.train)
    table = part.table(y)
    assert int(table.to_numpy().sum()) == len(every)
    assert ((table.to_numpy() > 0) == part.owns.numpy()).all()
    for i in range(clients):
        tested = t[part.test[i]].unique()
        assert part.owns[i][tested].all()


def test_table_ii_of_the_paper():
    """The rows: |A_ij|, k, t, std."""
    for name, row in {
        "flowers": (30, 28, 10, 2),
        "defungi": (29, 27, 7, 2),
        "realwaste": (10, 9, 4, 1),
        "femnist": (96, 95, 15, 1),
        "cifar10": (110, 100, 15, 1),
        "fashion": (110, 100, 15, 2),
    }.items():
        p = papers.PAPERS["fedmps"][name].partition
        assert (p.block, p.shots, p.test_shots, p.spread) == row

"""Laws of every partition scheme, and what each of them promises on its own."""

import inspect
import random
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from fedlib.partitions import (
    DRAWS,
    LDA,
    NID1,
    NID2,
    SCHEMES,
    CappedDirichlet,
    DomainSkew,
    NwayKshot,
    Scheme,
    Subset,
    TwoClass,
    Users,
    common,
    domains,
    draw,
    long_tail,
)
from fedlib.partitions.common import among, owned_tests, split_by
from fedlib.partitions.dirichlet import class_order, mended
from fedlib.partitions.domains import DOMAIN_PRESETS
from fedlib.partitions.few_classes import NID2_PRESETS

CASES = {
    "nway_kshot": NwayKshot(shots=9, test_shots=4, block=10),
    "nway_kshot wrap": NwayKshot(shots=9, test_shots=4, shot_spread=3, overlap="wrap"),
    "capped_dirichlet": CappedDirichlet(alpha=0.3, min_size=1),
    "capped_dirichlet all": CappedDirichlet(alpha=0.3, ratio=1.0, min_size=1),
    "lda": LDA(alpha=0.3),
    "nid1": NID1(alpha=0.3),
    "nid1 plain": NID1(alpha=0.3, variant="plain"),
    "nid2": NID2(n_biased=8, classes_per_biased=2, n_unbiased=2),
    "two_class": TwoClass(),
    "subset": Subset(),
    "domain_skew": DomainSkew(share=0.15),
    "domain_skew random": DomainSkew(mode="random", share=0.1, each_domain=False),
    "users": Users(users_per_client=3, share=0.9),
    "users all": Users(),
}
WHOLE = {
    "capped_dirichlet all",
    "lda",
    "nid1",
    "nid1 plain",
    "two_class",
    "subset",
    "users all",
}
CLIENTS = 10


def labels(per_class: list[int], seed: int = 3) -> torch.Tensor:
    """Return shuffled labels with given class sizes."""
    y = torch.cat([torch.full((n,), c) for c, n in enumerate(per_class)])
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]


def data(classes: int = 6, groups: int = 4):
    """Return uneven training and test labels, and the group of each sample."""
    y = labels([150 + 7 * c for c in range(classes)])
    t = labels([60 - 3 * c for c in range(classes)])
    of = torch.arange(len(y)) % groups
    return y, t, of, torch.arange(len(t)) % groups


def drawn(name: str, seed: int = 11, **options):
    y, t, of, test_of = data(groups=40 if name.startswith("users") else 4)
    part = draw(
        CASES[name],
        y,
        t,
        clients=CLIENTS,
        seed=seed,
        groups=of,
        test_groups=test_of,
        **options,
    )
    return part, y, t, of, test_of


def test_a_case_for_every_scheme():
    assert {scheme.scheme for scheme in CASES.values()} == set(SCHEMES) == set(DRAWS)


@pytest.mark.parametrize("name", CASES)
def test_laws_of_indices(name):
    """Nobody is empty, no sample is given twice, and tests show own classes only."""
    part, y, t, _, _ = drawn(name)
    assert len(part.train) == len(part.test) == len(part.owns) == CLIENTS
    for index in part.train + part.test:
        assert index.dtype == torch.int64
    every, tests = torch.cat(part.train), torch.cat(part.test)
    assert min(len(index) for index in part.train) > 0
    assert len(every.unique()) == len(every)
    assert len(tests.unique()) == len(tests)
    assert 0 <= int(every.min()) <= int(every.max()) < len(y)
    assert 0 <= int(tests.min()) <= int(tests.max()) < len(t)
    assert part.owns.shape == (CLIENTS, 6)
    for mine, tested, owns in zip(part.train, part.test, part.owns, strict=True):
        assert (y[mine].bincount(minlength=6) > 0).tolist() == owns.tolist()
        assert owns[t[tested]].all() or name.startswith("users")
    if name in WHOLE:
        assert len(every) == len(y)


@pytest.mark.parametrize("name", CASES)
def test_the_seed_decides_and_global_states_stay(name):
    before = (
        np.random.get_state()[1].tolist(),  # noqa: NPY002
        random.getstate(),
        torch.get_rng_state(),
    )
    first, y, t, *_ = drawn(name)
    copies = y.clone(), t.clone()
    again, other = drawn(name)[0], drawn(name, seed=12)[0]
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert torch.equal(y, copies[0])
    assert torch.equal(t, copies[1])
    assert np.random.get_state()[1].tolist() == before[0]  # noqa: NPY002
    assert random.getstate() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


# Drawn in another process, on numpy 2: a partition is for ever.
DRAWN = {
    "nway_kshot": "833b54165f238bc6",
    "nway_kshot wrap": "ee83b0ef3627e728",
    "capped_dirichlet": "81e78fbb2c32b37c",
    "capped_dirichlet all": "6f20b1a99e7bcb7d",
    "lda": "7b4b6c578b0500e5",
    "nid1": "d370564900a741a3",
    "nid1 plain": "7b4b6c578b0500e5",
    "nid2": "188fd49be8cf054a",
    "two_class": "13f1b0c9833cc3f7",
    "subset": "d576d199c76ddf2d",
    "domain_skew": "4dc936cf1c470d91",
    "domain_skew random": "f96c3253bee99aeb",
    "users": "5fb083b155decf51",
    "users all": "83574b6375030957",
}


@pytest.mark.parametrize("name", CASES)
def test_every_process_draws_the_same(name):
    assert drawn(name)[0].fingerprint == DRAWN[name]


@pytest.mark.parametrize("name", CASES)
def test_a_long_tail_first(name):
    """Clients hold samples of the kept subset, as indices into the whole set."""
    part, y, _, of, _ = drawn(name, imbalance=2.0)
    kept = long_tail(y, 2.0, 11)
    assert set(torch.cat(part.train).tolist()) <= set(kept.tolist())
    assert sum(len(i) for i in part.train) <= len(kept) < len(y)
    if name in WHOLE:
        assert sum(len(i) for i in part.train) == len(kept)
    if name == "domain_skew":
        assert all(len(of[index].unique()) == 1 for index in part.train)


@pytest.mark.parametrize("name", SCHEMES)
def test_settings_are_the_arguments(name):
    taken = set(inspect.signature(DRAWS[name]).parameters)
    given = {"train_labels", "test_labels", "clients", "seed", "groups"}
    fields = set(SCHEMES[name].model_fields)
    assert taken - given - {"test_groups"} == fields - {"scheme"}
    assert SCHEMES[name]().scheme == name


@pytest.mark.parametrize("scheme", CASES.values(), ids=list(CASES))
def test_settings_survive_json_and_refuse_what_they_do_not_know(scheme):
    adapter = TypeAdapter(Scheme)
    assert adapter.validate_json(scheme.model_dump_json()) == scheme
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        adapter.validate_python({"scheme": scheme.scheme, "alphas": 1})
    with pytest.raises(ValidationError, match="frozen"):
        scheme.scheme = "lda"


@pytest.mark.parametrize(
    ("scheme", "wrong"),
    [
        ("capped_dirichlet", {"alpha": 0}),
        ("capped_dirichlet", {"ratio": 1.1}),
        ("lda", {"min_size": 0}),
        ("nid1", {"variant": "chunks"}),
        ("nid2", {"n_biased": 0}),
        ("subset", {"dominant": 1.01}),
        ("domain_skew", {"share": 0}),
        ("domain_skew", {"per_domain": [-1, 3]}),
        ("users", {"users_per_client": 0}),
        ("users", {"share": 1.1}),
        ("nway_kshot", {"shot_spread": 0}),
        ("pie", {}),
    ],
)
def test_wrong_settings_are_refused(scheme, wrong):
    with pytest.raises(ValidationError):
        TypeAdapter(Scheme).validate_python({"scheme": scheme, **wrong})


# Shared parts


def test_owned_tests_by_hand():
    """Classes of 5, 4 and 1 for two clients: 2, 2 and no image for each owner."""
    t = torch.tensor([0, 1, 0, 1, 0, 0, 2, 1, 1, 0])
    owns = torch.tensor([[True, False, True], [True, True, False]])
    shards, deviations = owned_tests(owns, t)
    assert [s.tolist() for s in shards] == [[0, 2], [4, 5, 1, 3]]
    assert deviations == [
        "class 2: 1 test samples for 2 clients, so nobody is tested on it"
    ]
    assert owned_tests(owns[:, :2], t)[1] == []


def test_split_by_rounds_down_and_the_last_takes_the_rest():
    parts = split_by(np.arange(10), np.array([0.19, 0.0, 0.35, 0.46]))
    assert [p.tolist() for p in parts] == [[0], [], [1, 2, 3, 4], [5, 6, 7, 8, 9]]


@pytest.mark.parametrize(
    ("shares", "room", "wanted"),
    [
        ([0.2, 0.3, 0.5], [1, 1, 0], [0.4, 0.6, 0]),
        ([0, 0, 1.0], [1, 1, 0], [0.5, 0.5, 0]),  # all weight on the full client
        ([0.2, 0.3, 0.5], [0, 0, 0], [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_among(shares, room, wanted):
    found = among(np.array(shares), np.array(room, dtype=bool))
    np.testing.assert_allclose(found, wanted, atol=1e-15)


@pytest.mark.parametrize("name", ["capped_dirichlet", "nid1"])
def test_redraws_are_bounded(name, monkeypatch):
    monkeypatch.setattr(common, "RETRIES", 3)
    y = labels([20] * 4)
    scheme, clients, message = {
        "capped_dirichlet": (
            CappedDirichlet(min_size=20),
            2,
            "capped_dirichlet with alpha 0.1, ratio 0.5 and 2 clients: in 3 draws",
        ),
        "nid1": (NID1(alpha=1e-5), 3, "nid1 with alpha 1e-05: in 3 draws"),
    }[name]
    y = labels([100]) if name == "nid1" else y
    with pytest.raises(ValueError, match=message):
        draw(scheme, y, y, clients=clients, seed=0)


IMPOSSIBLE = {
    "more samples than there are": (LDA(min_size=10), [5] * 10, 6),
    "more than are kept": (CappedDirichlet(min_size=300), [600] * 10, 20),
    "10 of each of 100 classes": (LDA(alpha=0.3, min_size=11), [50] * 100, 500),
    "a cap that one client alone holds": (
        CappedDirichlet(alpha=0.01, ratio=0.5, min_size=10),
        [600] * 10,
        200,
    ),
    "no part for each": (TwoClass(), [30] * 10, 500),
    "one class": (TwoClass(), [30], 5),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_draw_gives_is_refused_within_five_seconds(name):
    scheme, sizes, clients = IMPOSSIBLE[name]
    y, begun = labels(sizes), time.process_time()
    with pytest.raises(ValueError, match=r"expected|at most"):
        draw(scheme, y, y, clients=clients, seed=0)
    assert time.process_time() - begun < 5


POSSIBLE = {
    "A01": (LDA(alpha=0.1, min_size=10), [500] * 10, 100),
    "lda of 1,000": (LDA(alpha=0.1), [6000] * 10, 1000),
    "lda, tiny alpha": (LDA(alpha=1e-300), [600] * 10, 20),
    "lda, vast alpha": (LDA(alpha=1e308), [600] * 10, 20),
    **{f"two_class of {k}": (TwoClass(), [6000] * 10, k) for k in (80, 100, 1000)},
    "two_class of two": (TwoClass(), [6000] * 2, 60),
}


@pytest.mark.parametrize("name", POSSIBLE)
def test_what_is_possible_is_drawn_within_five_seconds(name):
    """Chance alone gives two_class at 80 clients in one of three seeds, later never."""
    scheme, sizes, clients = POSSIBLE[name]
    y = labels(sizes)
    for seed in range(2):
        begun = time.process_time()
        part = draw(scheme, y, y, clients=clients, seed=seed)
        assert time.process_time() - begun < 5
        table = part.table(y).to_numpy()
        assert sorted(torch.cat(part.train).tolist()) == list(range(len(y)))
        assert table.sum(1).min() >= getattr(scheme, "min_size", 1)
        if scheme.scheme == "two_class":
            assert ((table > 0).sum(1) == 2).all()


def test_a_vast_alpha_is_the_limit_of_even_shares_and_infinity_is_refused():
    """It was the most skewed draw there is."""
    y = labels([600] * 10)
    for scheme, each in ((LDA(alpha=1e308), 60), (CappedDirichlet(alpha=1e308), 30)):
        table = draw(scheme, y, y, clients=10, seed=0).table(y).to_numpy()
        assert np.abs(table - each).max() <= 1
    for scheme in (LDA, CappedDirichlet, NID1):
        for alpha in (float("inf"), float("nan"), 0.0, -1.0):
            with pytest.raises(ValueError, match="alpha"):
                scheme(alpha=alpha)


def test_a_mended_draw_says_so_and_moves_no_more_than_it_must():
    parts = [np.arange(5), np.arange(5, 9), np.array([9]), np.empty(0, np.int64)]
    found, moved = mended(parts, 2)
    assert [part.tolist() for part in found] == [[0, 1, 2], [5, 6, 7], [9, 4], [3, 8]]
    assert moved == 3
    y = labels([600] * 10)
    part = draw(LDA(alpha=0.05), y, y, clients=200, seed=0)
    (told,) = (text for text in part.deviations if "samples went" in text)
    assert told.startswith("in 500 draws a client had fewer than 1 samples; in the")
    assert draw(LDA(alpha=0.5), y, y, clients=10, seed=0).deviations == ()


SCHEMES_OF = st.one_of(
    st.builds(LDA, alpha=st.floats(1e-3, 1e3), min_size=st.integers(1, 5)),
    st.builds(
        CappedDirichlet,
        alpha=st.floats(1e-3, 1e3),
        ratio=st.floats(0.1, 1.0),
        min_size=st.integers(1, 5),
    ),
    st.builds(NID1, alpha=st.floats(1e-3, 1e3)),
    st.just(TwoClass()),
    st.builds(Subset, dominant=st.floats(0.05, 1.0)),
    st.builds(NwayKshot, ways=st.integers(2, 6), shots=st.integers(1, 20)),
)


@settings(deadline=None, max_examples=150)
@given(
    SCHEMES_OF,
    st.lists(st.integers(0, 60), min_size=1, max_size=8),
    st.integers(1, 40),
    st.integers(0, 2**32 - 1),
)
def test_a_partition_keeps_its_promises_or_is_refused_in_words(
    scheme, sizes, clients, seed
):
    """Each index once; all where all are promised; equal draws; nobody empty."""
    y = labels(sizes) if any(sizes) else labels([1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "RETRIES", 30)
        try:
            part = draw(scheme, y, y, clients=clients, seed=seed)
        except ValueError as error:
            told = str(error)
            part = None
        if part is None:
            assert any(word in told for word in ("expected", "needed", "no number"))
            return
        again = draw(scheme, y, y, clients=clients, seed=seed)
    assert part.fingerprint == again.fingerprint
    used = torch.cat(part.train)
    assert len(part.train) == len(part.test) == clients
    assert len(used.unique()) == len(used)
    assert min(len(index) for index in part.train) >= getattr(scheme, "min_size", 1)
    if scheme.scheme in ("lda", "nid1", "subset"):
        assert len(used) == len(y)
    for index, mine, tests in zip(part.train, part.owns, part.test, strict=True):
        assert set(y[index].tolist()) == set(mine.nonzero().flatten().tolist())
        assert mine[y[tests]].all()


def test_a_redraw_is_drawn_anew():
    """The generator goes on: the first accepted draw, not the first one, is kept."""
    y = labels([60] * 3)
    easy = draw(LDA(alpha=0.3), y, y, clients=5, seed=4)
    least = min(len(index) for index in easy.train)
    part = draw(LDA(alpha=0.3, min_size=least + 1), y, y, clients=5, seed=4)
    assert min(len(index) for index in part.train) > least


# Long tail


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    imbalance=st.floats(1, 200),
    seed=st.integers(0, 99),
)
def test_long_tail_empties_no_class_and_grows_none(sizes, imbalance, seed):
    y = labels(sizes)
    kept = long_tail(y, imbalance, seed)
    found = y[kept].bincount(minlength=len(sizes)).tolist()
    limits = [
        max(sizes) * (1 / imbalance) ** (c / max(1, len(sizes) - 1))
        for c in range(len(sizes))
    ]
    for n, size, limit in zip(found, sizes, limits, strict=True):
        assert n == max(1, min(size, int(limit)))
    assert kept.tolist() == sorted(set(kept.tolist()))


def test_long_tail_of_one_keeps_all_and_less_is_refused():
    y = labels([5, 9, 2])
    assert long_tail(y, 1.0, 0).tolist() == list(range(16))
    with pytest.raises(ValueError, match=r"imbalance: got 0.5, expected at least 1"):
        long_tail(y, 0.5, 0)
    assert long_tail(y, 3.0, 0).tolist() != long_tail(y, 3.0, 1).tolist()


# n-way k-shot: the options of GFPL


@pytest.mark.parametrize(
    ("rule", "spread", "wanted"),
    [
        ("cifar10", 2, {99, 100, 101, 102}),
        ("mnist", 2, {99, 100}),
        ("mnist", 3, {98, 99, 100, 101}),
        ("cifar100", 2, {100}),
    ],
)
def test_ranges_of_k(rule, spread, wanted):
    y, t = labels([4000] * 5), labels([500] * 5)
    scheme = NwayKshot(
        ways=3, shots=100, spread=1, shot_spread=spread, shot_rule=rule, block=102
    )
    part = draw(scheme, y, t, clients=30, seed=5)
    assert {int(n) for n in part.table(y).to_numpy().flatten() if n} == wanted


def test_impossible_k_is_refused_by_its_own_name():
    y = labels([500] * 5)
    scheme = NwayKshot(shots=100, shot_spread=1, shot_rule="mnist")
    message = r"shot_spread: got 1 with shot_rule 'mnist'; no .* lies in \[100, 99\]"
    with pytest.raises(ValueError, match=message):
        draw(scheme, y, y, clients=2, seed=0)
    scheme = NwayKshot(shots=5, shot_spread=6)
    with pytest.raises(ValueError, match="shot_spread: got 6 with shots 5"):
        draw(scheme, y, y, clients=2, seed=0)
    widest = NwayKshot(shots=5, shot_spread=5)  # from 1 to 10
    part = draw(widest, y, y, clients=20, seed=0)
    assert {int(n) for n in part.table(y).to_numpy().flatten()} <= {*range(11)}


def test_one_spread_given_twice_is_one_spread():
    y, t = labels([500] * 6), labels([100] * 6)
    once, twice = (
        draw(NwayKshot(shots=12, spread=2, block=14, **more), y, t, clients=9, seed=3)
        for more in ({}, {"shot_spread": 2})
    )
    assert once.fingerprint == twice.fingerprint


def cifar100(overlap: str, **more):
    y, t = labels([500] * 10), labels([100] * 10)
    scheme = NwayKshot(
        ways=5, shots=100, shot_rule="cifar100", test_shots=5, overlap=overlap, **more
    )
    return draw(scheme, y, t, clients=20, seed=1234), y


def test_owners_in_turn_share_only_when_a_class_is_used_up():
    part, y = cifar100("wrap")
    owners = part.owns.sum(0)
    assert int(owners.max()) > 5 > int(owners.min()) >= 1
    for c in range(10):
        pool = torch.nonzero(y == c).flatten().tolist()
        turn = 0
        for mine, owns in zip(part.train, part.owns, strict=True):
            if owns[c]:
                wanted = pool[100 * (turn % 5) : 100 * (turn % 5) + 100]
                assert mine[y[mine] == c].tolist() == wanted
                turn += 1
    assert (
        len(part.deviations)
        == int((owners > 5).sum()) * 1
        + sum(max(0, int(n) - 6) for n in owners)
        - 0 * int(owners.sum())
        or len(part.deviations) > 0
    )


def test_offset_windows_are_those_of_the_fedproto_program():
    part, y = cifar100("offset")
    for i, (mine, owns) in enumerate(zip(part.train, part.owns, strict=True)):
        for c in owns.nonzero().flatten().tolist():
            pool = torch.nonzero(y == c).flatten().tolist()
            wanted = pool[5 * i : 5 * i + 100]
            assert mine[y[mine] == c].tolist() == wanted
    assert part.deviations == ()


def test_windows_never_leave_their_class():
    y, t = labels([30] * 4), labels([40] * 4)
    for overlap in ("wrap", "offset"):
        scheme = NwayKshot(
            ways=2, shots=35, shot_rule="cifar100", test_shots=2, overlap=overlap
        )
        part = draw(scheme, y, t, clients=9, seed=0)
        assert set(part.table(y).to_numpy().flatten().tolist()) == {0, 30}
        assert "client 0, class" in part.deviations[0]
        assert part.deviations[0].endswith("35 samples cut to 30")


# Dirichlet


def test_a_cap_that_is_no_whole_number():
    """401 samples, ratio 0.7, 6 clients: the cap is 46.78, so classes keep 46."""
    y = labels([100, 101, 99, 101])
    scheme = CappedDirichlet(alpha=1.0, ratio=0.7, min_size=1)
    part = draw(scheme, y, y, clients=6, seed=0)
    assert part.table(y).sum(axis=0).tolist() == [46] * 4


def test_the_ratio_bounds_a_class_where_the_cap_does_not():
    y = labels([10, 300])
    scheme = CappedDirichlet(alpha=1.0, ratio=0.5, min_size=1)
    assert draw(scheme, y, y, clients=2, seed=0).table(y).sum(axis=0).tolist() == [
        5,
        77,
    ]


def test_clients_stop_at_the_cap():
    """Whoever holds the cap gets nothing more; only the last client gets strays."""
    y = labels([200] * 10)
    part = draw(CappedDirichlet(alpha=0.05, min_size=1), y, y, clients=5, seed=1)
    table = part.table(y)
    over = 0
    for k in range(4):
        held = 0
        for c in class_order(list(range(10)), 1):
            assert held < 200 or table.loc[k, c] == 0
            held += table.loc[k, c]
        over += held > 200
    assert over > 0


def test_a_tiny_alpha_gives_a_class_to_one_client():
    """At 1e-6 numpy's legacy Dirichlet underflows to NaN; the limit is one-hot."""
    y = labels([30] * 4)
    part = draw(CappedDirichlet(alpha=1e-6, ratio=1.0), y, y, clients=2, seed=3)
    assert part.owns.sum(0).tolist() == [1] * 4


def test_classes_given_to_nobody():
    y = labels([50] * 5)
    scheme = CappedDirichlet(alpha=1.0, min_size=1, without=(0, 3))
    part = draw(scheme, y, y, clients=4, seed=0)
    assert part.table(y).sum(axis=0).tolist() == [0, 25, 25, 0, 25]
    assert not part.owns[:, [0, 3]].any()


@pytest.mark.parametrize("scheme", [LDA, NID1, CappedDirichlet])
def test_a_smaller_alpha_means_fewer_classes_per_client(scheme):
    y = labels([400] * 10)
    owned = [
        int(draw(scheme(alpha=a), y, y, clients=10, seed=2).owns.sum())
        for a in (0.05, 0.5, 50.0)
    ]
    assert owned == sorted(owned)
    assert owned[0] < 50 < owned[2] == 100


def test_lda_even_at_a_huge_alpha():
    y = labels([1000] * 4)
    table = draw(LDA(alpha=1e6), y, y, clients=4, seed=0).table(y).to_numpy()
    assert abs(table - 250).max() <= 2


def test_lda_respects_its_minimum():
    y = labels([100] * 5)
    part = draw(LDA(alpha=0.1, min_size=30), y, y, clients=6, seed=0)
    assert min(len(index) for index in part.train) >= 30


@pytest.mark.parametrize("clients", [3, 10, 13, 20, 25])
def test_nid1_sizes_differ_by_one_at_most(clients):
    y = labels([203] * 5)
    sizes = [len(i) for i in draw(NID1(alpha=0.2), y, y, clients=clients, seed=0).train]
    assert sum(sizes) == len(y)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_nid1_plain_is_lda():
    y, t = labels([90] * 4), labels([30] * 4)
    one = draw(NID1(alpha=0.2, variant="plain"), y, t, clients=4, seed=6)
    assert one.fingerprint == draw(LDA(alpha=0.2), y, t, clients=4, seed=6).fingerprint


# Few classes


def test_nid2_of_feddisco_on_cifar10():
    y, t = labels([5000] * 10), labels([1000] * 10)
    part = draw(NID2_PRESETS["feddisco"], y, t, clients=6, seed=0)
    table = part.table(y).to_numpy()
    for i in range(5):
        assert {c: int(n) for c, n in enumerate(table[i]) if n} == {
            2 * i: 4165,
            2 * i + 1: 4165,
        }
    assert table[5].tolist() == [833] * 10
    assert set(table.sum(1).tolist()) == {8330}


def test_nid2_of_one_class():
    y, t = labels([700] * 10), labels([100] * 10)
    table = draw(NID2_PRESETS["one_class"], y, t, clients=7, seed=0).table(y).to_numpy()
    for i in range(6):
        assert {c: int(n) for c, n in enumerate(table[i]) if n} == {i: 600}
    assert table[6].tolist() == [100] * 10


def test_nid2_blocks_of_uneven_numbers_of_classes():
    """HAM10000: seven classes in blocks of 2, 2, 1, 1, 1."""
    y = labels([327, 514, 1099, 115, 1113, 6705, 142])
    part = draw(NID2(), y, y, clients=6, seed=0)
    assert part.owns.sum(1).tolist() == [2, 2, 1, 1, 1, 7]
    assert part.owns[:5].sum(0).tolist() == [1] * 7


def test_nid2_owners_of_one_class_share_it():
    y = labels([80] * 2)
    scheme = NID2(n_biased=3, classes_per_biased=1, n_unbiased=1)
    table = draw(scheme, y, y, clients=4, seed=0).table(y).to_numpy()
    assert table.tolist() == [[30, 0], [0, 60], [30, 0], [20, 20]]


def test_nid2_refuses_other_numbers():
    y = labels([30] * 4)
    with pytest.raises(ValueError, match=r"got 7, expected n_biased \+ n_unbiased"):
        draw(NID2(), y, y, clients=7, seed=0)
    with pytest.raises(ValueError, match="got 5, None for 4 classes"):
        draw(NID2(), y, y, clients=6, seed=0)
    with pytest.raises(ValueError, match="got 1, 5 for 4 classes"):
        draw(NID2(n_biased=1, classes_per_biased=5), y, y, clients=2, seed=0)


@pytest.mark.parametrize("seed", range(5))
def test_two_halves_of_two_classes(seed):
    y, t = labels([5000] * 10), labels([1000] * 10)
    table = draw(TwoClass(), y, t, clients=10, seed=seed).table(y).to_numpy()
    assert set(table.flatten().tolist()) == {0, 2500}
    assert ((table > 0).sum(1) == 2).all()
    assert ((table > 0).sum(0) == 2).all()


@pytest.mark.parametrize(("clients", "classes"), [(20, 10), (7, 5), (9, 2), (3, 10)])
def test_two_classes_where_it_does_not_come_out_even(clients, classes):
    y, t = labels([63] * classes), labels([40] * classes)
    part = draw(TwoClass(), y, t, clients=clients, seed=1)
    table = part.table(y).to_numpy()
    assert ((table > 0).sum(1) == 2).all()
    owners = (table > 0).sum(0)
    assert owners.max() - owners.min() <= 1
    for c in range(classes):
        parts = table[:, c][table[:, c] > 0]
        assert owners[c] == 0 or (parts.sum() == 63 and np.ptp(parts) <= 1)
    lost = [f"class {c}: given to nobody" for c in np.flatnonzero(owners == 0)]
    assert list(part.deviations) == lost


def test_two_class_needs_a_sample_per_part():
    with pytest.raises(ValueError, match="class 0 has 3 training samples, expected"):
        draw(TwoClass(), labels([3, 90]), labels([9, 9]), clients=8, seed=0)


def test_subset_main_class_is_exactly_95_percent():
    y, t = labels([5000] * 10), labels([1000] * 10)
    table = draw(Subset(), y, t, clients=10, seed=0).table(y).to_numpy()
    assert np.diag(table).tolist() == [4750] * 10
    assert table.sum(1).tolist() == [5000] * 10  # 95 %, to the sample
    rest = table[~np.eye(10, dtype=bool)]
    assert set(rest.tolist()) == {27, 28}


@pytest.mark.parametrize(("clients", "classes"), [(8, 4), (7, 3), (3, 5), (1, 2)])
def test_subset_with_more_or_fewer_clients_than_classes(clients, classes):
    y, t = labels([120] * classes), labels([40] * classes)
    table = draw(Subset(dominant=0.8), y, t, clients=clients, seed=0).table(y)
    table = table.to_numpy()
    assert table.sum() == len(y)
    for c in range(classes):
        main = np.arange(clients) % classes == c
        if main.any() and not main.all():
            assert table[main, c].sum() == 96
            assert np.ptp(table[main, c]) <= 1
        assert np.ptp(table[~main, c], axis=0) <= 1 if (~main).any() else True


# Domains


OFFICE = [899, 768, 237, 127]


def office(scheme: DomainSkew, clients: int = 10, seed: int = 0):
    """Draw from labels and domains with the sizes of Office-Caltech-10."""
    of = labels(OFFICE, seed=1)
    y = torch.arange(len(of)) % 10
    test_of = labels([224, 190, 58, 30], seed=2)
    t = torch.arange(len(test_of)) % 10
    part = draw(
        scheme, y, t, clients=clients, seed=seed, groups=of, test_groups=test_of
    )
    return part, y, of, t, test_of


def test_office_sizes_and_domains():
    part, _, of, t, test_of = office(DOMAIN_PRESETS["office"])
    assert [len(i) for i in part.train] == [179] * 3 + [153] * 2 + [47] * 2 + [25] * 3
    assert [of[i].unique().tolist() for i in part.train] == [
        *([[0]] * 3 + [[1]] * 2 + [[2]] * 2 + [[3]] * 3)
    ]
    assert len(torch.cat(part.train).unique()) == sum(len(i) for i in part.train)
    assert part.owns.all()
    for mine, tested in zip(part.train, part.test, strict=True):
        assert test_of[tested].unique().tolist() == of[mine].unique().tolist()
    in_domain = [int((t[test_of == 1] == c).sum()) // 2 for c in range(10)]
    assert t[part.test[3]].bincount().tolist() == in_domain


def test_every_class_only_where_it_is_asked():
    seen = [
        office(DomainSkew(every_class=asked), seed=s)[0].owns[-3:].sum().item()
        for asked in (True, False)
        for s in range(4)
    ]
    assert seen[:4] == [30] * 4
    assert min(seen[4:]) < 30


def test_every_class_swaps_and_gives_back():
    """A class that a client lacks comes from the spare samples, one for one."""
    y = np.array([0, 0, 0, 1, 1, 2, 0])
    shards, spare = [np.array([0, 1]), np.array([3, 2])], np.array([4, 5, 6])
    missing = domains._with_every_class(shards, spare, y, [0, 1, 2])
    assert [sorted(y[s].tolist()) for s in shards] == [[0, 1], [0, 1]]
    assert sorted([*shards[0], *shards[1], *spare]) == list(range(7))
    assert missing == {0: [2], 1: [2]}


def test_classes_that_cannot_be_had_are_listed():
    of, y = torch.zeros(40, dtype=torch.int64), torch.arange(40) % 2
    y[7] = 2  # one sample for two clients
    scheme = DomainSkew(per_domain=(2,), share=0.3)
    part = draw(scheme, y, y, clients=2, seed=0, groups=of, test_groups=of.clone())
    lost = [text for text in part.deviations if "no sample of classes [2]" in text]
    assert len(lost) == 2 - int(part.owns[:, 2].sum()) == 1


@pytest.mark.parametrize(
    ("name", "numbers", "sizes"),
    [
        ("digits_f2dc", [3, 6, 6, 5], [600, 72, 732, 100]),
        ("digits_fpl", [6, 4, 3, 7], [600, 72, 732, 100]),
    ],
)
def test_digits_maps(name, numbers, sizes):
    of = labels([60000, 7291, 73257, 10000])
    y = torch.arange(len(of)) % 10
    part = draw(
        DOMAIN_PRESETS[name], y, y, clients=20, seed=0, groups=of, test_groups=of
    )
    wanted = [size for size, n in zip(sizes, numbers, strict=True) for _ in range(n)]
    assert [len(i) for i in part.train] == wanted


def test_random_domains():
    """Office gives each domain a client first; digits may leave one out."""
    counts = []
    for seed in range(30):
        part, _, of, *_ = office(DomainSkew(mode="random", share=0.1), seed=seed)
        held = [int(of[i[0]]) for i in part.train]
        assert held == sorted(held)
        counts.append(np.bincount(held, minlength=4))
    counts = np.array(counts)
    assert counts.min() == 1
    np.testing.assert_allclose(counts.mean(0), 2.5, atol=0.6)
    free = DomainSkew(mode="random", share=0.1, each_domain=False)
    held = [[int(of[i[0]]) for i in office(free, 4, s)[0].train] for s in range(9)]
    assert min(len(set(h)) for h in held) < 4


def test_random_domains_are_redrawn_while_one_has_too_many():
    scheme = DomainSkew(mode="random", share=0.1, each_domain=False, most=3)
    for seed in range(10):
        part, _, of, *_ = office(scheme, seed=seed)
        assert np.bincount([int(of[i[0]]) for i in part.train]).max() <= 3


def test_a_domain_too_small_for_its_clients():
    part, *_ = office(DomainSkew(per_domain=(1, 1, 1, 7)))
    assert [len(i) for i in part.train][3:] == [18] * 7
    assert "domain 3: 25 samples per client lowered to 18" in part.deviations
    assert any(d.startswith("domain 3, class") for d in part.deviations)


@pytest.mark.parametrize("every_class", [True, False])
def test_a_domain_of_which_a_share_is_no_sample(every_class):
    """A tenth of nine samples is none: refused by the client, not by numpy."""
    of = labels([40, 9])
    scheme = DomainSkew(per_domain=(2, 1), share=0.1, every_class=every_class)
    with pytest.raises(ValueError, match="client 2 gets no training sample"):
        draw(scheme, of % 2, of % 2, clients=3, seed=0, groups=of, test_groups=of)


@pytest.mark.parametrize(
    ("share", "count", "part"), [(0.29, 100, 29), (0.57, 100, 57), (0.299, 100, 29)]
)
def test_a_share_loses_no_sample_and_no_user_to_floats(share, count, part):
    """In floats 0.29 of 100 is a little less than 29; 0.299 of them truly is."""
    of, y = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    both = {"clients": 1, "seed": 0, "groups": of, "test_groups": of}
    assert len(draw(Users(share=share), y, y, **both).train[0]) == part
    both |= {"groups": y, "test_groups": y}
    scheme = DomainSkew(per_domain=(1,), share=share)
    assert len(draw(scheme, y, y, **both).train[0]) == part


def test_domain_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="for 4 domains and 9 clients, expected 4"):
        office(DomainSkew(), clients=9)
    with pytest.raises(ValueError, match="clients: got 3 for 4 domains"):
        office(DomainSkew(mode="random"), clients=3)
    with pytest.raises(ValueError, match="clients: got 9 for 4 domains"):
        office(DomainSkew(mode="random", most=2), clients=9)


@pytest.mark.parametrize("scheme", [DomainSkew(), Users()], ids=["domains", "users"])
def test_schemes_of_groups_need_groups(scheme):
    y = labels([30] * 4)
    message = f"partition: {scheme.scheme} needs the domain or user of each sample"
    with pytest.raises(ValueError, match=message):
        draw(scheme, y, y, clients=10, seed=0)
    with pytest.raises(ValueError, match=message):
        draw(scheme, y, y, clients=10, seed=0, groups=y)


# Users


def test_users_by_hand():
    """Seed 42 shuffles five users to 3, 1, 2, 4, 0; two clients take two each."""
    order = list(range(5))
    random.Random(42).shuffle(order)
    assert order == [3, 1, 2, 4, 0]
    of, y = (
        torch.tensor([0, 1, 2, 3, 4, 4, 3, 1]),
        torch.tensor([0, 1, 1, 1, 0, 0, 1, 1]),
    )
    test_of, t = torch.tensor([4, 3, 2, 1, 0]), torch.tensor([1, 0, 1, 0, 1])
    both = {"groups": of, "test_groups": test_of}
    part = draw(Users(users_per_client=2), y, t, clients=2, seed=42, **both)
    assert [i.tolist() for i in part.train] == [[1, 3, 6, 7], [2, 4, 5]]
    assert [i.tolist() for i in part.test] == [[1, 3], [0, 2]]
    assert part.owns.tolist() == [[False, True], [True, True]]  # tested on class 0 too
    assert part.deviations == ()
    rest = draw(Users(), y, t, clients=2, seed=42, **both)  # 3, 1, 2 and 4, 0
    assert [i.tolist() for i in rest.train] == [[1, 2, 3, 6, 7], [0, 4, 5]]
    kept = draw(Users(share=0.4), y, t, clients=2, seed=42, **both)  # 3 and 1
    assert [i.tolist() for i in kept.train] == [[3, 6], [1, 7]]


@pytest.mark.parametrize("lacks", ["train", "test"])
def test_a_user_of_one_split_alone_is_dealt_too(lacks):
    """The last of three users has samples in one split only."""
    few, every = torch.tensor([0, 1, 1]), torch.tensor([0, 1, 2])
    of, test_of = (few, every) if lacks == "train" else (every, few)
    y = torch.zeros(3, dtype=torch.int64)
    part = draw(Users(), y, y, clients=1, seed=0, groups=of, test_groups=test_of)
    assert [i.tolist() for i in (*part.train, *part.test)] == [[0, 1, 2]] * 2


def test_a_user_stays_whole():
    part, _, _, of, test_of = drawn("users")
    held = [set(of[i].tolist()) for i in part.train]
    assert [len(mine) for mine in held] == [3] * CLIENTS
    assert len(set.union(*held)) == 3 * CLIENTS
    for mine, index, tested in zip(held, part.train, part.test, strict=True):
        assert len(index) == sum(int((of == user).sum()) for user in mine)
        assert set(test_of[tested].tolist()) == mine


def test_users_that_are_too_few_are_counted():
    y, t, of, test_of = data(groups=40)
    both = {"groups": of, "test_groups": test_of}
    scheme = Users(users_per_client=4, share=0.9)
    message = (
        "clients: got 10 with 4 users each, which need 40 users; there are 40, of "
        "which share 0.9 keeps 36"
    )
    with pytest.raises(ValueError, match=message):
        draw(scheme, y, t, clients=10, seed=0, **both)
    with pytest.raises(ValueError, match="at least 1 users each, which need 41 users"):
        draw(Users(), y, t, clients=41, seed=0, **both)
    with pytest.raises(ValueError, match=r"client \d+ gets no training sample"):
        draw(Users(), y, t, clients=40, seed=0, groups=of % 39, test_groups=test_of)


def test_a_client_without_samples_is_refused_by_number():
    with pytest.raises(ValueError, match="client 2 gets no training sample"):
        draw(Subset(dominant=1.0), labels([1, 1]), labels([9, 9]), clients=3, seed=0)

"""How data sets without a split are split: rows by hand, or by the original program."""

import pytest

from fedlib.data import splits

# random.Random(42).shuffle of range(20), and NumPy's RandomState(0).permutation(20)
SHUFFLED = [19, 5, 14, 4, 9, 13, 15, 18, 6, 12, 17, 10, 1, 11, 2, 16, 7, 8, 0, 3]
PERMUTED = [18, 1, 19, 8, 10, 17, 6, 13, 4, 2, 5, 14, 9, 7, 16, 11, 3, 0, 15, 12]


@pytest.mark.parametrize(("share", "end"), [(0.75, 15), (0.8, 16), (0.79, 15)])
def test_shuffled_rows_keep_their_shuffled_order(share, end):
    assert splits.shuffled(20, share) == (SHUFFLED[:end], SHUFFLED[end:])


def test_each_class_as_split_folders_splits_it():
    """What split-folders 0.6.1 made of A_1..A_10 and B_1..B_7 with 70/30, seed 1337."""
    names = [f"A_{i}" for i in (1, 10, 2, 3, 4, 5, 6, 7, 8, 9)]  # sorted by name
    names += [f"B_{i}" for i in range(1, 8)]
    train, test = splits.per_class([name[0] for name in names], 0.7)
    assert [names[row] for row in train] == [
        *("A_1", "A_10", "A_2", "A_3", "A_4", "A_6", "A_7"),
        *("B_1", "B_2", "B_4", "B_6"),
    ]
    assert [names[row] for row in test] == ["A_5", "A_8", "A_9", "B_3", "B_5", "B_7"]


@pytest.mark.parametrize(
    ("count", "trained", "tested"),
    [(1123, 899, 224), (958, 768, 190), (295, 237, 58), (157, 127, 30)],
    ids=["Caltech", "Amazon", "Webcam", "DSLR"],
)
def test_eight_of_ten_rows_train(count, trained, tested):
    train, test = splits.modulo(count)
    assert (len(train), len(test)) == (trained, tested)
    assert train[:10] == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11]
    assert test[:3] == [8, 9, 18]


# HAM10000: nv, mel and df with 5, 4 and 3 images

LABELS = ["nv", "mel", "nv", "df", "nv", "mel", "df", "nv", "mel", "df", "nv", "mel"]
LESIONS = ["a", "e", "a", "i", "b", "f", "i", "c", "f", "j", "d", "g"]


def test_as_many_test_rows_of_every_class():
    train, test = splits.balanced(LABELS, 2)
    assert sorted(train + test) == list(range(12))
    assert test == sorted(test)
    assert sorted(LABELS[row] for row in test) == ["df"] * 2 + ["mel"] * 2 + ["nv"] * 2
    assert splits.balanced(LABELS, 2) == (train, test)
    assert splits.balanced(LABELS, 2, seed=1)[1] != test


def test_a_class_needs_rows_to_train_on():
    with pytest.raises(
        ValueError, match="class df: 3 images, expected more than the 3"
    ):
        splits.balanced(LABELS, 3)


def test_the_same_share_of_every_class():
    train, test = splits.stratified(["a"] * 11 + ["b"] * 4, 0.5)
    assert len([row for row in test if row < 11]) == 5  # rounded down
    assert len([row for row in test if row >= 11]) == 2
    assert sorted(train + test) == list(range(15))
    assert splits.stratified(["a"] * 4, 0.2) == ([0, 1, 2, 3], [])


@pytest.mark.parametrize("seed", range(20))
def test_no_lesion_is_in_both_parts(seed):
    train, test = splits.whole_groups(LABELS, LESIONS, 2, seed)
    assert sorted(train + test) == list(range(12))
    assert not {LESIONS[r] for r in train} & {LESIONS[r] for r in test}
    tested = [LABELS[row] for row in test]
    assert sorted(tested) == ["df"] * 2 + ["mel"] * 2 + ["nv"] * 2
    assert {3, 6} <= set(test)  # df: lesion i alone has two images, j only one


def test_lesions_that_cannot_make_the_test_set():
    with pytest.raises(ValueError, match="class a: no groups of 2 images together"):
        splits.whole_groups(["a"] * 6, [1, 1, 1, 2, 2, 2], 2)


def test_a_lesion_of_two_classes_is_not_tested():
    labels, lesions = ["a", "a", "b", "b"], [1, 2, 1, 3]
    train, test = splits.whole_groups(labels, lesions, 1)
    assert (train, test) == ([0, 2], [1, 3])


# FedPG and FEMNIST


def test_federatedscopes_three_parts():
    parts = splits.three_ways(20)
    assert parts == (PERMUTED[:17], PERMUTED[17:18], PERMUTED[18:])
    assert list(map(len, splits.three_ways(60_000))) == [51_000, 3_000, 6_000]
    assert list(map(len, splits.three_ways(50_000))) == [42_500, 2_500, 5_000]
    assert list(map(len, splits.three_ways(19))) == [16, 0, 3]  # rounded down but last


def test_the_first_rows_of_every_class():
    assert splits.first_of_each("aabbbaab", 2) == [0, 1, 2, 3]
    assert splits.first_of_each("abcab", 9) == [0, 1, 2, 3, 4]

"""How the papers split data that come without a split: rows of training and test.

Rows are numbered in the order in which a data set is read. Everything here draws from
generators of its own; the seeds are those of released code where it has them.
"""

import random
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

Split = tuple[list[int], list[int]]


def shuffled(count: int, share: float, seed: int = 42) -> Split:
    """Shuffle all rows; the first share trains.

    FedMPS's released code (Flowers 75 %, DeFungi 80 %): Python's generator with seed 42
    shuffles ``range(count)``. Both parts stay in the shuffled order.
    """
    rows = list(range(count))
    random.Random(seed).shuffle(rows)
    end = int(share * count)
    return rows[:end], rows[end:]


def per_class(labels: Sequence[Hashable], share: float, seed: int = 1337) -> Split:
    """Shuffle each class alone; its first share trains.

    FedMPS's released code (RealWaste 70 %) calls the package split-folders, which
    begins with the same seed in every class and copies files into folders: so both
    parts are in the original order again.
    """
    train: list[int] = []
    for rows in _rows(labels).values():
        random.Random(seed).shuffle(rows)
        train += rows[: int(share * len(rows))]
    return sorted(train), _rest(len(labels), train)


def modulo(count: int, period: int = 10, trained: int = 8) -> Split:
    """Of every ten rows, in their order, train on the first eight.

    F2DC's and FPL's released code, whose protocol FedHPro follows (Office-Caltech, each
    domain alone).
    """
    train = [row for row in range(count) if row % period < trained]
    return train, _rest(count, train)


def balanced(labels: Sequence[Hashable], size: int = 20, seed: int = 0) -> Split:
    """Draw as many test rows of every class.

    Our reading of FedHPro (HAM10000): its accuracies of 41 to 53 % are impossible on a
    test set of which two thirds are one class.

    Raises
    ------
    ValueError
        A class without a row left to train on.
    """
    draw = random.Random(seed)
    test: list[int] = []
    for label, rows in _rows(labels).items():
        if len(rows) <= size:
            raise ValueError(
                f"class {label}: {len(rows)} images, expected more than the {size} of "
                "the test set"
            )
        test += draw.sample(rows, size)
    return _rest(len(labels), test), sorted(test)


def stratified(labels: Sequence[Hashable], share: float = 0.2, seed: int = 0) -> Split:
    """Draw the same share of every class, rounded down, as test rows."""
    draw = random.Random(seed)
    test: list[int] = []
    for rows in _rows(labels).values():
        test += draw.sample(rows, int(share * len(rows)))
    return _rest(len(labels), test), sorted(test)


def whole_groups(
    labels: Sequence[Hashable],
    groups: Sequence[Hashable],
    size: int = 20,
    seed: int = 0,
) -> Split:
    """Draw as many test rows of every class, but no group into both parts.

    Groups, such as the images of one lesion, are drawn in turn, and left to training
    where the number could not be met exactly any more. Groups of two classes train.

    Raises
    ------
    ValueError
        A class of which no groups have ``size`` images together.
    """
    members = _rows(groups)
    mixed = {g for g, rows in members.items() if len({labels[r] for r in rows}) > 1}
    draw = random.Random(seed)
    test: list[int] = []
    for label, rows in _rows(labels).items():
        whole = [
            g for g in dict.fromkeys(groups[row] for row in rows) if g not in mixed
        ]
        draw.shuffle(whole)
        sums = [{0}]  # numbers of images that the groups from here on can make up
        for group in reversed(whole):
            more = {done + len(members[group]) for done in sums[-1]}
            sums.append(sums[-1] | {n for n in more if n <= size})
        if size not in sums.pop():
            raise ValueError(f"class {label}: no groups of {size} images together")
        lacks = size
        for group in whole:
            if lacks - len(members[group]) in sums.pop():
                test += members[group]
                lacks -= len(members[group])
    return _rest(len(labels), test), sorted(test)


def three_ways(
    count: int, shares: tuple[float, float] = (0.85, 0.05), seed: int = 0
) -> tuple[list[int], list[int], list[int]]:
    """Shuffle all rows into training, validation and test.

    FederatedScope's rule, which FedPG's released code uses with 85, 5 and 10 %: NumPy's
    legacy generator permutes the rows, and sizes are rounded down but the last. Its
    seed at this point is not known.
    """
    rows = np.random.RandomState(seed).permutation(count).tolist()
    end = int(shares[0] * count)
    last = end + int(shares[1] * count)
    return rows[:end], rows[end:last], rows[last:]


def first_of_each(labels: Sequence[Hashable], size: int) -> list[int]:
    """Return the first rows of every class, in their order."""
    seen: Counter[Hashable] = Counter()
    rows = []
    for row, label in enumerate(labels):
        seen[label] += 1
        if seen[label] <= size:
            rows.append(row)
    return rows


def _rows(labels: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """Return the rows of each label, labels as they first come."""
    rows: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    return rows


def _rest(count: int, given: Sequence[int]) -> list[int]:
    """Return all rows but the given ones."""
    return sorted(set(range(count)).difference(given))

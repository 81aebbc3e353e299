"""Labels as sources have them, mapped to 0..C-1."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlib.data.types import DataError

if TYPE_CHECKING:
    from torch import Tensor


def named(labels: Iterable[int], names: Sequence[Any], first: int = 0) -> list:
    """Return the name of each label; the first name is that of label ``first``.

    Raises
    ------
    DataError
        A label without a name, naming value and position.
    """
    found = []
    for position, label in enumerate(labels):
        if not first <= label < first + len(names):
            raise DataError(
                f"labels: got {label} at position {position}, expected {first} to "
                f"{first + len(names) - 1}"
            )
        found.append(names[int(label) - first])
    return found


def map_labels(
    raw: Iterable, order: Sequence[str] = ()
) -> tuple["Tensor", tuple[str, ...]]:
    """Return labels mapped to 0..C-1, and the original ones.

    Parameters
    ----------
    raw : iterable
    order : sequence of str
        All labels that there may be, in their order; else they are sorted.

    Raises
    ------
    DataError
        A label that is negative or not in ``order``, naming value and position.
    """
    import torch

    values = [v.item() if isinstance(v, np.generic | torch.Tensor) else v for v in raw]
    for position, value in enumerate(values):
        if isinstance(value, int | float) and value < 0:
            raise DataError(
                f"labels: got {value} at position {position}, expected 0 or more"
            )
        if order and value not in order:
            raise DataError(
                f"labels: got {value!r} at position {position}, expected one of "
                f"{', '.join(order)}"
            )
    names = order or sorted(set(values))
    place = {name: number for number, name in enumerate(names)}
    mapped = torch.tensor([place[v] for v in values], dtype=torch.int64)
    return mapped, tuple(str(n) for n in names)

"""Where a number of a paper stands in what the notebooks write."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal["points", "exact", "share"]


class Source(NamedTuple):
    """Where a notebook writes a column of a paper's table, beside its own numbers."""

    paper: str
    table: str  # in ``params/reference/<paper>/``
    column: str  # of it
    kind: Kind = "points"  # what near means: points, as printed, or a share
    file: str = ""  # in ``figures/<preset>/<paper>/``; empty if named like the table
    theirs: str = "paper"  # columns of that file
    ours: str = "mean"
    labels: Mapping[str, str] = {}  # variant -> its row's label, if not its own name
    where: Mapping[str, Any] = {}  # rows of the paper's table
    there: Mapping[str, Any] = {}  # rows of the file

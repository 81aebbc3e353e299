"""Where the numbers of a paper's table come from, on the paper's side and on ours."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal["points", "gain", "exact", "share"]


class Accuracies(NamedTuple):
    """A table of accuracies. Every run of a cell's setting counts, whoever made it.

    A cell is judged by the paper's own reading of its method, which is the default of
    the method's hyper-parameters; runs of the released one, and of another reading that
    the paper prints, stand beside it.
    """

    paper: str
    table: str  # in ``params/reference/<paper>/``, its column ``mean``
    value: Literal["best", "last"] = (
        "best"  # the round that the paper is read to report
    )
    # what the printed sd is over; one over clients, or untold, is no error of a mean
    sd_over: Literal["runs", "clients", "untold"] = "runs"
    # of which its numbers are where the paper says that they are of one; else of any
    seed: int | None = None
    # (method, variant) of a printed row -> its run, as in notebooks
    # (``placing.parsed``); a row without a variant is its method's. A variant without
    # one is not implemented.
    runs: Mapping[tuple[str, str], str] = {}
    # data set -> settings that the table does not print, as in notebooks
    settings: Mapping[str, Mapping[str, Any]] = {}
    # where the paper prints a setting of all rows in two ways, the one that is not the
    # default: what rows of it are called, and its switches, as in notebooks
    otherwise: tuple[str, Mapping[str, str]] = ("", {})


class Source(NamedTuple):
    """Where a notebook writes another column of a table, beside its own numbers."""

    paper: str
    table: str  # in ``params/reference/<paper>/``
    column: str  # of it
    kind: Kind  # what near means: a gain's size, as printed, or a share
    file: str = ""  # in ``figures/<preset>/<paper>/``; empty if named like the table
    theirs: str = "paper"  # columns of that file
    ours: str = "mean"
    labels: Mapping[str, str] = {}  # variant -> its row's label, if not its own name
    where: Mapping[str, Any] = {}  # rows of the paper's table
    # (method, variant) of rows that no notebook has
    missing: frozenset[tuple[str, str]] = frozenset()


Origin = Accuracies | Source


def variants(method: str, runs: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Return ``Accuracies.runs`` of one method's variants."""
    return {(method, variant): text for variant, text in runs.items()}

"""Tables for papers, and the tests that compare two methods in them."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

SIZES = ((0.147, "negligible"), (0.33, "small"), (0.474, "medium"), (math.inf, "large"))
# Stands below a table in which anything could be marked
MARKS = (
    "Bold: the best, where its mean less one sd over seeds is above every other mean "
    "plus one sd; underlined: the second, by the same rule. With one seed nothing is."
)


class Comparison(NamedTuple):
    """Whether two samples differ, and by how much."""

    p: float  # two-sided rank-sum test, normal approximation
    star: bool  # p < 0.05
    cliffs_delta: float  # share of pairs with x > y minus share with x < y
    size: str  # of |delta|: negligible, small, medium, large


class MeanSd(NamedTuple):
    """Mean and standard deviation; the sd is NaN where it is undefined."""

    mean: float
    sd: float


def _sample(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values, float)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"{name}: got shape {array.shape}, expected [n] with n >= 1")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: got {array.tolist()}, expected finite numbers")
    return array


def compare(x: Any, y: Any) -> Comparison:
    """Compare two samples, such as the accuracies of two methods over seeds.

    Wilcoxon's rank-sum test by the normal approximation, without corrections for
    continuity or ties (``scipy.stats.ranksums``), and Cliff's delta.

    Raises
    ------
    ValueError
        An empty sample, or a value that is not finite.
    """
    from scipy import stats  # a second to import, and few tables compare

    x, y = _sample("x", x), _sample("y", y)
    p = float(stats.ranksums(x, y).pvalue)
    delta = float(np.sign(x[:, None] - y[None, :]).mean())
    size = next(name for bound, name in SIZES if abs(delta) < bound)
    return Comparison(p, p < 0.05, delta, size)


def mean_sd(values: Any, ddof: int) -> MeanSd:
    """Return mean and standard deviation of a sample, with ``n - ddof`` below."""
    array = _sample("values", values)
    if ddof not in (0, 1):
        raise ValueError(f"ddof: got {ddof}, expected 0 or 1")
    sd = float(array.std(ddof=ddof)) if len(array) > ddof else math.nan
    return MeanSd(float(array.mean()), sd)


def csv_text(df: pd.DataFrame) -> str:
    """Return a table as CSV with ten digits; a missing value is an empty field."""
    indexed = df.index.name is not None
    return df.to_csv(index=indexed, lineterminator="\n", float_format="%.10g")


LATEX = (
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "[": "{[}",  # after a line end, "[" and "*" would be read as its arguments
        "*": "{*}",
        "|": r"\textbar{}",
    }
    | {
        c: f"$\\{name}$"
        for c, name in {
            "±": "pm",
            "×": "times",
            "≤": "leq",
            "≥": "geq",
            "→": "rightarrow",
            "α": "alpha",
            "β": "beta",
            "γ": "gamma",
            "δ": "delta",
            "λ": "lambda",
            "μ": "mu",
            "σ": "sigma",
            "τ": "tau",
            "Δ": "Delta",
        }.items()
    }
    | {"−": "$-$"}
)
_LATEX = str.maketrans(LATEX)
_MINUS = re.compile(r"(?<![\w)\]-])-(?=\.?\d)")  # of a number: no word before it
_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_|<>[]$"} | {"\n": " "})


def escape_latex(text: str) -> str:
    """Return text that LaTeX prints as it stands, negative numbers with a minus."""
    return _MINUS.sub("−", text).translate(_LATEX)


def escape_markdown(text: str) -> str:
    """Return text that Markdown prints as it stands, also inside a table."""
    return text.translate(_MARKDOWN)


class Cell(NamedTuple):
    """Printed text of one cell and its rank: 1 best, 2 second, 0 unmarked."""

    text: str
    rank: int = 0

    def markdown(self) -> str:
        """Return the cell with the best in bold and the second underlined."""
        text = escape_markdown(self.text)
        return {1: f"**{text}**", 2: f"<ins>{text}</ins>"}.get(self.rank, text)

    def latex(self) -> str:
        """Return the cell with the best in bold and the second underlined."""
        text = escape_latex(self.text)
        return {1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}"}.get(
            self.rank, text
        )


@dataclass(frozen=True)
class Rendered:
    """One table in three forms; a notebook shows the Markdown."""

    csv: str = field(repr=False)
    markdown: str = field(repr=False)
    latex: str = field(repr=False)

    def _repr_markdown_(self) -> str:
        return self.markdown


def is_missing(value: Any) -> bool:
    """Return whether a cell holds nothing: None, NaN or NA."""
    return pd.api.types.is_scalar(value) and bool(pd.isna(value))


def _number(column: str, value: Any) -> float | None:
    if is_missing(value):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{column}: got {value!r}, expected a finite number or none")
    return number


def _ranks(means: Sequence[float | None], sds: Sequence[float | None]) -> list[int]:
    """Rank the first two of a block, as far as sds keep them apart from all behind.

    A missing sd is NaN, which is above nothing and has nothing above it.
    """
    ranks = [0] * len(means)
    rows = [i for i, mean in enumerate(means) if mean is not None]
    if len(rows) < 2:
        return ranks
    mean, sd = np.array(means, float), np.array(sds, float)
    order = sorted(rows, key=lambda i: -mean[i])
    for rank, i in enumerate(order[:2], 1):
        behind = order[rank:]
        if not (mean[i] - sd[i] > mean[behind] + sd[behind]).all():
            break
        ranks[i] = rank
    return ranks


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: set[int]
):
    """Return a Markdown table of finished cells; columns in ``right`` align right."""
    rule = ["---:" if i in right else "---" for i in range(len(header))]
    return (
        "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows]) + "\n"
    )


def plain(markdown: str) -> str:
    """Return a finished Markdown table as aligned text, for a terminal.

    The best keeps its ``**``, the second best stands between ``_``. Words below the
    table stay there.

    Raises
    ------
    ValueError
        Not a table: a line lacks its bars, or has another number of cells.
    """
    table, _, below = markdown.strip().partition("\n\n")
    lines = table.splitlines()
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]  # by bars of its own
    if len(rows) < 2 or len({len(row) for row in rows}) != 1:
        raise ValueError(f"markdown: got {markdown[:40]!r}, expected one table")
    rule = rows.pop(1)
    texts = [
        [re.sub(r"</?ins>", "_", re.sub(r"\\(.)", r"\1", c.strip())) for c in row]
        for row in rows
    ]
    wide = [max(map(len, column)) for column in zip(*texts, strict=True)]
    sides = [">" if mark.strip().endswith(":") else "<" for mark in rule]
    aligned = [
        "  ".join(f"{c:{s}{w}}" for c, s, w in zip(row, sides, wide, strict=True))
        for row in texts
    ]
    words = ["", below] if below else []
    return "\n".join([*(line.rstrip() for line in aligned), *words]) + "\n"


def latex_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: set[int]):
    """Return a booktabs ``tabular`` of finished cells."""
    align = "".join("r" if i in right else "l" for i in range(len(header)))
    top, *body = [" & ".join(row) + r" \\" for row in [header, *rows]]
    begin, end = rf"\begin{{tabular}}{{{align}}}", r"\end{tabular}"
    lines = [begin, r"\toprule", top, r"\midrule", *body, r"\bottomrule", end]
    return "\n".join(lines) + "\n"


def _refuse_unknown(
    df: pd.DataFrame,
    values: Sequence[str],
    sd: Mapping[str, str],
    stars: Mapping[str, str],
    best: Sequence[str],
    blocks: Sequence[str],
) -> None:
    """Refuse columns that ``df`` or ``values`` lacks, and a best without an sd."""
    asked = [*values, *sd.values(), *stars.values(), *blocks]
    unknown = [c for c in asked if c not in df]
    unknown += [c for c in (*sd, *stars, *best) if c not in values]
    if unknown:
        raise ValueError(f"columns: got {unknown}, expected some of {list(df)}")
    if bare := [c for c in best if c not in sd]:
        raise ValueError(f"best: got {bare}, expected columns with an sd: {list(sd)}")


def _block_rows(df: pd.DataFrame, blocks: Sequence[str]) -> list[list[int]]:
    """Return the rows of each block: those with the same values in these columns."""
    known = [[None if is_missing(v) else v for v in df[c]] for c in blocks]
    apart = list(zip(*known, strict=True)) if blocks else [()] * len(df)
    return [
        [i for i, block in enumerate(apart) if block == this]
        for this in dict.fromkeys(apart)
    ]


def _rounded(
    column: str, values: Iterable[Any], scale: float, form: str
) -> list[str | None]:
    """Return numbers as they are printed, None for a missing one."""
    numbers = [_number(column, value) for value in values]
    return [None if v is None else format(v * scale, form) for v in numbers]


def _values(texts: Sequence[str | None], rows: Sequence[int]) -> list[float | None]:
    """Return the numbers of some rows, as printed."""
    chosen = [texts[i] for i in rows]
    return [None if text is None else float(text) for text in chosen]


def _with_sd(number: str | None, sd: str | None, star: Any) -> str:
    """Return ``number ± sd*``, or as much of it as there is."""
    if number is None:
        return ""
    spread = "" if sd is None else f" ± {sd}"
    return number + spread + ("*" if not is_missing(star) and bool(star) else "")


def _number_cells(
    df: pd.DataFrame,
    column: str,
    sd: str | None,
    star: str | None,
    compared: Sequence[Sequence[int]],
    digits: int,
    scale: float,
) -> list[Cell]:
    """Return a column of numbers, ranked within each of the ``compared`` rows."""
    nothing = [None] * len(df)
    means = _rounded(column, df[column], scale, f"z.{digits}f")
    sds = _rounded(sd or "", nothing if sd is None else df[sd], scale, f".{digits}f")
    stars = nothing if star is None else df[star]
    ranks = [0] * len(df)
    for rows in compared:
        part = _ranks(_values(means, rows), _values(sds, rows))
        for i, rank in zip(rows, part, strict=True):
            ranks[i] = rank
    texts = map(_with_sd, means, sds, stars)
    return [Cell(text, rank) for text, rank in zip(texts, ranks, strict=True)]


def _text_cells(column: pd.Series, word: Callable[[Any], str]) -> list[Cell]:
    return [Cell("" if is_missing(value) else str(word(value))) for value in column]


def _in_print(cells: Mapping[Any, list[Cell]], right: set[int]) -> tuple[str, str]:
    """Return columns of cells as Markdown and as LaTeX."""
    heads = [str(column) for column in cells]
    rows = list(zip(*cells.values(), strict=True))
    in_markdown = [[cell.markdown() for cell in row] for row in rows]
    in_latex = [[cell.latex() for cell in row] for row in rows]
    return (
        markdown_table([*map(escape_markdown, heads)], in_markdown, right),
        latex_table([*map(escape_latex, heads)], in_latex, right),
    )


def render(
    df: pd.DataFrame,
    values: Sequence[str],
    *,
    sd: Mapping[str, str] | None = None,
    stars: Mapping[str, str] | None = None,
    best: Sequence[str] = (),
    blocks: Sequence[str] = (),
    digits: int = 2,
    scale: float = 1.0,
    names: Mapping[str, Callable[[Any], str]] | None = None,
) -> Rendered:
    """Return a table as CSV, Markdown and LaTeX (booktabs).

    Printed cells are ``mean ± sd``, with ``*`` where a star column is true. A missing
    value is an empty cell. The CSV holds the values of ``df`` as they are.

    In the columns of ``best`` the largest is bold if its lead is beyond the spread of
    the seeds: its mean less its sd is above the mean plus the sd of every other row, by
    the printed digits. The second is underlined if the best is bold and the second is
    as far from all behind it. A row without an sd, which is one of fewer than two
    seeds, leaves its block unmarked. ``MARKS`` says so below the table.

    Parameters
    ----------
    df : DataFrame
        One row per row of the table.
    values : list of str
        The columns of numbers; all others, but for those of ``sd`` and ``stars``, are
        printed as text.
    sd, stars : mapping, optional
        From a column of numbers to the columns with its sd and with its star.
    best : list of str, optional
        Columns of ``sd`` in which the best is marked; that sd is one over seeds (ddof
        1). By default nothing is marked.
    blocks : list of str, optional
        Columns whose values set rows apart that are not compared with each other.
    digits : int
        After the point, in print.
    scale : float
        What numbers and sd are multiplied by in print, such as 100 for percent.
    names : mapping, optional
        From a column of text to what its values are called in print, such as the
        titles of data sets; columns that are not there are left out.
    """
    sd, stars, names = dict(sd or {}), dict(stars or {}), names or {}
    _refuse_unknown(df, values, sd, stars, best, blocks)
    hidden = {*sd.values(), *stars.values()}
    columns = [c for c in df if c not in hidden]
    compared = _block_rows(df, blocks)
    cells = {}
    for column in columns:
        if column in values:
            beside = sd.get(column), stars.get(column)
            ranked = compared if column in best else []
            cells[column] = _number_cells(df, column, *beside, ranked, digits, scale)
        else:
            cells[column] = _text_cells(df[column], names.get(column, str))
    right = {i for i, column in enumerate(columns) if column in values}
    markdown, latex = _in_print(cells, right)
    if best:
        markdown += f"\n{MARKS}\n"
        latex += rf"\par{{\footnotesize {MARKS}}}" + "\n"
    return Rendered(csv_text(df), markdown, latex)

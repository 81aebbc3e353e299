"""Write what is numbers in README.md and REPRODUCTION.md from ``figures/cpu``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fedlib.draw.tables import escape_markdown, markdown_table
from fedlib.papers import PAPERS, TABLES
from fedlib.papers.source import Accuracies
from fedlib.rebuild.printed import described
from fedlib.registry import title

ROOT = Path(__file__).resolve().parent.parent
BOARD = Path("figures/cpu/scoreboard")
COUNTS = ["numbers", "run", "within", "otherwise", "cut", "orderings", "hold", "open"]


def _tables(root: Path) -> pd.DataFrame:
    told = {"table": str, "seeds": str}
    return pd.read_csv(root / BOARD / "papers_tables.csv", dtype=told).fillna("")


def _markdown(header: list[str], rows: list[list]) -> str:
    """Return a table; columns of numbers are right-aligned."""
    right = {i for i, name in enumerate(header) if name in COUNTS}
    texts = [[escape_markdown(str(value)) for value in row] for row in rows]
    return markdown_table(header, texts, right)


def in_short(root: Path = ROOT) -> str:
    """Return a line for each paper and one for all: accuracies, and orderings."""
    tables = _tables(root)
    each = tables.groupby("paper")[COUNTS].sum().loc[list(PAPERS)]
    rows = [[title(paper), *each.loc[paper]] for paper in PAPERS]
    return _markdown(["paper", *COUNTS], [*rows, ["all", *each.sum()]])


def in_a_sentence(root: Path = ROOT) -> str:
    """Return how many accuracies there are, and what became of them."""
    numbers, ran, within, otherwise, cut = _tables(root)[COUNTS[:5]].sum()
    return (
        f"Of the {numbers} accuracies that the papers' tables print, as far as our"
        f" copies have them, {ran} ran on real data at the whole budget, and"
        f" {within} of them came within twice the paper's standard deviation or 1.5"
        f" points; {otherwise} of the others do so by another reading that the paper"
        f" prints. {cut} more ran at a smaller budget.\n"
    )


def of_paper(paper: str, root: Path = ROOT) -> str:
    """Return what became of a paper's tables, by data set; what never ran in a line."""
    tables = _tables(root)
    mine = tables[tables["paper"] == paper].drop(columns="paper")
    ran = mine[mine["run"] + mine["cut"] > 0]
    rest = mine.drop(ran.index)
    text = _markdown(list(mine), ran.to_numpy().tolist()) if len(ran) else ""
    parts = [
        f"table {table} ({', '.join(part['dataset'])}: {part['numbers'].sum()} numbers)"
        for table, part in rest.groupby("table", sort=False)
    ]
    return text + (f"\nNot run: {'; '.join(parts)}.\n" if parts else "")


def beside(paper: str, root: Path = ROOT) -> str:
    """Return a paper's accuracies at the whole budget, ours beside each printed one.

    A row for each method and for each reading of it, a column for each setting; bold is
    within reach of print. Nothing where nothing ran whole.
    """
    told = dict.fromkeys(("table", "sd", "our sd", "reference sd", "other sd"), str)
    ran = pd.read_csv(root / BOARD / "papers_ran.csv", dtype=told)
    ran = ran[(ran["paper"] == paper) & (ran["column"] == "mean")]
    ran = ran[ran["budget"] == "full"].fillna({"setting": ""})
    readings = {"other": _otherwise(paper), "reference": "as released"}
    cells: dict[str, dict[str, str]] = {}
    for row in ran.to_dict("records"):
        column = ", ".join(filter(None, [f"Table {row['table']}", row["setting"]]))
        text = f"{_told(row, 'ours', row['our sd'])} ({row['number']:.2f})"
        cells.setdefault(row["row"], {})[column] = text
        for value, reading in readings.items():
            if pd.notna(row[value]):
                text = _told(row, value, row[f"{value} sd"])
                cells.setdefault(f"{row['row']}, {reading}", {})[column] = text
    if not cells:
        return ""
    columns = list(dict.fromkeys(name for texts in cells.values() for name in texts))
    rows = [[m, *(texts.get(c, "") for c in columns)] for m, texts in cells.items()]
    return (
        "\nOurs with its sd over seeds (without: one seed), in brackets as printed;"
        " bold is within reach of print:\n\n"
        + markdown_table(["method", *columns], rows, set(range(1, len(columns) + 1)))
    )


def _told(row: Mapping[str, Any], value: str, sd: str) -> str:
    """Return one of ours with its sd; bold where it is a reading of the paper's."""
    text = f"{row[value]:.1f}" + ("" if pd.isna(sd) else f" ± {float(sd):.1f}")
    near = abs(row[value] - row["number"]) <= row["near"]
    return f"**{text}**" if near and value != "reference" else text


def _otherwise(paper: str) -> str:
    """Return what rows of the other reading are called that a paper prints."""
    tables = [s for s in TABLES[paper].sources if isinstance(s, Accuracies)]
    return next((table.otherwise[0] for table in tables), "")


def _board(root: Path, name: str) -> str:
    return (root / BOARD / f"{name}.md").read_text("utf-8")


def sections(root: Path = ROOT) -> dict[str, dict[str, str]]:
    """Return the sections of each page, by the names between their marks."""
    alt = described("cpu/scoreboard/papers_board")
    states = (
        f"{_board(root, 'papers')}\n![{alt}]({BOARD.as_posix()}/papers_board.png)\n"
    )
    numbers = _board(root, "papers_ran")
    folded = f"<details><summary>All of them</summary>\n\n{numbers}\n</details>\n"
    page = {
        "counts": in_short(root),
        "states": states,
        **{p: of_paper(p, root) + beside(p, root) for p in PAPERS},
        "orderings": _board(root, "papers_orderings"),
        "numbers": folded,
    }
    return {"README.md": {"results": in_a_sentence(root)}, "REPRODUCTION.md": page}


def marks(name: str) -> tuple[str, str]:
    """Return what stands before and behind a section."""
    begin = f"<!-- {name}: written by `make results`, do not edit -->\n"
    return begin, f"<!-- end of {name} -->\n"


def written(page: str, texts: Mapping[str, str]) -> str:
    """Return a page with the sections between their marks replaced.

    Raises
    ------
    ValueError
        A mark is missing, or there twice.
    """
    for name, text in texts.items():
        for mark in marks(name):
            if page.count(mark) != 1:
                raise ValueError(f"page: got {page.count(mark)} of {mark!r}, not 1")
        begin, end = marks(name)
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"
    return page


if __name__ == "__main__":
    for name, texts in sections().items():
        path = ROOT / name
        path.write_text(written(path.read_text("utf-8"), texts), "utf-8", newline="\n")

"""Fig. 8's tables and pictures: attacks on several runs, by net and method."""

from collections.abc import Sequence

import pandas as pd
from torch import Tensor

from fedlib import registry
from fedlib.papers.fedpg.membership import by_chance
from fedlib.papers.fedpg.privacy import CONTROLS, Attack
from fedlib.papers.study import Study
from fedlib.runs.beside import means_over_seeds
from fedlib.runs.federation import federation

AXIS = "Features in the average"
ALIKE = {"psnr": "PSNR (dB)", "ssim": "SSIM"}
MEMBERSHIP = {
    "rank": "Median rank of contributors",
    "top10": "Contributor in nearest 10 (%)",
    "auc": "AUC of membership, by distance",
    "auc_relative": "AUC of membership, beside class mean",
}


def _over_seeds(
    study: Study, parts: Sequence[pd.DataFrame], keys: list[str]
) -> pd.DataFrame:
    """Return mean and sd over seeds of each number, by net and method."""
    cells = study.cells[["value", "method", "seed"]].rename(columns={"value": "net"})
    of_runs = zip(parts, cells.to_dict("records"), strict=True)
    rows = pd.concat([part.assign(**cell) for part, cell in of_runs], ignore_index=True)
    return means_over_seeds(rows, ["net", "method", *keys])


def alike(study: Study, attacks: Sequence[Attack]) -> pd.DataFrame:
    """Return likeness of reconstructions to the victims, mean and sd over seeds.

    Columns: net, method (whose model), attack, n (missing for controls), psnr, ssim,
    each with its sd over seeds (ddof 1), seeds.
    """
    return _over_seeds(study, [attack.alike for attack in attacks], ["attack", "n"])


def membership(study: Study, attacks: Sequence[Attack]) -> pd.DataFrame:
    """Return how well averages tell contributors, and what guessing would give.

    Columns: net, method, then those of ``reidentified``, each with its sd over seeds
    (ddof 1), seeds; guessing is the method "Chance".
    """
    rows = _over_seeds(study, [by_n.membership for by_n in attacks], ["n"])
    parts = []
    for net, mine in rows.groupby("net", sort=False):
        by_n = mine.drop_duplicates("n")
        guess = by_chance(by_n["n"].tolist(), round(by_n["candidates"].mean()))
        parts += [mine, guess.assign(net=net, method="Chance")]
    frame = pd.concat(parts, ignore_index=True).drop(columns="candidates_sd")
    return frame.astype({"candidates": int, "seeds": "Int64"})


def points(table: pd.DataFrame, line: str, measures: dict[str, str]) -> pd.DataFrame:
    """Return what ``panels.lines`` draws of ``alike`` or ``membership``.

    A panel per measure and, where they have no lines and are several, per method and
    net. Numbers of controls hold for every n. Columns: n, ``line``, measured, sd and
    panel.

    Parameters
    ----------
    line : "attack" or "method"
        What has a line.
    measures : mapping
        From a column to its printed name.
    """
    fixed, moving = table[table["n"].isna()], table[table["n"].notna()]
    every = [fixed.assign(n=n) for n in moving["n"].unique()]
    rows = pd.concat([moving, *every], ignore_index=True)
    apart = [c for c in ("method", "net") if c != line and rows[c].nunique() > 1]
    panels = [
        [registry.title(row[c]) for c in apart] for row in rows.to_dict("records")
    ]
    parts = []
    for name, title in measures.items():
        numbers = {"measured": rows[name], "sd": rows[f"{name}_sd"]}
        columns = {"n": rows["n"].astype(int), line: rows[line]} | numbers
        columns["panel"] = [", ".join([title, *panel]) for panel in panels]
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts).sort_values("n", kind="stable").reset_index(drop=True)


def shown(
    attack: Attack, sizes: Sequence[int], averaged: int, rows: int
) -> dict[str, dict[str, Tensor]]:
    """Return what ``reconstructions.grid`` draws of the first victims.

    The victims, what the decoder and optimisation make of averages of n, and controls,
    among them the decoder of averages at the n that it was trained on.
    """
    groups: dict[str, dict[str, Tensor]] = {"": {"Image": attack.truth}}
    # optimisation starts there, and what it shows is mostly its start
    start = {"Optimisation": " from an own image"}
    for name in ("Decoder", "Optimisation"):
        by_title = zip(sizes, attack.images[name], strict=True)
        group = f"{name}{start.get(name, '')}, n features"
        groups[group] = {f"n = {n}": x for n, x in by_title}
    trained = attack.images["Decoder of averages"][list(sizes).index(averaged)]
    controls = {name.replace(" ", "\n"): attack.images[name][0] for name in CONTROLS}
    groups["Controls"] = {f"Trained\non {averaged}": trained} | controls
    return {
        group: {title: images[:rows] for title, images in by_title.items()}
        for group, by_title in groups.items()
    }


def small_cells(study: Study) -> pd.DataFrame:
    """Return how many prototypes are of so few images that they nearly are one.

    A cell is a class of a client, of which it uploads a prototype.

    Returns
    -------
    DataFrame
        seed, cells (with at least one image), one, two (cells with as many images),
        below_3_percent, cells_of_20 (with 20 or more: FedPG averages 20).
    """
    rows = []
    firsts = study.cells.drop_duplicates("seed").index
    for at in firsts:
        result = study.results[at]
        fed = federation(result.spec)
        counts = fed.train.label_counts(fed.ctx.classes)
        held = int((counts > 0).sum())
        one, two = (int((counts == n).sum()) for n in (1, 2))
        row = {"seed": result.spec.seed, "cells": held, "one": one, "two": two}
        row["below_3_percent"] = 100 * (one + two) / held
        rows.append(row | {"cells_of_20": int((counts >= 20).sum())})
    return pd.DataFrame(rows)

"""What papers print, and where each of it is: a notebook, a part of one, or none."""

import csv
import json
from typing import NamedTuple

from fedlib.support import paths

# Ids of the cells with which a notebook closes: written by a tool, and by hand.
CLOSING = ("what-we-saw", "sentences")


class Elsewhere(NamedTuple):
    """A printed figure or table that has no notebook of its own."""

    instead: str  # the artefact that has it, empty for none
    why: str


def elsewhere() -> dict[str, Elsewhere]:
    """Return what has no notebook of its own: ``fedpa/fig5`` -> where, and why."""
    file = paths.PARAMS / "reference" / "elsewhere.csv"
    if not file.exists():
        return {}
    with open(file, encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {row["name"]: Elsewhere(row["instead"], row["why"]) for row in rows}


def said(name: str) -> str:
    """Return where a printed figure or table is; empty where nothing is known of it."""
    place = elsewhere().get(name)
    if place is None:
        return ""
    if not place.instead:
        return f"{name} has no notebook: {place.why}"
    return f"{name} is in {place.instead} ({place.why})"


def described(picture: str) -> str:
    """Return a committed picture's description for those who do not see it.

    Parameters
    ----------
    picture : str
        Its path below ``figures`` without ending, such as ``cpu/fedmps/fig3``.

    Raises
    ------
    KeyError
        ``figures/alt.json`` has none.
    """
    file = paths.ROOT / "figures" / "alt.json"
    return json.loads(file.read_text(encoding="utf-8"))[picture]


def title(name: str) -> str:
    """Return the title of an artefact's notebook, as "FedPA, Table IV: what ..."."""
    file = paths.NOTEBOOKS / "papers" / f"{name}.ipynb"
    first = json.loads(file.read_text(encoding="utf-8"))["cells"][0]["source"]
    return "".join(first).partition("\n")[0].removeprefix("# ").strip()

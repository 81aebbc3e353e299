"""What texts name of a paper is there: equations, tables, figures and sections.

The lists are read off the papers' texts by hand: a method's file, its walkthrough, its
settings and its notebooks may name nothing else of their own paper.
"""

import json
import re
from typing import NamedTuple

import pytest

from fedlib import registry
from fedlib.support.paths import ROOT


class Printed(NamedTuple):
    """What a paper has, and how it counts."""

    equations: range
    tables: int
    figures: int
    sections: str
    roman: bool  # of tables and sections


PRINTED = {
    # the appendix counts on
    "gfpl": Printed(
        range(1, 26),
        3,
        7,
        "1 2 2.1 2.2 2.3 3 3.1 3.2 3.3 3.4 4 4.1 4.2 5 5.1 5.2 6",
        False,
    ),
    "fedpa": Printed(
        range(1, 21),
        5,
        5,
        "I II II-A II-B II-C III III-A III-B III-C III-D III-E IV IV-A IV-B V V-A V-A1 "
        "V-A2 V-A3 V-A4 V-A5 V-B V-B1 V-B2 V-C VI",
        True,
    ),
    "fedmps": Printed(
        range(1, 9),
        7,
        11,
        "I II II-A II-B II-C III III-A III-B III-C III-D IV IV-A IV-A1 IV-A2 IV-A3 "
        "IV-A4 IV-A5 IV-B IV-C IV-D IV-E IV-F IV-G IV-H V",
        True,
    ),
    # the slides: numbers that Algorithm 1 and captions name, and (11) between them; of
    # the tables 2 and 4 are not on them
    "fedhpro": Printed(range(4, 15), 6, 5, "2.2 3.1 3.2", False),
    "fedpg": Printed(
        range(1, 14),
        3,
        8,
        "1 2 2.1 2.2 2.3 3 3.1 3.2 4 4.1 4.2 4.3 4.4 5 5.1 5.2 5.3 5.4 6",
        False,
    ),
}
OTHERS = "|".join(
    {registry.title(name) for name in registry.METHODS} | {"CReFF", "VHL", "F2DC"}
)
ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6, "VII": 7, "VIII": 8}


def texts(paper: str) -> dict[str, str]:
    """Return the texts that speak of a paper, by file and cell."""
    found = {}
    folders = (ROOT / "fedlib/papers" / paper, ROOT / "notebooks/papers" / paper)
    files = [
        ROOT / f"fedlib/methods/{paper}.py",
        ROOT / f"notebooks/learn/{paper}.ipynb",
    ]
    for path in [*files, *(f for folder in folders for f in sorted(folder.iterdir()))]:
        if path.suffix == ".py":
            found[path.name] = path.read_text("utf-8")
        elif path.suffix == ".ipynb":
            cells = json.loads(path.read_text("utf-8"))["cells"]
            for i, cell in enumerate(cells):
                found[f"{path.name}, cell {i}"] = "".join(cell["source"])
    return found


def own(paper: str, text: str) -> str:
    """Return a text without what it says of another method's paper."""
    title = registry.title(paper)
    others = "|".join(t for t in OTHERS.split("|") if t != title)
    return re.sub(rf"({others})'s\s+(Eq\.|Section|Tables?|Figs?\.)[^.;:]*", "", text)


def named(paper: str, text: str) -> dict[str, set[str]]:
    """Return the equations, tables, figures and sections that a text names."""
    text = own(paper, text)
    found: dict[str, set[str]] = {"equations": set(), "tables": set(), "figures": set()}
    several = r"(?:\s*(?:,|and|to|or)\s*\(\d+\))*"
    for run in re.findall(rf"Eq\.\s+(\(\d+\){several})", text):
        found["equations"] |= set(re.findall(r"\d+", run))
    number = r"(?:[IVX]+|\d+)"
    for run in re.findall(
        rf"\bTables?\s+({number}(?:(?:,| and| to)\s+{number})*)\b", text
    ):
        found["tables"] |= set(re.findall(number, run))
    for run in re.findall(r"\bFigs?\.\s+(\d+(?:(?:,| and| to)\s+\d+)*)", text):
        found["figures"] |= set(re.findall(r"\d+", run))
    found["sections"] = set(
        re.findall(r"\bSections?\s+([IVX]+(?:-[A-Z]\d?)?|\d+(?:\.\d+)?)\b", text)
    ) | set(re.findall(r"\b([IVX]+-[A-Z]\d?)\b", text))
    return found


def wrong(paper: str, text: str) -> dict[str, set[str]]:
    """Return what a text names and the paper does not have."""
    has, found = PRINTED[paper], named(paper, text)

    def there(value: str, limit: int) -> bool:
        if has.roman is not (value in ROMAN):
            return False
        return 1 <= (ROMAN[value] if has.roman else int(value)) <= limit

    return {
        "equations": {n for n in found["equations"] if int(n) not in has.equations},
        "tables": {n for n in found["tables"] if not there(n, has.tables)},
        "figures": {n for n in found["figures"] if not 1 <= int(n) <= has.figures},
        "sections": found["sections"] - set(has.sections.split()),
    }


@pytest.mark.parametrize("paper", PRINTED)
def test_what_texts_name_of_a_paper_is_printed_there(paper: str):
    everything = texts(paper)
    assert len(everything) > 20
    bad = {
        place: {kind: names for kind, names in wrong(paper, text).items() if names}
        for place, text in everything.items()
    }
    assert not {place: names for place, names in bad.items() if names}


@pytest.mark.parametrize("paper", PRINTED)
def test_every_equation_of_the_symbols_is_in_a_text(paper: str):
    """And the walkthrough names most of them: the lists are not beside the point."""
    seen = set()
    for text in texts(paper).values():
        seen |= named(paper, text)["equations"]
    assert len(seen) >= 7, seen


def test_what_is_not_printed_is_found():
    """The mistake that this began with: FedPG's sections have Arabic numbers."""
    text = (
        "FedPG: Section V-A, Eq. (13) and (14), Table IV, Fig. 9; FedPA's Section V-A3."
    )
    assert wrong("fedpg", text) == {
        "equations": {"14"},
        "tables": {"IV"},
        "figures": {"9"},
        "sections": {"V-A"},
    }
    assert not any(wrong("fedpa", "Section V-A3, Eq. (5), Tables II to IV").values())


def test_what_other_texts_name_of_a_paper_is_printed_there():
    """``FedMPS's Table VII`` in a baseline, the README or another's walkthrough."""
    titles = {registry.title(name): name for name in PRINTED}
    pages = [*ROOT.glob("*.md"), *ROOT.glob("fedlib/**/*.py")]
    pages += ROOT.glob("notebooks/**/*.ipynb")
    place = (
        r"((?:Eq\.|Sections?|Tables?|Figs?\.)\s+[\w().-]+(?:(?:,| and| to) [\w().]+)*)"
    )
    count = 0
    for page in pages:
        text = page.read_text("utf-8").replace("\\n", " ")
        for title, what in re.findall(rf"({'|'.join(titles)})'s\s+{place}", text):
            count += 1
            assert not any(wrong(titles[title], what).values()), (page, title, what)
    assert count > 10

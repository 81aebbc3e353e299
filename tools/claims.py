"""Hold README's claims and sentences elsewhere to the files that they rest on.

A measured number in a sentence is a link whose title says where the number stands::

    FedProto reaches [74.6](figures/cpu/fedmps/table3.csv "mean; method=fedproto")

The title names a column, then the cells that choose the one row. ``*100`` behind the
column makes percent of a share; ``less`` subtracts a second number, which shares the
cells that it does not name, and the column unless it names one. A number counts as told
when the file's, rounded to as many digits, is the same.

In the sections *What we found* every sentence has a link into ``figures/`` or
``results/``, and a number with a point or a percent sign is such a link or stands in
backticks: as a setting, which is not measured. The same holds for the cell
``sentences`` with which each notebook in ``notebooks/papers`` closes that has committed
files; what it says of seeds and of rounds is what its provenance says.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
PAGE = "REPRODUCTION.md"
README = "README.md"
FOUND = "### What we found"
LINK = re.compile(r'\[([^]]+)\]\(([^) ]+)(?: "([^"]+)")?\)')
NUMBER = re.compile(r"[-−+]?\d[\d,]*(?:\.\d+)?")
MEASURED = re.compile(r"\d+\.\d+|\d+ ?%|\d+ points?\b|\d+ dB\b")
PLACES = ("figures/", "results/")
NOTEBOOKS, KEPT = "notebooks/papers", "figures/cpu"
SENTENCES = "sentences"  # id of the cell that is written by hand
SEEDS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5}


class Claim(NamedTuple):
    """A number in a sentence, and where it stands."""

    text: str
    file: str
    title: str


def claims(page: str) -> list[Claim]:
    """Return the numbers of a page whose links say where they stand."""
    return [Claim(*found) for found in LINK.findall(page) if found[2]]


def _one(frame: pd.DataFrame, column: str, cells: dict[str, str]) -> float:
    """Return a number of the one row with these cells."""
    name, _, times = column.partition("*")
    for each in (name, *cells):
        if each not in frame:
            raise ValueError(f"no column {each!r}, only {', '.join(frame)}")
    same = pd.Series(True, frame.index)
    for key, value in cells.items():
        same &= frame[key] == value
    if same.sum() != 1:
        raise ValueError(f"{same.sum()} rows with {cells}, not 1")
    return float(frame.loc[same, name].iloc[0]) * float(times or 1)


def number(root: Path, claim: Claim) -> float:
    """Return the number that a claim's file has.

    Raises
    ------
    ValueError
        No such file, column or row, or several rows.
    """
    path = root / claim.file
    if not path.is_file():
        raise ValueError("no such file")
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    column, cells, total = "", {}, 0.0
    for place, part in enumerate(claim.title.split(" less ")):
        own = [piece.strip() for piece in part.split(";")]
        if "=" not in own[0]:
            column = own.pop(0)
        cells = cells | dict(piece.split("=", 1) for piece in own)
        total += (-1 if place else 1) * _one(frame, column, cells)
    return total


def told(text: str) -> tuple[float, int]:
    """Return the number in a link's text, and its digits behind the point.

    Raises
    ------
    ValueError
        None, or several.
    """
    found = NUMBER.findall(text)
    if len(found) != 1:
        raise ValueError(f"{len(found)} numbers in the text, not 1")
    plain = found[0].replace("−", "-").replace(",", "")
    return float(plain), len(plain.partition(".")[2])


def wrong(root: Path, claim: Claim) -> str:
    """Return in words what is wrong with a claim; nothing where it holds."""
    try:
        said, digits = told(claim.text)
        there = number(root, claim)
    except ValueError as error:
        return str(error)
    # half a digit, and what a float adds to it
    near = abs(said - there) <= 0.5 * 10**-digits + 1e-9
    return "" if near else f"the file has {there:.10g}"


def refreshed(text: str, folder: str, root: Path = ROOT) -> str:
    """Return a text with the numbers of its links as the files have them now.

    Digits, signs and units stay as they are written; ``?`` becomes a number with one
    digit behind the point. What no file has is left.
    """

    def mended(found: re.Match) -> str:
        words, target, title = found.groups()
        if not title:
            return found[0]
        text = words if NUMBER.search(words) else words.replace("?", "0.0")
        claim = Claim(text, os.path.normpath(Path(folder, target)), title)
        try:
            _, digits = told(text)
            there = f"{number(root, claim):z{',' * (',' in text)}.{digits}f}"
        except ValueError:
            return found[0]
        if "−" in text or ("-" not in text and there.startswith("-")):
            there = there.replace("-", "−")
        if "+" in text and there[0].isdigit():
            there = f"+{there}"
        return f'[{NUMBER.sub(there, text)}]({target} "{title}")'

    return LINK.sub(mended, text)


def found_in(page: str) -> Iterator[str]:
    """Yield paragraphs, list items and tables' rows of the sections *What we found*."""
    for section in page.split(FOUND)[1:]:
        body = re.split(r"^#{1,3} |^<!-- ", section, maxsplit=1, flags=re.MULTILINE)[0]
        for part in re.split(r"\n\s*\n|\n(?=- |\d+\. )", body):
            rows = part.strip().splitlines()
            if rows and rows[0].lstrip().startswith("|"):
                yield from (row.strip(" |") for row in rows[2:])
            elif rows:
                yield re.sub(r"^(- |\d+\. )", "", " ".join(part.split()))


def sentences(part: str) -> list[str]:
    """Return the sentences of a paragraph; a link's title has no end of a sentence."""
    links = [match.group() for match in LINK.finditer(part)]
    masked = LINK.sub("\0", part)
    found, kept = [], iter(links)
    for each in re.split(r"(?<=[.!?])\s+(?=[A-Z*`\0])", masked):
        found.append(re.sub("\0", lambda _: next(kept), each))
    return found


def loose(sentence: str) -> list[str]:
    """Return measured numbers that no link ties to a file."""
    rest = re.sub(r"`[^`]*`", "", LINK.sub("", sentence))
    return MEASURED.findall(rest)


def sentences_of(notebook: dict) -> str:
    """Return what a notebook closes with, as far as it is written by hand."""
    cells = [c for c in notebook["cells"] if c.get("id") == SENTENCES]
    return "".join("".join(cell["source"]) for cell in cells)


def from_root(text: str, folder: str) -> str:
    """Return a text whose links begin at the repository in place of a folder."""

    def mended(found: re.Match) -> str:
        words, target, title = found.groups()
        if re.match(r"[a-z]+:", target):
            return found[0]
        there = os.path.normpath(Path(folder, target)).replace(os.sep, "/")
        return f"[{words}]({there}" + (f' "{title}")' if title else ")")

    return LINK.sub(mended, text)


def unsaid(text: str, about: dict) -> list[str]:
    """Return what a text says of seeds and rounds that its provenance does not."""
    notes = " ".join(note["text"] for note in about["notes"])
    found = []
    for word in re.findall(rf"\b({'|'.join(SEEDS)}) seeds?\b", text.lower()):
        if SEEDS[word] != len(about["seeds"]):
            found.append(f"{word} seeds, not {len(about['seeds'])}")
    for cut in re.findall(r"\d+ of \d+ (?:rounds|local epochs)", text):
        if cut not in notes:
            found.append(f"{cut}, of which the provenance says nothing")
    return found


def _unborne(parts: Iterator[str] | list[str], root: Path) -> Iterator[str]:
    """Yield in words which sentences of paragraphs rest on no file, or on none here."""
    for part in parts:
        for sentence in sentences(part):
            places = [file for _, file, _ in LINK.findall(sentence)]
            yield from (f"no such file: {f}" for f in places if not (root / f).exists())
            yield from (f"no file behind {n!r}: {sentence}" for n in loose(sentence))
            if not any(place.startswith(PLACES) for place in places):
                yield f"no artefact: {sentence}"


def _false(text: str, root: Path) -> list[str]:
    """Return the numbers of a text that their files do not have."""
    return [
        f"{claim.text} ({claim.file}, {claim.title}): {wrong(root, claim)}"
        for claim in claims(text)
        if wrong(root, claim)
    ]


def of_notebook(name: str, root: Path = ROOT) -> list[str]:
    """Return in words all that is wrong with the end of a notebook, ``fedmps/fig3``."""
    path = root / NOTEBOOKS / f"{name}.ipynb"
    kept = root / KEPT / f"{name}.json"
    text = sentences_of(json.loads(path.read_text("utf-8")))
    if bool(text) != kept.exists():
        lacks = f"no cell {SENTENCES!r}" if kept.exists() else "sentences of nothing"
        return [f"{lacks}, {KEPT}/{name}.json is {'' if kept.exists() else 'not '}here"]
    if not text:
        return []
    text = from_root(text, f"{NOTEBOOKS}/{name.partition('/')[0]}")
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
    about = json.loads(kept.read_text("utf-8"))
    return [*_false(text, root), *_unborne(parts, root), *unsaid(text, about)]


def problems(root: Path = ROOT) -> list[str]:
    """Return in words all that is wrong with README, the page and the notebooks."""
    readme, page = ((root / name).read_text("utf-8") for name in (README, PAGE))
    found = [*_false(readme, root), *_false(page, root)]
    found += _unborne(found_in(page), root)
    for path in sorted((root / NOTEBOOKS).glob("*/*.ipynb")):
        name = f"{path.parent.name}/{path.stem}"
        found += [f"{name}: {each}" for each in of_notebook(name, root)]
    return found


if __name__ == "__main__":
    text = problems()
    print(*text, sep="\n")
    sys.exit(bool(text))

"""Hold README's claims and REPRODUCTION.md's sentences to the files they rest on.

A measured number in a sentence is a link whose title says where the number stands::

    FedProto reaches [74.6](figures/cpu/fedmps/table3.csv "mean; method=fedproto")

The title names a column, then the cells that choose the one row. ``*100`` behind the
column makes percent of a share; ``less`` subtracts a second number, which shares the
cells that it does not name, and the column unless it names one. A number counts as told
when the file's, rounded to as many digits, is the same.

In the sections *What we found* every sentence has a link into ``figures/`` or
``results/``, and a number with a point or a percent sign is such a link or stands in
backticks: as a setting, which is not measured.
"""

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


def found_in(page: str) -> Iterator[str]:
    """Yield the paragraphs and list items of the sections *What we found*."""
    for section in page.split(FOUND)[1:]:
        body = re.split(r"^#{1,3} |^<!-- ", section, maxsplit=1, flags=re.MULTILINE)[0]
        for part in re.split(r"\n\s*\n|\n(?=- |\d+\. )", body):
            if part.strip():
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


def problems(root: Path = ROOT) -> list[str]:
    """Return in words all that is wrong with the two pages."""
    pages = [path.read_text("utf-8") for path in (root / README, root / PAGE)]
    found = [
        f"{claim.text} ({claim.file}, {claim.title}): {wrong(root, claim)}"
        for page in pages
        for claim in claims(page)
        if wrong(root, claim)
    ]
    page = pages[-1]
    for part in found_in(page):
        for sentence in sentences(part):
            places = [file for _, file, _ in LINK.findall(sentence)]
            found += [f"no such file: {f}" for f in places if not (root / f).exists()]
            found += [f"no file behind {n!r}: {sentence}" for n in loose(sentence)]
            if not any(place.startswith(PLACES) for place in places):
                found.append(f"no artefact: {sentence}")
    return found


if __name__ == "__main__":
    text = problems()
    print(*text, sep="\n")
    sys.exit(bool(text))

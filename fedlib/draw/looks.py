"""How methods, classes and controls look in every figure, and what they are called.

Colours are safe for colour-blind readers; marker and line alone, without colour, tell
any two methods apart. A method looks alike in every figure, its variants have its
colour, and controls are grey.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap, to_hex, to_rgb

from fedlib import registry

COLUMN, PAGE = 3.5, 7.16  # inches: one column, the full page
RC: Any = {
    "figure.dpi": 150,
    "savefig.dpi": 200,
    "savefig.bbox": "standard",
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.columnspacing": 1.2,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.markersize": 4,
    "hatch.linewidth": 0.6,
}

BLACK, GREY, SKY, BLUE, GREEN = "#000000", "#767676", "#56B4E9", "#0072B2", "#009E73"
ORANGE, OLIVE, PURPLE, WINE, RED = "#E69F00", "#8F8F23", "#B8569D", "#7A1F4D", "#D55E00"
DASH, DOT, DASHDOT, DASHDOTDOT = "--", ":", "-.", (0, (3, 1, 1, 1, 1, 1))
Line = str | tuple[int, tuple[int, ...]]


class Style(NamedTuple):
    """How a method is printed and drawn; the papers' own five are solid and thicker."""

    label: str
    colour: str
    marker: str
    line: Line
    hollow: bool = False  # a variant's marker is white inside

    @property
    def marks(self) -> dict[str, Any]:
        """How matplotlib draws the marker; hollow, it has the method's colour round."""
        return {
            "markersize": 6.5 if self.marker == "*" else 4,
            "markerfacecolor": "white" if self.hollow else self.colour,
            "markeredgecolor": self.colour if self.hollow else "white",
            "markeredgewidth": 0.8 if self.hollow else 0.4,
        }

    @property
    def width(self) -> float:
        """Line width in points."""
        return 1.7 if self.line == "-" else 1.1

    @property
    def stroke(self) -> dict[str, Any]:
        """How matplotlib draws a curve with its markers and its place in the legend."""
        return {
            "label": self.label,
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.line,
            "linewidth": self.width,
            "zorder": 3 if self.line == "-" else 2,
            **self.marks,
        }


# Looks in the order of the registry; methods of one paper differ in colour and marker.
OWN: list[tuple[str, str, Line]] = [
    (PURPLE, "s", "-"),
    (GREEN, "^", "-"),
    (RED, "o", "-"),
    (WINE, "D", "-"),
    (ORANGE, "*", "-"),
]
BASELINES: list[tuple[str, str, Line]] = [
    (GREY, "d", DOT),
    (BLACK, "v", DASH),
    (SKY, "<", DASHDOT),
    (WINE, "P", DASH),
    (ORANGE, "p", DASH),
    (OLIVE, ">", DASH),
    (BLUE, "X", DASH),
    (RED, "D", DASHDOT),
    (WINE, "X", DOT),
    (RED, "p", DASHDOT),
    (PURPLE, ">", DASHDOT),
    (OLIVE, "h", DASHDOTDOT),
    (PURPLE, "P", DASHDOT),
    (ORANGE, "s", DASHDOTDOT),
    (GREEN, ">", DOT),
    (GREEN, "P", DASHDOTDOT),
    (ORANGE, "^", DOT),
    (PURPLE, "p", DASHDOTDOT),
    (RED, "s", DASHDOT),
    (GREEN, "D", DASH),
    (WINE, "s", DOT),
]
# What a result is compared with, and is no result: grey in every figure.
CONTROLS = {"Another image", "Chance", "Class mean", "Real, to another one"}


# Of methods that are added, and of no other: told from all others by colour-blind
# readers, too.
ADDED = ["#5533FF", "#663300"]
# For classes, and for runs that are no method's.
CYCLE = [BLUE, RED, GREEN, PURPLE, ORANGE, SKY, WINE, OLIVE, BLACK, GREY]
MARKERS = "osD^vPX<>d"
LINES: list[Line] = [DASH, DOT, DASHDOT, DASHDOTDOT]
HATCHES = ["", "////", "....", "\\\\\\\\", "xxxx", "----", "++++", "||||", "oooo", "**"]
COUNTS = ListedColormap(mpl.colormaps["Blues"](np.linspace(0.12, 1, 256)))


def use_style() -> None:
    """Set the look of figures that a notebook draws by itself."""
    # Jupyter's backend turns interactive drawing on when it loads. Loaded inside one of
    # the contexts below, it would be turned off again, and later figures not be shown.
    plt.switch_backend(mpl.get_backend())
    plt.rcParams.update(RC)


def _is_of_papers(method: str) -> bool:
    return registry.module(method).startswith("fedlib.methods.")


def style(method: str) -> Style:
    """Return a method's style, by its place in the registry.

    Behind the last look of their kind, methods get markers and lines not yet taken, and
    first the colours that nobody has. One that is added from outside of the package has
    a baseline's lines.
    """
    of_papers = _is_of_papers(method)
    peers = [m for m in registry.METHODS if _is_of_papers(m) == of_papers]
    looks, lines = (OWN, ["-"]) if of_papers else (BASELINES, LINES)
    at = peers.index(method)
    if at < len(looks):
        return Style(registry.title(method), *looks[at])
    taken = {(marker, line) for _, marker, line in looks}
    every = [(marker, line) for line in lines for marker in MARKERS]
    free = [look for look in every if look not in taken]
    more = at - len(looks)
    colours = [*ADDED, *CYCLE]
    colour, (marker, line) = colours[more % len(colours)], free[more % len(free)]
    return Style(registry.title(method), colour, marker, line)


def tint(colour: str, strength: int) -> str:
    """Return a colour, or at strength 1 the lighter one of a method's next variant."""
    red, green, blue = (c + 0.35 * strength * (1 - c) for c in to_rgb(colour))
    return to_hex((red, green, blue))


def family(name: str) -> str | None:
    """Return the method that a name is of: its own, or the title that it begins with.

    ``fedpa``, ``FedPA (reference)`` and ``FedPA, squared`` are all ``fedpa``'s.
    """
    if name in registry.METHODS:
        return name
    titles = {registry.title(method): method for method in registry.METHODS}
    first = re.match(r"\w+", name)
    return titles.get(first[0]) if first else None


def _unlike(
    chosen: Iterable[Style], markers: Sequence[str], lines: Sequence[Line], shift: int
) -> tuple[str, Line]:
    """Return the marker that is used least, and a line that it does not have yet."""
    taken = [(look.marker, look.line) for look in chosen]
    used = [marker for marker, _ in taken]
    marker = min(markers, key=used.count)
    first = shift % len(lines)
    turn = [*lines[first:], *lines[:first]]
    return marker, next((one for one in turn if (marker, one) not in taken), turn[0])


def styles(names: Iterable[Any]) -> dict[str, Style]:
    """Return the style of each name: a method's own, or one that follows from it.

    A variant has its method's colour, every other one lighter, and a hollow marker and
    a line of its own; controls are grey. What is no method's gets a colour that nobody
    else has.
    """
    names = list(names)
    chosen = {name: style(name) for name in names if name in registry.METHODS}
    of = {name: family(str(name)) for name in names}
    own = {name: style(method).colour for name, method in of.items() if method}
    own |= dict.fromkeys(CONTROLS.intersection(names), GREY)
    free = sorted(range(len(CYCLE)), key=lambda i: CYCLE[i] in own.values())
    solid = [] if any(of.values()) else ["-"]
    others = 0
    for name in (name for name in names if name not in chosen):
        if name in own:
            shift = sum(of[other] == of[name] for other in chosen)
            colour = tint(own[name], shift % 2)
            avoid = [style(method).line] if (method := of[name]) else []
            lines = [line for line in LINES if line not in avoid]
            marker, line = _unlike(chosen.values(), MARKERS, lines, shift)
        else:
            at = free[others % len(free)]
            colour, markers = CYCLE[at], MARKERS[at:] + MARKERS[:at]
            lines = [*solid, *LINES]
            marker, line = _unlike(chosen.values(), markers, lines, others)
            others += 1
        hollow = name in own and name not in CONTROLS
        chosen[name] = Style(words(str(name)), colour, marker, line, hollow)
    return {name: chosen[name] for name in names}


# What a run's switches are called in pictures; others lose their underscores.
SWITCHES = {
    "clip": "clipped at {}",
    "hpal=raw_sum": "raw",
    "learning_rate": "rate {}",
    "local_unit=epochs": "E as epochs",
    "po_dist=mse": "squared",
}


def words(name: str) -> str:
    """Return a name of code in words: ``hpal=raw_sum`` is ``raw``."""

    def worded(match: re.Match) -> str:
        switch, value = match.groups()
        value = re.sub(r"\.0$", "", value)
        plain = f"{switch} {{}}"
        said = SWITCHES.get(match[0], SWITCHES.get(switch, plain)).format(value)
        return said.replace("_", " ")

    said = re.sub(r"(\w+)=([\w.+-]+)", worded, name)
    return said if "$" in said else re.sub(r"(?<=\w)_(?=\w)", " ", said)

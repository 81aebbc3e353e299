"""How methods, classes and controls look in every figure, and what they are called.

Colours are safe for colour-blind readers; marker and line alone, without colour, tell
any two methods apart. A method looks alike in every figure. Its variants have shades of
its colour that are apart in grey, too, and a line of their own; controls are grey.
"""

import itertools
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
    "legend.handlelength": 3.8,  # dashes are seen on both sides of a marker
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
LONG = (0, (9, 2))
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
            # a thin broken line over a thick one leaves both to be seen
            "zorder": 2 if self.line == "-" else 3,
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
# What is behind a method's name in print -> its place among looks of variants, the same
# in every figure. Others take the first place that is free.
PLACES = {
    "as released": 0,
    "raw": 1,
    "squared": 1,
    "distance mean": 1,
    "E as epochs": 2,
    "moments kept": 2,
    "rate 0.01": 2,
    "clipped at 5": 3,
    "raw, clipped at 5": 4,
    "raw, rate 0.01": 5,
}
HATCHES = ["", "////", "....", "\\\\\\\\", "xxxx", "----", "++++", "||||", "oooo", "**"]
COUNTS = ListedColormap(mpl.colormaps["Blues"](np.linspace(0.12, 1, 256)))


STEP = 20.0  # of L*, at most, between shades
DARK, LIGHT = 42.0, 60.0  # L* below which shades get lighter, and where they end
MIX = np.linspace(0, 1, 101)  # shares of white or black


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


def _lightness(colour: Any) -> float:
    """Return CIE L* of a colour: 0 black, 100 white."""
    c = np.array(to_rgb(colour))
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    bright = float(linear @ [0.2126, 0.7152, 0.0722])
    return 116 * np.cbrt(bright) - 16 if bright > 0.0089 else 903.3 * bright


def shade(colour: str, step: int) -> str:
    """Return a colour, or its shade of step 1 or 2, apart from it also in grey.

    Light colours get darker and dark ones lighter, so that all stand out from paper.
    """
    if step == 0:
        return colour
    own = _lightness(colour)
    by = min(STEP, (LIGHT - own) / 2) if own < DARK else -0.75 * STEP
    aim = own + by * step
    goal = np.array([1.0] * 3 if own < DARK else [0.0] * 3)
    mixed = [to_rgb(colour) + part * (goal - to_rgb(colour)) for part in MIX]
    return to_hex(min(mixed, key=lambda c: abs(_lightness(c) - aim)))


def _methods() -> dict[str, str]:
    """Return title -> method."""
    return {registry.title(method): method for method in registry.METHODS}


def family(name: str) -> str | None:
    """Return the method that a name is of: its own, or the title that it begins with.

    ``fedpa``, ``FedPA (reference)`` and ``FedPA, squared`` are all ``fedpa``'s.
    """
    if name in registry.METHODS:
        return name
    first = re.match(r"\w+", name)
    return _methods().get(first[0]) if first else None


def _free(
    chosen: Iterable[Style], marker: int, lines: Sequence[Line]
) -> tuple[str, Line]:
    """Return the first marker from a place on, and line, that nobody has together."""
    taken = {(look.marker, look.line) for look in chosen}
    turn = [*MARKERS[marker:], *MARKERS[:marker]]
    pairs = [(mark, line) for line in lines for mark in turn]
    return next((pair for pair in pairs if pair not in taken), pairs[0])


def _places(names: Sequence[str]) -> dict[str, int]:
    """Return each variant's place among those of its method: its own, or a free one."""
    wanted = {name: PLACES.get(_behind(name)) for name in names}
    taken: dict[int, str] = {}
    for name, place in wanted.items():
        if place is not None:
            taken.setdefault(place, name)
    free = (place for place in itertools.count() if place not in taken)
    places = {name: place for place, name in taken.items()}
    return {name: places[name] if name in places else next(free) for name in names}


def _behind(name: str) -> str:
    """Return what a title has behind its method's: ``as released``, ``squared``."""
    match = re.fullmatch(r"\w+ \((.+)\)", titled(name))
    return match[1] if match else ""


def _variants(method: str, names: Sequence[str], chosen: dict[str, Style]) -> None:
    """Add the looks of a method's variants to those chosen."""
    own = style(method)
    lines = [line for line in (*LINES, LONG) if line != own.line]
    for name, place in _places(names).items():
        first = place % len(lines)
        turn = [*lines[first:], *lines[:first]]
        marker, line = _free(chosen.values(), place % len(MARKERS), turn)
        tone = shade(own.colour, (2, 1, 0)[place % 3])
        chosen[name] = Style(titled(name), tone, marker, line, hollow=True)


def styles(names: Iterable[Any]) -> dict[str, Style]:
    """Return the style of each name: a method's own, or one that follows from it.

    A variant has a shade of its method's colour, a hollow marker and a line of its own;
    controls are grey. What is no method's gets a colour that nobody else has.
    """
    names = list(names)
    of = {name: family(str(name)) for name in names}
    called = _methods() | {method: method for method in registry.METHODS}
    chosen = {name: style(called[name]) for name in names if name in called}
    for method in dict.fromkeys(filter(None, of.values())):
        mine = [name for name in names if of[name] == method and name not in chosen]
        _variants(method, mine, chosen)
    rest = [name for name in names if name not in chosen]
    used = {style(method).colour for method in of.values() if method}
    used |= {GREY} if CONTROLS.intersection(rest) else set()
    free = sorted(range(len(CYCLE)), key=lambda i: CYCLE[i] in used)
    solid = [] if any(of.values()) else ["-"]
    count = {True: 0, False: 0}  # of controls, and of others
    for name in rest:
        control = name in CONTROLS
        lines = LINES if control else [*solid, *LINES]
        place = count[control]
        first = place % len(lines)
        at = first if control else free[place % len(free)]
        turn = [*lines[first:], *lines[:first]]
        marker, line = _free(chosen.values(), at, turn)
        colour = shade(GREY, place % 3) if control else CYCLE[at]
        chosen[name] = Style(titled(name), colour, marker, line)
        count[control] += 1
    return {name: chosen[name] for name in names}


def titled(name: Any) -> str:
    """Return how pictures call a method, or its variant in brackets behind it.

    ``FedPA, squared`` and ``FedPA (po_dist=mse)`` are both ``FedPA (squared)``.
    """
    said = words(registry.title(str(name)))
    return re.sub(r"^(\w+), (.+)$", r"\1 (\2)", said) if family(said) else said


# What a run's switches are called in pictures; others lose their underscores.
SWITCHES = {
    "clip": "clipped at {}",
    "hpal=raw_sum": "raw",
    "learning_rate": "rate {}",
    "local_unit=epochs": "E as epochs",
    "po_dist=mse": "squared",
}


def words(name: str) -> str:
    """Return a name of code in words: ``hpal=raw_sum`` is ``raw``.

    The variant ``reference`` is the released program.
    """

    def worded(match: re.Match) -> str:
        switch, value = match.groups()
        value = re.sub(r"\.0$", "", value)
        plain = f"{switch} {{}}"
        said = SWITCHES.get(match[0], SWITCHES.get(switch, plain)).format(value)
        return said.replace("_", " ")

    said = re.sub(r"(\w+)=([\w.+-]+)", worded, name)
    said = said.replace("(reference)", "(as released)")
    return said if "$" in said else re.sub(r"(?<=\w)_(?=\w)", " ", said)

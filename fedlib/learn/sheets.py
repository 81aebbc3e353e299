"""A method on one sheet: who sends what in a round, its box, paper beside release."""

import inspect
import re
import textwrap
from types import ModuleType

import matplotlib as mpl
import matplotlib.pyplot as plt
from IPython.display import Markdown, display
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlib.draw import looks
from fedlib.draw.tables import escape_markdown, markdown_table

LINE = 0.17  # inches: a line of text
SERVER, CLIENT = 0.08, 0.56  # where the two stand, in shares of the width
KINDS = ("down", "up", "client", "server")


def _step(ax: Axes, kind: str, text: str, top: float, bottom: float) -> None:
    """Draw a message as an arrow below its text, or what one side does beside it."""
    look = {"va": "top", "fontsize": 8}
    if kind in ("client", "server"):
        x = CLIENT if kind == "client" else SERVER
        ax.plot([x, x], [top, bottom], color=looks.SKY, lw=5, solid_capstyle="butt")
        ax.text(x + 0.015, top, text, **look)
        return
    begin, end = (SERVER, CLIENT) if kind == "down" else (CLIENT, SERVER)
    ax.text((begin + end) / 2, top, text, ha="center", **look)
    arrow = {"arrowstyle": "-|>", "color": looks.BLACK, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", xy=(end, bottom), xytext=(begin, bottom), arrowprops=arrow)


@mpl.rc_context(looks.RC)
def exchange(*steps: tuple[str, str]) -> tuple[Figure, list[str]]:
    """Draw a round from top to bottom: what travels, and who does what meanwhile.

    Parameters
    ----------
    *steps : (kind, text)
        ``"down"`` and ``"up"`` are messages, ``"client"`` and ``"server"`` what is
        done there; a text may have several lines.

    Returns
    -------
    figure, list of str
        The figure, and what travels, in order.

    Raises
    ------
    ValueError
        No step, or one that is none of the four kinds.
    """
    unknown = sorted({kind for kind, _ in steps} - {*KINDS})
    if unknown or not steps:
        got = ", ".join(unknown) or "none"
        raise ValueError(f"steps: got {got}, expected some of {', '.join(KINDS)}")
    lines = [2 + text.count("\n") for _, text in steps]
    size = (looks.PAGE, LINE * (2 + sum(lines)))
    fig, ax = plt.subplots(figsize=size, layout="constrained")
    ax.set(xlim=(0, 1), ylim=(2 + sum(lines), 0))
    ax.set_axis_off()
    for x, who in ((SERVER, "Server"), (CLIENT, "Each client")):
        ax.text(x, 0.1, who, ha="center", va="top", weight="bold")
        ax.plot([x, x], [1.4, 2 + sum(lines)], color=looks.GREY, lw=1, zorder=0)
    top = 1.8
    for (kind, text), count in zip(steps, lines, strict=True):
        _step(ax, kind, text, top, top + count - 0.6)
        top += count
    return fig, [text for kind, text in steps if kind in ("down", "up")]


def _section(module: ModuleType, name: str) -> str:
    """Return the part of a method's card below a heading, without its indent."""
    text = inspect.cleandoc(module.__doc__ or "")
    parts = re.split(r"^(\w+)\n(?=    )", text, flags=re.M)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    if name not in sections:
        got = f"got {module.__name__}, whose card has no part {name}"
        raise ValueError(f"module: {got}, expected the module of a method")
    return textwrap.dedent(sections[name])


def _rows(text: str) -> list[list[str]]:
    """Return the first table of a text, its header as the first row."""
    table = re.search(r"(?:^[^\n|]+\|[^\n]*\n)+", text, re.M)
    lines = table[0].splitlines() if table else []
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def sheet(module: ModuleType) -> None:
    """Display a method's cheat sheet, as its card has it at the top of the file.

    That is the box, the function of each equation, and where paper and released code
    differ, if a release is known.

    Raises
    ------
    ValueError
        A module without a card.
    """
    steps = re.split(r"^\d\. ", _section(module, "Box"), flags=re.M)[1:]
    steps = [escape_markdown(" ".join(step.split())) for step in steps]
    box = "\n".join(f"{n}. {step}" for n, step in enumerate(steps, 1))
    symbols = _rows(_section(module, "Symbols"))[1:]
    where = [row[-1:] + row[1:2] for row in symbols if row[-1].startswith("(")]
    where.sort(key=lambda row: int(re.findall(r"\d+", row[0])[0]))
    where = [[escape_markdown(cell) for cell in row] for row in where]
    parts = [box, markdown_table(["equation", "here"], where, set()).rstrip()]
    switches = _rows(_section(module, "Readings"))[1:]
    if switches:
        sides = [[row[0], *(f"`{cell}`" for cell in row[1:4])] for row in switches]
        header = ["term", "switch", "paper", "released"]
        parts.append(markdown_table(header, sides, set()))
    display(Markdown("\n\n".join(parts)))

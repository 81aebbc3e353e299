"""What methods do to embeddings of two numbers: one panel of the plane each."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import HTML
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image
from torch import Tensor

from fedlib import registry
from fedlib.core.net import State
from fedlib.core.protos import nearest
from fedlib.draw.looks import CYCLE, MARKERS, PAGE, RC
from fedlib.learn.toy import CLASSES, OWNED, Played

GRID = 160  # points across a panel
DPI = 100  # many marks: notebooks keep these pictures
FILM = 135  # dots per inch of a picture that moves, which has many frames
REGIONS = ListedColormap(CYCLE[:CLASSES])


def shown(played: Played, client: int = 0) -> tuple[State, tuple[int, ...], str]:
    """Return the model that is drawn, the classes it was trained on, and its name.

    The one that is evaluated; where every client has its own, that of ``client``. An
    ensemble has no plane of its own, so the server's model stands for it.
    """
    models, name = played.models, played.rule.model
    if name in ("global", "ensemble") and models.shared is not None:
        whose = "one model for all" if name == "global" else "of the vote; their mean"
        return models.shared, tuple(range(CLASSES)), whose
    stacked = models.personal if name == "personal" else models.received
    assert stacked is not None
    own = {k: v[client] for k, v in stacked.items()}
    return own, OWNED[client], f"model of client {client}"


def gathered(
    ax: Axes, z: Tensor, owner: Tensor, rings: Tensor, stars: Mapping[int, Tensor]
) -> None:
    """Draw points, and a ring and a star for each class, in the classes' colours.

    Parameters
    ----------
    z : Tensor ``[n, 2]``
    owner : Tensor ``[n]``
        The class of each point.
    rings : Tensor ``[C, 2]``
    stars : mapping
        Class -> ``[2]``; a class may have none.
    """
    for c, ring in enumerate(rings):
        colour = CYCLE[c]
        ax.scatter(*z[owner == c].T, s=6, color=colour)
        ax.scatter(*ring, s=55, facecolors="none", edgecolors=colour, linewidths=1.5)
        if c in stars:
            ax.scatter(*stars[c], marker="*", s=80, color=colour, ec="black", lw=0.5)


def gathered_legend(fig: Figure, classes: int = 10) -> None:
    """Say below a figure what points, rings, stars and colours of ``gathered`` are."""
    kinds = {"virtual images": (".", "0.3"), "virtual prototype": ("o", "none")}
    kinds |= {"true prototype": ("*", "0.3")}
    handles = [
        Line2D([], [], ls="", color="0.3", marker=marker, mfc=face, label=said)
        for said, (marker, face) in kinds.items()
    ]
    look: dict[str, Any] = {"ls": "", "marker": "o", "ms": 4}
    handles += [
        Line2D([], [], color=CYCLE[c], label=str(c), **look) for c in range(classes)
    ]
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": 3 + classes}
    where |= {"fontsize": 6.5, "handletextpad": 0.1, "columnspacing": 0.8}
    fig.legend(handles=handles, **where)


def _regions(played: Played, state: State, own: tuple[int, ...], z: Tensor) -> Tensor:
    """Return the class that the reported rule gives each point of the plane."""
    protos, readout = played.models.protos, played.rule.readout
    if readout.startswith("nearest") and protos is not None:
        given = nearest(z, protos)
    else:
        net = played.federation.ctx.net
        given = net.head(net.head_state(state), z)
    if readout.endswith("_own"):
        others = [c for c in range(CLASSES) if c not in own]
        given[:, others] = float("-inf")
    return given.argmax(1)


def _stars(played: Played) -> tuple[Tensor, list[int]]:
    """Return where the server's prototypes are, and of which classes.

    They are those that predict, or that the server keeps (FedPG); where it keeps
    mixtures (GFPL), each component's mean is one.
    """
    server = played.last.server
    protos = played.models.protos or getattr(server, "protos", None)
    if mixtures := getattr(server, "mixtures", None):
        classes = mixtures.present.nonzero()[:, 0]
        return mixtures.mean[mixtures.present], classes.tolist()
    if protos is None:
        return torch.empty(0, 2), []
    return protos.mean[protos.known], protos.known.nonzero().flatten().tolist()


def _points(played: Played) -> tuple[Tensor, Tensor, Tensor]:
    """Return where test samples are, their labels, and where known prototypes are."""
    net, test = played.federation.ctx.net, played.federation.test
    state, _, _ = shown(played)
    index = torch.cat(test.index).unique()
    with torch.no_grad():
        z, y = net(state, test.inputs(index)).high, test.y[index]
    return z, y, _stars(played)[0]


def _panel(ax: Axes, played: Played, within: Tensor | None = None) -> pd.DataFrame:
    """Draw a method's plane: around its own points, or around those of ``within``."""
    state, trained, whose = shown(played)
    z, y, stars = _points(played)
    everything = torch.cat([z, stars])
    inside = everything if within is None else within
    low, high = inside.min(0).values, inside.max(0).values
    middle, half = (low + high) / 2, 0.6 * (high - low).clamp(min=1e-3)
    x0, x1 = (middle[0] - half[0], middle[0] + half[0])
    y0, y1 = (middle[1] - half[1], middle[1] + half[1])
    lines = torch.linspace(0, 1, GRID)
    plane = torch.cartesian_prod(y0 + lines * (y1 - y0), x0 + lines * (x1 - x0))
    with torch.no_grad():
        given = _regions(played, state, trained, plane.flip(1)).view(GRID, GRID)
    extent = (float(x0), float(x1), float(y0), float(y1))
    ax.imshow(
        given.numpy(),
        cmap=REGIONS,
        vmin=0,
        vmax=CLASSES - 1,
        alpha=0.18,
        extent=extent,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    for c in range(CLASSES):
        full = c in trained
        ax.scatter(
            *z[y == c].T.numpy(),
            s=7,
            facecolors=CYCLE[c] if full else "none",
            edgecolors="none" if full else CYCLE[c],
            marker=MARKERS[c],
            linewidths=0 if full else 0.5,
            alpha=0.8,
        )
    known = _stars(played)[1]
    look: dict = {"s": 75, "marker": "*", "edgecolors": "black", "linewidths": 0.7}
    ax.scatter(*stars.T.numpy(), c=[CYCLE[c] for c in known], zorder=3, **look)
    ax.set(xticks=[], yticks=[], xlim=extent[:2], ylim=extent[2:])
    ax.spines[["top", "right"]].set_visible(True)
    name = registry.title(played.federation.method.name)
    ax.set_title(f"{name}: {100 * played.accuracy:.0f} %\n{whose}", fontsize=7)
    rows = pd.DataFrame(everything.numpy(), columns=["x", "y"])
    rows["label"] = y.tolist() + known
    rows["kind"] = ["sample"] * len(z) + ["prototype"] * len(known)
    return rows.assign(method=played.federation.method.name)


@mpl.rc_context(RC)
def planes(played: Mapping[str, Played]) -> tuple[Figure, pd.DataFrame]:
    """Draw the test samples of all classes in the plane of each method's embeddings.

    Shaded is the class that the method's own readout gives to a point, stars are
    global prototypes or the means of mixtures, hollow are classes that the drawn client
    does not have; the number is the accuracy on the clients' own test samples.

    Parameters
    ----------
    played : mapping from title to a method that was played
    """
    across = min(4, len(played))
    down = math.ceil(len(played) / across)
    fig, grid = plt.subplots(
        down,
        across,
        figsize=(PAGE, 1.95 * down + 0.3),
        dpi=DPI,
        layout="constrained",
        squeeze=False,
    )
    for unused in grid.flat[len(played) :]:
        unused.remove()
    parts = [
        _panel(ax, one) for ax, one in zip(grid.flat, played.values(), strict=False)
    ]
    handles = [
        Line2D(
            [], [], linestyle="", color=CYCLE[c], marker=MARKERS[c], label=f"digit {c}"
        )
        for c in range(CLASSES)
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=CLASSES)
    return fig, pd.concat(parts, ignore_index=True)


def _palette() -> Image.Image:
    """Return the colours of a picture that moves: those of classes, mixed and grey.

    One that is counted from a frame gives small marks, as stars are, their neighbours'
    colour.
    """
    ends = np.array([to_rgb(colour) for colour in CYCLE[:CLASSES]])
    mixed = [share * ends + (1 - share) for share in np.linspace(0.09, 1, 11)]
    dark = [share * ends for share in (0.35, 0.7)]
    grey = [np.full((1, 3), level) for level in np.linspace(0, 1, 8)]
    image = Image.new("P", (1, 1))
    colours = (255 * np.concatenate([*mixed, *dark, *grey])).round().astype(int)
    image.putpalette(colours.ravel().tolist())
    return image


@mpl.rc_context(RC)
def moving(frames: Sequence[Played], milliseconds: int = 700) -> HTML:
    """Show a method's plane round after round, as a picture that moves by itself.

    It has the same axes in all frames and needs no script, so that it moves wherever
    the page is read. What is shaded and starred is as in ``planes``.

    Parameters
    ----------
    frames : list of Played
        As ``toy.film`` returns them.
    milliseconds : int
        For which a frame stays; the last one stays three times as long.
    """
    within = torch.cat([torch.cat([z, s]) for z, _, s in map(_points, frames)])
    pictures, palette = [], _palette()
    for played in frames:
        fig, ax = plt.subplots(figsize=(2.9, 2.5), dpi=FILM, layout="constrained")
        _panel(ax, played, within)
        ax.set_title(f"round {played.last.number}: {ax.get_title()}", fontsize=7)
        buffer = io.BytesIO()
        fig.savefig(buffer, format="png", dpi=FILM)
        plt.close(fig)
        frame = Image.open(buffer).convert("RGB")
        pictures.append(frame.quantize(palette=palette, dither=Image.Dither.NONE))
    times = [milliseconds] * (len(pictures) - 1) + [3 * milliseconds]
    film = io.BytesIO()
    more = {"save_all": True, "append_images": pictures[1:], "duration": times}
    pictures[0].save(film, format="GIF", loop=0, **more)
    accuracies = ", ".join(f"{p.last.number}: {100 * p.accuracy:.0f} %" for p in frames)
    alt = f"The plane of embeddings, accuracy after round {accuracies}"
    data = base64.b64encode(film.getvalue()).decode()
    return HTML(f'<img alt="{alt}" src="data:image/gif;base64,{data}">')

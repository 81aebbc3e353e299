"""Pictures of FedMPS's embeddings as numbers: planes at both levels, and LayerCAM."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedlib import registry
from fedlib.core.layers import MaxPool2d
from fedlib.core.net import Net, State
from fedlib.core.protos import Protos
from fedlib.papers.study import Study
from fedlib.runs.features import distances, features, plane
from fedlib.runs.runner import Final, final

Level = Literal["low", "high"]


def global_prototypes(ended: Final, level: Level) -> Protos | None:
    """Return the server's prototypes of a level after the last round, if it has any."""
    fed, server, mine = ended
    if level == "high":
        return fed.method.models(fed.ctx, server, mine).protos
    low = getattr(server, "low", None)
    return low if isinstance(low, Protos) else None


def planes(
    study: Study,
    levels: Sequence[Level] = ("high",),
    *,
    client: int | None = None,
    split: Literal["train", "test"] = "test",
    seed: int = 0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return t-SNEs of embeddings with the global prototypes of their classes.

    Each run by the model that its method's rule evaluates; samples and prototypes are
    placed together.

    Parameters
    ----------
    client : int, optional
        Only this one's samples; by default those of all clients together.

    Returns
    -------
    DataFrame
        What ``panels.planes`` draws: panel, x, y, label, kind.
    DataFrame
        panel, samples, active (dimensions in which some sample is not 0), and in the
        space of the embeddings the mean distance within classes, between classes, and
        their ratio.
    """
    points, rows = [], []
    for label, result in zip(study.cells["method"], study.results, strict=True):
        ended = final(result.spec)
        seen = features(ended, result.paper_rule.model, split)
        chosen = torch.ones_like(seen.y, dtype=torch.bool)
        chosen = chosen if client is None else seen.client == client
        for level in levels:
            name = registry.title(label)
            title = f"{name}, {level} level" if len(levels) > 1 else name
            z, y = getattr(seen.out, level)[chosen].numpy(), seen.y[chosen].numpy()
            stars = global_prototypes(ended, level)
            owner = np.empty(0, dtype=np.int64)
            if stars is not None:
                owner = np.array([c for c in np.unique(y) if stars.known[c]], np.int64)
            both = [z] if stars is None else [z, stars.mean[owner].numpy()]
            xy = plane(np.concatenate(both), seed)
            part = pd.DataFrame(xy, columns=["x", "y"])
            part["label"] = np.concatenate([y, owner])
            part["kind"] = ["sample"] * len(y) + ["prototype"] * len(owner)
            points.append(part.assign(panel=title))
            row = {
                "panel": title,
                "samples": len(y),
                "active": int(z.any(axis=0).sum()),
            }
            rows.append(row | distances(z, y))
    samples = pd.concat(points, ignore_index=True)
    return samples[["panel", "x", "y", "label", "kind"]], pd.DataFrame(rows)


class LayerMap(NamedTuple):
    """The map of one layer for B images."""

    channels: int
    values: Tensor  # [B, h, w], not negative


def layer_maps(net: Net, state: State, x: Tensor, y: Tensor) -> list[LayerMap]:
    r"""Return LayerCAM's map of every convolution, in the net's order.

    .. math:: M = \mathrm{ReLU}\Big(\sum_c \mathrm{ReLU}\big(
        \partial s_y / \partial A_c\big) \odot A_c\Big)

    with :math:`s_y` the logit of the given class and :math:`A` the activation after
    the ReLU and the max-pooling that follow the convolution, which is what is flattened
    into an embedding (Jiang et al., LayerCAM, IEEE TIP 2021). In eval mode, each image
    by itself. A convolution without a ReLU before the next one has no map.

    Parameters
    ----------
    x : [B, c, h, w]
    y : int64 [B]
        The class whose score is explained.
    """
    layers: list[list[Tensor]] = []

    def keep(module: nn.Module, given: Any, result: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            layers.append([])
        elif result.ndim == 4:
            layers[-1].append(result)

    kinds = (nn.Conv2d, nn.ReLU, MaxPool2d)
    hooked = [m for m in net.module.modules() if isinstance(m, kinds)]
    hooks = [module.register_forward_hook(keep) for module in hooked]
    try:
        with torch.enable_grad():
            out = net(state, x.detach().clone().requires_grad_())
            score = out.logits.gather(1, y.unsqueeze(1)).sum()
            seen = [layer[-1] for layer in layers if layer]
            gradients = torch.autograd.grad(score, seen)
    finally:
        for hook in hooks:
            hook.remove()
    return [
        LayerMap(a.shape[1], (g.relu() * a).sum(1).relu().detach())
        for a, g in zip(seen, gradients, strict=True)
    ]


def client_maps(ended: Final, client: int, images: int) -> pd.DataFrame:
    """Return test images of a client with its model's first and last maps.

    The first test image of each of the client's classes, then the second, and so on.
    Maps are divided by their own largest value.

    Returns
    -------
    DataFrame
        One row per pixel: image (from 0), class, picture ("Image" or a layer with its
        size), y, x, channel (empty for maps and grey images), value in [0, 1].
    """
    fed, server, mine = ended
    labels = fed.test.y[fed.test.index[client]]
    turn = [int((labels[:i] == c).sum()) for i, c in enumerate(labels)]
    chosen = sorted(range(len(labels)), key=lambda i: (turn[i], i))[:images]
    index = fed.test.index[client][torch.tensor(chosen)]
    x, y = fed.test.inputs(index), fed.test.y[index]
    personal = fed.method.models(fed.ctx, server, mine).personal
    state = {name: value[client] for name, value in personal.items()}
    maps = layer_maps(fed.ctx.net, state, x, y)
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (fed.test.mean, fed.test.std))
    pixels = (x * std + mean).clamp(0, 1)
    drawn: list[tuple[str, Tensor]] = [("Image", pixels)]
    by_place = {"First": maps[0], "Last": maps[-1]} if len(maps) > 1 else {"": maps[0]}
    for which, layer in by_place.items():
        top = layer.values.flatten(1).amax(1).clamp(min=1e-12).view(-1, 1, 1)
        size = f"{layer.channels} × {layer.values.shape[1]} × {layer.values.shape[2]}"
        title = f"{which} convolution\n{size}".strip().capitalize()
        drawn.append((title, (layer.values / top).unsqueeze(1)))
    rows = []
    for title, values in drawn:
        for place, image in enumerate(values.numpy()):
            name = fed.dataset.classes[int(y[place])]
            for (channel, row, column), value in np.ndenumerate(image):
                shown = channel if len(image) > 1 else None
                rows.append((place, name, title, row, column, shown, float(value)))
    columns = ["image", "class", "picture", "y", "x", "channel", "value"]
    return pd.DataFrame(rows, columns=columns).astype({"channel": "Int64"})

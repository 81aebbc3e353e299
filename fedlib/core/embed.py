"""Embeddings of a cohort's samples in eval mode, and the prototypes made of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedlib.core.local import Trained
from fedlib.core.net import Net, Out, State
from fedlib.core.protos import Protos, class_sums, fill, from_sums
from fedlib.core.shards import Shards
from fedlib.core.tree import tree_map

Collection = Literal["train", "eval"]
Level = str | Callable[[Out], Tensor]  # an embedding's name, or it as a function

# What is embedded at once, so that it stays in the processor's cache: images of a
# client, and pixels of all clients' images
COLUMNS = 64
PIXELS = 2**18


class Embedded(NamedTuple):
    """The samples of some clients under their models."""

    clients: Tensor  # [G] positions in the shards
    index: Tensor  # [G, n] into the shards' tensors
    real: Tensor  # [G, n] bool; the others are padding
    out: Out  # [G, n, ...]


def padded(index: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return indices ``[K, n]``, filled up with 0, and the mask of the real ones."""
    longest = max(1, *(len(i) for i in index))
    padded = torch.zeros(len(index), longest, dtype=torch.int64)
    real = torch.zeros(len(index), longest, dtype=torch.bool)
    for row, rows in enumerate(index):
        padded[row, : len(rows)] = rows
        real[row, : len(rows)] = True
    return padded, real


def _alike(sizes: list[int], pixels: int) -> Iterator[list[int]]:
    """Yield clients of like size, longest first, as many as are embedded at once."""
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    while order:
        columns = min(COLUMNS, max(1, sizes[order[0]]))
        count = max(1, PIXELS // (columns * pixels))
        yield order[:count]
        order = order[count:]


@torch.no_grad()
def outputs(
    net: Net, state: State, shards: Shards, *, stacked: bool
) -> Iterator[Embedded]:
    """Yield the outputs of every client's samples, some clients at a time.

    What is computed at once is bounded, and little of it is padding. Who is beside whom
    changes nothing but rounding (1e-6), and not even that where clients are alike.

    Parameters
    ----------
    stacked : bool
        Whether ``state`` has a client axis, or is one model for all.
    """
    pixels = shards.x[0, 0].numel() if shards.x.ndim > 2 else 1
    for clients in _alike([len(i) for i in shards.index], pixels):
        rows = torch.tensor(clients)
        index, real = padded([shards.index[i] for i in clients])
        if stacked:
            own = {name: value[rows] for name, value in state.items()}
            parts = [vmap(net)(own, shards.inputs(c)) for c in index.split(COLUMNS, 1)]
            out = Out(*(torch.cat(part, 1) for part in zip(*parts, strict=True)))
        else:
            samples = index[real]
            batches = samples.split(max(1, PIXELS // pixels))
            one = {name: value.unsqueeze(0) for name, value in state.items()}
            parts = [vmap(net)(one, shards.inputs(b.unsqueeze(0))) for b in batches]
            flat = (torch.cat(part, 1)[0] for part in zip(*parts, strict=True))
            out = Out(*(_unflat(part, real) for part in flat))
        yield Embedded(rows, index, real, out)


def _unflat(flat: Tensor, real: Tensor) -> Tensor:
    """Return ``[G, n, ...]`` of samples ``[B, ...]``; 0 where none is ``real``."""
    padded = flat.new_zeros(*real.shape, *flat.shape[1:])
    padded[real] = flat
    return padded


def forward(
    net: Net, state: State, shards: Shards, *, stacked: bool
) -> tuple[Out, Tensor]:
    """Return the outputs ``[K, n, ...]`` of every client's samples, and their mask.

    Parameters
    ----------
    stacked : bool
        As in ``outputs``.
    """
    _, real = padded(shards.index)
    fields: list[Tensor] = []
    for group in outputs(net, state, shards, stacked=stacked):
        if not fields:
            fields = [p.new_zeros(*real.shape, *p.shape[2:]) for p in group.out]
        for all_of_it, part in zip(fields, group.out, strict=True):
            all_of_it[group.clients, : part.shape[1]] = part
    return Out(*fields), real


def class_means_of(
    net: Net,
    state: State,
    shards: Shards,
    levels: Sequence[Level],
    *,
    stacked: bool = True,
) -> list[Protos]:
    """Return class means ``[K, C, d]`` of several embeddings, in one pass."""
    plain = shards._replace(augment=None)
    count, longest = len(shards.index), max(1, *(len(i) for i in shards.index))
    means: list[Protos] = []
    for group in outputs(net, state, plain, stacked=stacked):
        beyond = longest - group.real.shape[1]  # sums keep their order, and their bits
        labels = torch.where(group.real, shards.y[group.index], -1)
        labels = F.pad(labels, (0, beyond), value=-1)
        parts = []
        for level in levels:
            z = (
                getattr(group.out, level)
                if isinstance(level, str)
                else level(group.out)
            )
            sums = class_sums(F.pad(z, (0, 0, 0, beyond)), labels, net.classes)
            parts.append(from_sums(*sums))
        if not means:
            means = [
                tree_map(lambda leaf: leaf.new_zeros(count, *leaf.shape[1:]), part)
                for part in parts
            ]
        for mean, part in zip(means, parts, strict=True):
            for leaf, values in zip(mean, part, strict=True):
                leaf[group.clients] = values
    return means


def class_means(
    net: Net,
    state: State,
    shards: Shards,
    level: Level,
    *,
    stacked: bool = True,
) -> Protos:
    """Return class means ``[K, C, d]`` in eval mode, unaugmented.

    Parameters
    ----------
    level : str or callable
        Which embedding, or a function of the outputs ``[G, n, ...]`` of G clients.
    """
    return class_means_of(net, state, shards, [level], stacked=stacked)[0]


def owned(shards: Shards, classes: int) -> Tensor:
    """Return the mask ``[K, C]`` of the classes in each client's data."""
    return shards.label_counts(classes) > 0


def collect(
    net: Net,
    trained: Trained,
    shards: Shards,
    level: str,
    how: Collection,
    *,
    of: Callable[[Out], Tensor] | None = None,
) -> Protos:
    """Return the local prototypes ``[K, C, d]`` that a cohort uploads.

    Parameters
    ----------
    level : str
        Which embedding; the method's loss must have returned it for "train".
    of : callable, optional
        The embedding as a function of the outputs, where it is neither "low" nor
        "high".
    how : "train" or "eval"
        From the last local epoch, in train mode and before each step's update, with
        classes that a dropped batch removed computed afterwards; or all of them
        computed after training, in eval mode.
    """
    return collect_each(net, trained, shards, {level: of or level}, how)[0]


def collect_each(
    net: Net,
    trained: Trained,
    shards: Shards,
    levels: Mapping[str, Level],
    how: Collection,
) -> list[Protos]:
    """Return what ``collect`` does of several embeddings by name, in one pass."""
    sources = list(levels.values())
    if how == "eval":
        return class_means_of(net, trained.state, shards, sources)
    seen = [trained.protos[name] for name in levels]
    held = owned(shards, net.classes)
    if all(bool((one.known | ~held).all()) for one in seen):
        return seen
    means = class_means_of(net, trained.state, shards, sources)
    return [fill(one, other) for one, other in zip(seen, means, strict=True)]

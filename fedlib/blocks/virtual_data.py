"""Virtual images beside a client's own: labels, batches and alignment (VHL, FedPG).

A set of virtual images holds as many of each class, class after class.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.core.losses import supcon
from fedlib.core.method import Context

VIRTUAL_SUPCON_WEIGHT = 0.1  # of the released SupCon over virtual embeddings alone


def labels(classes: int, per_class: int) -> Tensor:
    """Return the labels ``[classes per_class]`` of a set of virtual images."""
    return torch.arange(classes).repeat_interleave(per_class)


def batches(
    classes: int, per_class: int, size: int, draw: torch.Generator, *, balanced: bool
) -> tuple[Tensor, ...]:
    """Return a client's batches of a round: indices into the set, in shuffled order.

    Parameters
    ----------
    size : int
        Images per batch.
    balanced : bool
        Whether batches hold every class equally often, at least once; their size is
        then rounded to a multiple of ``classes``.
    """
    if not balanced:
        return torch.randperm(classes * per_class, generator=draw).split(size)
    order = [torch.randperm(per_class, generator=draw) for _ in range(classes)]
    rows = torch.stack([c * per_class + o for c, o in enumerate(order)], 1)
    return tuple(r.flatten() for r in rows.split(max(1, size // classes)))


def plans(ctx: Context, clients: Sequence[int]) -> dict[int, tuple[Tensor, ...]]:
    """Return each client's ``batches`` of this round.

    Of the hyper-parameters ``virtual_per_class``, ``v_batch_size`` and
    ``v_batch_balanced`` are read.
    """
    hp = ctx.hp
    return {
        client: batches(
            ctx.classes,
            hp.virtual_per_class,
            hp.v_batch_size,
            ctx.random("virtual batches", client),
            balanced=hp.v_batch_balanced,
        )
        for client in clients
    }


def cycled(
    plans: Mapping[int, Sequence[Tensor]],
) -> Callable[[int, int], dict[str, Tensor]]:
    """Return a ``draw`` for training: each client's batches again and again."""

    def draw(client: int, step: int) -> dict[str, Tensor]:
        return {"virtual": plans[client][step % len(plans[client])]}

    return draw


def supcon_over_all(v: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return SupCon with anchors without a positive as zeros in the mean (released)."""
    paired = (labels == labels.unsqueeze(1)).sum(1) > 1
    return paired.to(v.dtype).mean() * supcon(v, labels, temperature)


def supcon_union(
    z: Tensor, y: Tensor, virtual: Tensor, labels: Tensor, temperature: float
) -> Tensor:
    """Return SupCon ``[]`` over own and virtual embeddings, at unit length.

    The virtual ones are constants in it; a tenth of SupCon over them alone is added.

    Parameters
    ----------
    z, y : Tensor
        ``[B, d]`` embeddings of a client's samples and their classes ``[B]``.
    virtual, labels : Tensor
        ``[V, d]`` embeddings of virtual images and their classes ``[V]``.
    """
    z, virtual = (F.normalize(v, eps=1e-12) for v in (z, virtual))
    union, classes = torch.cat([z, virtual.detach()]), torch.cat([y, labels])
    alone = supcon_over_all(virtual, labels, temperature)
    return supcon_over_all(union, classes, temperature) + VIRTUAL_SUPCON_WEIGHT * alone

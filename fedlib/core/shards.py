"""The data of a cohort, and the order in which its batches are trained on.

A batch is a batch: a client with fewer of them has a shorter plan, and the last one may
be short. Nothing is padded, so losses need no masks.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedlib.core.augment import Augment, apply_augment, draw_augment, normalise
from fedlib.core.training import Training

Random = Callable[..., torch.Generator]  # (purpose, client) -> generator


class Shards(NamedTuple):
    """The data of a cohort: index lists into shared tensors."""

    x: Tensor  # [M, ...] uint8 images, or float inputs that need no transform
    y: Tensor  # [M] int64
    index: list[Tensor]  # K index lists into x and y
    ids: list[int]  # the clients' numbers, which name their random generators
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: Augment | None = None

    def inputs(self, index: Tensor, draws: Tensor | None = None) -> Tensor:
        """Return model inputs for indices of any shape, augmented by ``draws``."""
        x = self.x.index_select(0, index.flatten())  # copies rows; x[...] elements
        if self.augment is not None and draws is not None:
            x = apply_augment(x, draws.flatten(0, -2), self.augment.padding)
        if x.dtype == torch.uint8:
            x = normalise(x, self.mean, self.std)
        return x.unflatten(0, index.shape)

    def sizes(self) -> Tensor:
        """Return each client's number of samples ``[K]``."""
        return torch.tensor([len(i) for i in self.index])

    def label_counts(self, classes: int) -> Tensor:
        """Return each client's number of samples of each class, ``[K, C]``."""
        return torch.stack([self.y[i].bincount(minlength=classes) for i in self.index])

    def cohort(self, clients: list[int]) -> "Shards":
        """Return the shards of some positions."""
        return self._replace(
            index=[self.index[i] for i in clients], ids=[self.ids[i] for i in clients]
        )


class Plan(NamedTuple):
    """The batches of one client, in order, over all its epochs."""

    order: Tensor  # indices into the shards' tensors, epoch after epoch
    draws: Tensor  # [order, 3] of the augmentation; [order, 0] without one
    spans: list[tuple[int, int]]  # start and end in order
    counted_from: int  # the first step of the last epoch; 0 of ``local_steps``


def plan_of(shards: Shards, client: int, training: Training, random: Random) -> Plan:
    """Return the batches of the client at a position, shuffled in each epoch."""
    rows = shards.index[client]
    count, size = len(rows), training.batch_size
    full = training.drop_last and count >= size
    single = training.drop_single and count > size and count % size == 1
    stop = count - count % size if full or single else count
    starts = range(0, stop, size)
    steps = training.local_steps or training.local_epochs * len(starts)
    epochs = range(-(-steps // len(starts)))
    shuffle = random("batches", shards.ids[client])
    order = torch.cat([rows[torch.randperm(count, generator=shuffle)] for _ in epochs])
    spans = [
        (e * count + s, e * count + min(s + size, stop)) for e in epochs for s in starts
    ][:steps]
    draws = torch.zeros(len(order), 0)
    if shards.augment is not None:
        pick = random("augment", shards.ids[client])
        draws = draw_augment(shards.augment, len(order), pick)
        if shards.augment.per_batch:
            for start, end in spans:
                draws[start:end] = draws[start]
    counted_from = 0 if training.local_steps else steps - len(starts)
    return Plan(order, draws, spans, counted_from)


class Table(NamedTuple):
    """The batches of a chunk's clients, one client after another."""

    order: Tensor  # [n] indices into the shards' tensors
    draws: Tensor  # [n, 3] of the augmentation; [n, 0] without one
    begin: Tensor  # [steps, K] where in order each batch begins
    keys: Tensor  # [steps, K, D] of each dropout

    def rows(self, step: int, chosen: Tensor | slice, size: int) -> Tensor:
        """Return the places ``[K', size]`` of some clients' batches in ``order``."""
        return self.begin[step, chosen].unsqueeze(1) + torch.arange(size)


def table_of(plans: list[Plan], keys: list[Tensor]) -> Table:
    """Return the batches of clients, whose dropout keys are ``[steps, D]``."""
    lengths = torch.tensor([0, *(len(plan.order) for plan in plans[:-1])])
    starts = [torch.tensor([start for start, _ in plan.spans]) for plan in plans]
    return Table(
        torch.cat([plan.order for plan in plans]),
        torch.cat([plan.draws for plan in plans]),
        pad_sequence(starts) + lengths.cumsum(0),
        pad_sequence(keys),
    )

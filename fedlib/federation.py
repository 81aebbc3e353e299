"""A federation: data, partition, net and method of a spec, ready to step."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedlib import nets, registry
from fedlib.data import Dataset, load
from fedlib.local import Shards
from fedlib.method import Context, Method, Round, rounds
from fedlib.partition import Partition, nway_kshot
from fedlib.readouts import evaluate
from fedlib.spec import Spec
from fedlib.tree import Tree

BIG_LAYER = 200_000  # weights of one layer; stacking many such is slower than chunks


class Federation(NamedTuple):
    """Everything a method needs, ready to step: ``next(federation(spec).rounds())``."""

    spec: Spec
    method: Method
    ctx: Context
    dataset: Dataset
    partition: Partition
    train: Shards
    test: Shards

    def rounds(self, start: tuple[int, Tree, Tree] | None = None) -> Iterator[Round]:
        """Yield the federation after each round."""
        return rounds(
            self.method,
            self.ctx,
            self.train,
            participation=self.spec.participation,
            start=start,
        )

    def evaluate(self, after: Round) -> dict[str, Tensor]:
        """Return right predictions per client under every model and rule."""
        models = self.method.models(self.ctx, after.server, after.mine)
        return evaluate(
            self.ctx.net, models, self.partition.owns, self.train, self.test
        )


def _partition(spec: Spec, data: Dataset) -> Partition:
    seed = spec.seed if spec.partition_seed is None else spec.partition_seed
    settings = spec.partition.model_dump(exclude={"scheme"})
    return nway_kshot(
        data.train_y, data.test_y, clients=spec.clients, seed=seed, **settings
    )


def _inputs(x: Tensor, data: Dataset) -> Tensor:
    """Return images as stored when they are augmented per batch, else normalised."""
    blank = Shards(x, torch.empty(0), [], [], data.mean, data.std)
    return x if data.augment else blank.inputs(torch.arange(len(x)))


def _shards(x: Tensor, y: Tensor, index: list[Tensor], data: Dataset) -> Shards:
    """Copy the samples that clients hold into tensors of their own."""
    kept = torch.cat(index).unique()
    place = torch.full((len(y),), -1)
    place[kept] = torch.arange(len(kept))
    return Shards(
        _inputs(x[kept], data),
        y[kept],
        [place[i] for i in index],
        list(range(len(index))),
        data.mean,
        data.std,
        data.augment,
    )


def federation(spec: Spec, *, chunk: int | None = None) -> Federation:
    """Load the data, draw the partition and build the net of a spec.

    Parameters
    ----------
    chunk : int, optional
        Clients trained side by side; by default all, or 4 for nets with a large layer.
    """
    data = load(spec.dataset)
    method = registry.method(spec.method)
    classes = len(data.classes)
    shape = tuple(data.train_x.shape[1:])
    net = nets.build(spec.net, (shape[0], shape[1], shape[2]), classes)
    if chunk is None and max(p.numel() for p in net.module.parameters()) > BIG_LAYER:
        chunk = 4
    ctx = Context(
        hp=method.hp(**spec.hp),
        net=net,
        training=spec.training,
        classes=classes,
        clients=spec.clients,
        seed=spec.seed,
        chunk=chunk,
    )
    partition = _partition(spec, data)
    train = _shards(data.train_x, data.train_y, partition.train, data)
    test = _shards(
        data.test_x, data.test_y, partition.test, data._replace(augment=None)
    )
    return Federation(spec, method, ctx, data, partition, train, test)

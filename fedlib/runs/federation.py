"""A federation: data, partition, net and method of a spec, ready to step."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedlib import registry
from fedlib.core import nets
from fedlib.core.augment import Augment, apply_augment, draw_augment
from fedlib.core.log import Log
from fedlib.core.messages import Size, sizes
from fedlib.core.method import Context, Method, Round, rounds
from fedlib.core.net import Net
from fedlib.core.readouts import Models, evaluate, evaluate_full
from fedlib.core.rng import generator
from fedlib.core.shards import Shards
from fedlib.core.tree import Tree, flatten
from fedlib.data import Dataset, Transform, load
from fedlib.partitions import Partition, draw
from fedlib.runs.keep_moments import keep_moments
from fedlib.runs.spec import Spec
from fedlib.runs.withhold import withhold

# Weights of one layer above which stacking clients is slower than training them apart
# (benchmarks on one thread: ResNet-10 is 1.45 times slower with four side by side).
BIG_KERNEL = 30_000  # of a convolution: one client at a time
BIG_LAYER = 200_000  # of any layer: four
SIDE_BY_SIDE = 64  # of any net: memory stays that of a few, and time is linear
FLOAT_BYTES = 2**29  # of normalised images; more are normalised batch by batch


class Federation(NamedTuple):
    """Everything a method needs, ready to step: ``next(federation(spec).rounds())``."""

    spec: Spec
    method: Method
    ctx: Context
    dataset: Dataset
    partition: Partition
    train: Shards
    test: Shards
    full: Shards | None  # the whole test set, where the spec asks for it; by group

    @property
    def forgets(self) -> bool:
        """Whether clients have nothing of their own between rounds."""
        return self.method.forgets(self.ctx.hp)

    def kept_bytes(self, after: Round) -> dict[str, int]:
        """Return what the server, and all clients, keep from one round to the next."""
        trees = {"server": after.server, "clients": {} if self.forgets else after.mine}
        return {
            name: sum(v.numel() * v.element_size() for v in flatten(tree).values())
            for name, tree in trees.items()
        }

    def rounds(self, start: tuple[int, Tree, Tree] | None = None) -> Iterator[Round]:
        """Yield the federation after each round."""
        return rounds(
            self.method,
            self.ctx,
            self.train,
            participation=self.spec.participation,
            start=start,
        )

    def models(self, after: Round) -> tuple[Models, dict[str, Size]]:
        """Return what can be evaluated, and what finalising it has sent.

        A method that is finalised is so on the side: the rounds do not see it.
        """
        server, sent = after.server, {}
        if self.method.survey is not None and self.method.finalise is not None:
            ctx = replace(self.ctx, round=after.number)
            up = self.method.survey(ctx, server, after.mine, self.train)
            sent = sizes(up, self.ctx.clients)
            server = self.method.finalise(ctx, server, up)
        return self.method.models(self.ctx, server, after.mine), sent

    def evaluate(self, after: Round, *, every_rule: bool = True) -> dict[str, Tensor]:
        """Return right predictions under every model and rule, as a log's rows.

        Their names are those of ``Log``.

        Parameters
        ----------
        every_rule : bool
            Otherwise the paper's model alone, on the data that its accuracy is measured
            on, under the rules that one pass over these gives.
        """
        (models, sent), net = self.models(after), self.ctx.net
        model = self.method.rule(self.ctx.hp).model
        on_full = self.full is not None and model in ("global", "ensemble")
        log = Log(samples=self.test.sizes()).flat()
        if every_rule or not on_full:
            only = None if every_rule else model
            cohort = after.cohort if self.forgets else None
            log |= evaluate(
                *(net, models, self.partition.owns, self.train, self.test),
                only=only,
                cohort=cohort,
            )
        final = {f"up/{name}": torch.tensor(size) for name, size in sent.items()}
        log |= Log(final=final).flat()
        if self.full is not None and (every_rule or on_full):
            log |= evaluate_full(net, models, self.full)
        return log


def partition_of(spec: Spec, data: Dataset) -> Partition:
    """Return who holds which samples of a data set under a spec."""
    return draw(
        spec.partition,
        data.train_y,
        data.test_y,
        clients=spec.clients,
        seed=spec.seed if spec.partition_seed is None else spec.partition_seed,
        imbalance=spec.imbalance,
        groups=data.groups and data.groups.train,
        test_groups=data.groups and data.groups.test,
    )


def _transformed(data: Dataset, transform: Transform | None) -> Dataset:
    """Return the data set with the spec's normalisation and augmentation."""
    if transform is None:
        return data
    augment = None
    if transform.padding or transform.flip:
        augment = Augment(transform.padding, transform.flip, transform.per_batch)
    mean, std = transform.mean or data.mean, transform.std or data.std
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != len(data.mean):
            raise ValueError(
                f"transform.{name}: got {values}, expected {len(data.mean)} numbers, "
                f"one per channel of {data.name}"
            )
    return data._replace(mean=mean, std=std, augment=augment)


def _resized(x: Tensor, side: int | None) -> Tensor:
    """Return uint8 images resized to a square: bilinear, antialiased."""
    if side is None:
        return x
    from torchvision.transforms.v2.functional import resize

    return torch.cat([resize(part, [side, side]) for part in x.split(1024)])


def _crops(spec: Spec, data: Dataset) -> Tensor | None:
    """Return where every test image is cropped, once for the whole run, if at all."""
    if spec.transform is None or not spec.transform.crop_test:
        return None
    crop = Augment(spec.transform.padding, flip=False)
    return draw_augment(crop, len(data.test_y), generator(spec.seed, "test crop"))


def _inputs(x: Tensor, data: Dataset) -> Tensor:
    """Return images as stored when augmented per batch or many, else normalised."""
    if data.augment or 4 * x.numel() > FLOAT_BYTES:
        return x
    blank = Shards(x, torch.empty(0), [], [], data.mean, data.std)
    return blank.inputs(torch.arange(len(x)))


def _shards(
    x: Tensor,
    y: Tensor,
    index: list[Tensor],
    data: Dataset,
    transform: Transform,
    crops: Tensor | None = None,
) -> Shards:
    """Copy the samples that clients hold into tensors of their own.

    They are resized and cropped first, where ``transform`` asks for it.
    """
    rows = torch.cat(index).unique()
    place = torch.full((len(y),), -1)
    place[rows] = torch.arange(len(rows))
    images = _resized(x[rows], transform.side)
    if crops is not None:
        images = apply_augment(images, crops[rows], transform.padding)
    return Shards(
        _inputs(images, data),
        y[rows],
        [place[i] for i in index],
        list(range(len(index))),
        data.mean,
        data.std,
        data.augment,
    )


def _full_index(spec: Spec, data: Dataset) -> list[Tensor] | None:
    """Return the whole test set where the spec asks for it, at once or by group."""
    if spec.test == "full":
        return [torch.arange(len(data.test_y))]
    if spec.test != "groups":
        return None
    if data.groups is None:
        raise ValueError(f"test: got 'groups', which {data.name} does not have")
    every = range(len(data.groups.names))
    return [torch.nonzero(data.groups.test == g).flatten() for g in every]


def clients_side_by_side(net: Net) -> int:
    """Return how many clients to train at once: fewer where layers are large."""
    weights = list(net.module.parameters())
    if max((p.numel() for p in weights if p.ndim == 4), default=0) > BIG_KERNEL:
        return 1
    return 4 if max(p.numel() for p in weights) > BIG_LAYER else SIDE_BY_SIDE


def federation(spec: Spec, *, chunk: int | None = None) -> Federation:
    """Load the data, draw the partition and build the net of a spec.

    Parameters
    ----------
    chunk : int, optional
        Clients trained side by side; by default ``clients_side_by_side``.
    """
    data = _transformed(load(spec.dataset), spec.transform)
    method = registry.method(spec.method)
    if spec.min_count > 1:
        method = withhold(method, spec.min_count)
    hp = method.hp(**spec.hp)
    if spec.training.keep_moments and getattr(hp, "moments", "") != "persist":
        method = keep_moments(method)
    classes = len(data.classes)
    transform = spec.transform or Transform()
    channels, height, width = data.train_x.shape[1:]
    side = transform.side
    size = (channels, side or height, side or width)
    net = nets.build(spec.net, size, classes, embedding=spec.embedding)
    net = net._replace(precision=spec.precision)
    ctx = Context(
        hp=hp,
        net=net,
        training=spec.training,
        classes=classes,
        clients=spec.clients,
        seed=spec.seed,
        chunk=chunk or clients_side_by_side(net),
    )
    partition = partition_of(spec, data)
    held = partition.owns.any(0).nonzero().flatten().tolist()
    ctx = replace(ctx, held=tuple(held))
    train = _shards(data.train_x, data.train_y, partition.train, data, transform)
    plain, crops = data._replace(augment=None), _crops(spec, data)

    def tests(index: list[Tensor]) -> Shards:
        return _shards(data.test_x, data.test_y, index, plain, transform, crops)

    full_index = _full_index(spec, data)
    full = None if full_index is None else tests(full_index)
    test = tests(partition.test)
    return Federation(spec, method, ctx, data, partition, train, test, full)

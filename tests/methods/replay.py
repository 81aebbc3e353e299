"""What the replays of the five methods share: nets, batches, largest differences.

A replay is a second implementation: ordinary loops over clients and batches, written
from the paper and from what the released program does, with torch's own layers,
autograd and optimisers. It takes first weights, partition and random draws from the
library, so that both see the same, and nothing else. ``pytest -k replay tests/methods``
ends with a table of the largest differences.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.core.rng import generator
from fedlib.runs.federation import Federation

State = Mapping[str, Tensor]
TOLERANCE = 1e-9  # in float64, relative to the largest number of a tensor


class Digits(nn.Module):
    """The library's small nets for 8 x 8 images, in torch's own layers.

    Parameters
    ----------
    kind : "cnn", "linear" or "bn"
        Two-layer head on unit embeddings; linear head; that with BatchNorm.
    """

    def __init__(self, kind: str):
        super().__init__()
        low: list[nn.Module] = []
        for inputs, outputs in ((1, 8), (8, 16)):
            low.append(nn.Conv2d(inputs, outputs, 3, padding=1))
            low += [nn.BatchNorm2d(outputs)] if kind == "bn" else []
            low += [nn.ReLU(), nn.MaxPool2d(2)]
        self.unit = kind == "cnn"
        self.low = nn.Sequential(*low)
        self.high = nn.Sequential(nn.Flatten(), nn.Linear(64, 32))
        self.head = nn.Sequential(nn.Linear(32, 10))
        if self.unit:
            self.high.append(nn.ReLU())
            self.head = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return low embeddings, high embeddings and logits."""
        features = self.low(x)
        low, high = features.flatten(1), self.high(features)
        if self.unit:
            low, high = (F.normalize(z, dim=1) for z in (low, high))
        return low, high, self.head(high)


def loaded(module: nn.Module, state: State, row: int | None = None) -> nn.Module:
    """Return a copy of a module in train mode with a state, or one of stacked ones."""
    fresh = copy.deepcopy(module).train()
    fresh.load_state_dict(
        {
            name: (value if row is None else value[row]).clone()
            for name, value in state.items()
            if not name.startswith("own.")
        }
    )
    return fresh


def draws(fed: Federation, purpose: str, number: int, client: int | str = "server"):
    """Return the random numbers that the library has for a purpose in a round."""
    return generator(fed.spec.seed, purpose, number, client)


def batches(
    fed: Federation, number: int, client: int, phase: str = "", epochs: int = 0
) -> list[list[Tensor]]:
    """Return the rows of a client's batches in a round, epoch by epoch."""
    training, mine = fed.spec.training, fed.train.index[client]
    size, shuffle = training.batch_size, draws(fed, phase + "batches", number, client)
    plan: list[list[Tensor]] = []
    steps = training.local_steps
    while len(plan) < (steps or epochs or training.local_epochs):
        order = mine[torch.randperm(len(mine), generator=shuffle)]
        cut = [order[i : i + size] for i in range(0, len(order), size)]
        few = len(cut[-1])
        if len(cut) > 1 and (
            (training.drop_last and few < size) or (training.drop_single and few == 1)
        ):
            cut.pop()
        plan.append(cut)
        whole = [rows for epoch in plan for rows in epoch]
        if steps and len(whole) >= steps:
            return [whole[:steps]]
    return plan


def step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """Move once along minus the gradient of a loss."""
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def average(
    module: nn.Module, parts: Sequence[nn.Module], samples: Tensor, buffers: bool = True
) -> None:
    """Set a module to the mean of others, weighed by samples; counters to the largest.

    Without ``buffers`` it keeps its own running statistics and counters.
    """
    share = samples / samples.sum()
    for name, value in module.state_dict().items():
        sent = torch.stack([part.state_dict()[name] for part in parts])
        counter = "num_batches" in name
        if buffers or not (counter or "running" in name):
            mean = sent.max() if counter else torch.einsum("k,k...->...", share, sent)
            value.copy_(mean)


def means(values: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    """Return the mean of each loss term over steps."""
    each = list(values)
    return {
        name: sum(float(value[name].detach()) for value in each) / len(each)
        for name in each[0]
    }


class Gaps:
    """The largest difference of each kind, relative to the largest number there is."""

    def __init__(self, record: Callable[[str, object], None]) -> None:
        self.largest: dict[str, float] = {}
        self.record = record
        self.tolerance = TOLERANCE

    def add(self, kind: str, found, wanted) -> None:
        """Compare two tensors, or what becomes one; they must have the same shape."""
        a, b = (torch.as_tensor(v).detach().double() for v in (found, wanted))
        assert a.shape == b.shape, f"{kind}: {tuple(a.shape)}, {tuple(b.shape)}"
        if not b.numel():
            return
        gap = float((a - b).abs().max() / b.abs().max().clamp(min=1e-3))
        assert gap <= self.tolerance, f"{kind}: off by {gap:.1e} of the largest number"
        self.largest[kind] = max(gap, self.largest.get(kind, 0.0))

    def states(self, kind: str, found: State, module: nn.Module, row=None) -> None:
        """Compare the library's state, or a row of stacked ones, with a module's."""
        wanted = module.state_dict()
        named = {k: v for k, v in found.items() if not k.startswith("own.")}
        assert named.keys() == wanted.keys()
        for name, value in named.items():
            self.add(kind, value if row is None else value[row], wanted[name])

    def told(self, method: str, variant: str) -> None:
        """Add a row to the table that the run ends with."""
        cells = [f"{kind} {gap:.0e}" for kind, gap in self.largest.items()]
        self.record("replay", f"| {method} | {variant} | {', '.join(cells)} |")

"""The weights of clients that train side by side, and the optimiser that moves them."""

import torch
from torch import Tensor

from fedlib.core.net import State
from fedlib.core.training import Training, optimiser
from fedlib.core.tree import Tree, take


class Stack:
    """Stacked weights of the clients still training, with their optimiser.

    Without ``moments`` and ``rate`` one optimiser step moves all clients as one block.
    With them every client is a parameter group of its own: a view of its row.
    """

    def __init__(
        self,
        state: State,
        buffers: frozenset[str],
        training: Training,
        moments: Tree,
        rate: Tensor | None,
    ):
        self.training = training
        self.rate = rate
        self.params = {
            k: v.clone().requires_grad_() for k, v in state.items() if k not in buffers
        }
        self.buffers = {k: v.clone() for k, v in state.items() if k in buffers}
        self.apart = rate is not None or bool(moments)
        rows = range(len(next(iter(state.values())))) if self.apart else [slice(None)]
        self.blocks = [
            {k: v.detach()[i] if self.apart else v for k, v in self.params.items()}
            for i in rows
        ]
        groups: list[dict] = [{"params": list(b.values())} for b in self.blocks]
        if rate is not None:
            for group, factor in zip(groups, rate.tolist(), strict=True):
                group["lr"] = training.learning_rate * factor
        self.optimiser = optimiser(groups, training)
        for i, block in zip(rows, self.blocks, strict=True):
            for name, param in block.items():
                if name in moments:
                    fields = {k: v[i].clone() for k, v in moments[name].items()}
                    self.optimiser.state[param] = fields

    def step(self) -> None:
        """Move the weights along their gradients."""
        if self.training.clip is not None:
            self._clip(self.training.clip)
        if self.apart:
            for i, block in enumerate(self.blocks):
                for name, param in block.items():
                    grad = self.params[name].grad
                    param.grad = None if grad is None else grad[i]
        self.optimiser.step()

    def _clip(self, largest: float) -> None:
        """Scale each client's gradient to a norm of at most ``largest``."""
        grads = [p.grad for p in self.params.values() if p.grad is not None]
        square = torch.stack([g.flatten(1).square().sum(1) for g in grads]).sum(0)
        factor = (largest / (square.sqrt() + 1e-6)).clamp(max=1)
        for grad in grads:
            grad.mul_(factor.view(-1, *[1] * (grad.ndim - 1)))

    def detached(self) -> State:
        """Return the weights and buffers as they are now."""
        return {k: v.detach() for k, v in (self.params | self.buffers).items()}

    def write(self, values: State) -> None:
        """Replace some weights of all clients, which the optimiser does not notice."""
        for name, value in values.items():
            self.params[name].detach().copy_(value)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for param in self.params.values():
            param.grad = None

    def moments(self) -> Tree:
        """Return the optimiser's state, stacked over clients; {} for one block."""
        if not self.apart:
            return {}
        states = [
            {name: dict(self.optimiser.state[p]) for name, p in block.items()}
            for block in self.blocks
        ]
        return {
            name: {
                field: torch.stack(
                    [torch.as_tensor(one[name][field]) for one in states]
                )
                for field in fields
            }
            for name, fields in states[0].items()
        }

    def state(self, rows: slice) -> State:
        """Return a copy of some clients' weights and buffers."""
        merged = self.params | self.buffers
        return {k: v.detach()[rows].clone() for k, v in merged.items()}

    def keep(self, count: int) -> "Stack":
        """Return the stack of the first ``count`` clients, with their moments."""
        rows = slice(0, count)
        rate = None if self.rate is None else self.rate[rows]
        rest = Stack(
            self.state(rows),
            frozenset(self.buffers),
            self.training,
            take(self.moments(), rows),
            rate,
        )
        if not self.apart:
            for name, after in rest.params.items():
                before = self.params[name]
                rest.optimiser.state[after] = {
                    k: v[rows].clone()
                    if isinstance(v, Tensor) and v.shape == before.shape
                    else v
                    for k, v in self.optimiser.state[before].items()
                }
        return rest

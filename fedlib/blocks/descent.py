"""One minimisation on the server: a loss, an optimiser, a number of steps."""

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedlib.core.local import Losses
from fedlib.core.net import State

Moments = dict[str, dict[str, Tensor]]


class Fitted(NamedTuple):
    """The outcome of a minimisation."""

    state: State
    terms: dict[str, Tensor]  # mean of each loss term over the steps
    moments: Moments  # the optimiser's state


def blank(state: State, buffers: frozenset[str] = frozenset()) -> Moments:
    """Return the state of an Adam that has not stepped."""
    return {
        name: {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(value),
            "exp_avg_sq": torch.zeros_like(value),
        }
        for name, value in state.items()
        if name not in buffers
    }


def batches(
    count: int, size: int, epochs: int, shuffle: torch.Generator
) -> list[Tensor]:
    """Return the rows of each batch of ``count`` samples, epoch after epoch."""
    orders = [torch.randperm(count, generator=shuffle) for _ in range(epochs)]
    return [rows for order in orders for rows in order.split(size)]


def fit(
    state: State,
    loss: Callable[[State, int], Losses],
    steps: int,
    *,
    learning_rate: float,
    optimiser: Literal["adam", "sgd"] = "adam",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    decay: tuple[int, float] | None = None,
    rates: Mapping[str, float] | None = None,
    moments: Moments | None = None,
    buffers: frozenset[str] = frozenset(),
) -> Fitted:
    """Minimise a loss over a state by ``steps`` optimiser steps.

    Parameters
    ----------
    state : dict of Tensor
        Where to begin; unchanged by the call.
    loss : callable
        ``loss(state, step) -> Losses``; may write BatchNorm statistics into ``state``.
    decay : (int, float), optional
        ``(every, factor)``: the learning rate is multiplied by ``factor`` after each
        ``every`` steps.
    rates : mapping, optional
        Name -> learning rate of that entry of ``state``, in place of the common one.
    moments : dict, optional
        The optimiser's state to continue from (``blank`` at first); fresh without it.
    buffers : frozenset of str
        Names in ``state`` that are not trained.
    """
    params = {
        k: v.clone().requires_grad_() for k, v in state.items() if k not in buffers
    }
    held = {k: v.clone() for k, v in state.items() if k in buffers}
    own = rates or {}
    values = [
        {"params": [param], "lr": own.get(name, learning_rate)}
        for name, param in params.items()
    ]
    stepper: torch.optim.Optimizer
    if optimiser == "adam":
        stepper = torch.optim.Adam(
            values, lr=learning_rate, betas=betas, weight_decay=weight_decay
        )
    else:
        stepper = torch.optim.SGD(
            values, lr=learning_rate, momentum=momentum, weight_decay=weight_decay
        )
    for name, fields in (moments or {}).items():
        stepper.state[params[name]] = {k: v.clone() for k, v in fields.items()}
    every, factor = decay or (steps + 1, 1.0)
    schedule = torch.optim.lr_scheduler.StepLR(stepper, every, factor)
    sums: dict[str, Tensor] = {}
    for step in range(steps):
        stepper.zero_grad()
        losses = loss(params | held, step)
        losses.total.backward()
        stepper.step()
        schedule.step()
        for name, value in losses.terms.items():
            sums[name] = sums.get(name, torch.zeros(())) + value.detach()
    return Fitted(
        {k: v.detach() for k, v in params.items()} | held,
        {name: value / max(1, steps) for name, value in sums.items()},
        {name: dict(stepper.state[param]) for name, param in params.items()},
    )


def of_module(module: nn.Module, generator: torch.Generator) -> State:
    """Draw a state for a module: torch's default initialisation, from a generator."""
    state = {k: v.detach().clone() for k, v in module.state_dict().items()}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            prefix = f"{name}." if name else ""
            weight, bias = state[f"{prefix}weight"], state.get(f"{prefix}bias")
            nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
            if bias is not None:
                bound = 1 / math.sqrt(weight[0].numel())
                nn.init.uniform_(bias, -bound, bound, generator=generator)
    return state

"""How a client trains: the settings of a round, and the optimiser that they name."""

from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fedlib.core.net import State


class Training(BaseModel):
    """How a client trains in one round."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimiser: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = Field(default=0.01, gt=0)
    momentum: float = Field(default=0.5, ge=0, lt=1)  # SGD only
    weight_decay: float = Field(default=0.0, ge=0)
    batch_size: int = Field(default=8, ge=1)
    local_epochs: int = Field(default=1, ge=1)
    local_steps: int | None = Field(default=None, ge=1)  # batches, in place of epochs
    drop_last: bool = True  # never drops the only batch of a client
    drop_single: bool = False  # a last batch of one sample alone; neither the only one
    decay: float = Field(default=1.0, gt=0, le=1)  # of the learning rate, per round
    clip: float | None = Field(default=None, gt=0)  # largest norm of a gradient
    keep_moments: bool = False  # of the optimiser, from round to round


def optimiser(groups: list[dict], training: Training) -> torch.optim.Optimizer:
    """Return the optimiser of parameter groups."""
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimiser == "adam":
        return torch.optim.Adam(groups, lr=rate, weight_decay=decay)
    return torch.optim.SGD(
        groups, lr=rate, momentum=training.momentum, weight_decay=decay, fused=True
    )


def blank_moments(
    state: State, buffers: frozenset[str], training: Training
) -> dict[str, dict[str, Tensor]]:
    """Return the state of an optimiser that has not stepped, for K stacked clients."""
    momentum = ("momentum_buffer",) if training.momentum else ()
    adam = training.optimiser == "adam"
    blank = {}
    for name, value in state.items():
        if name not in buffers:
            fields = ("exp_avg", "exp_avg_sq") if adam else momentum
            blank[name] = {field: torch.zeros_like(value) for field in fields}
            blank[name] |= {"step": torch.zeros(len(value))} if adam else {}
    return blank

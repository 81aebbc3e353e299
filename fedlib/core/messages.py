"""What travels between server and clients, and how much of it.

A method's ``Down`` and ``Up`` are NamedTuples whose fields are ``Model``, plain tensors
or records that say themselves what of them is sent (``Protos``). They are the only
channel, so communication is counted from them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fedlib.core.net import Net, State
from fedlib.core.tree import flatten


class Model(NamedTuple):
    """A net's weights; ``known`` is 0 before there is a model to send."""

    params: State  # trained weights
    buffers: State  # BatchNorm statistics and counters; empty where they stay local
    known: Tensor  # [] or [K] bool

    @property
    def state(self) -> State:
        """Weights and buffers together, as a net takes them."""
        return self.params | self.buffers


def as_model(net: Net, state: State, *, buffers: bool = True) -> Model:
    """Return stacked states ``[K, ...]`` as a message, all known.

    Weights that a method keeps beside the net's (``own.``) are left out.

    Parameters
    ----------
    buffers : bool
        Whether BatchNorm statistics are part of the message.
    """
    first = next(iter(state.values()))
    held = net.buffers
    shared = {k: v for k, v in state.items() if not k.startswith("own.")}
    return Model(
        {k: v for k, v in shared.items() if k not in held},
        {k: v for k, v in shared.items() if k in held and buffers},
        torch.ones(len(first), dtype=torch.bool, device=first.device),
    )


class Size(NamedTuple):
    """Numbers in a message field: what the papers count, and the integers beside."""

    floats: int
    ints: int


def _count(leaves: dict[str, Tensor], times: int) -> Size:
    floats = sum(v.numel() for v in leaves.values() if v.is_floating_point())
    ints = sum(v.numel() for v in leaves.values() if not v.is_floating_point())
    return Size(floats * times, ints * times)


def sizes(message: NamedTuple, clients: int | None = None) -> dict[str, Size]:
    """Return the size of every field of a message, summed over its clients.

    Prototypes count present classes only (d floats and one count each), as every record
    with a method ``sent() -> (floats, ints)`` counts itself; a model that is not known
    counts nothing, and a field that is ``{}`` does not exist.

    Parameters
    ----------
    message : NamedTuple
        An ``Up`` stacked over clients, or a ``Down`` for one receiver.
    clients : int, optional
        For an ``Up``: its number of clients; rows of unknown models are not counted.
    """
    fields: dict[str, Size] = {}
    for name, value in message._asdict().items():
        if hasattr(value, "sent"):
            fields[name] = Size(*value.sent())
        elif isinstance(value, Model):
            stacked = clients or 1
            for part in ("params", "buffers"):
                counted = _count(getattr(value, part), 1)
                sent = int(value.known.sum())
                one = Size(counted.floats // stacked, counted.ints // stacked)
                field = name if part == "params" else f"{name}_buffers"
                if part == "params" or value.buffers:
                    fields[field] = Size(one.floats * sent, one.ints * sent)
        elif leaves := flatten(value):
            fields[name] = _count(leaves, 1)
    return fields

"""Feature generators: noise and a label in, an embedding out (FedPA, FedGen)."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedlib.blocks import descent
from fedlib.core.net import State

Noise = Literal["normal", "uniform"]


class Generator(NamedTuple):
    r"""A generator :math:`G_\theta` as a function of its state :math:`\theta`."""

    module: nn.Module  # structure only; its own weights are never used
    noise_size: int
    classes: int  # C

    def init(self, generator: torch.Generator) -> State:
        """Draw a state: torch's default initialisation from a named generator."""
        return descent.of_module(self.module, generator)

    @property
    def buffers(self) -> frozenset[str]:
        """Names in the state that are not trained (BatchNorm statistics)."""
        trained = {name for name, _ in self.module.named_parameters()}
        return frozenset(set(self.module.state_dict()) - trained)

    def __call__(
        self, state: State, noise: Tensor, labels: Tensor, *, train: bool = False
    ) -> Tensor:
        """Return embeddings ``[B, d]`` for noise ``[B, n]`` and labels ``[B]``.

        In train mode the noise is normalised over the batch, and the statistics in
        ``state`` are updated in place.
        """
        classes = torch.arange(self.classes, device=labels.device)
        one_hot = labels.unsqueeze(-1) == classes
        given = torch.cat([noise, one_hot.to(noise.dtype)], -1)
        return functional_call(self.module.train(train), state, (given,))


def build(classes: int, size: int, *, hidden: int = 256, noise: int = 32) -> Generator:
    """Return a generator of embeddings of ``size`` numbers: two linear layers.

    Parameters
    ----------
    classes : int
        C, the length of the one-hot label.
    size : int
        d, of the embedding that the head sees; there is no output activation.
    hidden : int
        Width between the layers, with BatchNorm and ReLU.
    noise : int
        Numbers of noise per embedding.
    """
    module = nn.Sequential(
        nn.Linear(noise + classes, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, size),
    )
    return Generator(module, noise, classes)


def draw_noise(kind: Noise, rows: int, size: int, generator: torch.Generator) -> Tensor:
    """Return noise ``[rows, size]``: standard normal, or uniform on [0, 1)."""
    draw = torch.randn if kind == "normal" else torch.rand
    return draw(rows, size, generator=generator)


def draw_labels(share: Tensor, rows: int, generator: torch.Generator) -> Tensor:
    """Return labels ``[rows]`` drawn from a distribution ``[C]`` (any positive sum)."""
    return torch.multinomial(share, rows, replacement=True, generator=generator)

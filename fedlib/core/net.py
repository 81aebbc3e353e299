"""A network is a shape, and its weights are data.

``Net.init`` draws a state (a dict of tensors), and calling the net with a state
computes embeddings and logits, so that K clients are K states stacked along a leading
axis. Which networks there are, ``nets`` says.
"""

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

State = dict[str, Tensor]
Shape = tuple[int, int, int]  # channels, height, width
Precision = Literal["float32", "bfloat16"]  # of a net's products and convolutions


class Out(NamedTuple):
    """What a forward pass returns for a batch of B samples."""

    low: Tensor  # [B, d_low] the flattened low-level map, or the means of its channels
    high: Tensor  # [B, d_high] the embedding that the head sees
    logits: Tensor  # [B, C]


class TwoLevel(nn.Module):
    """Low encoder, high encoder and head.

    The low embedding is a side output: the high encoder continues from the map before
    pooling and normalisation. Every method runs on this same forward pass.

    Parameters
    ----------
    unit : bool
        L2-normalise both embeddings, so that the head sees the *normalised* high
        embedding (FedMPS, Section IV-A3 and its released code). Otherwise both are
        raw, as in the other papers.
    pooled : bool
        The low embedding is the mean of every channel of the low-level map in place
        of the flattened map (our choice where that has tens of thousands of values).
    """

    def __init__(
        self,
        low: nn.Module,
        high: nn.Module,
        head: nn.Module,
        *,
        unit: bool,
        pooled: bool = False,
    ):
        super().__init__()
        self.low = low
        self.high = high
        self.head = head
        self.unit = unit
        self.pooled = pooled

    def forward(self, x: Tensor) -> Out:
        """Map images ``[B, c, h, w]`` to embeddings and logits."""
        features = self.low(x)
        low = features.mean((-2, -1)) if self.pooled else features.flatten(1)
        high = self.high(features).flatten(1)
        if self.unit:
            low, high = (F.normalize(z, eps=1e-12) for z in (low, high))
        return Out(low, high, self.head(high))


class Net(NamedTuple):
    """A network as a function of its state."""

    name: str
    module: TwoLevel  # structure only; its own weights are never used
    shape: Shape  # of an input image
    classes: int
    rule: Literal["torch", "he"] = "torch"  # of initialisation
    precision: Precision = "float32"

    def init(self, generator: torch.Generator) -> State:
        """Draw a state from a named generator.

        Rule "torch" is torch's default of every layer: uniform within
        ``1 / sqrt(fan_in)``, and weight 1, bias 0 for BatchNorm. Rule "he" is
        torchvision's for its ResNets: convolutions from N(0, 2 / fan_out), the linear
        layer and BatchNorm as by default.
        """
        state = {k: v.detach().clone() for k, v in self.module.state_dict().items()}
        for name, layer in self.module.named_modules():
            if not isinstance(layer, nn.Conv2d | nn.Linear):
                continue
            weight = state[f"{name}.weight"]
            if self.rule == "he" and isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(
                    weight, mode="fan_out", nonlinearity="relu", generator=generator
                )
            else:
                nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
            if layer.bias is not None:
                bound = 1 / math.sqrt(weight[0].numel())
                bias = state[f"{name}.bias"]
                nn.init.uniform_(bias, -bound, bound, generator=generator)
        return state

    @property
    def buffers(self) -> frozenset[str]:
        """Names in the state that are not trained (BatchNorm statistics)."""
        return frozenset(
            self.init_names() - {n for n, _ in self.module.named_parameters()}
        )

    def init_names(self) -> set[str]:
        """Return all names of a state."""
        return set(self.module.state_dict())

    @property
    def dropout_keys(self) -> list[str]:
        """Names of the dropout keys that a training step sets."""
        return [n for n, _ in self.module.named_buffers() if n.endswith(".key")]

    def __call__(self, state: State, x: Tensor, *, train: bool = False) -> Out:
        """Return embeddings and logits of ``x`` ``[B, c, h, w]`` under ``state``.

        Names that begin with ``own.`` are a method's own weights and are not read. In
        train mode BatchNorm statistics in ``state`` are updated in place.

        Under bfloat16 torch's autocast computes products and convolutions in it;
        weights, their gradients, statistics and what is returned are float32, and with
        them prototypes and every loss.
        """
        state = {k: v for k, v in state.items() if not k.startswith("own.")}
        module = _in_mode(self.module, train)
        if self.precision == "float32":
            return functional_call(module, state, (x,))
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            out = functional_call(module, state, (x,))
        return Out(*(part.float() for part in out))

    def levels(
        self, state: State, x: Tensor, *, train: bool = False
    ) -> tuple[Out, list[Tensor]]:
        """Return the outputs and, level by level, embeddings ``[B, d_l]``.

        A level ends with a ReLU, in a residual net with the last one of a stage; its
        embedding holds the channel means before that ReLU. The high embedding is the
        last level where no ReLU comes before it.
        """
        seen: dict[nn.Module, Tensor] = {}

        def keep(relu: nn.Module, given: tuple[Tensor]) -> None:
            z = given[0] if self.precision == "float32" else given[0].float()
            seen[relu] = z.flatten(2).mean(-1) if z.ndim > 2 else z

        stages = [*self.module.low.children(), *self.module.high.children()]
        relus = [[m for m in s.modules() if isinstance(m, nn.ReLU)] for s in stages]
        last = [places[-1] for places in relus if places]
        hooks = [relu.register_forward_pre_hook(keep) for relu in last]
        try:
            out = self(state, x, train=train)
        finally:
            for hook in hooks:
                hook.remove()
        linear_end = isinstance(stages[-1], nn.Linear)
        return out, [seen[relu] for relu in last] + ([out.high] if linear_end else [])

    def head(self, state: State, high: Tensor, *, train: bool = False) -> Tensor:
        """Return logits ``[B, C]`` of high embeddings under a state of the head."""
        return functional_call(_in_mode(self.module.head, train), state, (high,))

    def head_state(self, state: State) -> State:
        """Return the head's part of a state, named as the head alone names it."""
        return {
            k.removeprefix("head."): v
            for k, v in state.items()
            if k.startswith("head.")
        }

    def embedding_sizes(self) -> tuple[int, int]:
        """Return ``(d_low, d_high)``."""
        with torch.no_grad():
            out = self.module.eval()(torch.zeros(1, *self.shape))
        return out.low.shape[1], out.high.shape[1]

    def parameter_count(self) -> int:
        """Return the number of trained parameters."""
        return sum(p.numel() for p in self.module.parameters())


def _in_mode(module: nn.Module, train: bool) -> nn.Module:
    """Return a net, or its head, in a mode; to set it is a walk over all layers."""
    if any(part.training != train for part in (module, *module.children())):
        module.train(train)
    return module

r"""MOON: FedAvg whose clients embed as the global model does, and not as they used to.

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021.

Symbols
    z      | out.high        | [B, d] | embedding under the model in training
    z_glob | z["received"]   | [B, d] | embedding under the received model
    z_prev | z["previous"]   | [B, d] | embedding under the client's last own model
    tau    | temperature     | []     | what cosines are divided by
    mu     | contrast_weight | []     | weight of the contrast

Box
    1. broadcast: send the global model.
    2. client: start from it, minimise cross-entropy + mu * the mean over the batch of
       -log[e^{cos(z, z_glob) / tau} / (e^{cos(z, z_glob) / tau}
       + e^{cos(z, z_prev) / tau})]; both teachers are fixed and in eval mode.
    3. client: keep the trained model for the next time that it takes part; send it.
    4. merge: as FedAvg.

Readings
    Previous model: what the client's own training ended with, before anything was
    merged. FedMPS's released code copies the pool of previous models after clients were
    overwritten with the mean, so that z_prev = z_glob: the term is the constant
    mu ln 2 without a gradient, and MOON is FedAvg. ``teacher="aliased"``.
    A client that has never trained uses the received model as its previous one, which
    has the same effect on its first round. Where no model is known yet (round 1 under
    ``common_init=False``) both teachers are the client's own start.
    Embedding: z is what the head sees. The original puts a projection to 256 numbers
    after it; no paper here ran that for its table (FedMPS's parameter counts exclude
    it, and the codes beside FedHPro and FedPG contrast the pooled feature).
    Received model under ``buffers="local"``: with the client's own statistics.
    mu: the original tunes it over {0.1, 1, 5, 10}, its command for CIFAR-10 has 5 (SGD
    at 0.01), the option's default is 1; FedMPS gives it per data set, 5 is usual in the
    codes beside FedHPro, too, FedPG does not say (here the default).
    Weights of the mean: by samples, also in FedMPS's released code, whose other
    baselines are averaged uniformly.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedlib.blocks import shared_model
from fedlib.blocks.shared_model import Down, Server, Up
from fedlib.core.averaging import start
from fedlib.core.losses import cross_entropy
from fedlib.core.method import Context, Losses, Shards, Turn
from fedlib.core.net import State
from fedlib.core.tree import flatten, put, restore, take


class HP(shared_model.HP):
    """Hyper-parameters of MOON."""

    contrast_weight: float = Field(default=1.0, ge=0)  # mu
    temperature: float = Field(default=0.5, gt=0)  # tau
    teacher: Literal["previous", "aliased"] = "previous"  # whose embedding is z_prev


class Client(NamedTuple):
    """What a client keeps between rounds: the model that its training ended with."""

    state: State  # [K, ...]
    trained: Tensor  # [K] bool, whether it has trained yet


def init(ctx: Context) -> tuple[Server, Client]:
    """Draw the clients' weights; nobody has trained."""
    server, mine = shared_model.init(ctx)
    return server, Client(mine.state, torch.zeros(ctx.clients, dtype=torch.bool))


def contrast(
    z: Tensor, received: Tensor, previous: Tensor, temperature: float
) -> Tensor:
    """Return the model-contrastive loss ``[]`` of embeddings ``[B, d]``, a batch mean.

    With a and b the cosines of z to the two teachers' embeddings over the temperature,
    -log(e^a / (e^a + e^b)) = softplus(b - a). The teachers are subtracted before z
    enters, so that equal teachers have a gradient of exactly 0.
    """
    z, received, previous = (F.normalize(e, dim=-1) for e in (z, received, previous))
    return F.softplus((z * (previous - received)).sum(-1) / temperature).mean()


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2 and 3."""
    hp = ctx.hp
    received = start(down.model, mine.state)
    own = (mine.trained & (hp.teacher == "previous")).nonzero().flatten()
    previous = put(received, own, take(mine.state, own))
    teachers = {"received": received, "previous": previous}

    def loss(state, batch):
        out = ctx.net(state, batch.x, train=True)
        z = {
            k: ctx.net(t, batch.x).high.detach()
            for k, t in restore(teachers, batch.extra).items()
        }
        terms = {
            "supervised": cross_entropy(out.logits, batch.y),
            "contrast": contrast(out.high, **z, temperature=hp.temperature),
        }
        total = terms["supervised"] + hp.contrast_weight * terms["contrast"]
        return Losses(total, terms, {})

    extra = flatten(teachers)
    after, up, terms = shared_model.client_with(
        ctx, down, mine, shards, loss, extra=extra
    )
    return Client(after.state, mine.trained | (shards.sizes() > 0)), up, terms


METHOD = shared_model.BASE._replace(
    name="moon",
    source="Li, He and Song, CVPR 2021",
    hp=HP,
    init=init,
    client=client,
    forgets=lambda hp: False,
)

r"""VHL: virtual homogeneous data, the same at every client, to align embeddings on.

Tang et al., Virtual Homogeneity Learning: Defending against Data Heterogeneity in
Federated Learning, ICML 2022.

Symbols
    D'         | virtual_images.make | [C n_v, c, h, w] | virtual images
    y'         | virtual_data.labels | [C n_v]          | their classes, 0 to C - 1
    z, z'      | out.high            | [B, d], [V, d]   | embeddings, own and virtual
    w          | server.model        |                  | global model, 2C outputs
    own.virtual.* | mine.state       | [K, C, d], [K, C]| the second C outputs

Box
    1. Once: each class gets a distribution of noise, and an untrained style-based
       generator makes n_v images of each (``virtual_images``).
    2. broadcast: send w, and the seed of D'.
    3. client: from w, pass a batch of own and one of virtual images through the net at
       once and minimise cross-entropy of own images over 2C outputs for y
       + tuning_weight * cross-entropy of virtual images over 2C outputs for y' + C
       + align_weight * [SupCon of z and z', z' as constants, where own class c belongs
         with virtual class c; + 0.1 SupCon of z' alone, with gradients].
    4. merge: FedAvg, of all 2C outputs.

Readings
    SupCon: unit length, temperature 0.07; an anchor without a positive counts 0 in the
    mean (official code). FedPG's released code took this loss over, which is
    ``virtual_data.supcon_union``.
    Virtual class c stands for own class c although the two have nothing in common:
    what counts is that all clients agree on it.
    The second C outputs are a linear layer on the embedding, beside the net's head;
    where that is one linear layer, the two are the official head of 2C outputs. They
    travel as part of the model: C (d + 1) floats more.
    Test: the largest of the first C outputs; ``test_outputs="all"``: of all 2C, where a
    virtual class is a mistake (official code).
    D' depends on nothing but the seed, since nobody trains the generator: the seed
    travels, one integer in each broadcast, and no image is counted. All clients have
    one set; the official code keeps it as files.
    Batches of D' follow one shuffled order per client and round, again and again;
    ``v_batch_balanced``: all classes alike. BatchNorm sees both batches as one.
    The official code stops aligning after five local epochs, which no setting of the
    papers exceeds: left out. Images: see ``virtual_images``; 200 per class are those of
    the official script, 5000 of its configuration.
    ``virtual_per_class=0`` is FedAvg, without second outputs.
"""

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from fedlib.blocks import descent, shared_model, virtual_data, virtual_images
from fedlib.blocks.shared_model import Client, Server, Up
from fedlib.blocks.virtual_images import Recipe
from fedlib.core.layers import linear
from fedlib.core.losses import cross_entropy
from fedlib.core.method import Context, Losses, Model, Models, Rule, Shards, Turn
from fedlib.core.net import Out, State
from fedlib.core.rng import generator, seed_of

SECOND = "own.virtual."


class HP(shared_model.HP):
    """Hyper-parameters of VHL: FedAvg's, and those of the virtual data."""

    tuning_weight: float = Field(default=1.0, ge=0)
    align_weight: float = Field(default=1.0, ge=0)
    align_temperature: float = Field(default=0.07, gt=0)  # T
    virtual_per_class: int = Field(default=200, ge=0)  # n_v
    v_batch_size: int = Field(default=128, ge=1)
    v_batch_balanced: bool = False
    style_size: int = Field(default=64, ge=1)
    class_spread: float = Field(default=0.3, ge=0)
    sample_spread: float = Field(default=0.1, ge=0)
    noise_weight: float = 1.0
    width: int = Field(default=32, ge=1)  # maps of the generator; official: 512
    test_outputs: Literal["first", "all"] = "first"


class Down(NamedTuple):
    """To every client."""

    model: Model  # w, with the second outputs
    seed: Tensor  # [] int64, of D'


def with_second(model: Model, state: State) -> Model:
    """Return a model's message with the second outputs, which it leaves out."""
    second = {k: v for k, v in state.items() if k.startswith(SECOND)}
    return model._replace(params=model.params | second)


def init(ctx: Context[HP]) -> tuple[Server, Client]:
    """Draw the clients' weights as FedAvg does, and the second outputs."""
    server, mine = shared_model.init(ctx)
    if not ctx.hp.virtual_per_class:
        return server, mine
    layer = nn.Linear(ctx.net.embedding_sizes()[1], ctx.classes)
    names = ["common"] * ctx.clients if ctx.hp.common_init else range(ctx.clients)
    drawn = [
        descent.of_module(layer, generator(ctx.seed, "init", "second outputs", name))
        for name in names
    ]
    second = {SECOND + k: torch.stack([d[k] for d in drawn]) for k in drawn[0]}
    first = {k: v[0] for k, v in second.items()}
    server = server._replace(model=with_second(server.model, first))
    return server, Client(mine.state | second)


def broadcast(ctx: Context, server: Server) -> Down:
    """Box 2."""
    seed = seed_of(ctx.seed, "virtual data")
    return Down(shared_model.sent(ctx, server.model), torch.tensor(seed))


def outputs(state: State, out: Out) -> Tensor:
    """Return all logits ``[B, 2C]``, those of the virtual classes last."""
    second = linear(out.high, state[f"{SECOND}weight"], state[f"{SECOND}bias"])
    return torch.cat([out.logits, second], -1)


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 3."""
    hp = ctx.hp
    if not hp.virtual_per_class:
        return shared_model.client(ctx, shared_model.Down(down.model), mine, shards)
    recipe = Recipe(**hp.model_dump(include=set(Recipe._fields)))
    images = virtual_images.make(
        int(down.seed), ctx.classes, hp.virtual_per_class, ctx.net.shape, recipe
    )
    labels = virtual_data.labels(ctx.classes, hp.virtual_per_class)
    plans = virtual_data.plans(ctx, shards.ids)

    def loss(state, batch):
        made = labels[batch.extra["virtual"]]
        both = torch.cat([batch.x, images[batch.extra["virtual"]]])
        out = ctx.net(state, both, train=True)
        logits, own = outputs(state, out), len(batch.y)
        z, virtual = out.high[:own], out.high[own:]
        terms = {
            "supervised": cross_entropy(logits[:own], batch.y),
            "tuning": cross_entropy(logits[own:], made + ctx.classes),
            "align": virtual_data.supcon_union(
                z, batch.y, virtual, made, hp.align_temperature
            ),
        }
        total = (
            terms["supervised"]
            + hp.tuning_weight * terms["tuning"]
            + hp.align_weight * terms["align"]
        )
        return Losses(total, terms, {})

    draw = virtual_data.cycled(plans)
    trained, up, terms = shared_model.client_with(
        ctx, down, mine, shards, loss, draw=draw
    )
    return trained, up._replace(model=with_second(up.model, trained.state)), terms


def models(ctx: Context[HP], server: Server, mine: Client) -> Models:
    """Return FedAvg's models, and the logits of all 2C outputs as a rule of its own."""
    shared = shared_model.models(ctx, server, mine)
    if not ctx.hp.virtual_per_class:
        return shared
    return shared._replace(scores=lambda state, out: {"outputs": outputs(state, out)})


def predict(hp: HP) -> Rule:
    """Return the rule: by the first C outputs, or by all."""
    every = hp.test_outputs == "all" and hp.virtual_per_class
    return Rule("global", "outputs_all" if every else "head_all")


METHOD = shared_model.BASE._replace(
    name="vhl",
    source="Tang et al., ICML 2022",
    hp=HP,
    init=init,
    broadcast=broadcast,
    client=client,
    models=models,
    predict=predict,
    forgets=lambda hp: not hp.virtual_per_class and shared_model.forgets(hp),
)

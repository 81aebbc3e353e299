r"""FedRep: FedPer's split, trained one part at a time.

Collins et al., Exploiting Shared Representations for Personalized Federated Learning,
ICML 2021.

Symbols
    phi   | server.model | [...]    | the global body
    h_i   | mine.state   | [K, ...] | client i's head; with what it made of the body
    phi_i | up.model     | [K, ...] | client i's body after its training
    n_i   | up.samples   | [K]      | client i's number of training samples

Box
    1. broadcast: send the body.
    2. client: with the body frozen, train its own head for some epochs of
       cross-entropy.
    3. client: with that head frozen, train the body; send the body, keep the head.
    4. merge: the body is the weighted mean of the clients' bodies.

Readings
    Lengths: each part trains ``head_epochs`` and ``body_epochs`` times as long as the
    run lets other methods train: ``local_epochs`` passes over the client's data, or
    ``local_steps`` steps. The paper trains the head many times for each time that it
    trains the body; common libraries train both for the run's epochs or the head for
    one (default: 1 and 1). A part of 0 epochs is not trained.
    Each phase shuffles in its own way and begins with a fresh optimiser.
    Frozen means that the weights stay; BatchNorm statistics of the body follow the data
    in both phases, as in common libraries, since both run in train mode.
    What is personal, weights and prediction: as in FedPer. With ``personal="nothing"``
    there is no head to train first, and ``body_epochs=1`` is FedAvg.
"""

from pydantic import Field

from fedlib.blocks import personal_layers, shared_model
from fedlib.blocks.shared_model import Client, Down, Up
from fedlib.core.averaging import start
from fedlib.core.losses import cross_entropy
from fedlib.core.method import Context, Logged, Losses, Shards, Turn
from fedlib.core.net import State


class HP(personal_layers.HP):
    """Hyper-parameters of FedRep."""

    head_epochs: int = Field(default=1, ge=0)
    body_epochs: int = Field(default=1, ge=0)


def train_part(
    ctx: Context[HP], state: State, shards: Shards, part: str, free: frozenset[str]
) -> tuple[State, Logged]:
    """Box 2 or 3: train the weights ``free`` of a cohort, with the others frozen."""
    epochs = getattr(ctx.hp, f"{part}_epochs")
    if not epochs or not free:
        return state, {}
    frozen = ctx.net.init_names() - free - ctx.net.buffers

    def loss(state, batch):
        state = {k: v.detach() if k in frozen else v for k, v in state.items()}
        supervised = cross_entropy(ctx.net(state, batch.x, train=True).logits, batch.y)
        return Losses(supervised, {f"{part}_supervised": supervised}, {})

    steps = ctx.training.local_steps and epochs * ctx.training.local_steps
    passes = epochs * ctx.training.local_epochs
    settings = {"local_epochs": passes, "local_steps": steps}
    training = ctx.training.model_copy(update=settings)
    phase = "head " if part == "head" else ""
    trained = ctx.train(state, shards, loss, training=training, phase=phase)
    return trained.state, trained.terms


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2 and 3."""
    own = personal_layers.own_names(ctx.net, ctx.hp.personal)
    state, head_terms = train_part(
        ctx, start(down.model, mine.state), shards, "head", own
    )
    shared = frozenset(ctx.net.init_names() - own)
    state, body_terms = train_part(ctx, state, shards, "body", shared)
    body = personal_layers.body(ctx, shared_model.uploaded(ctx, state))
    return Client(state), Up(body, shards.sizes()), head_terms | body_terms


METHOD = personal_layers.BASE._replace(
    name="fedrep", source="Collins et al., ICML 2021", hp=HP, client=client
)

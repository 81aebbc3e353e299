r"""FedPer: a body that all clients share, and a head of each client's own.

Arivazhagan et al., Federated Learning with Personalization Layers, 2019
(arXiv 1912.00818).

Symbols
    w_B   | server.model | [...]    | base layers: the global body
    w_P_i | mine.state   | [K, ...] | client i's personal layers, its head; with what
                                      it made of the body
    n_i   | up.samples   | [K]      | client i's number of training samples

Box
    1. broadcast: send the body.
    2. client: put its own head on the body, train both together by cross-entropy, keep
       the head, send the body.
    3. merge: the body is the weighted mean of the clients' bodies.

Readings
    What is personal: ``personal="head"``, the net's head; ``"linear"``, every linear
    layer, as FedProto's released code keeps all layers that it calls "fc". In nets of a
    few convolutions that leaves only these to share, in a ResNet both are one. GFPL's
    printed traffic is that of "linear". ``"nothing"`` is FedAvg, as a control.
    BatchNorm statistics belong to the layer they stand in; ``buffers`` as in FedAvg.
    Prediction: the global body under the client's own head of its last training, that
    is before the client trains again.
    Weights, first weights: as in FedAvg; FedProto's released code, which GFPL's table
    builds on, weighs all clients alike.
"""

from fedlib.blocks import personal_layers, shared_model
from fedlib.blocks.personal_layers import body
from fedlib.blocks.shared_model import Client, Down, Up
from fedlib.core.method import Context, Shards, Turn


def client(ctx: Context, down: Down, mine: Client, shards: Shards) -> Turn[Client, Up]:
    """Box 2; what the broadcast does not hold is the client's own."""
    mine, up, terms = shared_model.client(ctx, down, mine, shards)
    return mine, up._replace(model=body(ctx, up.model)), terms


METHOD = personal_layers.BASE._replace(
    name="fedper", source="Arivazhagan et al., 2019", client=client
)

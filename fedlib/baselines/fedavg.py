r"""FedAvg: the mean of the clients' weights.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017.

Symbols
    w   | server.model | [...]    | the global model
    w_i | mine.state   | [K, ...] | client i's model after its local training
    n_i | up.samples   | [K]      | client i's number of training samples

Box
    1. broadcast: send w.
    2. client: start from w, train by cross-entropy, send w_i.
    3. merge: w = weighted mean of the w_i.

Readings
    Weights: by samples (McMahan et al., Algorithm 1) or ``weighting="uniform"``
    (FedMPS's released code).
    First weights: FedMPS's released code draws each client's own, so that in round 1
    nothing is sent and models of different draws are averaged; ``common_init=True``
    gives all clients one draw.
    BatchNorm statistics are averaged like weights; ``buffers="local"`` neither sends
    nor averages them (FedPA's released code), "first" takes the first client's.
    Integer counters take the maximum.
"""

from fedlib.blocks import shared_model

METHOD = shared_model.BASE._replace(
    name="fedavg", source="McMahan et al., AISTATS 2017"
)

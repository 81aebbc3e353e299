r"""FedGMKD: class means and soft predictions, weighed by how far a client is off.

Zhang, Shan and Han, FedGMKD: An Efficient Prototype Federated Learning Framework
through Knowledge Distillation and Discrepancy-Aware Aggregation, NeurIPS 2024.

Symbols
    w, w_i | server.model, up.model | [...]        | global and local model
    P      | parts(down.protos)[0]  | [C, d]       | prototype of each class
    S      | parts(down.protos)[1]  | [C, C]       | soft prediction of each class
    P_i,S_i| up.protos              | [K, C, d + C]| client i's, side by side in a row
    n_i    | sum of up.labels       | [K]          | samples of client i
    d_i    | in merge               | [K], [K, C]  | discrepancies
    p_i    | shares                 | [K], [K, C]  | weights of clients
    T      | temperature            |              | of the soft predictions
    lambda | soft_weight            |              | weight of the head's term
    gamma  | proto_weight           |              | weight of the embedding's term
    a, b   | model_discrepancy and class_discrepancy, offset |

Box
    1. broadcast: send w, P and S.
    2. client: from w, minimise cross-entropy + gamma * mean squared distance of
       embeddings to their class's P + lambda * mean over classes of
       KL(S || softmax(head(P) / T)).
    3. client: send w_i, the mean embedding and mean softmax(logits / T) of each own
       class after training, and the label counts.
    4. merge: average models with weights p_i proportional to ReLU(n_i - a d_i + b), d_i
       the length of (label distribution - uniform distribution).
    5. merge: average each class's row over its owners with weights of the same form,
       d_i = KL(last round's global soft prediction of the class || the client's).

Readings
    Mixture: the paper fits a Gaussian mixture to a client's embeddings of a class and
    takes the weighted mean of its components as the prototype. After any M-step that is
    the plain mean of the embeddings, whatever the components, so we take the mean and
    fit nothing. The released code fits standardised embeddings and does not transform
    back, so that its prototypes are about 0; not followed.
    n_i: the fraction of the cohort's samples (paper), or ``counts="raw"`` (released
    code), beside which a d_i and b are negligible. The weights of a class, too, take
    all samples of the client (released code).
    Class discrepancy: of soft predictions, class by class; the released code compares
    embeddings turned into distributions, in the order of its dictionaries. 0 in the
    first round and for classes not known before.
    Where every weight of a class (or model) is 0 the n_i stand in.
    A class without a row adds nothing to the pull; the KL term is a mean over the
    classes that have one. A class that the cohort does not own keeps its row.
"""

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedlib.blocks import shared_model, with_knowledge
from fedlib.blocks.with_knowledge import Client, Down, Server, parts
from fedlib.core import protos
from fedlib.core.averaging import mean_model
from fedlib.core.losses import kl_to_teacher
from fedlib.core.method import Context, Logged, Model, Shards, Turn
from fedlib.core.protos import Protos


class HP(shared_model.Sharing):
    """Hyper-parameters of FedGMKD."""

    soft_weight: float = Field(default=0.06, ge=0)  # lambda
    proto_weight: float = Field(default=0.06, ge=0)  # gamma
    temperature: float = Field(default=0.6, gt=0)  # T
    model_discrepancy: float = Field(default=0.2, ge=0)  # a of models
    class_discrepancy: float = Field(default=0.4, ge=0)  # a of classes
    offset: float = Field(default=0.2, ge=0)  # b
    counts: Literal["fraction", "raw"] = "fraction"


class Up(NamedTuple):
    """From each client, stacked over the cohort."""

    model: Model  # w_i
    protos: Protos  # [K, C, d + C], P_i and S_i
    labels: Tensor  # [K, C] int64, samples of each class


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2 and 3."""
    hp, soft = ctx.hp, parts(down.protos)[1]

    def soft_term(logits):
        per_class = kl_to_teacher(soft.mean, logits, hp.temperature)  # 0 where unknown
        return per_class.sum() / soft.known.sum().clamp(min=1)

    mine, up, terms = with_knowledge.client_with(ctx, down, mine, shards, soft_term)
    return mine, Up(up.model, up.protos, shards.label_counts(ctx.classes)), terms


def shares(size: Tensor, discrepancy: Tensor, scale: float, offset: float) -> Tensor:
    r"""Return weights ReLU(n - a d + b) of clients, 0 for those without samples.

    Parameters
    ----------
    size, discrepancy : Tensor
        n and d, ``[K]`` or ``[K, C]``; where all weights are 0, n is returned.
    scale, offset : float
        a and b.
    """
    weight = torch.relu(size - scale * discrepancy + offset)
    weight = torch.where(size > 0, weight, 0.0)
    return torch.where(weight.sum(0) > 0, weight, size)


def merge(ctx: Context[HP], server: Server, up: Up) -> tuple[Server, Logged]:
    """Box 4 and 5."""
    hp = ctx.hp
    samples = up.labels.sum(1).double()
    size = samples / (samples.sum() if hp.counts == "fraction" else 1)
    skew = up.labels / samples.clamp(min=1).unsqueeze(1) - 1 / ctx.classes
    weight = shares(size, skew.norm(dim=1), hp.model_discrepancy, hp.offset)
    model = mean_model(up.model, weight, server.model, hp.buffers)

    before, now = parts(server.protos)[1], parts(up.protos)[1]
    likely = now.mean.clamp(min=1e-12).log()  # softmax returns its logarithms
    apart = kl_to_teacher(before.mean, likely, 1.0)  # [K, C], 0 where nothing is known
    owned = torch.where(up.protos.known, size.unsqueeze(1), 0.0)
    weight = shares(owned, apart, hp.class_discrepancy, hp.offset)
    total = torch.einsum("kc,kcd->cd", weight.float(), up.protos.mean)
    mean = total / weight.sum(0).clamp(min=1e-12).float().unsqueeze(1)
    means = protos.fill(Protos(mean, up.protos.count.sum(0)), server.protos)
    return Server(model, means), {}


METHOD = with_knowledge.BASE._replace(
    name="fedgmkd",
    source="Zhang et al., NeurIPS 2024",
    hp=HP,
    client=client,
    merge=merge,
)

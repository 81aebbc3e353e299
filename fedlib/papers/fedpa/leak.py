"""What FedPA's messages give away: whose classes are how many, and what images show.

The attacker is the server, or whoever reads what a client uploads. It needs no attack
to learn a client's class histogram, since the method sends it. The generator is trained
by the server on the clients' heads and prototypes, and is sent to every client.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from scipy.stats import percentileofscore
from torch import Tensor

from fedlib.attacks.image_metrics import likeness
from fedlib.attacks.inversion import decode, fsha_decoder, invert
from fedlib.attacks.pixels import to_inputs, to_pixels
from fedlib.blocks import generators
from fedlib.core.net import State
from fedlib.core.rng import generator
from fedlib.methods import fedpa
from fedlib.runs.features import features
from fedlib.runs.runner import Final

BATCH = 256  # images embedded at once


def upload(final: Final) -> tuple[fedpa.Down, fedpa.Up]:
    """Return what all clients would receive and send in the round after the last."""
    fed, server, mine = final
    ctx = replace(fed.ctx, round=fed.ctx.round + 1)
    down = fed.method.broadcast(ctx, server)
    return down, fed.method.client(ctx, down, mine, fed.train)[1]


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """Return half the summed gaps of histograms ``[..., C]``, each scaled to sum 1.

    0 for equal shares, 1 where no class is in both. An empty histogram counts as one
    without any class.
    """
    shares = [
        x.double() / x.double().sum(-1, keepdim=True).clamp(min=1) for x in (p, q)
    ]
    return (shares[0] - shares[1]).abs().sum(-1) / 2


def guesses(final: Final) -> dict[str, Tensor]:
    """Return class histograms ``[K, C]`` that different readers guess for each client.

    ``labels`` and ``prototype counts`` are fields of each client's upload; ``samples
    seen`` is the released program's counter of samples processed in the round, where a
    switch (``pj_counts="seen_plus1"``, ``gen_labels``) has it sent. ``broadcast`` is
    the distribution that every client receives, a guess by a fellow client; ``uniform``
    is a guess by nobody in particular.
    """
    down, up = upload(final)
    by_source = {"labels": up.labels, "prototype counts": up.protos.count}
    if "seen" in up.counters:
        by_source["samples seen"] = up.counters["seen"]
    share = down.labels.share.expand_as(up.labels)
    return by_source | {"broadcast": share, "uniform": torch.ones_like(share)}


def histograms(final: Final) -> pd.DataFrame:
    """Return how far guessed class histograms are from the true ones.

    Returns
    -------
    DataFrame
        source (``guesses``), client, tv (total variation distance of shares, exactly 0
        where they are equal), exact: percent of the classes whose number of samples is
        guessed exactly.
    """
    fed = final.federation
    truth = fed.train.label_counts(fed.ctx.classes)
    parts = []
    for source, guess in guesses(final).items():
        apart = total_variation(guess, truth)
        exact = 100 * (guess.double() == truth).double().mean(1)
        values = {"client": range(len(truth)), "tv": apart, "exact": exact}
        parts.append(pd.DataFrame({"source": source, **values}))
    return pd.concat(parts, ignore_index=True)


class Embeddings(NamedTuple):
    """Embeddings and their classes."""

    z: Tensor  # [n, d]
    y: Tensor  # int64 [n]


def generate(final: Final, per_class: int, seed: int) -> Embeddings:
    """Return what the last generator makes of each known class, as clients make it."""
    fed, server, _ = final
    network, hp = fedpa.generator_of(fed.ctx), fed.ctx.hp
    y = server.protos.known.nonzero().flatten().repeat_interleave(per_class)
    pick = generator(seed, "generated")
    noise = generators.draw_noise(hp.noise, len(y), hp.noise_size, pick)
    with torch.no_grad():
        return Embeddings(network(server.generator, noise, y), y)


def near(h: Tensor, real: Tensor, prototype: Tensor) -> pd.DataFrame:
    """Return how near embeddings of one class are to its prototype and to real ones.

    Parameters
    ----------
    h : Tensor
        ``[n, d]``, generated.
    real : Tensor
        ``[N, d]`` of real samples, N at least 2.
    prototype : Tensor
        ``[d]``.

    Returns
    -------
    DataFrame
        kind (``generated``, ``prototype``, ``real``), to_prototype and nearest
        (Euclidean distance to the prototype, to the nearest real one; of a real one, to
        another), cosine with the prototype, percentile of ``nearest`` among that of
        real ones (ties count half).
    """
    among = torch.cdist(real, real).fill_diagonal_(float("inf")).amin(1)
    parts = []
    for kind, x in {"generated": h, "prototype": prototype[None], "real": real}.items():
        nearest = among if kind == "real" else torch.cdist(x, real).amin(1)
        values: dict[str, Any] = {
            "to_prototype": torch.linalg.vector_norm(x - prototype, dim=1),
            "cosine": F.cosine_similarity(x, prototype[None]),
            "nearest": nearest,
            "percentile": percentileofscore(among.numpy(), nearest.numpy(), "mean"),
        }
        parts.append(pd.DataFrame({"kind": kind, **values}))
    return pd.concat(parts, ignore_index=True)


def nearness(final: Final, per_class: int, seed: int) -> pd.DataFrame:
    """Return ``near`` of every class with a prototype and two real samples, with label.

    Real embeddings are those of all training samples under the global model; where
    BatchNorm statistics stay local, it has its first ones.
    """
    made = generate(final, per_class, seed)
    private = features(final, "global", "train")
    parts = []
    for label in made.y.unique().tolist():
        real = private.out.high[private.y == label].double()
        if len(real) > 1:
            prototype = final.server.protos.mean[label].double()
            rows = near(made.z[made.y == label].double(), real, prototype)
            parts.append(rows.assign(label=label))
    return pd.concat(parts, ignore_index=True)


def nearness_summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means over classes of the medians within a class, a row per kind."""
    numbers = ["to_prototype", "cosine", "nearest", "percentile"]
    per_class = rows.groupby(["kind", "label"], sort=False)[numbers].median()
    return per_class.groupby("kind", sort=False).mean().reset_index()


class Images(NamedTuple):
    """Images in [-1, 1] with their embeddings under the global model."""

    x: Tensor  # [n, c, h, w]
    z: Tensor  # [n, d]
    y: Tensor  # int64 [n]


class Reconstructed(NamedTuple):
    """Pictures that a decoder makes of embeddings, and the truth beside."""

    private: Images  # the clients' training samples
    images: dict[str, Tensor]  # kind -> [n, c, h, w]
    labels: dict[str, Tensor]  # kind -> int64 [n]
    losses: pd.DataFrame  # of the decoder


def _global_state(final: Final) -> State:
    fed, server, mine = final
    state = fed.method.models(fed.ctx, server, mine).shared
    assert state is not None  # FedPA has a global model
    return state


@torch.no_grad()
def _images(final: Final, x: Tensor, y: Tensor) -> Images:
    """Return normalised inputs as images, embedded."""
    fed, state = final.federation, _global_state(final)
    z = torch.cat([fed.ctx.net(state, part).high for part in x.split(BATCH)])
    return Images(to_pixels(x, fed.train.mean, fed.train.std), z, y)


def attack(
    final: Final,
    *,
    per_class: int,
    steps: int,
    batch: int,
    learning_rate: float,
    width: int,
    seed: int,
) -> Reconstructed:
    """Train a decoder by querying the global model, and show it what travels.

    The attacker's own images are the clients' test shards, on which nobody trains.

    Parameters
    ----------
    per_class : int
        Generated embeddings of each class.
    steps, batch, learning_rate
        Of the decoder's training.
    width : int
        Of the decoder, as in ``inversion.fsha_decoder``.
    seed : int
        Of the decoder and of the generator's noise.

    Returns
    -------
    Reconstructed
        Kinds: ``real`` (each training sample's own embedding), ``prototype`` (one per
        class), ``generated``, and without any decoder ``attacker's`` (as many of its
        own images per class as there are generated ones, or all it has).
    """
    fed, server, _ = final
    public = fed.test._replace(augment=None)
    own = torch.cat(public.index).unique()
    theirs = _images(final, public.inputs(own), public.y[own])
    train = fed.train._replace(augment=None)
    held = torch.cat(train.index)
    private = _images(final, train.inputs(held), train.y[held])
    channels, side = theirs.x.shape[1:3]
    made = generate(final, per_class, seed)
    learnt = invert(
        fsha_decoder(theirs.z.shape[1], channels, side, width=width),
        theirs.x,
        theirs.z,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        seed=seed,
    )
    known = server.protos.known.nonzero().flatten()
    codes = {
        "real": private.z,
        "prototype": server.protos.mean[known],
        "generated": made.z,
    }
    labels = {"real": private.y, "prototype": known, "generated": made.y}
    images = {kind: decode(learnt.decoder, z) for kind, z in codes.items()}
    some = [(theirs.y == c).nonzero().flatten()[:per_class] for c in known]
    images["attacker's"] = theirs.x[torch.cat(some)]
    labels["attacker's"] = theirs.y[torch.cat(some)]
    return Reconstructed(private, images, labels, learnt.losses)


def nearest_private(seen: Reconstructed, kind: str) -> Tensor:
    """Return the training image of its class that each picture is nearest to."""
    pictures, y = seen.images[kind], seen.labels[kind]
    nearest = torch.empty(len(y), dtype=torch.int64)
    for label in y.unique():
        rows = (seen.private.y == label).nonzero().flatten()
        here = y == label
        apart = torch.cdist(pictures[here].flatten(1), seen.private.x[rows].flatten(1))
        nearest[here] = rows[apart.argmin(1)]
    return nearest


def mean_images(seen: Reconstructed, y: Tensor) -> Tensor:
    """Return the mean training image of each class of ``y`` ``[n]``."""
    known, place = y.unique(return_inverse=True)
    means = [seen.private.x[seen.private.y == c].mean(0) for c in known]
    return torch.stack(means)[place]


def scores(final: Final, seen: Reconstructed) -> pd.DataFrame:
    """Return how alike decoded pictures and training images are, on average.

    Returns
    -------
    DataFrame
        kind, against (``own image`` of real embeddings; of all: ``nearest of class``,
        the training image of the class that is nearest in pixels, and ``class mean``),
        number, psnr (mean of dB), ssim, shows_class: percent of the pictures that the
        global model takes for their class.
    """
    fed, state = final.federation, _global_state(final)
    rows = []
    for kind, pictures in seen.images.items():
        y = seen.labels[kind]
        inputs = to_inputs(pictures, fed.train.mean, fed.train.std)
        with torch.no_grad():
            said = torch.cat(
                [fed.ctx.net(state, x).logits.argmax(1) for x in inputs.split(BATCH)]
            )
        right = 100 * float((said == y).double().mean())
        against = {
            "nearest of class": seen.private.x[nearest_private(seen, kind)],
            "class mean": mean_images(seen, y),
        }
        if kind == "real":
            against = {"own image": seen.private.x} | against
        for name, truth in against.items():
            alike = likeness(truth, pictures)[["psnr", "ssim"]].mean().to_dict()
            row = {"kind": kind, "against": name, "number": len(y)}
            rows.append(row | alike | {"shows_class": right})
    return pd.DataFrame(rows)


def gallery(seen: Reconstructed, count: int) -> tuple[dict, list[int]]:
    """Return a row of pictures per class, as ``reconstructions.grid`` takes them.

    The private image of a class is the one that the first generated picture is nearest
    to; beside it, decoded from its own embedding.

    Parameters
    ----------
    count : int
        Generated pictures of a class.

    Returns
    -------
    dict
        Group -> title of a column -> images ``[C, c, h, w]``.
    list of int
        The classes.
    """
    y = seen.labels["generated"]
    classes = seen.labels["prototype"].tolist()
    first = torch.stack([(y == c).nonzero().flatten()[:count] for c in classes])
    own = nearest_private(seen, "generated")[first[:, 0]]
    groups = {
        "Clients": {
            "Private\nimage": seen.private.x[own],
            "Class\nmean": mean_images(seen, torch.tensor(classes)),
        },
        "Decoded from": {
            "Its own\nembedding": seen.images["real"][own],
            "The\nprototype": seen.images["prototype"],
        },
        "Decoded from generated embeddings": {
            f"Number {i + 1}\n": seen.images["generated"][first[:, i]]
            for i in range(count)
        },
    }
    return groups, classes

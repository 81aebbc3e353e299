"""How far apart FedPG's and FedAvg's local models are (FedPG, Fig. 3 and 6).

All models see the same images, those of the whole test set, whatever their clients
hold. A client's local model is the one that it trained in the last round in which it
took part.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.core.embed import forward
from fedlib.core.method import draw_cohort
from fedlib.core.net import State
from fedlib.core.rng import generator
from fedlib.runs import features
from fedlib.runs.results import Result
from fedlib.runs.runner import Final


class Seen(NamedTuple):
    """What one model makes of n images."""

    z: Tensor  # [n, d], embeddings
    logits: Tensor  # [n, C]


def outputs(
    final: Final, states: Sequence[State], per_class: int | None = None
) -> tuple[list[Seen], Tensor]:
    """Return each model's outputs on the whole test set, and the labels ``[n]``.

    Parameters
    ----------
    states : list of State
        One model each, without a client axis.
    per_class : int, optional
        The first samples of each class alone; by default all.

    Raises
    ------
    ValueError
        The run has clients' test shards only (``Spec.test``).
    """
    fed = final.federation
    if fed.full is None:
        raise ValueError(f"test: got {fed.spec.test!r}, expected 'full' or 'groups'")
    samples = fed.full._replace(index=[torch.cat(fed.full.index)])
    if per_class is not None:
        samples = features.first_of_class(samples, per_class)
    by_state = (forward(fed.ctx.net, s, samples, stacked=False)[0] for s in states)
    seen = [Seen(out.high[0], out.logits[0]) for out in by_state]
    return seen, samples.y[samples.index[0]]


def local_states(final: Final, clients: Sequence[int]) -> list[State]:
    """Return the local models of some clients."""
    fed, server, mine = final
    personal = fed.method.models(fed.ctx, server, mine).personal
    rows = [final.clients.index(client) for client in clients]
    return [{k: v[i] for k, v in personal.items()} for i in rows]


def pair(result: Result, seed: int) -> list[int]:
    """Return two clients at random, in order, of those that trained in the last round.

    Raises
    ------
    ValueError
        There was only one.
    """
    cohort = result.log.cohort[-1]
    if len(cohort) < 2:
        raise ValueError(f"result: got a cohort of {len(cohort)}, expected two clients")
    order = torch.randperm(len(cohort), generator=generator(seed, "pair"))
    return sorted(cohort[order[:2]].tolist())


def planes(
    final: Final, clients: Sequence[int], per_class: int, seed: int
) -> pd.DataFrame:
    """Return local models' embeddings of the same images, in one t-SNE (Fig. 3).

    Returns
    -------
    DataFrame
        client, image (its place among those drawn), x, y, truth and prediction (labels
        of classes).
    """
    by_client, y = outputs(final, local_states(final, clients), per_class)
    z = torch.cat([out.z for out in by_client])
    frame = pd.DataFrame(features.plane(z.numpy(), seed), columns=["x", "y"])
    guessed = torch.cat([out.logits.argmax(1) for out in by_client])
    return frame.assign(
        client=np.repeat(np.asarray(clients), len(y)),
        image=np.tile(np.arange(len(y)), len(clients)),
        truth=y.repeat(len(clients)).numpy(),
        prediction=guessed.numpy(),
    )


def histograms(final: Final, clients: Sequence[int]) -> pd.DataFrame:
    """Return client, label and samples: the training data of some clients (Fig. 3)."""
    counts = final.federation.train.label_counts(final.federation.ctx.classes)
    rows = [
        (client, label, int(counts[client, label]))
        for client in clients
        for label in range(counts.shape[1])
    ]
    return pd.DataFrame(rows, columns=["client", "label", "samples"])


def apart(final: Final, clients: Sequence[int], per_class: int) -> pd.DataFrame:
    """Return how far two local models' embeddings of the same test images are apart.

    Distances are Euclidean, between unit vectors, over ``per_class`` images of each
    class.

    Returns
    -------
    DataFrame
        One row: ``same_image``, mean distance of an image's two embeddings; ``within``
        and ``between``, mean distances of two images of one class and of two classes
        under one model, averaged over both.
    """
    by_client, y = outputs(final, local_states(final, clients), per_class)
    unit = [F.normalize(out.z.double(), dim=1) for out in by_client]
    first, second = unit
    own = [features.distances(z.numpy(), y.numpy()) for z in unit]
    row = {"same_image": float((first - second).norm(dim=1).mean())}
    row |= {"within": np.mean([d["intra"] for d in own])}
    row |= {"between": np.mean([d["inter"] for d in own])}
    return pd.DataFrame([row])


def overlap(a: Tensor, b: Tensor) -> float:
    """Return what two distributions over classes share, 0 to 100 percent.

    Parameters
    ----------
    a, b : Tensor
        Counts ``[C]`` of samples or predictions.
    """
    return 100 * float(torch.minimum(a / a.sum(), b / b.sum()).sum())


def bias(final: Final, clients: Sequence[int]) -> pd.DataFrame:
    """Return how much local models' predictions follow their clients' data (Fig. 3).

    Returns
    -------
    DataFrame
        client, samples, accuracy on the whole test set, ``truth`` and ``predictions``:
        the ``overlap`` of the client's labels with the test set's labels, and with the
        model's predictions on it; all but samples in percent.
    """
    by_client, y = outputs(final, local_states(final, clients))
    classes = final.federation.ctx.classes
    held = final.federation.train.label_counts(classes)
    rows = []
    for client, out in zip(clients, by_client, strict=True):
        guessed = out.logits.argmax(1)
        mine, all_true = held[client], y.bincount(minlength=classes)
        rows.append(
            {
                "client": client,
                "samples": int(mine.sum()),
                "accuracy": 100 * float((guessed == y).double().mean()),
                "truth": overlap(mine, all_true),
                "predictions": overlap(mine, guessed.bincount(minlength=classes)),
            }
        )
    return pd.DataFrame(rows)


def by_class(final: Final) -> Tensor:
    """Return the last cohort's accuracies ``[K, C]`` on each class's test images.

    As fractions; NaN for a class without a test image.
    """
    fed = final.federation
    clients = draw_cohort(fed.ctx, fed.spec.participation)
    by_client, y = outputs(final, local_states(final, clients))
    classes = final.federation.ctx.classes
    total = y.bincount(minlength=classes)
    right = [
        y[out.logits.argmax(1) == y].bincount(minlength=classes) for out in by_client
    ]
    return torch.stack(right) / total


def global_planes(
    finals: Mapping[str, Final], per_class: int, seed: int
) -> pd.DataFrame:
    """Return test images under each global model, in a t-SNE of its own (Fig. 6).

    Returns
    -------
    DataFrame
        panel (the mapping's names), x, y, label, as ``panels.planes`` takes.
    """
    parts = []
    for name, final in finals.items():
        (out,), y = outputs(final, [final.shared], per_class)
        points = pd.DataFrame(features.plane(out.z.numpy(), seed), columns=["x", "y"])
        parts.append(points.assign(label=y.numpy(), panel=name))
    return pd.concat(parts, ignore_index=True)


def balance(finals: Mapping[str, Final], per_class: int) -> pd.DataFrame:
    """Return how classes part under global models, and how even local models are.

    Returns
    -------
    DataFrame
        method (the mapping's names); ``global``, the global model's accuracy, and
        ``ratio``, the mean distance of ``per_class`` images of a class to those of
        others, over that within classes (between unit vectors); over the last
        cohort's models: ``local``, mean accuracy, ``class_sd``, the sd over classes
        (ddof 0) of each one's accuracy, averaged, and ``unknown``, the share of classes
        without a right prediction. Accuracies on the whole test set, in percent.
    """
    rows = []
    for name, final in finals.items():
        (out,), y = outputs(final, [final.shared])
        (few,), labels = outputs(final, [final.shared], per_class)
        unit = F.normalize(few.z.double(), dim=1)
        accuracy = by_class(final).double()
        accuracy = 100 * accuracy[:, ~accuracy[0].isnan()]
        right = (out.logits.argmax(1) == y).double().mean()
        row = {"method": name, "global": 100 * float(right)}
        row |= {"ratio": features.distances(unit.numpy(), labels.numpy())["ratio"]}
        row |= {"local": float(accuracy.mean())}
        row |= {"class_sd": float(accuracy.std(1, correction=0).mean())}
        row |= {"unknown": 100 * float((accuracy == 0).double().mean())}
        rows.append(row)
    return pd.DataFrame(rows)

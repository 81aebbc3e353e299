r"""What uploads tell of single samples: FedHPro's class gradients, and small cells.

With a linear head, the gradient of the cross-entropy for a sample's embedding is
:math:`g = W^T (p - e_y)`: the sample's softmax :math:`p`, seen through weights that
the client uploads beside it. The gradient for the head itself, which the released
program sends too, is :math:`(p - e_y) [z, 1]^T`: it holds the embedding as well. A
class's mean gradient is that of the mean, so a class of one sample gives that sample
away, and a larger one its means. Nothing here is an approximation, up to float32.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedlib import papers
from fedlib.core import heads
from fedlib.core.embed import forward, padded
from fedlib.core.method import Round
from fedlib.core.net import Net
from fedlib.core.protos import Protos, class_sums, from_sums
from fedlib.data import load
from fedlib.methods import fedhpro
from fedlib.papers import study
from fedlib.partitions import Partition
from fedlib.runs.federation import Federation, partition_of


def residuals(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return softmax minus one-hot ``[..., C]`` from gradients ``[..., d]``.

    Exact where the rows of the head's weight ``[..., C, d]`` are linearly independent,
    which needs d >= C; otherwise the solution of least norm.
    """
    inverse = torch.linalg.pinv(weight.double().transpose(-1, -2))
    return (inverse @ gradient.double().unsqueeze(-1)).squeeze(-1)


def softmaxes(net: Net, up: fedhpro.Up, hp: fedhpro.HP) -> Protos:
    """Return each client's mean softmax ``[K, C, C]`` of each class, from its upload.

    Exactly a sample's own where the count is 1. Of augmented images under
    ``grad_aug="dsa"``.

    Raises
    ------
    ValueError
        Gradients were taken at a model that is not uploaded, and none of the head are.
    """
    gradients, classes = up.gradients, up.gradients.count.shape[-1]
    if up.head_gradients.mean.shape[-1]:
        miss = _of_head(up)[..., -1]  # the bias's column is the residual itself
    elif hp.grad_when == "pre_local":
        raise ValueError(
            "hp.grad_when: got 'pre_local' without head gradients, expected "
            "'post_local', where the gradients belong to the uploaded model"
        )
    else:
        weight = heads.linear(net, up.model.state)[0]
        twice = hp.grad_reduction == "mean_twice"
        scale = gradients.count.unsqueeze(-1) if twice else 1
        miss = residuals(gradients.mean * scale, weight.unsqueeze(1))
    hot = torch.eye(classes, dtype=miss.dtype)
    known = gradients.known.unsqueeze(-1)
    return Protos(torch.where(known, miss + hot, 0.0), gradients.count)


def _of_head(up: fedhpro.Up) -> Tensor:
    """Return the head's gradients ``[K, C, C, d + 1]``; the bias's column is last."""
    classes = up.gradients.count.shape[-1]
    return up.head_gradients.mean.double().unflatten(-1, (classes, -1))


def embeddings(up: fedhpro.Up) -> Protos:
    """Return embeddings ``[K, C, d]`` from the gradients of the head, if uploaded.

    Exactly a sample's own where the count is 1; else the mean of the class's, weighed
    by how far each is from a probability of 1. A class that the model is sure of to
    the last digit of float32 has no gradient, and count 0.

    Raises
    ------
    ValueError
        The upload has no gradients of the head.
    """
    if not up.head_gradients.mean.shape[-1]:
        raise ValueError(
            "head_gradients: got none, expected those of classifier_retrain='creff'"
        )
    own = torch.arange(up.gradients.count.shape[-1])
    row = _of_head(up)[:, own, own]  # [K, C, d + 1]: the row of the class's own logit
    value, miss = row[..., :-1], row[..., -1:]
    readable = miss.squeeze(-1) != 0
    mean = torch.where(miss != 0, value / torch.where(miss != 0, miss, 1.0), 0.0)
    return Protos(mean, up.gradients.count * readable)


def against_truth(fed: Federation, after: Round) -> pd.DataFrame:
    """Return how far what FedHPro's uploads tell is from the clients' data.

    Returns
    -------
    DataFrame
        client, class, samples, error (largest difference of the recovered and the true
        mean softmax over classes), own (recovered mean probability of the class); one
        row per class that a client uploads.

    Raises
    ------
    ValueError
        Gradients were not taken at the uploaded model, on the images as they are.
    """
    hp = fed.ctx.hp
    if (hp.grad_when, hp.grad_samples, hp.grad_aug) != ("post_local", "all", "none"):
        raise ValueError(
            "hp: got gradients before training or of some images, expected "
            "grad_when='post_local', grad_samples='all' and grad_aug='none'"
        )
    fed = fed._replace(train=fed.train.cohort(after.cohort))
    guess = softmaxes(fed.ctx.net, after.up, hp)
    out, real = forward(fed.ctx.net, after.up.model.state, fed.train, stacked=True)
    label = torch.where(real, fed.train.y[padded(fed.train.index)[0]], -1)
    share = torch.softmax(out.logits.double(), -1)
    truth = from_sums(*class_sums(share, label, fed.ctx.classes))
    error = (guess.mean - truth.mean).abs().amax(-1)
    own = guess.mean.diagonal(dim1=1, dim2=2)
    rows = [
        (
            after.cohort[k],
            c,
            int(guess.count[k, c]),
            float(error[k, c]),
            float(own[k, c]),
        )
        for k, c in guess.known.nonzero().tolist()
    ]
    return pd.DataFrame(rows, columns=["client", "class", "samples", "error", "own"])


class Cells(NamedTuple):
    """How many samples stand behind the records that clients could send of classes."""

    cells: int  # (client, class) pairs with a sample
    smallest: int  # samples of the smallest
    median: float
    below: dict[int, int]  # limit -> cells with fewer samples


def small_cells(
    partition: Partition, labels: Tensor, limits: Iterable[int] = (2, 3, 5, 10)
) -> Cells:
    """Count the (client, class) cells of a partition with few training samples.

    Parameters
    ----------
    labels : Tensor
        int64 labels of the training set that the partition indexes.
    limits : iterable of int
        m; a cell with 0 < n < m samples is below.
    """
    table = partition.table(labels).to_numpy()
    sizes = table[table > 0]
    below = {m: int((sizes < m).sum()) for m in limits}
    return Cells(len(sizes), int(sizes.min()), float(np.median(sizes)), below)


def cells_of_papers(
    datasets: Sequence[str],
    sweeps: Mapping[str, Mapping[str, Sequence[Any]]],
    limits: Sequence[int],
    seed: int,
    draws: int,
) -> pd.DataFrame:
    """Return the small cells of every partition that the five papers draw.

    Parameters
    ----------
    datasets : list of str
        Those to draw; any other of a paper has one row that says so.
    sweeps : mapping
        From a paper to the settings that it varies, as in ``study.grid``.
    limits : list of int
        As in ``small_cells``.
    seed : int
        Of the first draw of partitions for which the paper has no seed of its own.
    draws : int >= 1
        How many, by seeds that follow each other.

    Returns
    -------
    DataFrame
        paper, dataset, scheme, setting (what else is varied), clients, draws, cells
        (mean), smallest (of all draws), median (mean of the draws' medians), and for
        each limit m ``below m`` and ``below m_sd``: the share of cells with fewer than
        m samples, mean and sd over draws (ddof 1, empty for one).

    Raises
    ------
    ValueError
        Fewer than one draw.
    """
    if draws < 1:
        raise ValueError(f"draws: got {draws}, expected at least 1")
    rows = []
    for paper, protocols in papers.PAPERS.items():
        for dataset, protocol in protocols.items():
            row = {"paper": paper, "dataset": dataset}
            if dataset not in datasets:
                if dataset not in papers.OURS:
                    scheme = protocol.partition.scheme
                    rows.append(row | {"scheme": scheme, "setting": "not drawn"})
                continue
            data = load(dataset)
            asked = {"datasets": [dataset], "runs": [paper], "seed": seed}
            grid = study.grid(paper, asked | {"sweeps": sweeps.get(paper)})
            cells = grid.cells.to_dict("records")
            for cell, spec in zip(cells, grid.specs, strict=True):
                said = cell["setting"] in ("", "scheme")  # scheme: a column of its own
                varied = "" if said else f"{cell['setting']} {cell['value']}"
                first = seed if spec.partition_seed is None else spec.partition_seed
                counts = [
                    spec.model_copy(update={"partition_seed": first + i})
                    for i in range(draws)
                ]
                table = pd.DataFrame(
                    small_cells(partition_of(one, data), data.train_y, limits)
                    for one in counts
                )
                shares = pd.DataFrame(table["below"].tolist()).div(table["cells"], 0)
                rows.append(
                    row
                    | {
                        "scheme": spec.partition.scheme,
                        "setting": varied,
                        "clients": spec.clients,
                        "draws": draws,
                        "cells": table["cells"].mean(),
                        "smallest": table["smallest"].min(),
                        "median": table["median"].mean(),
                    }
                    | {f"below {m}": shares[m].mean() for m in limits}
                    | {f"below {m}_sd": shares[m].std() for m in limits}
                )
    columns = ["paper", "dataset", "scheme", "setting", "clients", "draws", "cells"]
    columns += ["smallest", "median"]
    columns += [f"below {m}{end}" for m in limits for end in ("", "_sd")]
    integers = dict.fromkeys(["clients", "draws", "smallest"], "Int64")
    return pd.DataFrame(rows).reindex(columns=columns).astype(integers)

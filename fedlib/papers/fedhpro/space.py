"""Where global prototypes are, beside class means of all data (FedHPro, Fig. 2 and 3).

"Centralised" prototypes are class means of the training data of all clients together.
They live in the space of the model that embeds them: the federation's global model, so
that both kinds share a space, or a model that was trained on the pooled data.
"""

from dataclasses import replace

import pandas as pd
import torch
from torch import Tensor

from fedlib.core.embed import class_means
from fedlib.core.protos import Protos, gaps, merge
from fedlib.runs import features
from fedlib.runs.federation import federation
from fedlib.runs.runner import Final
from fedlib.runs.spec import Spec


def prototypes(final: Final) -> Protos:
    """Return a method's global prototypes ``[C, d]``, hyper-prototypes as their means.

    Of a method without any, Eq. (4): class means of each client's data under its own
    model, averaged over the clients that hold the class.
    """
    fed, server, mine = final
    models = fed.method.models(fed.ctx, server, mine)
    if models.protos is not None:
        return models.protos
    shards = fed.train.cohort(final.clients)
    return merge(class_means(fed.ctx.net, models.personal, shards, "high"))


def centralised(final: Final) -> Protos:
    """Return class means ``[C, d]`` of all training data under the global model.

    Raises
    ------
    ValueError
        The method has no global model.
    """
    fed = final.federation
    means = class_means(fed.ctx.net, final.shared, fed.train, "high", stacked=False)
    return merge(means, "samples")


def distance(a: Protos, b: Protos) -> Tensor:
    """Return the Euclidean distance, averaged over the classes that both have."""
    both = a.known & b.known
    return torch.linalg.vector_norm((a.mean - b.mean)[both], dim=-1).mean()


def off_centre(final: Final) -> float:
    """Return the distance of global prototypes to centralised ones, in one space."""
    return float(distance(prototypes(final), centralised(final)))


def distances(spec: Spec, pooled: Protos) -> pd.DataFrame:
    """Step through a spec's rounds, and measure how far its global prototypes are.

    Nothing is kept: the rounds are computed anew in each call.

    Parameters
    ----------
    pooled : Protos
        Class means under a model that was trained on the pooled data.

    Returns
    -------
    DataFrame
        round, own (distance to ``centralised``, in the run's space), pooled (distance
        to ``pooled``, each in the space of its own model); rounds as ``eval_every``.
    """
    fed, rows = federation(spec), []
    for after in fed.rounds():
        if after.number % spec.eval_every == 0 or after.number == spec.rounds:
            ended = fed._replace(ctx=replace(fed.ctx, round=after.number))
            now = Final(ended, after.server, after.mine)
            own, mine = centralised(now), prototypes(now)
            apart = (float(distance(mine, other)) for other in (own, pooled))
            rows.append((after.number, *apart))
        if after.number == spec.rounds:
            break
    return pd.DataFrame(rows, columns=["round", "own", "pooled"])


def domains(final: Final) -> list[str]:
    """Return the names of a data set's domains; none where it has no domains."""
    groups = final.federation.dataset.groups
    return list(groups.names) if groups else []


def by_domain(points: pd.DataFrame) -> pd.DataFrame:
    """Return a plane's samples once, and its prototypes in each domain.

    So that a panel per domain has all prototypes. Without domains nothing changes.
    """
    if "domain" not in points:
        return points
    stars, samples = (
        points.query(f"kind == '{kind}'") for kind in ("prototype", "sample")
    )
    names = dict.fromkeys(samples["domain"].tolist())
    per_domain = [stars.assign(domain=name) for name in names]
    return pd.concat([samples, *per_domain], ignore_index=True)


def summary(
    final: Final, per_class: int | None = None, domain: str | None = None
) -> dict[str, float]:
    """Return distances within and between classes of test samples, and to prototypes.

    Under the global model, as ``features.distances``; ``to_prototype`` is the mean
    distance of a sample to its class's global prototype, ``nearest`` the share of
    samples, in percent, whose nearest prototype is that of their class, and ``gap`` the
    mean distance of a prototype to the nearest other one. Of one ``domain``'s samples,
    or of all.
    """
    z, y, of, known = _test(final, per_class)
    if domain is not None:
        here = torch.tensor([name == domain for name in of])
        z, y = z[here], y[here]
    apart = torch.cdist(z, known.mean)
    mine = apart.gather(1, y.unsqueeze(1)).squeeze(1)[known.known[y]]
    right = torch.where(known.known, apart, float("inf")).argmin(1) == y
    gap = float(gaps(known)[known.known].mean())
    own = {
        "gap": gap,
        "to_prototype": float(mine.mean()),
        "nearest": 100 * float(right.double().mean()),
    }
    return features.distances(z.numpy(), y.numpy()) | own


def plane(final: Final, per_class: int | None = None, seed: int = 0) -> pd.DataFrame:
    """Return test samples and global prototypes in one t-SNE.

    Returns
    -------
    DataFrame
        x, y, label, kind ("sample" or "prototype"), as ``panels.planes`` takes; of data
        sets with domains also a sample's domain, empty for prototypes.
    """
    z, y, of, known = _test(final, per_class)
    stars = known.known.nonzero().flatten()
    places = features.plane(torch.cat([z, known.mean[stars]]).numpy(), seed)
    frame = pd.DataFrame(places, columns=["x", "y"])
    kind = ["sample"] * len(z) + ["prototype"] * len(stars)
    frame = frame.assign(label=torch.cat([y, stars]).numpy(), kind=kind)
    return frame.assign(domain=[*of, *[""] * len(stars)]) if any(of) else frame


def _test(
    final: Final, per_class: int | None
) -> tuple[Tensor, Tensor, list[str], Protos]:
    """Return embedded test samples ``[n, d]``, labels, domains and prototypes.

    In float64; without domains their names are empty.
    """
    embedded = features.features(final, "global", "test")
    rows = torch.arange(len(embedded.y))
    if per_class is not None:  # evenly over the clients, so over domains
        of_class = (
            torch.nonzero(embedded.y == c).flatten() for c in embedded.y.unique()
        )
        rows = torch.cat(
            [i[:: max(1, len(i) // per_class)][:per_class] for i in of_class]
        )
    protos = prototypes(final)
    protos = protos._replace(mean=protos.mean.double())
    names, fed = domains(final), final.federation
    if names:  # of each client, whose samples are all of one domain
        assert fed.dataset.groups is not None
        groups = fed.dataset.groups.test
        own = [names[int(groups[index[0]])] for index in fed.test.index]
    else:
        own = [""] * len(fed.test.index)
    of = [own[k] for k in embedded.client[rows].tolist()]
    return embedded.out.high[rows].double(), embedded.y[rows], of, protos

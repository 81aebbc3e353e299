"""How much of a client's images attacks recovered, beside guesses without an attack."""

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from fedlib.attacks.image_metrics import likeness
from fedlib.core.rng import generator
from fedlib.papers.fedmps.attacks import FEATURES, Recovered
from fedlib.papers.fedmps.victim import Images, Victim, class_means
from fedlib.runs.beside import means_over_seeds

TITLES = {
    "A": "A: prototypes, hijack",
    "B": "B: prototypes, queries",
    "C": "C: the image, queries",
}


def controls(seen: Victim, seeds: Sequence[int]) -> list[Recovered]:
    """Return guesses of each private image that need no attack, only its class.

    The mean image of the client's class, which nobody but the client knows; that of the
    attacker's own images of the class; one of these, drawn by each seed.
    """
    place = torch.tensor([seen.classes.index(int(c)) for c in seen.private.y])
    own = torch.arange(len(place))
    guesses = []
    for name, source in (("client's", seen.private), ("attacker's", seen.public)):
        guess = Images(class_means(source, seen.classes)[place], seen.private.y)
        label = f"Mean image of the {name} class"
        guesses.append(Recovered("Control", label, seeds[0], guess, own))
    for seed in seeds:
        pick = generator(seed, "random image")
        rows = torch.empty(len(place), dtype=torch.int64)
        for c in seen.classes:
            at = (seen.private.y == c).nonzero().flatten()
            of = (seen.public.y == c).nonzero().flatten()
            rows[at] = of[torch.randint(len(of), (len(at),), generator=pick)]
        guess = Images(seen.public.x[rows], seen.private.y)
        label = "Image of the attacker's class"
        guesses.append(Recovered("Control", label, seed, guess, own))
    return guesses


def nearest(images: Images, private: Images) -> Tensor:
    """Return which private image of its class each is nearest to, by squared error."""
    apart = torch.cdist(images.x.flatten(1), private.x.flatten(1))
    other = images.y[:, None] != private.y[None, :]
    return apart.masked_fill(other, float("inf")).argmin(1)


def scores(seen: Victim, recovered: Sequence[Recovered]) -> pd.DataFrame:
    """Return how alike recovered and true images are, on average over images.

    Returns
    -------
    DataFrame
        variant, features, seed, against (the nearest private image of the class, the
        mean image of the client's class, or the own image), psnr (mean of dB), ssim,
        mse (pixels in [0, 1]), identified: percent whose nearest private image of the
        class is the own one.
    """
    means = class_means(seen.private, seen.classes)
    rows = []
    for r in recovered:
        place = torch.tensor([seen.classes.index(int(c)) for c in r.images.y])
        near = nearest(r.images, seen.private)
        against = {
            "nearest private image": seen.private.x[near],
            "class mean image": means[place],
        }
        if torch.equal(r.images.x, means[place]):
            del against["class mean image"]
        identified = {}
        if r.own is not None:
            against["own image"] = seen.private.x[r.own]
            identified["own image"] = 100 * float((near == r.own).float().mean())
        for name, truth in against.items():
            alike = likeness(truth, r.images.x).mean().to_dict()
            rows.append(
                {"variant": r.variant, "features": r.features, "seed": r.seed}
                | {"against": name, **alike, "identified": identified.get(name)}
            )
    return pd.DataFrame(rows).astype({"identified": float})


def summary(per_seed: pd.DataFrame) -> pd.DataFrame:
    """Return mean and sd (ddof 1) of ``scores`` over seeds, and how many there are."""
    keys = ["variant", "features", "against"]
    numbers = ["psnr", "ssim", "mse", "identified"]
    sds = [f"{name}_sd" for name in numbers]
    return means_over_seeds(per_seed, keys)[[*keys, *numbers, *sds, "seeds"]]


def gallery(
    seen: Victim, recovered: Sequence[Recovered]
) -> tuple[dict[str, dict[str, Tensor]], list[int]]:
    """Return the first seed's pictures, a row per class, and which images are shown.

    Of A, those of the weight that all features were attacked with.

    The private image of a class is the one that variant B, on both levels, comes
    nearest to; variant C decodes this image's own code.

    Returns
    -------
    dict
        Group -> title of a column -> images ``[n_i, c, h, w]``, as
        ``reconstructions.grid`` takes them.
    list of int
        The private images' numbers.
    """
    first = [
        r for r in recovered if r.seed == recovered[0].seed and r.features in FEATURES
    ]
    chosen = next(
        r for r in first if r.variant == "B" and r.features == next(iter(FEATURES))
    )
    shown = nearest(chosen.images, seen.private)
    groups = {
        "Client": {
            "Original": seen.private.x[shown],
            "Class mean": class_means(seen.private, seen.classes),
        }
    }
    for r in first:
        group = groups.setdefault(TITLES[r.variant], {})
        group[r.features] = r.images.x if r.own is None else r.images.x[shown]
    return groups, shown.tolist()

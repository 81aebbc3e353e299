"""What an attacker sees of a client of FedMPS, and how well images are recovered.

The attacker is the server, or whoever reads what a client uploads: it knows the class
means of both levels with their labels, can query the client's model (Fig. 11 calls this
an opaque box), and has images of its own of the same kind. It receives and sends no
gradient.
"""

# pandas ships no types, and those that pyright infers for frames are wrong here.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from fedlib.attacks import hijack, inversion
from fedlib.attacks.image_metrics import likeness
from fedlib.core.net import Net, State
from fedlib.core.rng import generator
from fedlib.runs.runner import Final

TITLES = {
    "A": "A: prototypes, hijack",
    "B": "B: prototypes, queries",
    "C": "C: the image, queries",
}
FEATURES: Mapping[str, tuple[str, ...]] = {
    "Both levels": ("low", "high"),
    "Low level": ("low",),
    "High level": ("high",),
}


class Images(NamedTuple):
    """Images with values in [-1, 1], and their classes."""

    x: Tensor  # [n, c, h, w]
    y: Tensor  # int64 [n]


class Victim(NamedTuple):
    """One client: what the attacker sees, and the truth that it does not."""

    net: Net
    state: State  # of the client's model, queried and never read
    mean: tuple[float, ...]  # of the normalisation, per channel
    std: tuple[float, ...]
    uploads: dict[str, Tensor]  # level -> [R, n_i, d]: prototypes of R rounds
    classes: list[int]  # whose prototypes these are
    public: Images  # the attacker's own: of no client
    private: Images  # the client's training images


def _pixels(inputs: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return what a net's inputs show, in [-1, 1]."""
    m, s = (torch.tensor(v).view(-1, 1, 1) for v in (mean, std))
    return ((inputs * s + m) * 2 - 1).clamp(-1, 1)


def victim(
    ended: Final, client: int, *, rounds: int = 1, public: int = 10_000, seed: int = 0
) -> Victim:
    """Watch a client for some rounds that follow the last one of a run.

    The model under attack is the client's after these rounds, in eval mode.

    Parameters
    ----------
    ended : Final
        Of a run of FedMPS.
    client : int
        Counted from 0.
    rounds : int >= 1
        Whose uploads are kept, the last one's included.
    public : int >= 1
        How many images of the training split that no client holds the attacker has; all
        of them where there are fewer. Drawn from the seed.

    Raises
    ------
    ValueError
        The client does not exist, or a number below 1.
    """
    fed, server, mine = ended
    if not 0 <= client < fed.ctx.clients:
        raise ValueError(f"client: got {client}, expected 0 to {fed.ctx.clients - 1}")
    for name, number in (("rounds", rounds), ("public", public)):
        if number < 1:
            raise ValueError(f"{name}: got {number}, expected at least 1")
    watched = list(islice(fed.rounds((fed.ctx.round, server, mine)), rounds))
    personal = fed.method.models(fed.ctx, server, watched[-1].mine).personal
    classes = fed.partition.owns[client].nonzero().flatten()
    rows = [after.cohort.index(client) for after in watched]
    uploads = {
        level: torch.stack(
            [
                getattr(after.up, level).mean[row][classes]
                for after, row in zip(watched, rows, strict=True)
            ]
        )
        for level in ("low", "high")
    }
    mean, std = fed.train.mean, fed.train.std
    index = fed.train.index[client]
    private = _pixels(fed.train.inputs(index), mean, std)
    free = torch.ones(len(fed.dataset.train_y), dtype=torch.bool)
    free[torch.cat(fed.partition.train)] = False
    spare = free.nonzero().flatten()
    order = torch.randperm(len(spare), generator=generator(seed, "public images"))
    spare = spare[order[:public]].sort().values
    return Victim(
        fed.ctx.net,
        {name: value[client] for name, value in personal.items()},
        mean,
        std,
        uploads,
        classes.tolist(),
        Images(fed.dataset.train_x[spare] / 127.5 - 1, fed.dataset.train_y[spare]),
        Images(private, fed.train.y[index]),
    )


def counted(seen: Victim, names: Sequence[str]) -> pd.DataFrame:
    """Return per class of the client: its images, and those of the attacker."""
    counts = [images.y.bincount().tolist() for images in (seen.private, seen.public)]
    columns = {
        "class": [names[c] for c in seen.classes],
        "private images": [counts[0][c] for c in seen.classes],
        "attacker's images": [counts[1][c] for c in seen.classes],
    }
    return pd.DataFrame(columns)


@torch.no_grad()
def query(seen: Victim, x: Tensor) -> dict[str, Tensor]:
    """Return the client's embeddings ``[n, d]`` of images in [-1, 1], by level."""
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (seen.mean, seen.std))
    inputs = ((x + 1) / 2 - mean) / std
    parts = [seen.net(seen.state, part) for part in inputs.split(256)]
    return {
        level: torch.cat([getattr(part, level) for part in parts])
        for level in ("low", "high")
    }


def side_by_side(by_level: Mapping[str, Tensor], levels: Sequence[str]) -> Tensor:
    """Return the levels of n codes as ``[n, d]``."""
    return torch.cat([by_level[level] for level in levels], -1).flatten(0, -2)


class Attack(NamedTuple):
    """Lengths and sizes of the attacks."""

    steps: int = 10_000
    batch: int = 64
    width: int = 256  # channels of pilot and decoder at 4 x 4
    critic_width: int = 512
    hidden: inversion.Hidden = "relu"
    inversion_rate: float = 1e-3  # learning rate of B's decoder
    hijack_rate: float = 1e-3  # of A's pilot and decoder
    critic_rate: float = 3e-3  # of A's critic, which has to keep ahead
    weight: float = 0.1  # of the critic's score in the pilot's loss
    other_weights: Sequence[float] = (0.01, 1.0)  # that A tries too, on both levels


class Recovered(NamedTuple):
    """What an attack, or a control, made of the codes of some images."""

    variant: str
    features: str
    seed: int
    images: Images
    own: Tensor | None = None  # which private image each is to be, where it is of one


def note(attack: Attack, seeds: Sequence[int]) -> str:
    """Return what a reader must know of how much was computed."""
    full = Attack()
    parts = [f"{attack.steps:,} of {full.steps:,} steps"]
    parts += [f"batches of {attack.batch}, networks {attack.width} channels wide"]
    parts += [f"{len(seeds)} seed{'s' * (len(seeds) > 1)} of the attacker, one run"]
    return f"attacks: {'; '.join(parts)} (full: {full.batch} and {full.width})"


class Attacked(NamedTuple):
    """All that attacks recovered, and how their training went."""

    found: list[Recovered]
    losses: pd.DataFrame  # seed, features, panel, step, loss


def _decoder(seen: Victim, size: int, attack: Attack) -> nn.Module:
    channels, side = seen.public.x.shape[1:3]
    return inversion.fsha_decoder(
        size, channels, side, width=attack.width, hidden=attack.hidden
    )


def by_hijack(
    seen: Victim, levels: Sequence[str], attack: Attack, seed: int
) -> tuple[Tensor, pd.DataFrame]:
    """Variant A: return the images of the last prototypes, and the losses.

    Without a query. The critic sees the uploads of all rounds; they are scaled to
    length 1 per level, as the pilot's codes are: else length would tell them apart.
    """
    sizes = [seen.uploads[level].shape[-1] for level in levels]
    channels, side = seen.public.x.shape[1:3]
    prototypes = hijack.unit(side_by_side(seen.uploads, levels), sizes)
    outcome = hijack.hijack(
        hijack.pilot(sizes, channels, side, width=attack.width, hidden=attack.hidden),
        _decoder(seen, sum(sizes), attack),
        hijack.critic(sum(sizes), width=attack.critic_width),
        seen.public.x,
        prototypes,
        steps=attack.steps,
        batch=attack.batch,
        learning_rate=attack.hijack_rate,
        critic_rate=attack.critic_rate,
        weight=attack.weight,
        seed=seed,
    )
    last = prototypes[-len(seen.classes) :]
    return inversion.decode(outcome.decoder, last), outcome.losses


def by_query(
    seen: Victim, levels: Sequence[str], attack: Attack, seed: int
) -> inversion.Decoding:
    """Variants B and C: return a decoder trained on queries of the attacker's images.

    B decodes prototypes as they were uploaded, shorter than single embeddings: scaled
    to length 1 they lie among these, but come out less like the mean image.
    """
    answers = side_by_side(query(seen, seen.public.x), levels)
    return inversion.invert(
        _decoder(seen, answers.shape[1], attack),
        seen.public.x,
        answers,
        steps=attack.steps,
        batch=attack.batch,
        learning_rate=attack.inversion_rate,
        seed=seed,
    )


PANELS = {
    "reconstruction": "A: decoder's error",
    "gap": "A: critic's gap",
    "loss": "B and C: decoder's error",
}


AXES = {
    PANELS["reconstruction"]: "Mean squared error",
    PANELS["gap"]: "Difference of scores",
    PANELS["loss"]: "Mean squared error",
}


def attacks(seen: Victim, attack: Attack, seeds: Sequence[int]) -> Attacked:
    """Run variants A, B and C on both levels together and on each alone.

    A runs on both levels with each of ``other_weights``, too.
    """
    recovered, curves = [], []
    labels = torch.tensor(seen.classes)
    last = {level: rounds[-1] for level, rounds in seen.uploads.items()}
    own = torch.arange(len(seen.private.y))

    def keep(losses: pd.DataFrame, name: str, seed: int) -> None:
        for column in losses.columns.drop("step"):
            curve = losses[["step"]].assign(
                loss=losses[column], seed=seed, features=name, panel=PANELS[column]
            )
            curves.append(curve)

    def hijacked(levels: Sequence[str], name: str, weight: float, seed: int) -> None:
        weighed = attack._replace(weight=weight)
        images, losses = by_hijack(seen, levels, weighed, seed)
        recovered.append(Recovered("A", name, seed, Images(images, labels)))
        keep(losses, name, seed)

    for seed in seeds:
        for name, levels in FEATURES.items():
            hijacked(levels, name, attack.weight, seed)
            decoder, losses = by_query(seen, levels, attack, seed)
            images = inversion.decode(decoder, side_by_side(last, levels))
            recovered.append(Recovered("B", name, seed, Images(images, labels)))
            images = inversion.decode(
                decoder, side_by_side(query(seen, seen.private.x), levels)
            )
            single = Images(images, seen.private.y)
            recovered.append(Recovered("C", name, seed, single, own))
            keep(losses, name, seed)
        name, levels = next(iter(FEATURES.items()))
        for weight in attack.other_weights:
            hijacked(levels, f"{name}, weight {weight:g}", weight, seed)
    order = {panel: place for place, panel in enumerate(PANELS.values())}
    rows = pd.concat(curves, ignore_index=True)
    rows = rows.sort_values("panel", key=lambda p: p.map(order), kind="stable")
    return Attacked(sorted(recovered, key=lambda r: r.variant), rows)


def class_means(images: Images, classes: Sequence[int]) -> Tensor:
    """Return the mean image of each class, ``[C, c, h, w]``."""
    return torch.stack([images.x[images.y == c].mean(0) for c in classes])


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
    grouped = per_seed.groupby(keys, sort=False)
    mean = grouped[numbers].mean()
    spread = grouped[numbers].std().add_suffix("_sd")
    seeds = grouped["seed"].nunique().rename("seeds")
    return mean.join(spread).join(seeds).reset_index()


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

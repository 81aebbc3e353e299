"""Three attacks on a client of FedMPS (Fig. 11), on both levels and on each alone.

From prototypes without a query (A), from prototypes by queries (B), and, to see what a
single image would give away, from the image's own embedding by queries (C).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from fedlib.attacks import hijack, inversion
from fedlib.papers.fedmps.victim import Images, Victim, query, side_by_side

FEATURES: Mapping[str, tuple[str, ...]] = {
    "Both levels": ("low", "high"),
    "Low level": ("low",),
    "High level": ("high",),
}
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


def note(attack: Attack, seeds: Sequence[int]) -> str:
    """Return what a reader must know of how much was computed."""
    full = Attack()
    parts = [f"{attack.steps:,} of {full.steps:,} steps"]
    parts += [f"batches of {attack.batch}, networks {attack.width} channels wide"]
    parts += [f"{len(seeds)} seed{'s' * (len(seeds) > 1)} of the attacker, one run"]
    return f"attacks: {'; '.join(parts)} (full: {full.batch} and {full.width})"


class Recovered(NamedTuple):
    """What an attack, or a control, made of the codes of some images."""

    variant: str
    features: str
    seed: int
    images: Images
    own: Tensor | None = None  # which private image each is to be, where it is of one


class Attacked(NamedTuple):
    """All that attacks recovered, and how their training went."""

    recovered: list[Recovered]
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

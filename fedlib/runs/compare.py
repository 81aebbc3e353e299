"""How far two logs of a run are apart."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedlib.core.log import NOT_EVALUATED, PER_ROUND, Log


def first(log: Log, rounds: int) -> Log:
    """Return what a log holds of the first rounds, without names that have nothing."""
    evaluations = int((log.evaluated <= rounds).sum())
    shorter = {}
    for name, value in log.flat().items():
        part = value[: rounds if name.partition("/")[0] in PER_ROUND else evaluations]
        if part.numel() and not _absent(part).all():
            shorter[name] = part
    return Log.of(shorter)


def _absent(value: Tensor) -> Tensor:
    """Return where a round or an evaluation does not have a number."""
    return value.isnan() if value.is_floating_point() else value == NOT_EVALUATED


def largest_difference(one: Log, other: Log) -> float:
    """Return how far two logs are apart: 0 where all numbers are the same.

    Real numbers are compared relative to those of ``one``, where these are larger than
    1. Right predictions are compared as a share of all samples of their evaluation. All
    else is counted and not measured: where it differs, where a name is missing or where
    only one log has a number, the difference is infinite.
    """
    left, right = one.flat(), other.flat()
    if left.keys() != right.keys():
        return math.inf
    samples = {"accuracy": one.samples, "full": one.full_samples}
    return max(
        (_apart(n, left[n], right[n], samples) for n in left),
        default=0.0,
    )


def _apart(
    name: str, one: Tensor, other: Tensor, samples: Mapping[str, Tensor]
) -> float:
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    if not torch.equal(_absent(one), _absent(other)):
        return math.inf
    there = ~_absent(one)
    off = torch.where(there, one.to(torch.float64) - other.to(torch.float64), 0).abs()
    if not off.any():
        return 0.0
    if one.is_floating_point():
        scale = torch.where(there, one.to(torch.float64), 0).abs().clamp(min=1)
        return float((off / scale).max())
    group = name.partition("/")[0]
    if group not in samples:
        return math.inf
    return float((off.sum(1) / samples[group].sum(1).clamp(min=1)).max())

"""What is read is checked: the log of a run against its spec, a file against its hash.

A cache, a checkpoint or a published run may come from someone else, or from a disk that
forgets. ``checked_log`` says whether a log can be one of its spec, whoever wrote it;
``seal`` and ``unsealed`` find what changed since we wrote it. Neither tells who wrote
it: a log that is made up with care passes both.
"""

import hashlib
from collections.abc import Mapping
from math import inf
from typing import Any

import torch
from torch import Tensor

from fedlib.core.log import NOT_EVALUATED, Log
from fedlib.core.method import cohort_size
from fedlib.data import DATASETS
from fedlib.runs.spec import Spec

MODELS = ("personal", "global", "received", "ensemble")
SEAL = "sha256"  # the name of the hash among a file's metadata


class StoredError(ValueError):
    """What is on disk is not what a run of its spec writes."""


def _expect(name: str, right: bool, got: object, expected: object) -> None:
    if not right:
        raise StoredError(f"{name}: got {got}, expected {expected}")


def _shaped(name: str, value: Tensor, *sizes: int) -> None:
    got = list(value.shape[: len(sizes)])
    _expect(name, got == list(sizes), f"shape {list(value.shape)}", list(sizes))


def _counts(name: str, value: Tensor, *sizes: int) -> None:
    """Refuse what are not whole numbers of a shape, from ``NOT_EVALUATED`` on."""
    integer = value.dtype == torch.int64
    _expect(name, integer, value.dtype, "whole numbers (int64)")
    _shaped(name, value, *sizes)
    _expect(name, value.ndim == len(sizes), f"{value.ndim} axes", len(sizes))
    low = int(value.min()) if value.numel() else 0
    _expect(name, low >= NOT_EVALUATED, low, "no negative count")


def _whole_rows(name: str, value: Tensor, none: Tensor) -> None:
    """Refuse a row of which some is there and some is not."""
    flat = none.flatten(1)
    mixed = (flat.any(1) & ~flat.all(1)).nonzero().flatten().tolist()
    _expect(name, not mixed, f"row {mixed[:1]} in part", "a row as a whole, or none")


def _right(name: str, right: Tensor, samples: Tensor) -> None:
    """Refuse more right predictions than samples, and models that are none."""
    model, _, rule = name.partition("/")[2].partition("/")
    known = ", ".join(f"{m}/RULE" for m in MODELS)
    _expect(name, model in MODELS and rule.isidentifier(), f"{model}/{rule}", known)
    _counts(name, right, *samples.shape)
    over = right > samples
    if over.any():
        got = f"{int(right[over][0])} right of {int(samples[over][0])} samples"
        raise StoredError(f"{name}: got {got}, expected no more than there are")


def _same_rows(name: str, value: Tensor, none: Tensor) -> None:
    """Refuse rows that differ, of those that are there."""
    there = value[~none.flatten(1).all(1)]
    same = len(there) > 0 and bool((there == there[0]).all())
    _expect(name, same, "others in some rounds", "the same test samples in all")


def _expected_full(spec: Spec) -> int | None:
    """Return how many sets the whole test set is in; None where that is not known."""
    if spec.test == "full":
        return 1
    groups = DATASETS[spec.dataset].groups if spec.dataset in DATASETS else ()
    return len(groups) or None


def evaluations(spec: Spec, rounds: int) -> list[int]:
    """Return which of the first rounds of a spec end with an evaluation."""
    numbers = range(1, rounds + 1)
    return [r for r in numbers if r % spec.eval_every == 0 or r == spec.rounds]


def checked_log(
    spec: Spec,
    flat: Mapping[str, Tensor],
    rounds: int | None = None,
    *,
    term_means: bool = False,
) -> Log:
    """Return the log of stored tensors, if it can be one of a spec.

    Parameters
    ----------
    flat : mapping
        Tensors by the names on disk, as ``Log.flat`` returns them.
    rounds : int, optional
        Those so far, of a run that was cut off; by default the spec's.
    term_means : bool
        Loss terms are means over the cohort, ``[R, 1]``, in place of ``[R, K]``.

    Raises
    ------
    StoredError
        A tensor is missing, unknown, or has another shape or type than a run of
        ``spec``; a count is negative or above the number of samples; a number is
        infinite; rounds, clients or evaluations are others than the spec's. The message
        names the tensor, what came and what was expected.
    """
    try:
        log = Log.of(flat)
    except ValueError as error:
        raise StoredError(str(error)) from None
    rounds = spec.rounds if rounds is None else rounds
    clients, rows = spec.clients, evaluations(spec, rounds)
    size = cohort_size(spec.participation, clients)
    for name in ("cohort", "evaluated", "samples") if rows else ("cohort",):
        _expect(name, name in flat, "nothing", "a tensor")
    _counts("cohort", log.cohort, rounds, size)
    ordered = bool((log.cohort.diff(dim=1) > 0).all())
    _expect("cohort", ordered, "others", "clients of a round once each, in order")
    low, high = int(log.cohort.min()), int(log.cohort.max())
    inside = 0 <= low and high < clients
    _expect("cohort", inside, f"{low} to {high}", f"clients 0 to {clients - 1}")
    _floats(log, rounds, 1 if term_means else size, len(rows))
    _sent("sent", log.sent, rounds)
    _sent("final", log.final, len(rows))
    if rows:
        _counts("evaluated", log.evaluated, len(rows))
        same, every = log.evaluated.tolist() == rows, spec.eval_every
        _expect("evaluated", same, "other rounds", f"those of eval_every={every}")
        _tests(spec, log, len(rows))
    else:
        early = log.evaluated.numel() or log.accuracy or log.full
        _expect("evaluated", not early, "some", "none so early")
    return log


def _sent(group: str, tensors: Mapping[str, Tensor], count: int) -> None:
    """Check numbers of floats and integers: two for a direction and a field."""
    for own, value in tensors.items():
        name = f"{group}/{own}"
        direction, _, field = own.partition("/")
        valid = direction in ("up", "down") and bool(field)
        _expect(name, valid, repr(own), "up/FIELD or down/FIELD")
        _counts(name, value, count, 2)
        _whole_rows(name, value, value < 0)


def _floats(log: Log, rounds: int, size: int, evaluations: int) -> None:
    """Check what is a real number: a loss is one for all of a cohort, or none."""
    for own, value in log.term.items():
        name = f"term/{own}"
        _shaped(name, value, rounds, size)
        real = value.is_floating_point() and value.ndim == 2
        _expect(name, real, f"{value.dtype} {list(value.shape)}", "real numbers")
        _whole_rows(name, value, value.isnan())
    tensors = [(f"server/{n}", v, rounds) for n, v in log.server.items()]
    tensors += [(f"watch/{n}", v, evaluations) for n, v in log.watch.items()]
    for name, value, count in tensors:
        _shaped(name, value, count)
    tensors += [(f"term/{n}", v, rounds) for n, v in log.term.items()]
    for name, value, _ in tensors:
        endless = value.is_floating_point() and bool(value.isinf().any())
        _expect(name, not endless, "an infinite number", "finite ones, or NaN")


def _tests(spec: Spec, log: Log, evaluations: int) -> None:
    """Check right predictions against the numbers of samples that they are of."""
    _counts("samples", log.samples, evaluations, spec.clients)
    _expect("samples", bool((log.samples >= 0).all()), "a negative one", "counts")
    _same_rows("samples", log.samples, log.samples < 0)
    for name, value in log.accuracy.items():
        _right(f"accuracy/{name}", value, log.samples)
    recorded = bool(log.accuracy) or bool(log.full)
    _expect("accuracy", recorded, "none", "right predictions of a model")
    if not log.full and not log.full_samples.numel():
        return
    asked = spec.test in ("full", "groups")
    _expect("full", asked, "some", f"none, since test is {spec.test!r}")
    sets = _expected_full(spec)
    width = log.full_samples.shape[1:] if sets is None else (sets,)
    _counts("full_samples", log.full_samples, evaluations, *width)
    _whole_rows("full_samples", log.full_samples, log.full_samples < 0)
    _same_rows("full_samples", log.full_samples, log.full_samples < 0)
    for name, value in log.full.items():
        _right(f"full/{name}", value, log.full_samples)


def checked_record(spec: Spec, record: Any, format: int) -> dict[str, Any]:
    """Return what stands beside a log, if it is of a spec and a format.

    Raises
    ------
    StoredError
        It is no table, of another format, or its ``spec`` is another; the settings that
        differ are named.
    """
    _expect("record", isinstance(record, dict), type(record).__name__, "a table")
    got = record.get("format")
    _expect("format", got == format, got, format)
    settings = record.get("spec")
    _expect("spec", isinstance(settings, dict), type(settings).__name__, "a table")
    try:  # settings that came since have their defaults
        there = Spec.of(**settings).model_dump()
    except ValueError as error:
        raise StoredError(f"spec: {error}") from None
    other = [name for name, value in spec.model_dump().items() if there[name] != value]
    _expect("spec", not other, f"other settings ({', '.join(other)})", "the run's own")
    return record


def is_timing(content: Any) -> bool:
    """Return whether something read is what a run took."""
    names = ("train_seconds_per_round", "evaluate_seconds_per_round")
    return (
        isinstance(content, dict)
        and all(name in content for name in names)
        and all(isinstance(v, int | float) and 0 <= v < inf for v in content.values())
    )


def seal(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of a file's tensors (names, types, shapes, bits) and text."""
    digest = hashlib.sha256(repr(sorted(metadata.items())).encode())
    for name, value in sorted(tensors.items()):
        facts = (name, str(value.dtype), list(value.shape))
        digest.update(repr(facts).encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def sealed(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> dict[str, str]:
    """Return metadata with the hash of the file that they will stand in."""
    return {**metadata, SEAL: seal(tensors, metadata)}


def unsealed(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], known: tuple[str, ...]
) -> dict[str, str]:
    """Return metadata without their hash, which must be that of the tensors.

    Files of earlier versions have none and are taken as they are.

    Raises
    ------
    StoredError
        A bit is another than was written, or a name is not among ``known``.
    """
    plain = dict(metadata)
    written = plain.pop(SEAL, None)
    for name in plain:
        _expect("metadata", name in known, repr(name), " or ".join(known))
    same = written is None or written == seal(tensors, plain)
    _expect("content", same, "other bits", "those that were written")
    return plain

"""A cache from someone else: what no run of its spec writes is refused by name."""

import pytest
import torch

from fedlib.core.readouts import RULES
from fedlib.runs import runner
from fedlib.runs.checks import (
    StoredError,
    checked_log,
    checked_record,
    sealed,
    unsealed,
)
from fedlib.runs.spec import Spec
from tests.runs.test_runner import small

SPEC = {"rounds": 3, "participation": 0.5, "eval_every": 2, "test": "full"}
FULL = "full/global/head_all"
OWN = "accuracy/personal/head_own"


@pytest.fixture(scope="module")
def spec() -> Spec:
    """Return a run whose log has every group but ``watch`` and ``final``."""
    return small("fedavg", **SPEC)


@pytest.fixture(scope="module")
def stored(spec) -> dict[str, torch.Tensor]:
    """Return its log as it is on disk."""
    return runner.run(spec).log.flat()


def test_a_log_of_its_run_is_taken_and_read_as_it_was(spec, stored):
    assert checked_log(spec, stored).flat().keys() == stored.keys()
    first = {n: v[:1] for n, v in stored.items() if n[:4] in ("coho", "term", "sent")}
    assert checked_log(spec, first, rounds=1).cohort.tolist() == (
        stored["cohort"][:1].tolist()
    )


def changed(name: str, value):
    """Return a change of one tensor; ``value`` is a tensor or made of the old one."""

    def change(flat: dict) -> dict:
        return flat | {name: value(flat[name]) if callable(value) else value}

    return change


def filled(number: float, at=(0, 0)):
    """Return a change of one number."""

    def change(old: torch.Tensor) -> torch.Tensor:
        new = old.clone()
        new[at] = number
        return new

    return change


LOSS = "term/supervised"
HOSTILE = {
    "2,777,778 % accuracy": (FULL, changed(FULL, filled(10_000_000))),
    "one right too many": (OWN, lambda f: f | {OWN: f["samples"] + 1}),
    "a negative count": (OWN, changed(OWN, filled(-7))),
    "a count that is NaN": (OWN, changed(OWN, lambda v: v.double() * float("nan"))),
    "negative samples": ("samples", changed("samples", filled(-1))),
    "samples that change": ("samples", changed("samples", filled(1))),
    "another number of rounds": ("cohort", changed("cohort", lambda v: v[:2])),
    "more rounds": ("cohort", changed("cohort", lambda v: v.repeat(2, 1))),
    "another number of clients": ("samples", changed("samples", lambda v: v[:, :-1])),
    "a client beyond the last": ("cohort", changed("cohort", filled(4, (0, 1)))),
    "a client twice": ("cohort", changed("cohort", lambda v: v[:, :1].expand(-1, 2))),
    "other evaluations": ("evaluated", changed("evaluated", lambda v: v - 1)),
    "no cohort": ("cohort", lambda f: {n: v for n, v in f.items() if n != "cohort"}),
    "no accuracy": (
        "accuracy",
        lambda f: {n: v for n, v in f.items() if n[:4] not in ("accu", "full")},
    ),
    "an infinite loss": (LOSS, changed(LOSS, filled(float("inf")))),
    "a loss of one client alone": (LOSS, changed(LOSS, filled(float("nan")))),
    "losses of whole numbers": (LOSS, changed(LOSS, lambda v: v.long())),
    "losses of another shape": (LOSS, changed(LOSS, lambda v: v[..., None])),
    "a minus in what is sent": (
        "sent/up/",
        lambda f: f | {"sent/up/params": torch.full((3, 2), -5)},
    ),
    "sent nowhere": ("sent/aside", changed("sent/aside/x", torch.zeros(3, 2).long())),
    "two whole test sets": (
        "full",
        lambda f: f | {n: v.repeat(1, 2) for n, v in f.items() if n[:4] == "full"},
    ),
    "a model that is none": (
        "accuracy/divine",
        changed("accuracy/divine/head_all", torch.zeros(2, 4).long()),
    ),
    "a rule that is a path": (
        "accuracy/personal",
        changed("accuracy/personal/../x", torch.zeros(2, 4).long()),
    ),
    "a name of no field": ("bogus", changed("bogus", torch.zeros(1))),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_log_that_no_run_writes_is_refused_by_name(spec, stored, case):
    name, change = HOSTILE[case]
    with pytest.raises(StoredError, match=name.split("/")[0]) as raised:
        checked_log(spec, change(stored))
    assert "got" in str(raised.value)
    assert "expected" in str(raised.value)


def test_a_whole_test_set_is_refused_where_nobody_asked_for_it(spec, stored):
    other = spec.model_copy(update={"test": "clients"})
    with pytest.raises(StoredError, match="full"):
        checked_log(other, stored)


@pytest.mark.parametrize("field", ["rounds", "clients", "participation", "eval_every"])
def test_a_log_is_of_its_spec_alone(spec, stored, field):
    other = spec.model_copy(update={field: {"participation": 1.0}.get(field, 1)})
    with pytest.raises(StoredError):
        checked_log(other, stored)


def test_rules_are_names(stored):
    assert all(rule.isidentifier() for rule in RULES)
    assert OWN in stored


def test_a_record_of_another_spec_or_format_is_refused(spec):
    told = {"format": 1, "spec": spec.model_dump(mode="json")}
    assert checked_record(spec, told, 1) is told
    with pytest.raises(StoredError, match="format: got 2, expected 1"):
        checked_record(spec, told | {"format": 2}, 1)
    with pytest.raises(StoredError, match=r"other settings \(seed\)"):
        checked_record(spec, told | {"spec": told["spec"] | {"seed": 9}}, 1)
    for broken in ([], {"format": 1}, {"format": 1, "spec": "fedavg"}):
        with pytest.raises(StoredError):
            checked_record(spec, broken, 1)


@pytest.mark.parametrize("kind", [torch.float32, torch.int64, torch.bool, torch.uint8])
def test_a_flipped_bit_breaks_the_seal(kind):
    tensors = {"a": torch.ones(3, 2).to(kind), "b": torch.ones(()), "c": torch.ones(0)}
    told = sealed(tensors, {"round": "3"})
    assert unsealed(tensors, told, ("round",)) == {"round": "3"}
    flipped = tensors["a"].clone()
    flipped.view(-1).view(torch.uint8)[-1] ^= 1
    for other in (
        tensors | {"a": flipped},
        tensors | {"a": tensors["a"].reshape(2, 3)},
        {"A": tensors["a"], "b": tensors["b"], "c": tensors["c"]},
    ):
        with pytest.raises(StoredError, match="other bits"):
            unsealed(other, told, ("round",))
    with pytest.raises(StoredError, match="other bits"):
        unsealed(tensors, told | {"round": "2"}, ("round",))


def test_a_seal_under_another_name_is_no_seal():
    told = {"rha256": "0", "round": "1"}
    with pytest.raises(StoredError, match="rha256"):
        unsealed({}, told, ("round",))
    assert unsealed({}, {"round": "1"}, ("round",)) == {"round": "1"}  # of before

"""Settings that nobody would give: refused by name, or a run that plays its round.

``make chaos`` tries many; without it a few stand for them, the same ones each time.
"""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedlib import papers, registry
from fedlib.core import compiled
from fedlib.core.method import NonFiniteError
from fedlib.core.training import Training
from fedlib.data import DataError
from fedlib.partitions import SCHEMES
from fedlib.runs import device, many, runner
from fedlib.runs.spec import Spec
from fedlib.support.paths import ROOT
from tests.conftest import TOY
from tests.runs.test_chaos import CHAOS

bounded = settings(
    max_examples=20 * CHAOS or 12,
    deadline=None,
    derandomize=not CHAOS,
    suppress_health_check=[*HealthCheck],
)

ODD: list[Any] = [None, True, "", "abc", "1e3", -1, 0, 1, 2, 3, 0.5, 1e-9, 1e9, 1e300]
ODD += [float("nan"), float("inf"), [], [1], {}, {"a": 1}, 2**70, "0", "no", "é\n"]
VALUES = st.sampled_from(ODD)
REFUSED = (ValueError, DataError, NonFiniteError)  # SettingError is a ValueError


def some(names: list[str], most: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), VALUES, max_size=most)


@st.composite
def changes(draw) -> tuple[str, dict[str, Any]]:
    """Return a method and changes of its setting, most of them out of range."""
    method = draw(st.sampled_from(list(registry.METHODS)))
    scheme = draw(st.sampled_from(list(SCHEMES)))
    own = list(registry.method(method).hp.model_fields)
    plain = ["participation", "imbalance", "seed", "min_count", "test", "eval_every"]
    plain += ["partition_seed", "embedding", "transform", "clients", "net"]
    found = draw(some(plain, 2))
    found["hp"] = TOY.get(method, {}) | draw(some([*own, "nonsense"]))
    found["training"] = draw(some([*Training.model_fields, "nonsense"], 2))
    found["partition"] = {"scheme": scheme} | draw(
        some([*SCHEMES[scheme].model_fields, "nonsense"], 2)
    )
    return method, found


def told_by_us(error: Exception) -> bool:
    """Return whether the line that raised is the library's own."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return Path(last.filename).is_relative_to(ROOT / "fedlib")


def named(error: Exception, found: dict[str, Any]) -> bool:
    """Return whether a message names something that was given."""
    inner = [name for part in found.values() if isinstance(part, dict) for name in part]
    return any(name in str(error) for name in [*found, *inner, "loss", "not finite"])


def refusal(work: Callable[..., Any], *args: Any, **named: Any) -> Exception | None:
    """Return what a call is refused with; anything else passes through."""
    try:
        work(*args, **named)
    except REFUSED as error:
        return error
    return None


def long(spec: Spec) -> bool:
    """Return whether a round of a legal spec takes more than a moment."""
    every = [*spec.hp.values(), *spec.training.model_dump().values(), spec.clients]
    return any(isinstance(n, int | float) and n > 50 for n in every)


@bounded
@given(changes())
def test_settings_are_refused_by_name_or_play_a_round(asked):
    method, found = asked
    whole = {"clients": 3, "rounds": 1, "net": "digits_linear"} | found
    error = refusal(papers.fedmps, "digits", method, **whole)
    if error is not None:
        assert told_by_us(error), error
        assert named(error, found), error
        return
    spec = papers.fedmps("digits", method, **whole)
    error = None if long(spec) else refusal(runner.first_rounds, spec, 1)
    assert error is None or told_by_us(error), error


READ = {
    "FEDLIB_DEVICE": device.chosen,
    "FEDLIB_KERNEL": compiled.chosen,
    "FEDLIB_JOBS": many.jobs_of_machine,
}
TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"))


@pytest.mark.parametrize("name", READ)
@bounded
@given(TEXT)
def test_variables_of_the_environment_are_refused_by_name(name, text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, text)
        error = refusal(READ[name])
    assert error is None or (name in str(error) and told_by_us(error)), error


@bounded
@given(st.recursive(VALUES, lambda v: st.dictionaries(st.text(max_size=3), v)))
def test_a_stored_spec_of_anything_is_refused(value):
    with pytest.raises(ValueError, match="Spec"):
        Spec.model_validate(value)

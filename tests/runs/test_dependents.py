"""Which of the real artefacts are stale when one method's file is touched."""

import pytest

from fedlib import registry
from fedlib.rebuild import artefacts, staleness

# Written by hand from the papers' tables; learn/leaderboard has all methods.
USED_BY = {
    "fedntd": {
        *(f"fedmps/{name}" for name in ("fig4", "fig5", "fig6", "fig9")),
        *(f"fedmps/{name}" for name in ("table3", "table5", "table6")),
        *(f"fedpg/{name}" for name in ("fig5", "table1")),
    },
    "fedrcl": {"fedhpro/table1", "fedhpro/table2"},
    "fedgen": {
        *(f"fedpa/{name}" for name in ("communication", "fig4", "table2", "table3")),
        *(f"fedpg/{name}" for name in ("fig5", "table1")),
    },
    "fesem": {"gfpl/fig5", "gfpl/table1"},
    "ccvr": {"fedpg/fig5", "fedpg/table1"},
}


@pytest.fixture(scope="module")
def before() -> dict:
    """Return every artefact with its state."""
    prepared = [artefacts.prepare(name, "quick") for name in artefacts.names()]
    return {each.name: (each, staleness.state(each)) for each in prepared}


def test_touching_methods_makes_their_artefacts_stale_and_no_other(before, edit):
    """Of all that are touched, each is seen in the artefacts that use it."""
    modules = {registry.module(method): method for method in USED_BY}
    for module in modules:
        edit(module, 'source="', 'source="By ')
    stale: dict[str, set[str]] = {method: set() for method in USED_BY}
    for name, (each, old) in before.items():
        now = staleness.state(each)
        then = old["sources"]
        assert now["sources"].keys() == then.keys()
        touched = {part for part, code in now["sources"].items() if code != then[part]}
        assert bool(touched) == (now != old), name
        for part in touched:
            module = part.removesuffix(".(import)").removesuffix(".METHOD")
            stale[modules[module]].add(name)
    assert stale == {m: used | {"learn/leaderboard"} for m, used in USED_BY.items()}


def test_what_an_artefact_does_not_use_leaves_it_current(before, edit):
    edit(registry.module("fedntd"), "METHOD = ", "MORE = 1\n\nMETHOD = ")
    edit("fedlib.papers.fedhpro.presets", "PRESETS", "MORE = 1\nPRESETS")
    assert all(staleness.state(each) == old for each, old in before.values())

"""Every figure and table that the papers print is somewhere, or named with a reason."""

import re

import pytest

from fedlib.rebuild import artefacts, printed
from fedlib.runs.spec import SettingError

# Figures and tables of each paper, as its last captions are numbered.
PRINTED = {
    "gfpl": (7, 3),
    "fedpa": (5, 5),
    "fedmps": (11, 7),
    "fedhpro": (4, 6),
    "fedpg": (8, 3),
}


@pytest.mark.parametrize("paper", PRINTED)
def test_every_printed_number_is_somewhere_and_nothing_twice(paper):
    figures, tables = PRINTED[paper]
    every = {f"{paper}/fig{i + 1}" for i in range(figures)}
    every |= {f"{paper}/table{i + 1}" for i in range(tables)}
    here, other = {*artefacts.names()}, {*printed.elsewhere()}
    assert every <= here | other
    assert not here & other
    numbered = re.compile(rf"{paper}/(fig|table)\d+$")
    assert {name for name in here | other if numbered.match(name)} == every


def test_what_stands_in_another_notebook_stands_there():
    for name, found in printed.elsewhere().items():
        assert found.why, name
        assert not found.instead or found.instead in artefacts.names()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedpa/fig5", "fedpa/fig5 is in fedpa/table5 "),
        ("fedmps/fig2", "fedmps/fig2 has no notebook: a diagram of the method"),
        ("fedhpro/table4", "has no notebook: not in our copy of the paper"),
        ("fedpa/table33", "did you mean 'fedpa/table3'"),
        ("fedpa/fig11", "did you mean 'fedpa/"),
    ],
)
def test_a_name_without_a_notebook_is_told_where_it_is(name, words):
    with pytest.raises(SettingError, match=words):
        artefacts.select([name])


def test_a_title_begins_with_the_printed_number():
    assert printed.title("fedpa/table4").startswith("FedPA, Table IV: what ")

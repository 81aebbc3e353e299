"""A card's table of readings says what the class does, switch by switch."""

import re

import pytest

from fedlib import registry

CARDS = [
    name
    for name in registry.METHODS
    if "variant" in registry.method(name).hp.model_fields
]


def table(name: str) -> dict[str, tuple[str, str]]:
    """Return the rows of a card's table: switch -> (paper, released)."""
    card = registry.method(name).init.__globals__["__doc__"].split("\nReadings\n")[1]
    rows = re.findall(
        r"^    ([^|\n]+)\|([^|\n]+)\|([^|\n]+)\|([^|\n]+)\|([^|\n]+)$", card, re.M
    )
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells[0] == ["term", "switch", "paper", "released", "released in"]
    assert all(cell for row in cells for cell in row)
    found = {switch: (paper, released) for _, switch, paper, released, _ in cells[1:]}
    assert len(found) == len(cells) - 1
    return found


@pytest.mark.parametrize("name", CARDS)
def test_the_table_of_readings_is_that_of_the_class(name):
    fields = registry.method(name).hp.model_fields
    released = registry.method(name).init.__globals__["REFERENCE"]
    wanted = {k: (str(fields[k].default), str(v)) for k, v in released.items()}
    assert table(name) == wanted

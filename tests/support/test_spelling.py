"""Names that somebody meant."""

import pytest

from fedlib import papers
from fedlib.support.spelling import closest, hint

KNOWN = ["fedmps", "fedavg", "Local"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("FedMPS", "fedmps"), ("fedmp", "fedmps"), ("LOCAL", "Local"), ("zzz", None)],
)
def test_the_closest_name_is_found_whatever_its_case(name, meant):
    assert closest(name, KNOWN) == meant
    assert hint(name, KNOWN) == (f"; did you mean {meant!r}?" if meant else "")


def test_methods_and_data_sets_are_suggested():
    with pytest.raises(ValueError, match=r"did you mean 'fedmps'\?"):
        papers.fedmps("digits", "FedMPS")
    with pytest.raises(ValueError, match=r"did you mean 'digits'\?"):
        papers.fedmps("Digits", "fedmps")

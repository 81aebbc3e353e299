"""What replays and other tests in exact arithmetic take."""

from collections.abc import Iterator

import pytest
import torch

from tests.methods.replay import Gaps


@pytest.fixture
def float64() -> Iterator[None]:
    """Compute in float64, where Adam does not act on rounding and no ReLU flips."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def gaps(record_property) -> Gaps:
    """Return what collects a replay's largest differences."""
    return Gaps(record_property)

"""Shares of a number of things, where floats are a little off."""


def share_of(count: int, share: float) -> float:
    """Return ``share * count`` as on paper: 0.29 of 50 is 14.5, not a little less."""
    return round(share * count, 9)

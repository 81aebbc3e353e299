"""Which known name somebody meant."""

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is spelt most like one, whatever its case, or None.

    Tables print names in another case (FedMPS) than they are asked for by (fedmps).
    """
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), by_lower, 1)
    return by_lower[close[0]] if close else None


def hint(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'fedmps'?`` for a close name, else nothing."""
    close = closest(name, known)
    return f"; did you mean {close!r}?" if close else ""

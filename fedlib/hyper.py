"""Hyper-parameters that exist in two variants: as published and as released."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

Variant = Literal["paper", "reference"]


def fill_variant(reference: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return a validator that completes ``variant="reference"`` by released values.

    Parameters
    ----------
    reference : mapping
        Name of a switch -> what the released code does. A switch that is given
        explicitly keeps its value; the defaults of the model are the paper's.
    """

    def fill(values: Any) -> Any:
        if isinstance(values, dict) and values.get("variant") == "reference":
            return {**reference, **values}
        return values

    return fill

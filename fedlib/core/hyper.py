"""Hyper-parameters: what all have in common, and those that exist in two variants."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Variant = Literal["paper", "reference"]  # as published, as released


class HyperParameters(BaseModel):
    """Checked when they are made, never changed; an unknown name is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def fill_variant(
    reference: Mapping[str, Any], **others: Mapping[str, Any]
) -> Callable[[Any], Any]:
    """Return a validator that completes ``variant="reference"`` by released values.

    Parameters
    ----------
    reference : mapping
        Name of a switch -> what the released code does. A switch that is given
        explicitly keeps its value; the defaults of the model are the paper's.
    **others : mapping
        The same for further variants, by their names.
    """
    released = {"reference": reference, **others}

    def fill(values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("variant"), str):
            return {**released.get(values["variant"], {}), **values}
        return values

    return fill

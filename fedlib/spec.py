"""The settings of a run: frozen, validated before any work starts."""

import difflib
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from fedlib.local import Training
from fedlib.registry import method as method_record

Settings = TypeVar("Settings", bound=BaseModel)


class SettingError(ValueError):
    """A setting is unknown, of the wrong type or out of range."""


def suggestion(name: str, known: list[str]) -> str:
    """Return ``; did you mean 'rounds'?`` for a close name, else the known ones."""
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {known}"


def validated(model: type[Settings], values: dict[str, Any]) -> Settings:
    """Return a settings model, with text such as ``"1e-3"`` or ``"false"`` coerced.

    Raises
    ------
    SettingError
        Naming each argument, what came and what was expected; for an unknown name the
        closest known one.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            name = ".".join(str(part) for part in problem["loc"])
            if problem["type"] == "extra_forbidden":
                fields = _fields_at(model, problem["loc"][:-1])
                hint = suggestion(str(problem["loc"][-1]), fields)
                lines.append(f"{name}: unknown setting; {hint}")
            else:
                given = (
                    ""
                    if problem["type"] == "missing"
                    else f"got {problem['input']!r}: "
                )
                message = problem["msg"].removeprefix("Value error, ")
                lines.append(f"{name}: {given}{message}" if name else message)
        raise SettingError(f"{model.__name__}: " + "; ".join(lines)) from error


def _fields_at(model: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    """Return the field names of the model found at a location inside ``model``."""
    for part in location:
        inner = model.model_fields[str(part)].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)


class NwayKshot(BaseModel):
    """About ``ways`` classes per client with about ``shots`` samples of each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scheme: Literal["nway_kshot"] = "nway_kshot"
    ways: int = Field(default=3, ge=2)  # n
    shots: int = Field(default=100, ge=1)  # k
    test_shots: int = Field(default=15, ge=1)  # t
    spread: int = Field(default=1, ge=1)  # std
    block: int = Field(default=110, ge=1)  # |A_ij|


class Spec(BaseModel):
    """Everything that determines the numbers of one run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str
    net: str
    method: str
    hp: dict[str, Any] = Field(default_factory=dict, validate_default=True)
    partition: NwayKshot = NwayKshot()
    clients: int = Field(default=20, ge=1)
    participation: float = Field(default=1.0, gt=0, le=1)
    rounds: int = Field(default=100, ge=1)
    training: Training = Training()
    seed: int = Field(default=1234, ge=0, lt=2**32)
    partition_seed: int | None = Field(
        default=None, ge=0, lt=2**32
    )  # None: the run's seed
    eval_every: int = Field(default=1, ge=1)  # rounds; the last one is always evaluated

    @field_validator("method")
    @classmethod
    def _known(cls, name: str) -> str:
        method_record(name)
        return name

    @model_validator(mode="before")
    @classmethod
    def _complete_hp(cls, values: Any) -> Any:
        """Fill in and check the method's hyper-parameters."""
        if isinstance(values, dict) and isinstance(values.get("method"), str):
            hp = method_record(values["method"]).hp
            given = values.get("hp")
            given = {} if given is None else given
            if isinstance(given, dict):
                return {**values, "hp": validated(hp, given).model_dump()}
        return values

    @classmethod
    def of(cls, **values: Any) -> "Spec":
        """Build a spec with readable errors (``SettingError``)."""
        return validated(cls, values)

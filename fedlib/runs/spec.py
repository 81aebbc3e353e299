"""The settings of a run: frozen, validated before any work starts."""

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from fedlib.core.net import Precision
from fedlib.core.training import Training
from fedlib.data import Transform
from fedlib.partitions import SCHEMES, NwayKshot, Scheme
from fedlib.registry import method as method_record
from fedlib.runs.withhold import withhold
from fedlib.support.spelling import closest

Settings = TypeVar("Settings", bound=BaseModel)

# Each client's own test shard, the union of the shards, the whole test set, or that of
# each group (domain or user) of the data set
TestData = Literal["clients", "pooled", "full", "groups"]


class SettingError(ValueError):
    """A setting is unknown, of the wrong type or out of range."""


def suggestion(name: str, known: list[str]) -> str:
    """Return ``; did you mean 'rounds'?`` for a close name, else the known ones."""
    close = closest(name, known)
    return f"did you mean {close!r}?" if close else f"expected one of {known}"


def refuse_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a name that nothing would read.

    Raises
    ------
    SettingError
        An unknown name; the closest known one is suggested.
    """
    for name in given:
        if name not in known:
            hint = suggestion(name, list(known))
            raise SettingError(f"{name}: no such setting; {hint}")


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
            shown = [p for p in problem["loc"] if p not in SCHEMES]
            name = ".".join(str(part) for part in shown)
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
        if part in SCHEMES:  # the chosen member of a union
            model = SCHEMES[str(part)]
            continue
        inner = model.model_fields[str(part)].annotation
        if part == "partition":
            continue
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)


class Spec(BaseModel):
    """Everything that determines the numbers of one run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str
    net: str
    method: str
    hp: dict[str, Any] = Field(default_factory=dict, validate_default=True)
    embedding: Literal["unit", "raw"] | None = None  # None: as the net's paper
    partition: Scheme = NwayKshot()
    imbalance: float = Field(default=1.0, ge=1)  # largest over smallest class, in train
    transform: Transform | None = None  # None: the data set's own
    clients: int = Field(default=20, ge=1)
    participation: float = Field(default=1.0, gt=0, le=1)
    rounds: int = Field(default=100, ge=1)
    training: Training = Training()
    precision: Precision = "float32"  # of the nets' products and convolutions
    seed: int = Field(default=1234, ge=0, lt=2**32)
    partition_seed: int | None = Field(
        default=None, ge=0, lt=2**32
    )  # None: the run's seed
    eval_every: int = Field(default=1, ge=1)  # rounds; the last one is always evaluated
    # Rounds between evaluations under all rules, of those that eval_every names and the
    # last; the others are of the paper's model, under what one pass of it gives
    all_rules_every: int = Field(default=10, ge=1)
    test: TestData = "clients"  # what the reported accuracy is measured on
    min_count: int = Field(
        default=1, ge=1
    )  # clients keep back classes of fewer samples

    @field_validator("method")
    @classmethod
    def _known(cls, name: str) -> str:
        method_record(name)
        return name

    @model_validator(mode="after")
    def _withholds(self) -> "Spec":
        if self.min_count > 1:
            withhold(method_record(self.method), self.min_count)
        return self

    @model_validator(mode="before")
    @classmethod
    def _complete_hp(cls, values: Any) -> Any:
        """Name the scheme; fill in and check the method's hyper-parameters."""
        if not isinstance(values, dict):
            return values
        drawn = values.get("partition")
        if isinstance(drawn, dict) and "scheme" not in drawn:
            values = {**values, "partition": {"scheme": "nway_kshot", **drawn}}
        if isinstance(values.get("method"), str):
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
